"""``loadgen preflight``: a few requests that find what would spoil a run, and which setting to change."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from loadgen.cli.options import add_target_options, plan_from
from loadgen.errors import ExitCode, UnreachableError, UsageError
from loadgen.quantity import parse_duration_ns

if TYPE_CHECKING:
    from loadgen.plan import Plan
    from loadgen.proxy.preflight import Check

SIGNS = {"good": "ok", "bad": "BAD", "unknown": "?", "fact": "-"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The target's options and how far to look."""
    add_target_options(parser)
    parser.add_argument(
        "--watch", type=parse_duration_ns, default=parse_duration_ns("20s"), metavar="DURATION",
        help="follow one answer and one idle connection for so long [20s: beyond Envoy's 15 s]",
    )  # fmt: skip
    parser.add_argument(
        "--probe-limits", action="store_true",
        help="also send oversized heads and bodies (behind HTTP/2 proxies these may end other people's requests)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="the checks as JSON on stdout")


def run(args: argparse.Namespace) -> int:
    """Look and say; 1 when something is bad. Raises UsageError, UnreachableError."""
    plan, _ = plan_from(args)
    checks = []
    for check in _checks(plan, args.watch / 1e9, limits=args.probe_limits):
        checks.append(check)
        if not args.json:
            _print(check)
    if args.json:
        print(
            json.dumps({"base_url": plan.base_url, "checks": [asdict(check) for check in checks]}, indent=1)
        )
    bad = any(check.verdict == "bad" for check in checks)
    return int(ExitCode.GATE_FAILED if bad else ExitCode.GOOD)


def _print(check: Check) -> None:
    from loadgen.report.terminal import printable

    print(f"{SIGNS[check.verdict]:>3} {check.name:16} {printable(check.words, 400)}")
    if check.setting is not None:
        print(f"{'':20} → {check.setting}", flush=True)


def _checks(plan: Plan, watch_s: float, *, limits: bool) -> Iterator[Check]:
    from loadgen.endpoint import Prober, probe_endpoint
    from loadgen.net.target import TlsOptions, resolve_target
    from loadgen.opening import api_key, check_consent, http_dialect, request_headers
    from loadgen.proxy.preflight import Subject, preflight
    from loadgen.proxy.preflight_limits import probe_limits
    from loadgen.proxy.probe import Asker
    from loadgen.proxy.tls_facts import check_tls
    from loadgen.readiness import when_ready

    check_consent(plan)
    assert plan.base_url is not None
    if watch_s <= 0:
        raise UsageError("--watch: longer than nothing")
    dialect, headers = http_dialect(plan), request_headers(plan, api_key(plan))
    tls = TlsOptions(plan.tls_ca, plan.tls_cert, plan.tls_key, plan.tls_server_name, not plan.tls_insecure)
    target = resolve_target(plan.base_url, tls)
    prober = Prober(target, headers, plan.base_url)
    facts = when_ready(lambda: probe_endpoint(prober, plan, dialect), plan.ready_timeout)
    eos = {"ignore_eos": True} if plan.ignore_eos else {}
    body = {"model": facts.model, **eos, **plan.extra_body}
    subject = Subject(Asker(target, headers, plan.base_url), dialect, body, watch_s)
    try:
        found = check_tls(target)
    except OSError as error:
        raise UnreachableError(f"cannot reach {plan.base_url}: {error}") from None
    if found is not None:
        yield found
    yield from preflight(subject, _say)
    if limits:
        yield from probe_limits(subject, _say)


def _say(text: str) -> None:
    print(f"preflight: {text}", file=sys.stderr, flush=True)
