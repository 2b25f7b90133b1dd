"""What a person sees when the sidecar cannot do as asked: one clear line and an exit code."""

from __future__ import annotations


class SidecarError(Exception):
    """A refusal or a broken run: one line on stderr, no traceback."""

    exit_code = 3


class UsageError(SidecarError):
    """What was asked cannot be done as asked: names the option and what is needed."""

    exit_code = 2


class UnreachableError(SidecarError):
    """No agent (or no driver) answers there."""

    exit_code = 4
