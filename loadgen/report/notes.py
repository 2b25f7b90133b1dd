"""The report's sentences: the verdict in words, and how each figure is computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from loadgen.report.terminal import SIMULATED, attainment_words, number

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
    "Throughput and goodput: counted from the end of warm-up to the last request's end.",
    "CV over gaps with ddof 0; IDC(w) = variance / mean of counts in whole windows of w from the first"
    " arrival.",
)


@dataclass(frozen=True)
class Verdict:
    """The run in words: a heading, whether it is good news, and what supports it."""

    head: str
    good: bool
    lines: tuple[str, ...]


def verdict_words(summary: Json) -> Verdict:
    """Valid? SLO kept? What limits?"""
    validity, gates = summary["validity"], summary["gates"]
    failed = [gate for gate in gates if not gate["passed"]]
    lines = [*validity["reasons"]]
    if summary["simulated"]:
        lines.insert(0, f"Simulated: {SIMULATED}")
    if not validity["valid"]:
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
    lines += _steady_words(summary)
    lines.append("What limits the endpoint cannot be said without samples of its machine")
    return Verdict(head, validity["valid"] and not failed, tuple(lines))


def caption_of_time(summary: Json) -> str:
    """What the percentile-over-time chart shows, in words."""
    measured = summary["measured"]
    caption = "TTFT of the requests due in each interval."
    if measured["warmup_rows"]:
        caption += f" Shaded: warm-up, {measured['warmup_rows']} rows left out of the figures."
    return " ".join([caption, *(f"{words}." for words in _steady_words(summary))])


def _steady_words(summary: Json) -> list[str]:
    found = []
    for end, cut in summary["steady_state"].items():
        if cut:
            side = "Before" if end == "beginning" else "After"
            outside, inside = number(cut["ttft_p50_outside_ms"]), number(cut["ttft_p50_inside_ms"])
            drift = "" if cut["settled"] else ", and it drifts throughout"
            found.append(
                f"{side} {number(cut['at_s'])} s the run is not steady: TTFT p50 {outside} ms against"
                f" {inside} ms{drift} (not left out)"
            )
    return found


def _gate_words(gate: Json) -> str:
    word = "kept" if gate["passed"] else "broken"
    if "value_ms" in gate:
        value = "reached by failures" if gate["value_ms"] is None else f"{number(gate['value_ms'])} ms"
        return f"{gate['gate']} is {word} ({value})"
    return f"{gate['gate']} is {word} ({gate.get('why') or number(gate['value'])})"
