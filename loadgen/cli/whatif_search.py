"""``loadgen whatif --search AXIS``: the one search, its probes answered by the engine model in virtual time."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadgen.axes import AXES, REPLICAS, Axis, probe_changes
from loadgen.cli.search import (
    add_search_options,
    finish,
    output_directory,
    promises_of,
    question_of,
    say,
    with_plan_file,
)
from loadgen.errors import UsageError

if TYPE_CHECKING:
    from loadgen.evidence import Question
    from loadgen.plan import Plan
    from loadgen.simulator.config import EngineConfig
    from loadgen.simulator.whatif import Fleet

VIRTUAL_PROBE_S = 300.0
VIRTUAL_SETTLE_S = 30.0
VIRTUAL_PROBES = 60
MODEL_AXES: dict[str, Axis] = {**AXES, REPLICAS.name: REPLICAS}
"""What can be searched where the engines are a model."""
Asked = Callable[[argparse.Namespace], "tuple[Plan, EngineConfig, Fleet]"]
"""What a namespace of whatif's options means."""


def add_whatif_search(parser: argparse.ArgumentParser) -> None:
    """``--search`` and what goes with it."""
    add_search_options(parser)
    parser.add_argument(
        "--search", choices=tuple(MODEL_AXES), metavar="AXIS",
        help=f"answer with the critical value instead of a run; all times are virtual; AXIS: {', '.join(MODEL_AXES)}",
    )  # fmt: skip


def run_search(args: argparse.Namespace, asked: Asked) -> int:
    """Search on the model. Raises UsageError before anything is simulated."""
    from loadgen.cli.search import asked_of
    from loadgen.probing import Prober
    from loadgen.searching import conduct
    from loadgen.simulator.config import config_to_json
    from loadgen.simulator.virtual_run import virtual_run

    axis = MODEL_AXES[args.search]
    fixed = getattr(args, "trace", None) is not None
    question, settle_s = _question(args, axis, fixed=fixed)
    given = with_plan_file(args)

    def at(value: float, seconds: float, number: int) -> tuple[Plan, EngineConfig, Fleet]:
        changes: dict[str, Any] = axis.changes(given, value) if fixed else {}
        changes = changes or (probe_changes(axis, given, value, seconds, settle_s) if not fixed else {})
        if axis is REPLICAS:
            changes["replicas"] = str(int(value))
        plan, config, fleet = asked(argparse.Namespace(**(vars(args) | changes)))
        if fixed:
            return plan, config, fleet
        # a run of its own: new arrivals, and new noise of the engine
        return (
            plan.model_copy(update={"seed": plan.seed + number}),
            replace(config, seed=plan.seed + number),
            fleet,
        )

    plan, config, fleet = at(question.high if fixed else question.low, question.probe_s, 0)
    promises = promises_of(args, plan)

    def make(value: float, seconds: float, number: int, directory: Path) -> dict[str, Any]:
        return virtual_run(*at(value, seconds, number), directory)[1]

    prober = Prober(axis.name, make, promises, output_directory(args, "whatif"), clock=lambda: 0.0)
    about = asked_of(plan, question, promises, settle_s)
    about |= {"simulated": True, "engine": config_to_json(config), "routing": fleet.routing}
    return finish(args, *conduct(axis, question, prober, about, say))


def _question(args: argparse.Namespace, axis: Axis, *, fixed: bool) -> tuple[Question, float]:
    """A trace is the same each time, so that every value is asked once; else times are virtual, and cheap."""
    if fixed and axis is not REPLICAS:
        raise UsageError(
            f"searching {axis.name} needs an arrival model; of a --trace only replicas can be searched"
        )
    if axis is REPLICAS and args.replicas != "1":
        raise UsageError("--search replicas excludes --replicas: say --range 1:64")
    question, settle_s = question_of(
        args, axis, settle_s=VIRTUAL_SETTLE_S, probe_s=VIRTUAL_PROBE_S, probes=VIRTUAL_PROBES
    )
    return (replace(question, repeats=False, budget_s=float("inf")), 0.0) if fixed else (question, settle_s)
