"""What a run of each mix, and the scrapes beside it, say of KV memory: shares, verdicts, figures, words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from loadgen.analysis.class_compare import Estimate
from loadgen.analysis.kv_blocks import (
    MARGIN_NS,
    Present,
    Scrapes,
    by_request,
    present_at,
    prompt_tokens,
    ratio,
    read_scrapes,
    unused,
)
from loadgen.analysis.load import load_run
from loadgen.analysis.metrics import asked_of_endpoint
from loadgen.analysis.rows import Floats, Rows
from loadgen.errors import ExitCode
from loadgen.record import Outcome
from scenarios.finding import Finding, Number
from scenarios.sending import Sent

Json = dict[str, Any]
UNIFORM, MIXED = "uniform", "mixed"
BLOCK_SIZES = (1, 8, 16, 32, 64, 128, 256)
"""Of which the records can say what they would leave unused."""
AS_EXPECTED = 0.05
"""The server's blocks may differ by this share from the whole blocks of what its requests hold."""
CACHED = 0.01
SILENT = "the server does not say: its /metrics page has no KV block counters"


@dataclass(frozen=True)
class Mix:
    """One mix's run: its records, the scrapes beside it and, where the counters are there, what stood in memory."""

    rows: Rows
    scrapes: Scrapes
    block_size: int | None
    present: Present | None

    def of(self, column: str) -> Floats:
        """A column of the scrapes that may be compared: ``held``, ``requests``, ``tokens``, ``whole``."""
        assert self.present is not None
        chosen = self.present.settled & (self.present.requests > 0) & ~np.isnan(self.scrapes.held)
        values: Floats = (self.scrapes.held if column == "held" else getattr(self.present, column))[chosen]
        return values


def mix_of(directory: Path, scraped: Path, settings: Mapping[str, Any]) -> Mix:
    """Read both files."""
    found = load_run(directory)
    scrapes = read_scrapes(scraped, int(found.document["t0_ns"]))
    size = scrapes.block_size or settings["block_size"]
    margin = 0 if settings["virtual"] else MARGIN_NS
    present = present_at(found.rows, scrapes, size, margin) if scrapes.says and size else None
    return Mix(found.rows, scrapes, size, present)


def judge(sent: Mapping[str, Sent], out: Path, settings: Mapping[str, Any]) -> Finding:
    """The finding out of the runs and the scrapes in *out* beside them."""
    mixes = {name: mix_of(one.directory, out / f"kv-{name}.jsonl", settings) for name, one in sent.items()}
    seen = max([longest_of(mix.rows) for mix in mixes.values()], default=0)
    max_len = settings["max_len"] or seen
    answer: Json = {"material": settings["material"], "max_len": max_len}
    numbers: dict[str, Number] = {}
    why_not, notes, words = [], [], []
    if seen > max_len:
        why_not.append(f"max_len is {max_len}, and a request of {seen} tokens was answered")
    for name, one in sent.items():
        mix, estimates = mixes[name], estimates_of(mixes[name], max_len)
        answer[name] = answer_of(mix, estimates, settings["material"])
        numbers |= {f"{key}_{name}": n for key, n in numbers_of(mix, estimates, max_len).items()}
        why_not += [f"{name}: {reason}" for reason in (*one.summary["validity"]["reasons"], *against(mix))]
        notes += [f"{name}: {note}" for note in notes_of(mix)]
        words.append(in_words(name, answer[name], estimates))
    cut = [name for name, one in sent.items() if one.code == ExitCode.INTERRUPTED]
    why_not += [f"{name}: interrupted before the load was over" for name in cut]
    why_not += [] if MIXED in sent else ["interrupted before the mixed lengths were sent"]
    runs = tuple(one.directory.name for one in sent.values())
    return Finding(answer, " ".join(words), numbers, tuple(why_not), tuple(notes), runs,
                   tuple(one.code for one in sent.values()))  # fmt: skip


def longest_of(rows: Rows) -> int:
    """Tokens of the longest answered request, its answer included, as the server counted them."""
    tokens = (prompt_tokens(rows) + rows.number("n_output"))[rows.outcome(Outcome.OK)]
    return int(np.nanmax(tokens)) if not np.isnan(tokens).all() else 0


def estimates_of(mix: Mix, max_len: int) -> dict[str, Estimate]:
    """Shares by name: of what the records say (by request), and of what the server says (by scrape)."""
    used, held, steps = by_request(mix.rows, mix.block_size or 1)
    found = {"unused_reserved": unused(ratio(used, steps * max_len, "requests"))}
    if mix.block_size:
        found["unused_whole_blocks"] = unused(ratio(used, held, "requests"))
    if mix.present is not None and mix.block_size:
        held = mix.of("held")
        found["unused_held"] = unused(ratio(mix.of("tokens"), held * mix.block_size, "scrapes"))
        found["held_over_whole_blocks"] = ratio(held, mix.of("whole"), "scrapes")
    return found


def answer_of(mix: Mix, estimates: Mapping[str, Estimate], material: float) -> Json:
    """Verdicts: on the whole blocks' share, on the server's, and whether the one explains the other."""
    sizes = {str(size): by_request(mix.rows, size)[:2] for size in BLOCK_SIZES}
    over = estimates.get("held_over_whole_blocks")
    return {
        "block_size": mix.block_size,
        "whole_blocks": amount(estimates.get("unused_whole_blocks"), material) or "block size not known",
        "server": amount(estimates.get("unused_held"), material) or "the server does not say",
        "server_holds": "the server does not say" if over is None else explained(over),
        "unused_by_block_size": {
            size: float(1 - used.sum() / held.sum()) if held.sum() else None
            for size, (used, held) in sizes.items()
        },
    }


def amount(share: Estimate | None, material: float) -> str | None:
    """``much`` or ``little`` where the whole interval lies beyond or below the material share."""
    if share is None:
        return None
    if share.low is None or share.high is None or share.low < 0:  # below 0: blocks are shared
        return "cannot tell"
    return "much" if share.low > material else "little" if share.high < material else "cannot tell"


def explained(over: Estimate) -> str:
    """Whether the server holds what whole blocks of its requests' tokens are."""
    if over.low is None or over.high is None:
        return "cannot tell"
    if over.low > 1 + AS_EXPECTED:
        return "more than whole blocks"
    if over.high < 1 - AS_EXPECTED:
        return "less than whole blocks"
    near = over.low > 1 - AS_EXPECTED and over.high < 1 + AS_EXPECTED
    return "whole blocks" if near else "cannot tell"


MEANINGS = {
    "unused_whole_blocks": "of whole blocks for the requests' tokens, the share that no token fills (records)",
    "unused_held": "of what the server says it holds, the share that no token fills; as much concurrency is lost",
    "held_over_whole_blocks": "blocks that the server holds over whole blocks of its requests' tokens",
    "unused_reserved": "of a contiguous reservation of max_len for each request, the share that no token fills",
}


def numbers_of(mix: Mix, estimates: Mapping[str, Estimate], max_len: int) -> dict[str, Number]:
    """All figures of one mix."""
    missing = "block size not known: --set block_size=N" if not mix.block_size else silence(mix)
    found = {}
    for key, meaning in MEANINGS.items():
        one = estimates.get(key)
        if one is None:
            found[key] = Number(None, "ratio", meaning, why=missing)
        else:
            value = None if np.isnan(one.value) else one.value
            found[key] = Number(value, "ratio", meaning, one.low, one.high, one.why)
    means = {key: _mean(mix, key) for key in ("requests", "tokens", "whole", "held")}
    size, blocks = mix.block_size, mix.scrapes.blocks
    known = mix.present is not None and means["held"] is not None
    no_scrape = silence(mix) if mix.present is None else "no scrape may be compared"
    within = "mean of the scrapes compared; no interval: the shares have one"
    for key, value, words in (
        ("blocks_needed", means["tokens"] / size if known and size else None, "blocks' worth of tokens"),
        ("blocks_whole", means["whole"] if known else None, "whole blocks for those tokens"),
        ("blocks_held", means["held"] if known else None, "blocks in use by the server's counters"),
    ):
        found[key] = Number(value, "blocks", words, why=within if known else no_scrape)
    each = {
        "fits_by_need": means["tokens"] / means["requests"] if known else None,
        "fits_by_held": means["held"] * size / means["requests"] if known and size else None,
        "fits_reserved": float(max_len),
    }
    for key, tokens in each.items():
        room = blocks * size / tokens if blocks and size and tokens else None
        why = "no interval: the shares have one" if room is not None else no_scrape
        found[key] = Number(room, "requests", "such requests that the server's blocks have room for", why=why)
    return found


def _mean(mix: Mix, column: str) -> Any:
    values = mix.of(column) if mix.present is not None else np.zeros(0)
    return float(values.mean()) if len(values) else None


def silence(mix: Mix) -> str:
    """Why nothing is known of the server's blocks."""
    if not len(mix.scrapes.held) and mix.scrapes.failures:
        return f"the server does not say: {mix.scrapes.failures[-1]}"
    return SILENT


def against(mix: Mix) -> list[str]:
    """What makes a comparison one of something else."""
    found = []
    ok, asked = mix.rows.outcome(Outcome.OK), mix.rows.number("n_input_asked")
    if not ok.any():
        found.append("no request was answered")
    else:
        left_out = sorted(set(asked[mix.rows.has("sent_ns")]) - set(asked[ok]))
        found += [f"no prompt of {length:.0f} tokens was answered: it is in no share" for length in left_out]
    before = mix.scrapes.held[mix.scrapes.end_ns < 0][
        -1:
    ]  # earlier ones may see the run's own first questions
    if (before > 0).any():
        found.append(f"{before[0]:.0f} blocks were held before anything was sent: others use the server")
    return found


def notes_of(mix: Mix) -> list[str]:
    """What else a reader must know."""
    found = []
    if mix.present is not None:
        compared = f"{len(mix.of('held'))} of {len(mix.scrapes.held)} scrapes"
        found.append(f"{compared} are compared: in the others a prompt was on its way, or an answer ended")
    if mix.scrapes.failures:
        found.append(f"{len(mix.scrapes.failures)} scrapes failed: {mix.scrapes.failures[-1]}")
    asked = asked_of_endpoint(mix.rows)
    failed = int((asked & ~mix.rows.outcome(Outcome.OK)).sum())
    if failed:
        found.append(f"{failed} of {int(asked.sum())} requests failed: they are in no share of the records")
    cached = np.nansum(mix.rows.number("n_cached")[asked])
    prompt = np.nansum(mix.rows.number("n_input")[asked])
    if prompt and cached / prompt > CACHED:
        found.append(
            f"{cached / prompt:.1%} of the prompt tokens came from the prefix cache: a shared block is held once"
        )
    if mix.scrapes.preempted:
        found.append(
            f"{mix.scrapes.preempted:.0f} preemptions: what was preempted holds nothing until it is back"
        )
    return found


HELD = {
    "unused_held": "of what the server says it holds",
    "unused_whole_blocks": "of whole blocks",
    "unused_reserved": "of a reservation of the longest request",
}


def in_words(name: str, answer: Json, estimates: Mapping[str, Estimate]) -> str:
    """One mix in a sentence or two."""
    said = [f"{_span(estimates[key])} {held}" for key, held in HELD.items() if key in estimates]
    words = f"{name}: unused are {', '.join(said)}."
    if "held_over_whole_blocks" not in estimates:
        return f"{words} The server does not say what it holds."
    return f"{words} The server holds: {answer['server_holds']}; unused of it: {answer['server']}."


def _span(one: Estimate) -> str:
    if np.isnan(one.value):
        return str(one.why)
    if one.low is None or one.high is None:
        return f"{one.value:.1%} ({one.why})"
    return f"{one.value:.1%} [{one.low:.1%}, {one.high:.1%}]"
