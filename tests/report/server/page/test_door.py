"""Who gets through the page's door on loopback, and for how long."""

from __future__ import annotations

from pathlib import Path

from pykubelet.base.kit.clock import ManualClock
from pykubelet.base.kit.flight import Flight
from pykubelet.report.server.page.door import MAX_SESSIONS, SESSION_S, Sessions


def open_sessions(path: Path, clock: ManualClock) -> Sessions:
    return Sessions(str(path), Flight("test"), clock)


async def test_a_session_outlives_the_agent_and_ends_after_twelve_hours(tmp_path: Path) -> None:
    clock = ManualClock(wall=1000.0)
    cookie = await open_sessions(tmp_path / "sessions", clock).add()
    again = open_sessions(tmp_path / "sessions", clock)
    assert await again.has(cookie)
    assert not await again.has("guessed")
    clock.advance(SESSION_S + 1)
    assert not await again.has(cookie)


async def test_the_file_opens_nothing_for_who_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "sessions"
    cookie = await open_sessions(path, ManualClock()).add()
    assert cookie not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600


async def test_a_damaged_file_ends_sessions_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "sessions"
    old = await open_sessions(path, ManualClock()).add()
    path.write_bytes(b"\x00rubbish")
    sessions = open_sessions(path, ManualClock())
    assert not await sessions.has(old)
    assert await sessions.has(await sessions.add())


async def test_the_oldest_session_makes_room(tmp_path: Path) -> None:
    sessions = open_sessions(tmp_path / "sessions", ManualClock())
    cookies = [await sessions.add() for _ in range(MAX_SESSIONS + 1)]
    assert [await sessions.has(cookie) for cookie in cookies] == [False, *[True] * MAX_SESSIONS]


async def test_a_disk_that_refuses_does_not_close_the_door(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    sessions = open_sessions(tmp_path / "file" / "sessions", ManualClock())
    assert await sessions.has(await sessions.add())
