"""The correlation's answers for a person, in the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Json = dict[str, Any]
MOST_PAIRS = 16
COSTS = (
    ("J/request", "j_per_request"),
    ("J/output token", "j_per_output_token"),
    ("SM ms/token", "sm_active_ms_per_output_token"),
    ("tensor ms/token", "tensor_active_ms_per_output_token"),
    ("DRAM ms/token", "dram_active_ms_per_output_token"),
)


def text(found: Json) -> str:
    """The whole report."""
    return "\n".join(_lines(found))


def _lines(found: Json) -> Iterator[str]:
    windows = found["windows"]
    cut = ", ".join(f"{n} {why}" for why, n in windows["cut"].items() if n)
    yield f"{found['answered']} of {found['requests']} requests answered; {found['device'] or 'no device named'}"
    shown = f" (cut: {cut})" if cut else ""
    yield f"{windows['used']} of {windows['n']} windows of {windows['width_s']:g} s used{shown}"
    for clock in found["clock"]:
        offset = f"{clock['offset_ms']:.3f} ms ± {clock['bound_ms']:.3f} (applied)"
        yield f"clock of {clock['agent']}: {'the same clock' if clock['same_clock'] else offset}"
    for part in (_stages, _knee, _matrix, _lags, _regression, _work, _devices, _memory, _missing):
        lines = list(part(found))
        if lines:
            yield ""
            yield from lines


def _stages(found: Json) -> Iterator[str]:
    yield f"{'stage':<14}{'req/s':>7}{'TTFT p50/p95 ms':>18}{'ITL ms':>8}{'SM':>6}{'running':>9}{'waiting':>9}"
    for s in found["stages"]:
        ttft = f"{_n(s['ttft_p50_ms'], 0)}/{_n(s['ttft_p95_ms'], 0)}"
        yield (
            f"{s['stage'][:13]:<14}{_n(s['offered_per_s'], 1):>7}{ttft:>18}{_n(s['itl_p50_ms'], 1):>8}"
            f"{_share(s['sm_active']):>6}{_n(s['engine_running'], 1):>9}{_n(s['engine_waiting'], 1):>9}"
        )
    yield ""
    yield from (f"{s['stage']}: {s['bound']['sentence']}" for s in found["stages"])


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _n(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _knee(found: Json) -> Iterator[str]:
    knee = found["knee"]
    if knee["found"]:
        low, high = knee["bracket_per_s"]
        yield f"saturation knee between {low:.1f} and {high:.1f} requests/s offered"
        also = knee["confirmation"]
        yield (
            f"  below it {_n(also['waiting_below'], 2)} requests waited and {_share(also['completed_ratio_below'])} of "
            f"those offered were done within their stage, beyond it {_n(also['waiting_beyond'], 2)} and "
            f"{_share(also['completed_ratio_beyond'])}"
        )
    else:
        why = "; ".join(f"{name}: {curve['why']}" for name, curve in knee["curves"].items())
        yield f"no saturation knee: {why}"


def _matrix(found: Json) -> Iterator[str]:
    pairs = sorted(found["correlations"], key=lambda p: -abs(p["spearman"]["value"]))[:MOST_PAIRS]
    if pairs:
        yield f"{'goes with':<46}{'Spearman [95 %]':<29}Pearson"
    for pair in pairs:
        name = f"{pair['user']} ~ {pair['server']}"
        yield f"  {name:<44}{_coefficient(pair['spearman']):<29}{pair['pearson']['value']:.2f}"


def _coefficient(one: Json) -> str:
    if "interval" in one:
        return f"{one['value']:.2f} (interval needs {one['need_s']:.0f} s)"
    return f"{one['value']:.2f} [{one['low']:.2f}, {one['high']:.2f}]"


def _lags(found: Json) -> Iterator[str]:
    for one in found["lags"]:
        peak = f"{one['from']} -> {one['to']}: r = {one['peak']:.2f} at {one['peak_s']:+.1f} s"
        if "need_s" in one:
            yield f"{peak}; no claim: insufficient data, {one['need_s']:.0f} s would do"
        elif one["lag_s"] is None:
            yield f"{peak}; no relation beyond chance"
        else:
            yield f"{peak}; lag {one['lag_s']:+.1f} s" + (
                "" if one["lag_s"] else " (no lag that can be told from 0)"
            )


def _regression(found: Json) -> Iterator[str]:
    for one in found["regression"]:
        title = f"TTFT, {one['load']} load, {one['regime']} ({one['requests']} requests)"
        if not one["fitted"]:
            yield f"{title}: {one['why']}"
            continue
        terms = ", ".join(f"{name} {c['ms']:+.3g} ms{_bounds(c)}" for name, c in one["coefficients"].items())
        need = f"; intervals need {one['need_requests']} requests" if "need_requests" in one else ""
        collinear = f"; collinear: {', '.join(one['collinear'])}" if one["collinear"] else ""
        yield f"{title}: {terms}; R² {one['r2']:.2f}{need}{collinear}"


def _bounds(coefficient: Json) -> str:
    return f" [{coefficient['low']:.3g}, {coefficient['high']:.3g}]" if "low" in coefficient else ""


def _work(found: Json) -> Iterator[str]:
    rows = [row for row in found["work"] if any(row[name] is not None for _, name in COSTS)]
    if rows:
        yield f"{'cost':<14}" + "".join(f"{title:>16}" for title, _ in COSTS)
    for row in rows:
        yield f"{row['stage'][:13]:<14}" + "".join(f"{_n(row[name], 3):>16}" for _, name in COSTS)


def _devices(found: Json) -> Iterator[str]:
    activity = {name: one for name, one in found["request_activity"].items() if name != "by_request"}
    for name, one in activity.items():
        yield f"{name} while a request was in prefill {_share(one['prefill'])}, in decode {_share(one['decode'])}"
    for name, one in found["links"].items():
        at = one["saturated_from_in_flight"]
        word = "not at a ceiling" if at is None else f"SATURATED from {at:.0f} requests in flight on"
        yield f"{name}: mean {one['mean'] / 1e9:.3f} GB/s, most {one['max'] / 1e9:.3f}, {word}"
    yield from _estimate(found["roofline"])


def _estimate(one: Json | None) -> Iterator[str]:
    """E6: beside the measured, and never without saying how wrong it is."""
    if one is None:
        return
    how = "calibrated on the other stages" if one["calibrated"] else "not calibrated"
    yield f"SM activity estimated from {one['from']} ({how}; an estimate, no measurement)"
    for row in one["stages"]:
        beside = "not measured" if row["measured"] is None else f"measured {row['measured']:.1%}"
        yield f"  {row['stage'][:13]:<14}estimated {row['estimated']:.1%}, {beside}"
    if one["mean_absolute_error"] is None:
        yield "  its error is not known: no SM activity was measured"
    else:
        yield f"  mean error {one['mean_absolute_error']:.3f}, at worst {one['worst_error']:+.3f}"


def _memory(found: Json) -> Iterator[str]:
    memory = found["memory"]
    yield f"memory: {'not sampled' if memory is None else memory['verdict']}"
    for name, one in memory["series"].items() if memory else ():
        yield f"  {name}: {one['words']}"


def _missing(found: Json) -> Iterator[str]:
    if found["missing"]:
        yield "missing (nothing was filled in):"
        yield from (f"  {line}" for line in found["missing"])
