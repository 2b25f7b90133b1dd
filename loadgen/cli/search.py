"""``loadgen search AXIS``: the highest load that keeps every promise, with a 95 % interval."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadgen.cli.options import add_plan_options, plan_from
from loadgen.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from loadgen.axes import Axis
    from loadgen.evidence import Question
    from loadgen.plan import Plan
    from loadgen.probing import Prober, Promises

Json = dict[str, Any]
NOT_HERE = {
    "num_requests": "its probes go by --duration",
    "warmup": "--settle says what is left out of each probe",
    "salt": "each probe has a new one, or the second would meet the first one's cache",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The axis, run's options (the axis's own excepted), and the search's."""
    from loadgen.axes import AXES

    parser.allow_abbrev = False
    parser.description = (
        "Find the highest value of an axis at which every class keeps its SLO: probes of an endpoint, by bracketing "
        "and narrowing. Time and cost are stated ahead and bounded; the same command on the same --out goes on."
    )
    text = "; ".join(f"{axis.name}: {axis.meaning}" for axis in AXES.values())
    parser.add_argument("axis", choices=tuple(AXES), metavar="AXIS", help=text)
    add_plan_options(parser)
    add_search_options(parser)
    parser.add_argument("--dry-run", action="store_true", help="say what it may cost, send nothing")
    parser.add_argument("--json", action="store_true", help="print search.json instead of tables")
    parser.add_argument("--quiet", action="store_true", help="no progress")


def add_search_options(parser: argparse.ArgumentParser) -> None:
    """What every command that searches takes. ``--duration`` is a probe's least duration."""
    group = parser.add_argument_group("the search (--duration: a probe's least duration, default 60s)")
    group.add_argument(
        "--range", metavar="LOW:HIGH", help="where to search, as 1:64; it begins at the easy end"
    )
    group.add_argument(
        "--budget", default=None, metavar="TIME", help="at most so long in all (default 30 probes)"
    )
    group.add_argument(
        "--tolerance", default="10%", metavar="SHARE", help="stop at an interval so narrow (default 10%%)"
    )
    group.add_argument(
        "--settle", default=None, metavar="TIME", help="rest before a probe, and unmeasured start of it (5s)"
    )
    group.add_argument(
        "--attainment",
        default="95%",
        metavar="SHARE",
        help="share that bounds without @ ask of each class (default 95%%)",
    )


def run(args: argparse.Namespace) -> int:
    """Search; 1 when no value keeps, 3 when nothing could be told. Raises UsageError before anything is sent."""
    from loadgen.axes import AXES
    from loadgen.searching import conduct

    axis = AXES[args.axis]
    question, settle_s = question_of(args, axis)
    plan_at = plans(args, axis, settle_s)
    plan = plan_at(question.low, question.probe_s, 0, None)
    promises = promises_of(args, plan)
    asked = asked_of(plan, question, promises, settle_s) | {"simulated": False}
    say(cost_ahead(question, plan_at))
    if args.dry_run:
        return int(ExitCode.GOOD)
    prober = _live(args, axis, plan_at, promises, settle_s)
    return finish(args, *conduct(axis, question, prober, asked, say))


def question_of(
    args: argparse.Namespace, axis: Axis, *, settle_s: float = 5.0, probe_s: float = 60.0, probes: int = 30
) -> tuple[Question, float]:
    """(the question, the settling time in seconds), with defaults. Raises UsageError for what is out of place."""
    from loadgen.axes import parse_range, seconds_of
    from loadgen.evidence import Question
    from loadgen.quantity import parse_duration_ns

    if args.range is None:
        raise UsageError("--range LOW:HIGH is needed: a search of unknown load has no bounded cost")
    for name, instead in NOT_HERE.items():
        if getattr(args, name, None) is not None:
            raise UsageError(f"a search has no --{name.replace('_', '-')}: {instead}")
    low, high = parse_range(args.range, axis)
    if args.settle is not None:
        settle_s = seconds_of(parse_duration_ns(args.settle))
    if (stated := getattr(args, "duration", None)) is not None:
        probe_s = seconds_of(parse_duration_ns(stated))
    budget_s = seconds_of(parse_duration_ns(args.budget)) if args.budget else probes * probe_s
    if probe_s <= 0 or budget_s < probe_s + 2 * settle_s:
        raise UsageError(
            f"--budget {budget_s:g}s is less than one probe ({probe_s:g}s and twice {settle_s:g}s to settle)"
        )
    tolerance = share("--tolerance", args.tolerance)
    return Question(
        low, high, axis.larger_is_harder, axis.whole, True, probe_s, budget_s, tolerance, 2 * settle_s
    ), settle_s


def share(option: str, text: str) -> float:
    """``5%`` or ``0.05``. Raises UsageError outside 0..1, both excluded."""
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 < value < 1:
        raise UsageError(f"{option} {text!r}: a share between 0 and 1, as 5% or 0.05, is needed")
    return value


def promises_of(args: argparse.Namespace, plan: Plan) -> Promises:
    """What must be kept. Raises UsageError where nothing is, or what no sample can tell."""
    from loadgen.analysis.promises import check_objectives
    from loadgen.probing import Promises
    from loadgen.slo import parse_objectives

    objectives, attainment = parse_objectives(plan.objectives), share("--attainment", args.attainment)
    check_objectives(objectives, attainment, plan.max_error_rate)
    return Promises(objectives, attainment, plan.max_error_rate)


def plans(args: argparse.Namespace, axis: Axis, settle_s: float) -> Any:
    """Makes a probe's plan: (value, seconds, number, directory) -> Plan."""
    from loadgen.axes import probe_changes

    given = with_plan_file(args)

    def plan_at(value: float, seconds: float, number: int, directory: Path | None) -> Plan:
        changes = probe_changes(axis, given, value, seconds, settle_s) | {"out": directory}
        plan, _ = plan_from(argparse.Namespace(**(vars(args) | changes)))
        return plan.model_copy(update={"seed": plan.seed + number})

    return plan_at


def with_plan_file(args: argparse.Namespace) -> Json:
    """The options of the command line, and the plan file's that it does not override."""
    from loadgen.plan import read_plan_file

    return (read_plan_file(args.plan) if args.plan else {}) | vars(args)


def asked_of(plan: Plan, question: Question, promises: Promises, settle_s: float) -> Json:
    """What makes two searches the same one: the load, the target, the range and the promises."""
    from loadgen.plan import plan_to_json

    kept = plan_to_json(plan)
    for name in ("out", "salt", "duration_ns"):
        kept.pop(name)
    return {
        **kept, "range": [question.low, question.high], "attainment": promises.attainment, "settle_s": settle_s,
    }  # fmt: skip


def cost_ahead(question: Question, plan_at: Any) -> str:
    """At most so long, so many requests, so many tokens: the budget spent at the hardest end of the range."""
    from loadgen.workload import schedule_of

    hardest = question.high if question.larger_is_harder else question.low
    survey = schedule_of(plan_at(hardest, question.probe_s, 0, None)).survey()
    runs = question.budget_s / question.probe_s
    bounded = f"loadgen: at most {question.budget_s:g} s and the last probe's drain"
    if survey is None:
        return f"{bounded}; requests: as many as {hardest:g} slots answer in that time"
    requests, tokens = survey.requests * runs, (survey.input_tokens + survey.output_tokens) * runs
    return f"{bounded}, {requests:,.0f} requests and {tokens:,.0f} tokens (all of it at {hardest:g}; usually far less)"


def _live(args: argparse.Namespace, axis: Axis, plan_at: Any, promises: Promises, settle_s: float) -> Prober:
    from loadgen.probing import Prober

    if args.api_key is not None:
        os.environ["OPENAI_API_KEY"] = args.api_key

    def make(value: float, seconds: float, number: int, directory: Path) -> Json:
        from loadgen.driver import drive  # Locust patches on import: only once it is needed

        return drive(plan_at(value, seconds, number, directory), show_progress=not args.quiet).summary

    return Prober(axis.name, make, promises, output_directory(args, "search"), settle_s)


def output_directory(args: argparse.Namespace, word: str) -> Path:
    """``--out``, else a directory of this moment."""
    return Path(getattr(args, "out", None) or Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{word}")


def finish(args: argparse.Namespace, content: Mapping[str, Any], out: Path) -> int:
    """Print the answer; its exit code."""
    from loadgen.report.search import print_search

    if args.json:
        import orjson

        sys.stdout.write(orjson.dumps(content, option=orjson.OPT_INDENT_2, default=str).decode() + "\n")
    else:
        print_search(content, sys.stdout)
        print(f"\nFiles: {out} (search.json, and a run directory for each probe)")
    return int(content["exit_code"])


def say(text: str) -> None:
    """A line for the person who waits; stdout is the answer's."""
    print(text, file=sys.stderr, flush=True)
