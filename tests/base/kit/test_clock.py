"""Clocks: the machine's own, and one that tests move by hand."""

from __future__ import annotations

import time

from pykubelet.base.kit.clock import ManualClock, SystemClock


def test_the_system_clock_is_the_machines() -> None:
    clock = SystemClock()
    assert abs(clock.wall() - time.time()) < 5
    first = clock.monotonic()
    assert clock.monotonic() >= first


def test_both_hands_of_the_manual_clock_move_together() -> None:
    clock = ManualClock(start=10, wall=100)
    clock.advance(5)
    assert (clock.monotonic(), clock.wall()) == (15, 105)


def test_the_wall_clock_can_jump_alone() -> None:
    clock = ManualClock(start=10, wall=100)
    clock.jump_wall(-50)
    assert (clock.monotonic(), clock.wall()) == (10, 50)
