"""Sessions of the node's page on loopback."""

from __future__ import annotations

from pykubelet.base.kit.clock import ManualClock
from pykubelet.serve.page.login import MAX_SESSIONS, SESSION_S, Sessions


def test_a_session_ends_after_twelve_hours_and_with_the_agent() -> None:
    clock = ManualClock(wall=1000.0)
    sessions = Sessions(clock)
    cookie = sessions.add()
    assert sessions.has(cookie)
    assert not sessions.has("guessed")
    assert not Sessions(clock).has(cookie)
    clock.advance(SESSION_S + 1)
    assert not sessions.has(cookie)


def test_a_new_session_replaces_the_oldest() -> None:
    sessions = Sessions(ManualClock())
    cookies = [sessions.add() for _ in range(MAX_SESSIONS + 1)]
    assert [sessions.has(cookie) for cookie in cookies] == [False, *[True] * MAX_SESSIONS]
