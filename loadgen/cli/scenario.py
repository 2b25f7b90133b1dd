"""``loadgen scenario list|show|run``: questions about a deployment, and their findings."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from loadgen.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from scenarios.scenario import Scenario

SIMULATED = "the built-in simulator answered: these figures are a model's, not an endpoint's"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Three verbs."""
    verbs = parser.add_subparsers(dest="verb", metavar="list|show|run", required=True)
    listing = verbs.add_parser("list", help="name the scenarios")
    showing = verbs.add_parser("show", help="a scenario's question, endpoints and settings")
    running = verbs.add_parser("run", help="run a scenario and write its finding.json")
    for verb in (showing, running):
        verb.add_argument("name", metavar="NAME", help="as in `scenario list` (E1 works too)")
    for verb in (listing, showing, running):
        verb.add_argument("--json", action="store_true", help="the answer as JSON on stdout")
    running.add_argument(
        "--endpoint", action="append", default=[], metavar="a=URL",
        help="may be repeated; without any, the built-in simulator is started and asked",
    )  # fmt: skip
    running.add_argument(
        "--set", action="append", default=[], metavar="K=V", help="a setting; may be repeated"
    )
    running.add_argument(
        "--out", type=Path, default=None, metavar="DIR", help="default: runs/<time>-<scenario>"
    )
    running.add_argument(
        "--i-own-this-endpoint", action="store_true", help="consent: needed beyond this machine"
    )
    running.add_argument(
        "--allow-hooks", action="store_true", help="consent: commands in settings may run on this machine"
    )


def run(args: argparse.Namespace) -> int:
    """Answer one verb. Raises UsageError naming what is unknown and the choices."""
    if args.verb == "list":
        return _list(as_json=args.json)
    scenario = find(args.name)
    if args.verb == "show":
        return _show(scenario, as_json=args.json)
    return _run(scenario, args)


def find(name: str) -> Scenario:
    """The scenario by its name or its experiment's. Raises UsageError naming the choices."""
    from scenarios import SCENARIOS

    by_experiment = {s.experiment.lower(): s for s in SCENARIOS.values()}
    found = SCENARIOS.get(name) or by_experiment.get(name.lower())
    if found is None:
        choices = ", ".join(f"{s.name} ({s.experiment})" for s in SCENARIOS.values())
        raise UsageError(f"unknown scenario {name!r}; choices: {choices}")
    return found


def described(scenario: Scenario) -> dict[str, Any]:
    """The scenario as JSON."""
    settings = {
        name: {"type": s.kind.__name__, "default": s.default, "meaning": s.meaning}
        for name, s in scenario.settings.items()
    }
    return {
        "name": scenario.name,
        "experiment": scenario.experiment,
        "question": scenario.question,
        "endpoints": dict(scenario.endpoints),
        "settings": settings,
    }


def _list(*, as_json: bool) -> int:
    from scenarios import SCENARIOS

    if as_json:
        _print_json([described(s) for s in SCENARIOS.values()])
    else:
        width = max(map(len, SCENARIOS))
        for scenario in SCENARIOS.values():
            print(f"{scenario.name:{width}} {scenario.experiment:4} {scenario.question}")
    return int(ExitCode.GOOD)


def _show(scenario: Scenario, *, as_json: bool) -> int:
    if as_json:
        _print_json(described(scenario))
        return int(ExitCode.GOOD)
    print(f"{scenario.name} ({scenario.experiment})\n{scenario.question}\n\nEndpoints")
    for name, meaning in scenario.endpoints.items():
        print(f"  --endpoint {name}=URL  {meaning}")
    print("\nSettings")
    for name, setting in scenario.settings.items():
        default = "" if setting.default is None else f" [{str(setting.default).lower()}]"
        option = f"--set {name}={setting.kind.__name__.upper()}"
        print(f"  {option:26} {setting.meaning}{default}")
    return int(ExitCode.GOOD)


def _run(scenario: Scenario, args: argparse.Namespace) -> int:
    from loadgen.builtin_endpoint import builtin_endpoint
    from scenarios.finding import check_out, finding_to_json, write_finding
    from scenarios.scenario import Context

    settings = scenario.settings_from(pairs("--set", args.set))
    scenario.check_settings(settings)
    endpoints = _endpoints(scenario, pairs("--endpoint", args.endpoint))
    out = args.out or Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{scenario.name}"
    check_out(out)
    asks = scenario.needs_endpoints(settings)
    if endpoints and not asks:
        raise UsageError(
            f"scenario {scenario.name} asks no endpoint under these settings: leave --endpoint out"
        )
    missing = frozenset(scenario.endpoints) if asks and not endpoints else frozenset()
    # The default action of SIGTERM would leave the simulator behind.
    signal.signal(signal.SIGTERM, _stop)
    with ExitStack() as started:
        for name in sorted(missing):
            endpoints[name] = started.enter_context(builtin_endpoint(scenario.simulators.get(name, ())))
            _say(f"endpoint {name}: the built-in simulator at {endpoints[name]}")
        context = Context(endpoints, settings, out, missing, args.i_own_this_endpoint, _say, args.allow_hooks)
        finding = scenario.run(context)
    about = {
        "scenario": scenario.name, "experiment": scenario.experiment, "question": scenario.question,
        "endpoints": endpoints, "simulated": bool(missing) or (not asks and scenario.models_alone),
        "simulated_endpoints": sorted(missing), "settings": settings,
    }  # fmt: skip
    content = finding_to_json(finding, about)
    if missing:
        content["notes"] = [SIMULATED, *content["notes"]]
    path = write_finding(out, content)
    if args.json:
        _print_json(content)
    else:
        _print_finding(content, path)
    return int(finding.exit_code)


def _endpoints(scenario: Scenario, given: dict[str, str]) -> dict[str, str]:
    """All endpoints, or none: a comparison of one's own endpoint with a simulator would be no comparison."""
    choices = ", ".join(scenario.endpoints)
    unknown = [name for name in given if name not in scenario.endpoints]
    if unknown:
        raise UsageError(f"scenario {scenario.name} has no endpoint {unknown[0]!r}; choices: {choices}")
    missing = [name for name in scenario.endpoints if name not in given]
    if given and missing and not given.keys() <= scenario.alone:
        raise UsageError(f"scenario {scenario.name} also needs --endpoint {missing[0]}=URL ({choices})")
    return given


def pairs(option: str, texts: Sequence[str]) -> dict[str, str]:
    """K=V texts; the last one of a key wins. Raises UsageError for a text that is none."""
    found = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key or not value:
            raise UsageError(f"{option} {text!r}: write {'NAME=URL' if option == '--endpoint' else 'K=V'}")
        found[key] = value
    return found


def _print_finding(content: Mapping[str, Any], path: Path) -> None:
    from loadgen.report.terminal import console_for, number, printable, show, table_of

    console = console_for(sys.stdout)
    if content["simulated"]:
        console.print(f"SIMULATED: {SIMULATED}", markup=False, soft_wrap=True)
    console.print(content["in_words"], markup=False, soft_wrap=True)
    for reason in content["why_not"]:
        console.print(f"INVALID: {printable(reason)}", markup=False, soft_wrap=True)
    table = table_of(("", "value", "95 % interval", "unit"))
    for name, found in content["numbers"].items():
        interval = "-" if found["low"] is None else f"{number(found['low'])} – {number(found['high'])}"
        table.add_row(name, number(found["value"]), interval, found["unit"])
    show(console, content["question"], table)
    for name, found in content["numbers"].items():
        if found["value"] is None:
            console.print(f"{name}: {found['why']}", markup=False, soft_wrap=True)
    runs = ", ".join(str(path.parent / name) for name in content["runs"])
    print(f"finding: {path}; reports of the runs: {runs}")


def _print_json(value: Any) -> None:
    import orjson

    sys.stdout.write(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode() + os.linesep)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _stop(number: int, _: Any) -> NoReturn:
    raise KeyboardInterrupt
