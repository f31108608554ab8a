"""Manifests on a file system that does not answer."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from support.virtual_time import VirtualLoop, virtual_clock

from pykubelet.base.kit.flight import SingleFlight
from pykubelet.desired.sources.decode import ManifestRules
from pykubelet.desired.sources.manifests import DISK_DEADLINE_S, Manifests


@pytest.mark.virtual_time
async def test_a_file_system_that_hangs_keeps_the_set_and_is_reported_until_it_answers(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(
        "{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{name: c, image: i}]}}"
    )
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
    assert [(one.origin, one.reason) for one in scan.problems] == [
        (str(tmp_path), "its file system has not answered for 10 s")
    ]

    loop.hung.clear()  # from now on, no time passes until the thread has ended
    release.set()
    await hanging
    assert (await manifests.scan(set(), settle=True)).pods == before.pods
