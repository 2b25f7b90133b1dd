"""The correlation's answers for a person, in the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Json = dict[str, Any]


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
        same = (
            "the same clock"
            if clock["same_clock"]
            else f"{clock['offset_ms']:.3f} ms ± {clock['bound_ms']:.3f}"
        )
        yield f"clock of {clock['agent']}: {same}"
    yield ""
    yield from _stages(found["stages"])
    yield ""
    yield _knee(found["knee"])
    yield ""
    yield from _matrix(found["correlations"])
    yield ""
    yield from _memory(found["memory"])
    if found["missing"]:
        yield ""
        yield "missing (nothing was filled in):"
        yield from (f"  {line}" for line in found["missing"])


def _stages(stages: list[Json]) -> Iterator[str]:
    yield f"{'stage':<14}{'req/s':>7}{'TTFT p50/p95 ms':>18}{'ITL ms':>8}{'SM':>6}{'running':>9}  "
    for s in stages:
        ttft = f"{_n(s['ttft_p50_ms'], 0)}/{_n(s['ttft_p95_ms'], 0)}"
        sm = "-" if s["sm_active"] is None else f"{s['sm_active']:.0%}"
        yield (
            f"{s['stage'][:13]:<14}{_n(s['offered_per_s'], 1):>7}{ttft:>18}{_n(s['itl_p50_ms'], 1):>8}{sm:>6}"
            f"{_n(s['engine_running'], 1):>9}  {s['bound']['sentence']}"
        )


def _n(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _knee(knee: Json) -> str:
    if knee["found"]:
        low, high = knee["bracket_per_s"]
        return f"saturation knee between {low:.1f} and {high:.1f} requests/s offered"
    why = "; ".join(f"{name}: {curve['why']}" for name, curve in knee["curves"].items())
    return f"no saturation knee: {why}"


def _matrix(pairs: list[Json]) -> Iterator[str]:
    yield f"{'':<40}Spearman [95 %]              Pearson"
    for pair in sorted(pairs, key=lambda p: -abs(p["spearman"]["value"]))[:16]:
        yield f"  {pair['user']} ~ {pair['server']:<26}"[:40].ljust(40) + (
            f"{_coefficient(pair['spearman']):<29}{pair['pearson']['value']:.2f}"
        )


def _coefficient(one: Json) -> str:
    if "interval" in one:
        return f"{one['value']:.2f} (interval needs {one['need_s']:.0f} s)"
    return f"{one['value']:.2f} [{one['low']:.2f}, {one['high']:.2f}]"


def _memory(memory: Json | None) -> Iterator[str]:
    if memory is None:
        yield "memory: not sampled"
        return
    yield f"memory: {memory['verdict']}"
    for name, one in memory["series"].items():
        yield f"  {name}: {one['words']}"
