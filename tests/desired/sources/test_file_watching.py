"""The file source while its directory appears, vanishes or is replaced, and while notifications are lost or cannot be had."""

from __future__ import annotations

import errno
import os
from functools import partial
from math import inf
from pathlib import Path

import pytest
from desired.sources.stand import has_only, has_pod, manifest, source

from pykubelet.base.kit.backoff import BackoffPolicy
from pykubelet.desired.sources import file
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.inotify import FileEvent, Watcher


async def test_a_directory_that_vanishes_and_returns_is_followed(folder: Path) -> None:
    (folder / "a.yaml").write_text(manifest("a"))
    async with source(folder) as reader:
        (before,) = (await reader.next()).pods
        aside = folder.with_name("aside")
        os.rename(folder, aside)
        assert (await reader.next()).pods == ()
        (aside / "ignored.yaml").write_text(manifest("ignored"))
        await reader.quiet()
        for path in aside.iterdir():
            os.utime(path, (1, 1))  # they do not count as being written, so both are read at once
        os.rename(aside, folder)
        back = await reader.next()
        assert [pod.metadata.name for pod in back.pods] == ["a-n", "ignored-n"]
        assert next(iter(back.pods)).metadata.uid == before.metadata.uid
        (folder / "b.yaml").write_text(manifest("b"))
        assert await reader.names() == ["a-n", "b-n", "ignored-n"]


async def test_a_directory_below_missing_parents_is_waited_for(tmp_path: Path) -> None:
    folder = tmp_path / "etc" / "kubernetes" / "manifests"
    async with source(folder) as reader:
        assert await reader.names() == []
        folder.mkdir(parents=True)
        (folder / "a.yaml").write_text(manifest("a"))
        assert await reader.names() == ["a-n"]


async def test_the_period_finds_what_events_missed(tmp_path: Path) -> None:
    """Another directory takes the place of a parent: no event comes from below it."""
    folder = tmp_path / "x" / "manifests"
    folder.mkdir(parents=True)
    (folder / "a.yaml").write_text(manifest("a"))
    other = tmp_path / "y" / "manifests"
    other.mkdir(parents=True)
    (other / "b.yaml").write_text(manifest("b"))
    os.utime(other / "b.yaml", (1, 1))
    async with source(folder, period_s=0.1) as reader:
        assert await reader.names() == ["a-n"]
        (tmp_path / "x").rename(tmp_path / "z")
        (tmp_path / "y").rename(tmp_path / "x")
        await reader.until(lambda post: [pod.metadata.name for pod in post.pods] == ["b-n"])
        (folder / "c.yaml").write_text(manifest("c"))
        assert await reader.names() == ["b-n", "c-n"]


async def test_a_directory_deleted_and_made_anew(folder: Path) -> None:
    async with source(folder) as reader:
        assert await reader.names() == []
        for n in range(3):
            os.rmdir(folder)
            os.mkdir(folder)
            (folder / f"p{n}.yaml").write_text(manifest(f"p{n}"))
            await reader.until(partial(has_only, f"p{n}-n"))
            (folder / f"p{n}.yaml").unlink()
            await reader.until(lambda post: post.pods == ())


async def test_without_notifications_the_period_is_enough(folder: Path) -> None:
    def no_watcher() -> Watcher:
        raise HostError("inotify_init", "", "EMFILE", "too many open files")

    async with source(folder, period_s=0.05, make_watcher=no_watcher) as reader:
        assert await reader.names() == []
        (folder / "a.yaml").write_text(manifest("a"))
        assert await reader.names() == ["a-n"]


async def test_a_watch_that_cannot_be_had_is_begun_later(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "RESTART", BackoffPolicy(0.01, 0.02))
    refusals = [HostError("inotify_init", "", "EMFILE", "too many open files")] * 3

    def late_watcher() -> Watcher:
        if refusals:
            raise refusals.pop()
        return Watcher()

    async with source(folder, make_watcher=late_watcher) as reader:
        assert await reader.names() == []
        (folder / "a.yaml").write_text(manifest("a"))
        assert await reader.names() == ["a-n"]


async def test_a_watch_that_is_lost_is_begun_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "RESTART", BackoffPolicy(0.01, 0.02))

    class Breaking(Watcher):
        """Breaks at its first event, which is lost with it."""

        async def get_all(self, deadline: float = inf) -> list[FileEvent]:
            await super().get_all(deadline)
            raise OSError(errno.EIO, "the watch is gone")

    made = [Watcher, Breaking, Breaking]
    async with source(folder, make_watcher=lambda: made.pop()() if made else Watcher()) as reader:
        assert await reader.names() == []
        for name in ("a", "b", "c"):
            (folder / f"{name}.yaml").write_text(manifest(name))
            await reader.until(partial(has_pod, f"{name}-n"))
