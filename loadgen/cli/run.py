"""``loadgen run``: Locust's runner in this process, our schedule, our records, our report."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from loadgen.cli.cluster_options import add_cluster_options
from loadgen.cli.options import add_plan_options, plan_from
from loadgen.errors import ExitCode, UsageError
from loadgen.quantity import format_ns

if TYPE_CHECKING:
    from loadgen.driver import Driven
    from loadgen.plan import Plan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The plan's options and what concerns this terminal only."""
    add_plan_options(parser)
    add_cluster_options(parser)
    parser.add_argument("--dry-run", action="store_true", help="say what would be sent, send nothing")
    parser.add_argument("--json", action="store_true", help="print summary.json instead of tables")
    parser.add_argument("--quiet", action="store_true", help="no progress")


def run(args: argparse.Namespace) -> int:
    """Run the plan; the exit code of its report."""
    if args.worker:
        from loadgen.cli.run_cluster import be_worker

        return be_worker(args)
    plan, key = plan_from(args)
    if key is not None:
        print("loadgen: warning: a key on the command line can be read by others on this machine; "
              "use --api-key-file or OPENAI_API_KEY", file=sys.stderr)  # fmt: skip
        os.environ["OPENAI_API_KEY"] = key
    if args.dry_run:
        return dry_run(plan, as_json=args.json)
    if args.workers is not None or args.master:
        from loadgen.cli.run_cluster import lead_workers

        return finish(lead_workers(plan, args), as_json=args.json)
    from loadgen.driver import drive

    return finish(drive(plan, show_progress=not args.quiet), as_json=args.json)


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
    if not schedule.closed:
        rate = described["rate_per_s"]
        print(f"duration        {format_ns(described['span_ns'])}")
        print(f"mean rate       {rate:.4g} requests/s" if rate else "mean rate       -")
        print(f"peak rate       {described['peak_rate_per_s']} requests in one second")
    print(f"digest          {described['digest']}")
    return int(ExitCode.GOOD)
