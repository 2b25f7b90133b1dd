"""The errors a person sees: one clear line each, with the exit code that scripts test for."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of every command; the first that applies in the order 2, 130, 4, 3, 1."""

    GOOD = 0
    GATE_FAILED = 1
    USAGE = 2
    INVALID_RUN = 3
    UNREACHABLE = 4
    INTERRUPTED = 130


class LoadgenError(Exception):
    """A broken run or a wrong request of the user's: one line, no traceback."""

    exit_code: ExitCode = ExitCode.INVALID_RUN


class UsageError(LoadgenError):
    """What was asked cannot be done as asked: names the value and the choices."""

    exit_code = ExitCode.USAGE


class UnreachableError(LoadgenError):
    """The endpoint does not answer, or refuses every request of this kind."""

    exit_code = ExitCode.UNREACHABLE


class NotReadyError(UnreachableError):
    """Nobody answers yet: a server that is still starting looks like this, and may be asked again."""


class InvalidRunError(LoadgenError):
    """The run's own files or clocks are not fit to draw conclusions from."""

    exit_code = ExitCode.INVALID_RUN
