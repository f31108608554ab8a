"""The file source on a real directory, what it posts, and a clock of files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from pykubelet.base.kit.cells import Mailbox
from pykubelet.base.kit.clock import Clock, SystemClock
from pykubelet.base.kit.flight import SingleFlight
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.model.roster import SourceChanged
from pykubelet.desired.sources.decode import ManifestRules
from pykubelet.desired.sources.file import FileSource
from pykubelet.edges.host.fs.inotify import Watcher


def manifest(name: str, image: str = "busybox:1") -> str:
    return f"apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{containers: [{{name: c, image: '{image}'}}]}}\n"


class Reader:
    """What the source posted, one at a time."""

    def __init__(self, posts: Mailbox[SourceChanged]) -> None:
        self.posts = posts

    async def next(self, within_s: float = 30.0) -> SourceChanged:
        async with asyncio.timeout(within_s):
            return await self.posts.get()

    async def names(self) -> list[str]:
        return [pod.metadata.name for pod in (await self.next()).pods]

    async def until(self, condition: Callable[[SourceChanged], bool]) -> SourceChanged:
        while not condition(post := await self.next()):
            pass
        return post

    async def quiet(self, for_s: float = 0.15) -> None:
        with pytest.raises(TimeoutError):
            await self.next(for_s)


def has_only(name: str, post: SourceChanged) -> bool:
    return [pod.metadata.name for pod in post.pods] == [name]


def has_pod(name: str, post: SourceChanged) -> bool:
    return name in [pod.metadata.name for pod in post.pods]


class FilesClock(SystemClock):
    """On the wall it stands still at a file's date once that is set: then only the test makes the file older. Its monotonic time
    passes only by `pass_s`."""

    def __init__(self) -> None:
        self._held: float | None = None
        self._monotonic = 1.0

    def monotonic(self) -> float:
        return self._monotonic

    def pass_s(self, seconds: float) -> None:
        self._monotonic += seconds

    def wall(self) -> float:
        return super().wall() if self._held is None else self._held

    def hold(self, path: Path, age_s: float) -> None:
        self._held = path.stat().st_mtime + age_s


@asynccontextmanager
async def source(
    path: Path,
    period_s: float = 60.0,
    make_watcher: Callable[[], Watcher] = Watcher,
    clock: Clock | None = None,
    is_standalone: bool = False,
) -> AsyncIterator[Reader]:
    posts: Mailbox[SourceChanged] = Mailbox("posts")
    async with Supervisor("test") as tasks:
        flight, rules = SingleFlight("test", 1), ManifestRules("n", is_standalone=is_standalone)
        watching = FileSource(str(path), rules, period_s, posts, clock or SystemClock(), flight, make_watcher)
        task = tasks.start_root("source", watching.run())
        yield Reader(posts)
        assert not task.done(), task
    assert len(posts) == 0, "unexpected posts"
