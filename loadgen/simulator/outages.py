"""Stalls, crashes and leaks in virtual time."""

from __future__ import annotations

from loadgen.simulator.config import Faults

NS_PER_S = 1_000_000_000


class Outages:
    """When the engine stands still, dies, and is back."""

    def __init__(self, faults: Faults, start_ns: int) -> None:
        self._faults = faults
        self._stalls = [
            (start_ns + round(at * NS_PER_S), round(s * NS_PER_S)) for at, s in sorted(faults.stalls)
        ]
        self._crashes = [
            (start_ns + round(at * NS_PER_S), round(s * NS_PER_S)) for at, s in sorted(faults.crashes)
        ]
        self._down_until = start_ns
        self.leaked_bytes = 0.0
        self.crashes = 0

    def is_down(self, now_ns: int) -> bool:
        """Not serving at this instant. Instants are asked in order."""
        while self._crashes and self._crashes[0][0] <= now_ns:
            at, down = self._crashes.pop(0)
            self._die(at + down)
        return now_ns < self._down_until

    def end_of(self, start_ns: int, end_ns: int) -> tuple[int, bool]:
        """(end, is it a crash) of a step planned from *start_ns* to *end_ns*."""
        while self._stalls and self._stalls[0][0] < end_ns:
            at, duration = self._stalls.pop(0)
            if at + duration > start_ns:
                end_ns += min(duration, at + duration - start_ns)
        if self._crashes and self._crashes[0][0] < end_ns:
            return max(start_ns + 1, self._crashes[0][0]), True
        return end_ns, False

    def leak(self, prompt_tokens: int, now_ns: int) -> bool:
        """Prompt tokens were computed; True when the leak has used up the memory."""
        self.leaked_bytes += prompt_tokens * self._faults.leak_bytes_per_prompt_token
        if self.leaked_bytes <= self._faults.leak_room_bytes:
            return False
        self._crashes.insert(0, (now_ns, round(self._faults.restart_s * NS_PER_S)))
        return True

    def crashed(self, now_ns: int) -> None:
        """The engine has just died."""
        self.is_down(now_ns)

    def _die(self, until_ns: int) -> None:
        self._down_until = max(self._down_until, until_ns)
        self.leaked_bytes = 0.0
        self.crashes += 1
