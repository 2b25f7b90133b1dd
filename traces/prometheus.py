"""Rate and length models from vLLM's exported histograms, where there is no log.

Input: text expositions (scrapes) in order with the seconds between them, or the JSON of a Prometheus
range query. Counters only grow; a restart (a smaller value) starts them anew. From two scrapes come the
mean rate and the lengths' histograms; burstiness needs a series of counts, hence ten or more scrapes.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from traces.errors import TraceError
from traces.fitting import NegativeBinomial, negative_binomial
from traces.stats import Floats, idc_of

PROMPT, GENERATION = "vllm:request_prompt_tokens", "vllm:request_generation_tokens"
LEAST_SCRAPES = 10
_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+(-?\d+))?\s*$", re.ASCII)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True)
class Histogram:
    """Counts of each bin (not cumulative) with its upper edges; the last may be infinite."""

    upper: tuple[float, ...]
    counts: tuple[float, ...]
    total: float
    sum: float

    def mean(self) -> float:
        """The exact mean, from the exported sum."""
        return self.sum / self.total

    def lognormal(self) -> tuple[float, float, float]:
        """(mean, cv, KS distance at the edges) of a lognormal by interval-censored maximum likelihood."""
        from scipy.optimize import minimize
        from scipy.stats import norm

        edges = np.log(np.array([u for u in self.upper if u < inf and u > 0]))
        count = np.array(self.counts)
        lead = count.size - edges.size - (1 if self.upper[-1] == inf else 0)
        count = np.concatenate(([count[: lead + 1].sum()], count[lead + 1 :]))

        def shares(x: Floats) -> Floats:
            cdf = norm.cdf((edges - x[0]) / np.exp(x[1]))
            top = 1.0 if self.upper[-1] == inf else cdf[-1]
            return np.asarray(np.diff(np.concatenate(([0.0], cdf, [top]))))[: count.size]

        def minus(x: Floats) -> float:
            return -float(count @ np.log(np.maximum(shares(x), 1e-12)))

        best = minimize(minus, np.array([np.log(max(self.mean(), 1.0)), 0.0]), method="Nelder-Mead")
        sigma = float(np.exp(best.x[1]))
        mean = float(np.exp(best.x[0] + sigma**2 / 2))
        distance = np.abs(np.cumsum(shares(best.x)) - np.cumsum(count) / count.sum()).max()
        return mean, float(np.expm1(sigma**2) ** 0.5), float(distance)


@dataclass(frozen=True)
class Exported:
    """What the export tells. ``counts`` are requests finished in each interval of ``interval_s``."""

    span_s: float
    requests: float
    rate_per_s: float
    prompt: Histogram
    generation: Histogram
    interval_s: float
    counts: tuple[float, ...]
    idc: float | None
    negative_binomial: NegativeBinomial | None
    not_identified: dict[str, str]


def scrape(text: str) -> dict[tuple[str, float | None], float]:
    """{(metric, le): value} of a text exposition, added over all other labels."""
    found: dict[tuple[str, float | None], float] = {}
    for line in text.splitlines():
        match = _SAMPLE.match(line)
        if match is None or line.startswith("#"):
            continue
        name, labels, value = match.group(1), dict(_LABEL.findall(match.group(2) or "")), match.group(3)
        if not name.startswith((PROMPT, GENERATION)):
            continue
        try:
            key = (name, float(labels["le"]) if "le" in labels else None)
            found[key] = found.get(key, 0.0) + float(value)
        except ValueError:
            continue
    return found


def range_query(data: Any) -> tuple[list[dict[tuple[str, float | None], float]], list[float]]:
    """(scrapes, instants s) of a range query's answer (a matrix). Raises TraceError."""
    try:
        series = data["data"]["result"]
        instants = sorted({float(t) for one in series for t, _ in one["values"]})
        scrapes: list[dict[tuple[str, float | None], float]] = [{} for _ in instants]
        index = {t: i for i, t in enumerate(instants)}
        for one in series:
            metric = one["metric"]
            key = (str(metric["__name__"]), float(metric["le"]) if "le" in metric else None)
            for t, value in one["values"]:
                at = scrapes[index[float(t)]]
                at[key] = at.get(key, 0.0) + float(value)
    except (KeyError, TypeError, ValueError) as error:
        raise TraceError(f"not the JSON of a Prometheus range query: {error!r}") from None
    return scrapes, instants


def read(paths: Sequence[Path], interval_s: float | None) -> Exported:
    """The export of scrapes in order, ``interval_s`` apart, or of a range query's JSON. Raises TraceError."""
    texts = []
    for path in paths:
        try:
            texts.append(path.read_text())
        except (OSError, UnicodeDecodeError) as error:
            raise TraceError(f"{path}: {error}") from None
    if len(texts) == 1 and texts[0].lstrip().startswith("{"):
        try:
            return exported(*range_query(orjson.loads(texts[0])))
        except orjson.JSONDecodeError as error:
            raise TraceError(f"{paths[0]}:{error.lineno}: not JSON: {error.msg}") from None
    if len(texts) < 2 or interval_s is None or not interval_s > 0:
        raise TraceError("needs two or more scrapes and the seconds between them, or a range query's JSON")
    return exported([scrape(text) for text in texts], [i * interval_s for i in range(len(texts))])


def exported(scrapes: list[dict[tuple[str, float | None], float]], instants: list[float]) -> Exported:
    """Growth between the scrapes. Raises TraceError where vLLM's histograms are not there or stand still."""
    if len(scrapes) < 2:
        raise TraceError("needs two scrapes: a counter alone has no rate")
    keys = {key for one in scrapes for key in one}
    if not any(name == f"{PROMPT}_bucket" for name, _ in keys):
        raise TraceError(f"no {PROMPT}_bucket in it: not an export of vLLM's")
    growth = {
        key: [_grown(a.get(key, 0.0), b.get(key, 0.0)) for a, b in itertools.pairwise(scrapes)]
        for key in keys
    }
    counts = growth.get((f"{PROMPT}_count", None)) or growth[(f"{PROMPT}_bucket", inf)]
    span_s, requests = instants[-1] - instants[0], sum(counts)
    if span_s <= 0 or requests <= 0:
        raise TraceError("no request finished between the scrapes")
    totals = {key: sum(values) for key, values in growth.items()}
    why: dict[str, str] = {}
    binomial, dispersion = None, None
    whole = np.rint(np.array(counts)).astype(np.int64)
    if len(counts) < LEAST_SCRAPES:
        why["burstiness"] = f"{len(counts)} intervals; a dispersion needs {LEAST_SCRAPES} or more"
    else:
        dispersion, interval = idc_of(whole), span_s / len(counts)
        binomial = negative_binomial(whole, interval)
        if binomial.r is None:
            why["r"] = "the counts spread no more than Poisson's"
    return Exported(
        span_s,
        requests,
        requests / span_s,
        _histogram(totals, PROMPT),
        _histogram(totals, GENERATION),
        span_s / len(counts),
        tuple(counts),
        dispersion,
        binomial,
        why,
    )


def _grown(before: float, after: float) -> float:
    return after - before if after >= before else after


def _histogram(totals: dict[tuple[str, float | None], float], name: str) -> Histogram:
    pairs = sorted(
        (le, value) for (metric, le), value in totals.items() if metric == f"{name}_bucket" and le is not None
    )
    if not pairs or pairs[-1][1] <= 0:
        raise TraceError(f"no {name}_bucket that grew between the scrapes")
    cumulative = [value for _, value in pairs]
    counts = [b - a for a, b in zip([0.0, *cumulative], cumulative, strict=False)]
    total = totals.get((f"{name}_count", None), cumulative[-1])
    return Histogram(
        tuple(le for le, _ in pairs), tuple(counts), total, totals.get((f"{name}_sum", None), 0.0)
    )
