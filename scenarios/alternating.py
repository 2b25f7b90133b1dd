"""Endpoints asked in turn, cell by cell (a concurrency, a prompt length): how E7 and E10 ask.

In each cell all get one schedule, in passes of turned order (a b, then b a), each pass with a schedule of its own: what
drifts cancels out of the differences, or shows as passes that disagree (`loadgen.analysis.passes`).
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from loadgen.errors import ExitCode, UsageError
from loadgen.simulator.config import EngineConfig
from scenarios.scenario import Context, Setting
from scenarios.searching import MODEL_LENGTH, MODEL_SETTINGS, TARGET_SETTINGS, modelled_plan
from scenarios.sending import Sent, send

Json = dict[str, Any]
PER_SLOT = 300
"""Requests for each in flight: those that share steps count for little more than one."""
ASKING_SETTINGS: dict[str, Setting] = {
    "passes": Setting(int, 2, "times that each endpoint is asked in each cell, the order turned each time"),
    "margin": Setting(float, 0.02, "a difference counts beyond this share, and is none within it"),
    "seed": Setting(int, 0, "seed of the lengths (the next pass takes the next)"),
    "warmup": Setting(str, None, "leave requests due this early in a run out of the figures, as 5s"),
    **MODEL_SETTINGS,
    **TARGET_SETTINGS,
}


def engine_settings(defaults: Mapping[str, str | None]) -> dict[str, Setting]:
    """The engine model of each endpoint, by name."""
    words = "virtual: engine model of {}, options as of `loadgen simulate`"
    return {f"engine_{name}": Setting(str, text, words.format(name)) for name, text in defaults.items()}


@dataclass(frozen=True)
class Cell:
    """One value of what is varied, as text, and the options of ``loadgen run`` there."""

    label: str
    options: Mapping[str, Any]


@dataclass(frozen=True)
class Pass:
    """Runs of one schedule in one cell, by endpoint; fewer than all where it was interrupted."""

    cell: str
    runs: Mapping[str, Sent]


def load_options(settings: Mapping[str, Any]) -> Json:
    """The options of ``loadgen run`` that are the same in every cell, but for the seed.

    Raises UsageError for passes, requests or a margin that cannot be.
    """
    if settings["num_requests"] is not None and settings["num_requests"] < 1:
        raise UsageError("--set num_requests is 1 or more")
    if settings["passes"] < 1 or not 0 <= settings["margin"] < 1:
        raise UsageError("--set passes is 1 or more, and margin a share below 1")
    names = (*TARGET_SETTINGS, "output_len", "warmup")
    return {name: settings[name] for name in names}


def whole_numbers(name: str, text: str) -> list[int]:
    """``1,4,16``, ascending, each once. Raises UsageError for anything else and for fewer than two."""
    words = [word.strip() for word in text.split(",")]
    found = sorted({int(word) for word in words if word.isdecimal() and int(word)})
    if not all(word.isdecimal() and int(word) for word in words) or len(found) < 2:
        raise UsageError(f"--set {name}={text}: write two or more different whole numbers above 0, as 1,4,16")
    return found


def endpoints_of(context: Context, names: Sequence[str]) -> list[str]:
    """Those asked, in order; of the engine model those that have one. Raises UsageError for fewer than two."""
    settings = context.settings
    there = {n for n in names if settings[f"engine_{n}"]} if settings["virtual"] else context.endpoints
    found = [name for name in names if name in there]
    if len(found) < 2:
        raise UsageError("two endpoints are needed: --endpoint a=URL --endpoint b=URL")
    return found


def engine_of(text: str, noise: float, seed: int) -> EngineConfig:
    """The engine model that the options of ``loadgen simulate`` describe. Raises UsageError."""
    from loadgen.simulator.options import add_engine_arguments, engine_config

    parser = _Parser(prog=f"engine {text!r}", add_help=False, allow_abbrev=False)
    add_engine_arguments(parser)
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"engine {text!r}: {error}") from None
    args = parser.parse_args(["--max-model-len", str(MODEL_LENGTH), "--noise", str(noise), *words])
    return replace(engine_config(args), seed=seed)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: {message}")


def ask(context: Context, axis: str, cells: Sequence[Cell], names: Sequence[str]) -> list[Pass]:
    """Every cell in every pass, up to an interruption; the runs lie in ``out/<axis>-<cell>/<name><pass>``.

    Raises LoadgenError where an endpoint cannot be asked.
    """
    settings, number = context.settings, 0
    done: list[Pass] = []
    for cell in cells:
        for which in range(settings["passes"]):
            sent: dict[str, Sent] = {}
            for name in names if which % 2 == 0 else reversed(names):
                context.say(f"{axis} {cell.label}, pass {which + 1} of {settings['passes']}: {name}")
                options = {**cell.options, "seed": settings["seed"] + which}
                number += 1
                where = f"{axis}-{cell.label}/{name}{which + 1}"
                sent[name] = _one(context, name, options, (where, number))
                if sent[name].code == ExitCode.INTERRUPTED:
                    return [*done, Pass(cell.label, sent)]
            done.append(Pass(cell.label, sent))
    return done


def _one(context: Context, name: str, options: Json, run: tuple[str, int]) -> Sent:
    """*run*: its directory's name, and its number: no two runs of the model have the same noise."""
    where, number = run
    if not context.settings["virtual"]:
        return send(context, name, options, name=where)
    from loadgen.report.summary import exit_code
    from loadgen.simulator.virtual_run import virtual_run
    from loadgen.simulator.whatif import Fleet

    settings = context.settings
    config = engine_of(settings[f"engine_{name}"], settings["noise"], 1000 * settings["seed"] + number)
    directory, summary = virtual_run(modelled_plan(options), config, Fleet(), context.out / where)
    return Sent(directory, exit_code(summary), summary)
