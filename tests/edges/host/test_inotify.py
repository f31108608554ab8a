"""inotify: the events a directory reader needs, on real directories."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.files import read_text
from pykubelet.edges.host.fs.inotify import EventKind, FileEvent, Watcher


@pytest.fixture
def watcher() -> Iterator[Watcher]:
    with Watcher() as made:
        yield made


async def next_events(watcher: Watcher, count: int) -> list[FileEvent]:
    async with asyncio.timeout(60):
        return [await anext(watcher) for _ in range(count)]


async def test_write_move_and_delete(watcher: Watcher, tmp_path: Path) -> None:
    watcher.add(str(tmp_path))
    (tmp_path / "a.yaml").write_text("x")
    os.rename(tmp_path / "a.yaml", tmp_path / "b.yaml")
    os.unlink(tmp_path / "b.yaml")
    events = await next_events(watcher, 5)
    rename = events[2].cookie
    assert rename > 0
    assert events == [
        FileEvent(str(tmp_path), "a.yaml", EventKind.CREATE),
        FileEvent(str(tmp_path), "a.yaml", EventKind.CLOSE_WRITE),
        FileEvent(str(tmp_path), "a.yaml", EventKind.MOVED_FROM, rename),
        FileEvent(str(tmp_path), "b.yaml", EventKind.MOVED_TO, rename),
        FileEvent(str(tmp_path), "b.yaml", EventKind.DELETE),
    ]


async def test_vanished_directory_ends_the_watch_and_can_be_watched_again(watcher: Watcher, tmp_path: Path) -> None:
    here = tmp_path / "manifests"
    here.mkdir()
    watcher.add(str(here))
    here.rmdir()
    events = await next_events(watcher, 2)
    assert [e.kinds for e in events] == [EventKind.DELETE_SELF, EventKind.IGNORED]
    assert {e.path for e in events} == {str(here)}
    assert not watcher.is_watched(str(here))
    with pytest.raises(HostError) as caught:
        watcher.add(str(here))
    assert caught.value.is_not_found
    here.mkdir()
    watcher.add(str(here))
    (here / "f").touch()
    assert (await next_events(watcher, 1))[0].name == "f"


async def test_directory_replaced_by_another_is_followed(watcher: Watcher, tmp_path: Path) -> None:
    here = tmp_path / "d"
    here.mkdir()
    watcher.add(str(here), EventKind.CREATE)
    here.rename(tmp_path / "old")
    here.mkdir()
    watcher.add(str(here), EventKind.CREATE)
    (tmp_path / "old" / "not-ours").touch()
    (here / "ours").touch()
    events = [event for event in await next_events(watcher, 2) if event.kinds is EventKind.CREATE]
    assert [event.name for event in events] == ["ours"]
    assert watcher.is_watched(str(here))


async def test_removed_watch_is_silent(watcher: Watcher, tmp_path: Path) -> None:
    watcher.add(str(tmp_path), EventKind.CREATE)
    watcher.remove(str(tmp_path))
    watcher.remove(str(tmp_path))
    (tmp_path / "f").touch()
    assert [event.kinds for event in await next_events(watcher, 1)] == [EventKind.IGNORED]


async def test_overflow_is_reported(watcher: Watcher, tmp_path: Path) -> None:
    watcher.add(str(tmp_path), EventKind.CREATE | EventKind.DELETE)
    limit = int(read_text("/proc/sys/fs/inotify/max_queued_events"))
    path = str(tmp_path / "f")
    for _ in range(limit // 2 + 2):
        os.close(os.open(path, os.O_CREAT))
        os.unlink(path)
    async with asyncio.timeout(100):
        async for event in watcher:
            if EventKind.OVERFLOW in event.kinds:
                assert event.path == ""
                return


async def test_a_directory_with_a_new_path_is_still_watched_when_the_old_path_is_not(
    watcher: Watcher, tmp_path: Path
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    watcher.add(str(old))
    old.rename(new)
    watcher.add(str(new), EventKind.CREATE)
    watcher.remove(str(old))
    (new / "f").touch()
    events = await next_events(watcher, 2)
    assert [(event.path, event.name) for event in events if event.name] == [(str(new), "f")]


def test_a_closed_watcher_begins_no_watch(tmp_path: Path) -> None:
    watcher = Watcher()
    watcher.close()
    with pytest.raises(HostError) as caught:
        watcher.begin(str(tmp_path))
    assert caught.value.errno_name == "EBADF"
