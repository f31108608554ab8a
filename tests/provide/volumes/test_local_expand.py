"""Expansion of local persistent volumes. The kernel of a test machine may not grow file systems in use, so the tool is a stand-in."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from provide.volumes.samples import running
from provide.volumes.test_expansion import Cluster
from provide.volumes.test_local_devices import MOUNTS, content, events, make_pod
from provide.volumes.test_loop import set_roster, started, until
from support.block import block_device, clean_folder

from pykubelet.base.api.codec import from_object
from pykubelet.base.api.storage import PersistentVolumeClaim
from pykubelet.base.kit.values import replace
from pykubelet.base.model.content import Content, ContentKind, ObjectKey, Present
from pykubelet.base.model.ids import PodUID

pytestmark = [
    pytest.mark.virtual_time,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root for mounts and loop devices"),
]


@pytest.fixture
def device() -> Iterator[str]:
    with block_device() as path:
        yield path


@pytest.fixture
def root(device: str) -> Iterator[Path]:
    """Emptied before the device is detached."""
    with clean_folder() as folder:
        yield folder


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The arguments of each call of the stand-in for resize2fs, which fails once."""
    tool, found = tmp_path / "resize2fs", tmp_path / "calls"
    tool.write_text(
        f'#!/bin/sh\necho "$@" >> {found}\n[ $(wc -l < {found}) -gt 1 ] || {{ echo no such luck; exit 1; }}\n'
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return found


def known(path: str, store: Cluster) -> Content:
    found = content(path, capacity={"storage": "16Mi"})
    claim = Present(from_object(PersistentVolumeClaim, store.claim))
    return replace(found, objects={**found.objects, ObjectKey(ContentKind.VOLUME_CLAIM, "shop", "data"): claim})


def small() -> Cluster:
    return Cluster({"capacity": {"storage": "8Mi"}}, {"volumeName": "pv"})


async def test_the_file_system_of_a_device_is_grown_by_its_tool(root: Path, device: str, calls: Path) -> None:
    store = small()
    async with started(root, claims=store) as agent:
        agent.content.publish(known(device, store))
        agent.observed.publish(running())
        set_roster(agent, make_pod("u1"))
        await agent.wait_ready("u1")
        assert calls.read_text().splitlines() == [device] * 2
        assert store.status["capacity"] == {"storage": "16Mi"} and "conditions" not in store.status
        failed = [event for event in events(agent) if "Setup failed while expanding" in event]
        assert len(failed) == 1 and failed[0].endswith("no such luck")
        assert (root / MOUNTS).exists()
        set_roster(agent)
        await agent.wait_gone(agent.paths.pod(PodUID("u1")))
        await until(lambda: not (root / MOUNTS).exists())


async def test_a_directory_has_its_size(root: Path, tmp_path: Path, calls: Path) -> None:
    store = small()
    async with started(root, claims=store) as agent:
        agent.content.publish(known(str(tmp_path), store))
        agent.observed.publish(running())
        set_roster(agent, make_pod("u1"))
        await agent.wait_ready("u1")
        assert store.status["capacity"] == {"storage": "16Mi"}
        assert not calls.exists()


async def test_what_is_mounted_read_only_is_not_grown(root: Path, device: str, tmp_path: Path, calls: Path) -> None:
    store = small()
    async with started(root, claims=store) as agent:
        agent.content.publish(known(str(tmp_path), store))
        agent.observed.publish(running())
        set_roster(agent, make_pod("u1", read_only=True))
        await agent.wait_ready("u1")
        assert not calls.exists() and store.status["capacity"] == {"storage": "8Mi"}
        text = 'MountVolume.NodeExpandVolume failed for volume "pv" requested read-only file system'
        assert events(agent) == [f"FileSystemResizeFailed: {text}"] * 2
