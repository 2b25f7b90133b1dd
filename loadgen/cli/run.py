"""``loadgen run``: Locust's runner in this process, our schedule, our records, our report."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from string import ascii_lowercase
from typing import TYPE_CHECKING

from loadgen.cli.options import add_plan_options, plans_from
from loadgen.errors import ExitCode, UsageError
from loadgen.quantity import format_ns

if TYPE_CHECKING:
    from loadgen.driver import Driven
    from loadgen.plan import Plan

FIRST_THAT_APPLIES = (
    ExitCode.INTERRUPTED,
    ExitCode.UNREACHABLE,
    ExitCode.INVALID_RUN,
    ExitCode.GATE_FAILED,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The plan's options and what concerns this terminal only."""
    add_plan_options(parser)
    parser.add_argument("--dry-run", action="store_true", help="say what would be sent, send nothing")
    parser.add_argument("--json", action="store_true", help="print summary.json instead of tables")
    parser.add_argument("--quiet", action="store_true", help="no progress")


def run(args: argparse.Namespace) -> int:
    """Run the plan; the exit code of its report."""
    plans, key = plans_from(args)
    if key is not None:
        print("loadgen: warning: a key on the command line can be read by others on this machine; "
              "use --api-key-file or OPENAI_API_KEY", file=sys.stderr)  # fmt: skip
        os.environ["OPENAI_API_KEY"] = key
    if args.dry_run:
        return dry_run(plans[0], as_json=args.json)
    if len(plans) > 1:
        from loadgen.together import drive_together

        return finish_together(
            drive_together(side_by_side(plans), show_progress=not args.quiet), as_json=args.json
        )
    from loadgen.driver import drive

    return finish(drive(plans[0], show_progress=not args.quiet), as_json=args.json)


def side_by_side(plans: Sequence[Plan]) -> list[Plan]:
    """The plans with directories a, b, … below the first one's and each its own sidecar.

    Raises UsageError for too many, for sidecars that are not one an endpoint, and for a directory in use.
    """
    if not 2 <= len(plans) <= len(ascii_lowercase):
        raise UsageError(
            f"2 to {len(ascii_lowercase)} endpoints can be asked at the same time, not {len(plans)}"
        )
    agents = plans[0].sidecar
    if agents and len(agents) != len(plans):
        raise UsageError(f"--sidecar: name one for each of the {len(plans)} --base-url, in their order")
    from loadgen.rundir import new_run_directory

    parent = new_run_directory(plans[0].out)
    return [
        plan.model_copy(update={"out": parent / letter, "sidecar": agents[place : place + 1]})
        for place, (letter, plan) in enumerate(zip(ascii_lowercase, plans, strict=False))
    ]


def finish(driven: Driven, *, as_json: bool) -> int:
    """Print the report and where the files are; its exit code."""
    from loadgen.report.summary import exit_code
    from loadgen.report.terminal import print_report

    summary = driven.summary
    if as_json:
        import orjson

        sys.stdout.write(orjson.dumps(summary, option=orjson.OPT_INDENT_2).decode() + "\n")
    else:
        print_report(summary, sys.stdout)
        print(f"\nFiles: {driven.directory} (report.html, summary.json, requests.csv, records, plan.json)")
    return int(exit_code(summary))


def finish_together(each: list[Driven], *, as_json: bool) -> int:
    """Print every report and the comparison with the first, keep it as comparison.json; the exit code of all."""
    import orjson

    from loadgen.report.comparison import compare_runs, exit_code, print_comparison
    from loadgen.report.summary import exit_code as code_of_run
    from loadgen.report.terminal import print_report

    comparison = compare_runs([driven.directory for driven in each], {}, force=True)
    body = orjson.dumps(comparison, option=orjson.OPT_INDENT_2) + b"\n"
    (each[0].directory.parent / "comparison.json").write_bytes(body)
    if as_json:
        sys.stdout.write(body.decode())
    else:
        for driven in each:
            print(f"{driven.directory}: {driven.summary['base_url']}\n")
            print_report(driven.summary, sys.stdout)
        print_comparison(comparison, sys.stdout)
        print(f"\nFiles: {each[0].directory.parent} (comparison.json, and a run directory an endpoint)")
    found = {code_of_run(driven.summary) for driven in each} | {exit_code(comparison)}
    return int(next((code for code in FIRST_THAT_APPLIES if code in found), ExitCode.GOOD))


def dry_run(plan: Plan, *, as_json: bool) -> int:
    """What would be sent: requests, tokens, peak rate, duration."""
    from loadgen.workload import schedule_of

    if plan.trace is None and plan.arrival is None and plan.concurrency is None:
        raise UsageError("no load: name a --trace, an --arrival model or a --concurrency")
    schedule = schedule_of(plan)
    described = schedule.describe(schedule.survey())
    if as_json:
        import orjson

        sys.stdout.write(orjson.dumps(described, option=orjson.OPT_INDENT_2).decode() + "\n")
        return int(ExitCode.GOOD)
    print(f"source          {described['source']}")
    for step in described["steps"]:
        print(f"step            {', '.join(f'{k}={v}' for k, v in step.items())}")
    if "requests" not in described:
        print("requests        as many as the slots answer in the time")
        return int(ExitCode.GOOD)
    print(f"requests        {described['requests']:,}")
    print(f"input tokens    {described['input_tokens']:,}")
    print(f"output tokens   {described['output_tokens']:,} at most")
    prompts = described["prompts"]
    print(
        f"prompts         {prompts['distinct']:,} distinct, {prompts['shared_prefix_ratio']:.1%}"
        " of the input tokens are a prefix that came before"
    )
    if not schedule.closed:
        rate = described["rate_per_s"]
        print(f"duration        {format_ns(described['span_ns'])}")
        print(f"mean rate       {rate:.4g} requests/s" if rate else "mean rate       -")
        print(f"peak rate       {described['peak_rate_per_s']} requests in one second")
    print(f"digest          {described['digest']}")
    return int(ExitCode.GOOD)
