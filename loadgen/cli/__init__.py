"""The command line: one module a command, imported when it is called, so that --help is instant."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from loadgen import __version__
from loadgen.errors import ExitCode, LoadgenError, UsageError

COMMANDS = {
    "run": "send a load at an endpoint and report what happened",
    "calibrate": "find out what this machine can generate, and how many workers a load wants",
    "demo": "see it work: the built-in endpoint, a bursty load, a report",
    "report": "compute the report of a run directory again",
    "compare": "say which of two or more runs is better, and whether one can tell",
    "correlate": "say what the GPU and the server did while users waited",
    "merge": "put one run's records from several directories together",
    "export": "write the records in other tools' forms",
    "envoy": "a real Envoy in front of an endpoint, with time points of every request",
    "preflight": "find what a proxy does to streams, before a run does: buffering, timeouts, limits, replicas",
    "simulate": "the built-in OpenAI-compatible endpoint",
    "trace": "list, fetch, describe, fit, convert and anonymise traces",
    "whatif": "run's load on an engine model in virtual time: nothing is sent",
    "search": "find the highest load that keeps every promise",
    "scenario": "questions about a deployment: list, show, run",
}
"""Name to one line of help; the command's module is ``loadgen.cli.<name>`` with add_arguments and run."""


class Parser(argparse.ArgumentParser):
    """argparse with our manners: one clear line on stderr, exit code 2."""

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the whole usage."""
        raise UsageError(f"{message} (see {self.prog} --help)")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; its exit code. Errors are one line on stderr, with the traceback only after --debug."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    arguments = [a for a in arguments if a != "--debug"]
    try:
        return _run(arguments)
    except BrokenPipeError:  # the reader of a pipe has left: nobody is there to be told
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return int(ExitCode.INTERRUPTED)
    except Exception as error:
        code = _exit_code(error)
        if debug or code is None:
            raise
        print(f"loadgen: {error}", file=sys.stderr)
        return int(code)


def _exit_code(error: Exception) -> ExitCode | None:
    """The code of an error that a person can act on; None for a fault of ours."""
    if isinstance(error, LoadgenError):
        return error.exit_code
    if type(error).__name__ == "TraceError":
        return ExitCode.USAGE
    return None


def _run(arguments: list[str]) -> int:
    parser = Parser(
        prog="loadgen",
        description="Load tests for LLM inference endpoints that tell the truth.",
        epilog="loadgen COMMAND --help says more. --debug shows tracebacks.",
    )
    parser.add_argument("--version", action="version", version=f"loadgen {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    wanted = next((a for a in arguments if not a.startswith("-")), None)
    for name, text in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        if name == wanted:
            _module(name).add_arguments(command)
    parsed = parser.parse_args(arguments)
    if parsed.command is None:
        parser.print_help()
        return int(ExitCode.USAGE)
    return int(_module(parsed.command).run(parsed))


def _module(command: str) -> Any:
    return importlib.import_module(f"loadgen.cli.{command}")
