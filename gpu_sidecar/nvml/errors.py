"""What to do with each NVML error: one table, one state per field.

Codes are NVML's own (nvml.h). A field that the device does not know is off for the epoch; one that fails
without saying why is left alone for ten seconds after five failures in a row; a lost device or driver ends
the epoch. Whatever happens, the value becomes a null with a reason, never a 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

T = TypeVar("T")

QUARANTINE_AFTER = 5
QUARANTINE_NS = 10 * 10**9


class Action(Enum):
    """What an error code means for the field that met it."""

    OFF = "off"
    EMPTY = "empty"
    RETRY = "retry"
    DOWN = "down"
    QUARANTINE = "quarantine"


ACTIONS: dict[int, Action] = {
    1: Action.DOWN,  # UNINITIALIZED
    2: Action.OFF,  # INVALID_ARGUMENT: this driver does not know the request
    3: Action.OFF,  # NOT_SUPPORTED
    4: Action.OFF,  # NO_PERMISSION
    6: Action.EMPTY,  # NOT_FOUND: a buffer with nothing in it yet
    7: Action.RETRY,  # INSUFFICIENT_SIZE: it grew between the size call and the read
    9: Action.DOWN,  # DRIVER_NOT_LOADED
    13: Action.OFF,  # FUNCTION_NOT_FOUND
    15: Action.DOWN,  # GPU_IS_LOST
    16: Action.DOWN,  # RESET_REQUIRED
    18: Action.DOWN,  # LIB_RM_VERSION_MISMATCH
    21: Action.EMPTY,  # NO_DATA
    28: Action.DOWN,  # GPU_NOT_FOUND
}
"""Every other code (TIMEOUT 10, UNKNOWN 999, …) counts towards quarantine."""

NAMES: dict[int, str] = {
    1: "UNINITIALIZED", 2: "INVALID_ARGUMENT", 3: "NOT_SUPPORTED", 4: "NO_PERMISSION", 6: "NOT_FOUND",
    7: "INSUFFICIENT_SIZE", 9: "DRIVER_NOT_LOADED", 10: "TIMEOUT", 12: "LIBRARY_NOT_FOUND",
    13: "FUNCTION_NOT_FOUND", 15: "GPU_IS_LOST", 16: "RESET_REQUIRED", 18: "LIB_RM_VERSION_MISMATCH",
    21: "NO_DATA", 28: "GPU_NOT_FOUND", 999: "UNKNOWN",
}  # fmt: skip

HINTS: dict[int, str] = {
    4: "NO_PERMISSION: profiling counters are for administrators here (NVreg_RestrictProfilingToAdminUsers)",
}


class NvmlFault(Exception):
    """An NVML call failed with ``code``: the binding's own exception, mapped once at the boundary."""

    def __init__(self, code: int) -> None:
        super().__init__(NAMES.get(code, f"NVML_ERROR_{code}"))
        self.code = code


class DeviceLost(Exception):
    """The device or the driver is gone: the epoch ends here."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(slots=True)
class FieldState:
    """Whether a field is read: on, off (with the reason), or left alone until ``quarantined_until_ns``."""

    name: str
    off_reason: str | None = None
    failures_in_a_row: int = 0
    quarantined_until_ns: int = 0
    errors: Counter[str] = field(default_factory=Counter)

    def status(self, now_ns: int) -> str:
        """``on``, ``off: REASON`` or ``quarantined``."""
        if self.off_reason is not None:
            return f"off: {self.off_reason}"
        return "quarantined" if now_ns < self.quarantined_until_ns else "on"


@dataclass(slots=True)
class Refused:
    """The value could not be read; ``reason`` goes into the sample's nulls."""

    reason: str
    turned_off: bool = False


def code_of(error: BaseException) -> int:
    """The NVML code of the binding's exception (``NVMLError.value``), 999 where it has none."""
    if isinstance(error, NvmlFault):
        return error.code
    value = getattr(error, "value", None)
    return value if isinstance(value, int) else 999


def guarded(
    state: FieldState, now_ns: int, read: Callable[[], T], fault: type[BaseException] | Any
) -> T | Refused:
    """``read()``, or why not. *fault* is the binding's exception class.

    Raises :class:`DeviceLost` for the codes that end the epoch.
    """
    if state.off_reason is not None:
        return Refused(state.off_reason)
    if now_ns < state.quarantined_until_ns:
        return Refused("quarantined")
    for attempt in (0, 1):
        try:
            value = read()
        except (fault, NvmlFault) as error:
            code = code_of(error)
            action = ACTIONS.get(code, Action.QUARANTINE)
            if action is Action.RETRY and attempt == 0:
                continue
            return _refuse(state, code, action, now_ns)
        state.failures_in_a_row = 0
        return value
    raise AssertionError("unreachable")


def _refuse(state: FieldState, code: int, action: Action, now_ns: int) -> Refused:
    name = NAMES.get(code, f"NVML_ERROR_{code}")
    state.errors[name] += 1
    if action is Action.DOWN:
        raise DeviceLost(name)
    if action is Action.OFF:
        state.off_reason = HINTS.get(code, name)
        return Refused(state.off_reason, turned_off=True)
    if action is Action.EMPTY:
        return Refused(name)
    state.failures_in_a_row += 1
    if state.failures_in_a_row >= QUARANTINE_AFTER:
        state.failures_in_a_row = 0
        state.quarantined_until_ns = now_ns + QUARANTINE_NS
    return Refused(name)
