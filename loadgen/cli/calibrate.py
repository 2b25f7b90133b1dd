"""``loadgen calibrate``: what this machine can generate, and how many workers a load wants."""

from __future__ import annotations

import argparse
import sys

from loadgen.errors import ExitCode, UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """How long to measure, and for which load to recommend."""
    parser.add_argument("--seconds", type=float, default=4.0, help="of each of the six runs [4]")
    parser.add_argument(
        "--request-rate", type=float, default=None, help="a load you want, in requests per second"
    )
    parser.add_argument("--output-len", "--osl", type=float, default=128, help="its chunks a request [128]")
    parser.add_argument(
        "--show", action="store_true", help="measure nothing: show what is known of this machine"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    """Measure (or recall), keep, print."""
    from loadgen.calibration import calibrate, load, save, to_json

    if args.seconds < 3:
        raise UsageError(f"--seconds {args.seconds:g}: at least 3, a worker looks at itself once a second")
    if args.show:
        found = load()
        if found is None:
            raise UsageError("this machine has not been calibrated: run `loadgen calibrate`")
    else:
        found = calibrate(args.seconds, lambda text: print(f"loadgen: {text}", file=sys.stderr))
        try:
            print(f"loadgen: kept in {save(found)}", file=sys.stderr)
        except OSError as error:
            print(f"loadgen: warning: not kept: {error.strerror}", file=sys.stderr)
    row = to_json(found)
    if args.request_rate is not None:
        row["asked"] = {
            "request_rate": args.request_rate, "chunks_per_request": args.output_len,
            "cores": round(found.core_share(args.request_rate, args.output_len), 3),
            "workers": found.workers(args.request_rate, args.output_len),
        }  # fmt: skip
    if args.json:
        import orjson

        sys.stdout.write(orjson.dumps(row, option=orjson.OPT_INDENT_2).decode() + "\n")
    else:
        _print(row)
    return int(ExitCode.GOOD)


def _print(row: dict[str, object]) -> None:
    at_least = "at least " if row["limited_by"] == "server" else ""
    chunks, requests = f"{at_least}{row['chunks_per_s']:,.0f}", f"{at_least}{row['requests_per_s']:,.0f}"
    print(f"a worker can read     {chunks} chunks/s on one core ({row['chunk_us']} µs each)")
    print(f"a worker can send     {requests} requests/s of one chunk ({row['request_us']} µs each)")
    if row["limited_by"] == "server":
        print("                      our own server gave out first: a core of a worker may do more")
    accuracy: list[dict[str, object]] = row["accuracy"]  # type: ignore[assignment]
    for each in accuracy:
        print(
            f"at {each['share']:4.0%} of that        chunk instants off by {_pair(each['chunk_error_us'])} µs,"
            f" lag {_pair(each['lag_us'])} µs (p50 / p99), core busy {each['core_busy']:.0%}"
        )
    asked = row.get("asked")
    if isinstance(asked, dict):
        print(
            f"{asked['request_rate']:g} requests/s of {asked['chunks_per_request']:g} chunks"
            f" take {asked['cores']:.2f} cores: {asked['workers']} worker(s), each at most half busy"
        )


def _pair(found: object) -> str:
    return f"{found['p50']:g} / {found['p99']:g}" if isinstance(found, dict) and found else "-"
