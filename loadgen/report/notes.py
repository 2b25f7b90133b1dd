"""The report's sentences: the verdict in words, and how each figure is computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from loadgen.report.terminal import SIMULATED, attainment_words, limit_words, number, steady_words

Json = dict[str, Any]

METHOD_NOTES = (
    "Instants come from one monotonic clock a host. TTFT = first content chunk (content, reasoning or tool"
    " call) - first byte of the request written; from due: counted from the schedule's instant, so that"
    " waiting for the generator or a cap is not omitted.",
    "TPOT = (last - first content) / (output tokens - 1): the first token is left out, as in vLLM and"
    " AIPerf; guidellm's includes it. E2E ends at the last content, not when the stream closes.",
    "ICL is the gap between two chunks (vLLM calls it ITL); ITL divides it by the tokens the chunk carries"
    " and counts it once a token.",
    "lag = taken - due - held is the generator's own lateness and alone judges validity.",
    "Inversion: a less urgent request starts service while a more urgent one, sent to the same endpoint already,"
    " still waits. Service starts at sent + the server's queue time where it says one, else, estimated, at the"
    " first token less the prefill time fitted on prompt length. What an urgent request lost counts from the first"
    " start that passed it over to its own.",
    "Requests whose client left as planned are no failures, and count in no service level.",
    "Quantiles are exact, interpolated between order statistics (numpy's default). Failures: a second series"
    " counts every failed request as infinitely slow; rows the generator did not send or lost are left out.",
    "Intervals (95 %): non-overlapping block bootstrap in due order, blocks of at least 5 autocorrelation"
    " times and at least 30 of them; otherwise 'too few'.",
    "Throughput and goodput: counted from the end of warm-up to the last request's end. Their intervals: the same"
    " bootstrap over 600 equal spans of that time; they say what another stretch of such traffic would give.",
    "Not steady: the beginning (or end) of the run whose cutting off leaves the smallest standard error of the rest"
    " (MSER), if TTFT there differs by 4 standard errors and 10 %. It is shown, not cut: --warmup leaves it out.",
    "CV over gaps with ddof 0; IDC(w) = variance / mean of counts in whole windows of w from the first"
    " arrival.",
)


@dataclass(frozen=True)
class Verdict:
    """The run in words: a heading, whether that is good or bad news or a warning (``warn``), and what supports it."""

    head: str
    kind: str
    lines: tuple[str, ...]


def verdict_words(summary: Json) -> Verdict:
    """Valid? SLO kept? What limits?"""
    validity, gates = summary["validity"], summary["gates"]
    failed = [gate for gate in gates if not gate["passed"]]
    lines = [*validity["reasons"]]
    if summary["simulated"]:
        lines.insert(0, f"Simulated: {SIMULATED}")
    if validity["valid"] is None:
        head = f"Read from a file of {summary['peer']['tool']}: its validity cannot be judged"
    elif not validity["valid"]:
        head = "Invalid: draw no conclusions from this run"
    elif failed:
        head = f"Valid, but {len(failed)} of {len(gates)} gates failed"
    elif gates:
        head = "Valid, and every gate passed"
    elif summary["simulated"]:
        head = "The simulation is whole; it is as true as its model"
    else:
        head = "Valid: the generator kept to the schedule and its files are whole"
    if summary.get("cut_age"):
        lines.append(summary["cut_age"]["in_words"])
    lines += [f"{stop}: {why}" if why else stop for stop, why in summary["stops"].items()]
    lines += [_gate_words(gate) for gate in gates]
    if summary["attainment"] is not None:
        lines.append(f"{attainment_words(summary)} of the requests met every bound of their SLO")
    lines.append(
        f"{number(summary['completed'])} of {number(summary['scheduled'])} requests succeeded, "
        f"{number(summary['request_throughput'])} a second; TTFT p50 {number(summary['median_ttft_ms'])} ms, "
        f"p99 {number(summary['p99_ttft_ms'])} ms"
    )
    lines += steady_words(summary)
    lines.append(limit_words(summary.get("limits")))
    kind = "bad" if validity["valid"] is False or failed else "warn" if validity["valid"] is None else "good"
    return Verdict(head, kind, tuple(lines))


def caption_of_time(summary: Json) -> str:
    """What the percentile-over-time chart shows, in words."""
    measured = summary["measured"]
    caption = "TTFT of the requests due in each interval."
    if measured["warmup_rows"]:
        caption += f" Shaded: warm-up, {measured['warmup_rows']} rows left out of the figures."
    else:
        caption += " No warm-up was stated: the figures hold every request."
    steady = [f"{words}." for words in steady_words(summary)]
    if any(summary["steady_state"][end] for end in ("beginning", "end")):
        caption += " Tinted, at a dashed line: found not steady."
    elif not steady:
        caption += " Looked for a beginning or an end that differs from the rest: none found."
    if measured["drain_s"]:
        caption += f" The last answer ended {number(measured['drain_s'])} s after the last request was due."
    return " ".join([caption, *steady])


def _gate_words(gate: Json) -> str:
    word = "kept" if gate["passed"] else "broken"
    if "value_ms" in gate:
        value = "reached by failures" if gate["value_ms"] is None else f"{number(gate['value_ms'])} ms"
        return f"{gate['gate']} is {word} ({value})"
    return f"{gate['gate']} is {word} ({gate.get('why') or number(gate['value'])})"
