"""Signals without Python: in a process of its own, which they end."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

_HEAD = """
import os, signal, time
from pykubelet.edges.host.services.signals import SignalTimer, handle_once, handler_of, restore_default, take_waiting
seen = []
signal.signal(signal.SIGTERM, lambda number, _: seen.append(number))
"""


def run(program: str) -> int:
    """The exit code of a process that runs the program; negative: the signal that ended it."""
    done = subprocess.run([sys.executable, "-c", _HEAD + program], capture_output=True, text=True, timeout=60)
    assert done.returncode <= 0, done.stderr
    return done.returncode


def test_a_handler_is_called_once_and_then_the_kernel_ends_the_process() -> None:
    assert run("handle_once(15); os.kill(os.getpid(), 15); assert seen == [15]; assert handler_of(15) == 0") == 0
    assert run("handle_once(15); os.kill(os.getpid(), 15); os.kill(os.getpid(), 15)") == -signal.SIGTERM


def test_a_handler_is_installed_again() -> None:
    twice = "handler = handle_once(15); os.kill(os.getpid(), 15); assert handle_once(15, handler) == handler; os.kill(os.getpid(), 15)"
    assert run(f"{twice}; assert seen == [15, 15]") == 0
    assert run(f"{twice}; os.kill(os.getpid(), 15)") == -signal.SIGTERM


def test_nothing_is_changed_without_a_handler() -> None:
    assert run("assert handle_once(signal.SIGUSR1) == 0; assert handler_of(signal.SIGUSR1) == 0") == 0
    assert run("signal.signal(15, signal.SIG_IGN); assert handle_once(15) == 0; os.kill(os.getpid(), 15)") == 0


def test_the_default_action_is_restored() -> None:
    assert run("restore_default(15); os.kill(os.getpid(), 15)") == -signal.SIGTERM


@pytest.mark.parametrize("call", ["timer.start(60.0)", "timer.close()"])
def test_a_timer_that_is_started_again_or_closed_sends_nothing(call: str) -> None:
    assert run(f"timer = SignalTimer(15); assert not timer.start(0.5); {call}; time.sleep(1.0); assert not seen") == 0


def test_a_timer_sends_its_signal_once_and_reports_it() -> None:
    assert (
        run("timer = SignalTimer(15); timer.start(0.1); time.sleep(0.5); assert seen == [15]; assert timer.start(9)")
        == 0
    )


def test_a_waiting_signal_is_taken() -> None:
    blocked = "signal.pthread_sigmask(signal.SIG_BLOCK, {15, 10}); assert take_waiting((15, 10)) is None"
    own = "os.kill(os.getpid(), 15); taken = take_waiting((15, 10)); assert (taken.number, taken.is_timers) == (15, False)"
    assert run(f"{blocked}; {own}; assert take_waiting((15, 10)) is None") == 0
    timers = "SignalTimer(15).start(0.1); time.sleep(0.5); assert take_waiting((15,)).is_timers"
    assert run(f"{blocked}; {timers}; assert not seen") == 0
