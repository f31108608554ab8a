"""The disk below the root directory is full or read-only: pods wait and say why, the agent lives, and all goes on with space."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.agent import Agent, Json, is_ready, make_container, make_pod

pytestmark = pytest.mark.integration


def needs_disk(name: str) -> Json:
    container = make_container(volumeMounts=[{"name": "data", "mountPath": "/data"}])
    return make_pod(name, container, volumes=[{"name": "data", "emptyDir": {}}])


@pytest.fixture
def small_disk(make_agent: Callable[..., Agent]) -> Iterator[Agent]:
    """An agent, not started, whose root directory is a tmpfs of 4 MiB and few inodes."""
    agent = make_agent()
    agent.root.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m,nr_inodes=1000", "tmpfs", str(agent.root)], check=True)
    yield agent
    agent.kill9()
    subprocess.run(["umount", "-R", "-l", str(agent.root)], check=True)


def fill(root: Path) -> list[Path]:
    """Use up bytes and inodes; the files that hold them."""
    files = []
    with open(root / "filler", "wb", buffering=0) as filler:
        try:
            while True:
                filler.write(b"\0" * 4096)
        except OSError:
            files.append(root / "filler")
    try:
        for number in range(5000):
            os.close(os.open(root / f"inode-{number}", os.O_CREAT | os.O_WRONLY))
            files.append(root / f"inode-{number}")
    except OSError:
        return files
    raise AssertionError("the file system is not full")


async def test_pods_wait_for_space(small_disk: Agent) -> None:
    agent = small_disk.start()
    agent.put(needs_disk("early"))
    await agent.wait_running("early")
    files = fill(agent.root)
    agent.put(needs_disk("late"))

    def told() -> bool:
        waits = [w for w in agent.explain("late")["waits"] if "no space left on device" in w["detail"].lower()]
        assert all(wait["owner"] and wait["next_step"] for wait in waits)
        return bool(waits)

    await agent.wait_for("the pod says what it waits for", told)
    assert agent.get("/healthz", agent.health_port) == (200, "ok")
    assert is_ready(agent.pods()["early"])

    agent.kill9()
    agent.start()
    await agent.wait_running("early")
    await agent.wait_for("told again after a start on a full disk", told)
    agent.remove("early")
    await agent.wait_gone("early")

    for file in files:
        file.unlink()
    await agent.wait_running("late")
    await agent.remove_all()
    assert agent.stop() == 0


async def test_pods_wait_for_a_disk_that_can_be_written(small_disk: Agent) -> None:
    agent = small_disk.start()
    agent.put(needs_disk("early"))
    await agent.wait_running("early")
    remount(agent.root, "ro")
    agent.put(needs_disk("late"))

    def told() -> bool:
        waits = [w for w in agent.explain("late")["waits"] if "read-only file system" in w["detail"].lower()]
        assert all(wait["owner"] and wait["next_step"] for wait in waits)
        return bool(waits)

    await agent.wait_for("the pod says what it waits for", told)
    assert "ead-only file system" in agent.ask("explain", "late-node").stdout
    assert agent.get("/healthz", agent.health_port) == (200, "ok")
    assert is_ready(agent.pods()["early"])
    remount(agent.root, "rw")
    await agent.wait_running("late")
    await agent.remove_all()
    assert agent.stop() == 0


def remount(root: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", str(root)], check=True)
