"""The kernel's stamps on the program's clock, and anchors that notice a step."""

from __future__ import annotations

import socket
import struct
import time

from loadgen.clock import Anchor, measure_anchor
from loadgen.net.stamps import (
    ANCILLARY_BYTES,
    SO_TIMESTAMPNS,
    STEP_TOLERANCE_NS,
    SUPPORTED,
    StampClock,
    enable_stamps,
    open_stamped_socket,
)
from loadgen.record import ClockSource

S = 1_000_000_000


def clock_of(*anchors: Anchor) -> StampClock:
    """A clock that measures these, in turn."""
    turn = iter(anchors)
    return StampClock(lambda: next(turn))


def stamp(wall_ns: int) -> list[tuple[int, int, bytes]]:
    return [(socket.SOL_SOCKET, SO_TIMESTAMPNS, struct.pack("qq", wall_ns // S, wall_ns % S))]


def test_a_stamp_is_mapped_by_the_anchor() -> None:
    clock = clock_of(Anchor(mono_ns=5 * S, wall_ns=1_000 * S, bound_ns=50))
    assert clock.instant(stamp(1_002 * S + 7)) == (7 * S + 7, ClockSource.KERNEL)


def test_no_stamp_or_another_message_gives_the_loops_clock() -> None:
    clock = clock_of(Anchor(0, 0, 1))
    for ancillary in (
        [],
        [(socket.SOL_SOCKET, 99, b"x" * 16)],
        [(socket.SOL_SOCKET, SO_TIMESTAMPNS, b"short")],
    ):
        before = time.monotonic_ns()
        instant, source = clock.instant(ancillary)
        assert before <= instant <= time.monotonic_ns()
        assert source is ClockSource.LOOP


def test_a_step_of_the_wall_clock_is_said_once_and_followed() -> None:
    clock = clock_of(Anchor(0, 100 * S, 50), Anchor(S, 102 * S, 50), Anchor(2 * S, 103 * S, 50))
    assert clock.reanchor() == S
    assert clock.instant(stamp(102 * S))[0] == S
    assert clock.reanchor() is None


def test_a_backward_step_is_negative() -> None:
    assert clock_of(Anchor(0, 100 * S, 50), Anchor(S, 99 * S, 50)).reanchor() == -2 * S


def test_a_difference_within_the_bounds_is_no_step_but_is_followed() -> None:
    small = STEP_TOLERANCE_NS // 2
    clock = clock_of(Anchor(0, 100 * S, 50), Anchor(S, 101 * S + small, 50))
    assert clock.reanchor() is None
    assert clock.instant(stamp(101 * S + small))[0] == S


def test_the_tightest_bracket_is_the_anchor() -> None:
    mono = iter([0, 100, 200, 210, 300, 400])
    wall = iter([1_000, 2_000, 3_000])
    assert measure_anchor(3, lambda: next(mono), lambda: next(wall)) == Anchor(205, 2_000, 5)


def test_real_anchors_agree_with_the_clocks() -> None:
    anchor = measure_anchor()
    assert abs(time.time_ns() - time.monotonic_ns() - anchor.offset_ns) < S
    assert anchor.bound_ns < 1_000_000


def test_the_kernel_stamps_between_send_and_read() -> None:
    if not SUPPORTED:
        return
    clock = StampClock()
    with (
        open_stamped_socket(),
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as client,
        listener.accept()[0] as server,
    ):
        assert enable_stamps(client)
        time.sleep(0.05)  # stamping is switched on by a deferred work item of the kernel
        before = time.monotonic_ns()
        server.sendall(b"x")
        time.sleep(0.02)
        _, ancillary, _, _ = client.recvmsg(10, ANCILLARY_BYTES)
        instant, source = clock.instant(ancillary)
    slack = clock.anchor.bound_ns + 1000
    assert source is ClockSource.KERNEL
    assert before - slack <= instant <= time.monotonic_ns() - 15_000_000  # it does not see the late read


def test_a_unix_socket_has_no_stamps() -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        assert not enable_stamps(sock)
