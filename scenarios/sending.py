"""Send one load at one endpoint: ``loadgen run`` in a process of its own, and its summary.

A scenario never imports Locust or gevent: what they patch stays in the child. Ctrl-C and SIGTERM are handed on
to the child, which drains and reports; a second one stops it at once.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from loadgen.errors import ExitCode, InvalidRunError, LoadgenError, UnreachableError, UsageError
from scenarios.scenario import Context

ERROR_PREFIX = "loadgen: "
ERRORS: dict[int, type[LoadgenError]] = {
    ExitCode.USAGE: UsageError,
    ExitCode.UNREACHABLE: UnreachableError,
}


@dataclass(frozen=True)
class Sent:
    """A run that is over: its directory, its exit code, its summary.json."""

    directory: Path
    code: int
    summary: dict[str, Any]


def send(context: Context, endpoint: str, options: Mapping[str, Any], *, name: str | None = None) -> Sent:
    """Run *options* (names as in a plan file; None and False: not given) at the endpoint of that name; of a list
    each value is given.

    The run's directory is ``out/<name>`` (default: the endpoint's). After a Ctrl-C the code is 130: send no more
    then. Raises the child's own error where it left
    no summary, KeyboardInterrupt where it was stopped before there was one.
    """
    directory = context.out / (name or endpoint)
    command = [sys.executable, "-m", "loadgen", "run", "--base-url", context.endpoints[endpoint]]
    command += ["--out", str(directory)]
    command += ["--i-own-this-endpoint"] if context.consent else []
    for key, value in options.items():
        if value is None or value is False:
            continue
        flag = f"--{key.replace('_', '-')}"
        if value is True:
            command.append(flag)
        else:
            for one in value if isinstance(value, list) else [value]:
                command += [flag, str(one)]
    code, words = _run(command, context.say)
    try:
        return Sent(directory, code, orjson.loads((directory / "summary.json").read_bytes()))
    except (OSError, orjson.JSONDecodeError):
        raise _failure(code, words) from None


def _failure(code: int, words: str) -> BaseException:
    if code == ExitCode.INTERRUPTED:
        return KeyboardInterrupt()
    kind = ERRORS.get(code, InvalidRunError)
    return kind(words or f"loadgen run ended with exit code {code} and no report")


def _run(command: list[str], say: Callable[[str], None]) -> tuple[int, str]:
    """(exit code, the child's own error line); its progress lines are passed on as they come."""
    error = last = ""
    child = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        env=child_environment(), text=True, errors="replace", start_new_session=True,
    )  # fmt: skip
    with child, _signals_handed_on(child):
        assert child.stderr is not None
        for line in child.stderr:
            last = line.strip() or last
            if line.startswith(ERROR_PREFIX):
                error = line.removeprefix(ERROR_PREFIX).strip()
            elif line.strip():
                say(line.rstrip())
    return child.returncode, error or (last if child.returncode not in (0, 1, 3) else "")


def child_environment() -> dict[str, str]:
    """This process's, with the directory that this package lies in on the path: an uninstalled checkout works."""
    here = str(Path(__file__).parents[1])
    path = os.pathsep.join(part for part in (here, os.environ.get("PYTHONPATH", "")) if part)
    return {**os.environ, "PYTHONPATH": path}


@contextmanager
def _signals_handed_on(child: subprocess.Popen[str]) -> Iterator[None]:
    before = {
        number: signal.signal(number, lambda number, _: child.send_signal(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
