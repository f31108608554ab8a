"""Manifests on a file system that does not answer."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from support.virtual_time import VirtualLoop, virtual_clock

from pykubelet.base.kit.cells import Mailbox
from pykubelet.base.kit.flight import SingleFlight
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.model.roster import SourceChanged
from pykubelet.desired.sources.decode import ManifestRules
from pykubelet.desired.sources.file import FileSource
from pykubelet.desired.sources.manifests import DISK_DEADLINE_S, Manifests
from pykubelet.edges.host.fs.inotify import DIRECTORY_CHANGES, EventKind, Watcher

MANIFEST = "{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{name: c, image: i}]}}"
PERIOD_S = 3600.0


@pytest.mark.virtual_time
async def test_a_file_system_that_hangs_keeps_the_set_and_is_reported_until_it_answers(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(MANIFEST)
    loop, flight, release = asyncio.get_running_loop(), SingleFlight("test"), threading.Event()
    assert isinstance(loop, VirtualLoop)
    manifests = Manifests(str(tmp_path), ManifestRules("n"), flight, virtual_clock())
    before = await manifests.scan(set(), settle=False)
    assert [pod.metadata.name for pod in before.pods] == ["a-n"]

    loop.hung.add(f"manifests {tmp_path}")
    hanging = loop.create_task(flight.run(f"manifests {tmp_path}", release.wait, 1e4))
    await asyncio.sleep(0)
    began = loop.time()
    scan = await manifests.scan(set(), settle=True)
    assert loop.time() - began <= DISK_DEADLINE_S + 1
    assert scan.keep and scan.unsettled, "the pods stay, and it is tried again"
    assert [(problem.origin, problem.reason) for problem in scan.problems] == [
        (str(tmp_path), "its file system has not answered for 10 s")
    ]

    loop.hung.clear()  # from now on, no time passes until the thread has ended
    release.set()
    await hanging
    assert (await manifests.scan(set(), settle=True)).pods == before.pods


@pytest.mark.virtual_time
async def test_a_directory_that_hangs_while_its_watch_is_opened_is_reported_and_watched_later(tmp_path: Path) -> None:
    loop, release = asyncio.get_running_loop(), threading.Event()
    assert isinstance(loop, VirtualLoop)

    class Hanging(Watcher):
        def begin(self, path: str, mask: EventKind = DIRECTORY_CHANGES) -> int:
            release.wait()
            return super().begin(path, mask)

    posts: Mailbox[SourceChanged] = Mailbox("posts")
    loop.hung.add(f"manifests {tmp_path}")
    began = loop.time()
    async with Supervisor("test") as tasks:
        flight, clock = SingleFlight("test"), virtual_clock()
        source = FileSource(str(tmp_path), ManifestRules("n"), PERIOD_S, posts, clock, flight, Hanging)
        tasks.start_root("source", source.run())
        (post,) = await posts.get_all()
        assert loop.time() - began <= DISK_DEADLINE_S + 1
        assert not post.known and [(problem.origin, problem.reason) for problem in post.problems] == [
            (str(tmp_path), "its file system has not answered for 10 s")
        ]
        await asyncio.sleep(60.0)

        loop.hung.clear()
        release.set()
        (post,) = await posts.get_all()
        assert post.known and not post.pods and not post.problems
        (tmp_path / "a.yaml").write_text(MANIFEST)
        (post,) = await posts.get_all()
        assert [pod.metadata.name for pod in post.pods] == ["a-n"]
        assert loop.time() - began < PERIOD_S, "by an event, and not by the periodic scan"
