"""Removing what containerd refuses to remove, for real: starts are cut off at any moment, as when the agent is killed."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from pathlib import Path

import pytest
from testbed import images
from testbed.private_runtime import Testbed

from pykubelet.act.runtime.lifecycle.removal import remove_container, remove_sandbox
from pykubelet.base.model.ids import ContainerID
from pykubelet.base.model.observed import ObservedState
from pykubelet.base.model.waits import UNRECORDED
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.client import CriClient
from pykubelet.edges.cri.errors import CriError
from pykubelet.observe.pleg.views import started_view

pytestmark = pytest.mark.integration

RACES = 40
SLOWEST_START_S = 0.15
#: containerd's message for a start that failed when the task was there.
CUT_LATE = "failed to start containerd task "


async def cut_off(client: CriClient, container: ContainerID, after_s: float) -> None:
    """Begin to start it, go away, and wait until the runtime has made up its mind about it."""
    try:
        async with asyncio.timeout(after_s):
            await client.start_container(container)
    except TimeoutError:
        pass
    for number in range(3000):
        if (await client.container_status(container)).status.state != pb.CONTAINER_CREATED:
            return
        if number % 250 == 249:  # it went away before the runtime had begun; one that is under way is refused
            with suppress(CriError):
                await client.start_container(container)
        await asyncio.sleep(0.02)
    pytest.fail("the runtime does not come to an end with a start that was given up")


def known_processes(testbed: Testbed) -> set[str]:
    """The containers and sandboxes whose process the runtime has not cleaned up after.

    For containerd, these are its tasks. runc may know more: containerd 2.1 forgets processes of starts that were cut off.
    """
    if testbed.is_crio:
        return {file.parent.name for file in (testbed.state / "runc").rglob("state.json")}
    return set(testbed.ctr("task", "ls", "--quiet").split())


async def test_containers_whose_start_was_cut_off_can_be_removed(testbed: Testbed, tmp_path: Path) -> None:
    """containerd 1.6 loses sight of about one process in twenty; later ones of none. None may be left, and none run.

    What counts as never started has not run, unless the start was cut off when the task was there already: its process may
    have run until the runtime killed it, which no answer of the runtime states.
    """
    chance = random.Random()
    runs = tmp_path / "runs"
    runs.mkdir()
    client = CriClient(testbed.endpoint, timeout_s=30)
    namespaces = pb.NamespaceOption(network=pb.NODE, pid=pb.CONTAINER)
    options = pb.LinuxSandboxSecurityContext(namespace_options=namespaces)
    config = pb.PodSandboxConfig(
        metadata=pb.PodSandboxMetadata(name="cut", uid="cut", namespace="default"),
        log_directory=str(tmp_path),
        linux=pb.LinuxPodSandboxConfig(cgroup_parent=f"/{testbed.name}", security_context=options),
    )
    sandbox = await client.run_pod_sandbox(config)

    async def race(number: int) -> ContainerID:
        wanted = pb.ContainerConfig(
            metadata=pb.ContainerMetadata(name="main", attempt=number),
            image=pb.ImageSpec(image=images.BUSYBOX, user_specified_image=images.BUSYBOX),
            command=["sh", "-c", f"touch /runs/{number}; exec sleep 1000"],
            mounts=[pb.Mount(container_path="/runs", host_path=str(runs))],
            log_path=f"{number}.log",
            linux=pb.LinuxContainerConfig(
                security_context=pb.LinuxContainerSecurityContext(namespace_options=namespaces)
            ),
        )
        container = ContainerID(await client.create_container(sandbox, wanted, config))
        await cut_off(client, container, chance.uniform(0.0, SLOWEST_START_S))
        status = (await client.container_status(container)).status
        is_cut_late = status.message.startswith(CUT_LATE)
        if started_view(status, sandbox).state is ObservedState.CREATED and not is_cut_late:
            assert not (runs / str(number)).exists(), f"it has run: {status.message}"
        return container

    try:
        for number in range(0, RACES - 1, 2):
            for container in await asyncio.gather(race(number), race(number + 1)):
                await client.stop_container(container, 0)
                await remove_container(client, container, UNRECORDED)
        assert await client.list_containers(sandbox_id=sandbox) == []
        assert known_processes(testbed) <= {sandbox}  # CRI-O's has no process
        await race(RACES)
        await client.stop_pod_sandbox(sandbox)
        await remove_sandbox(client, sandbox, UNRECORDED)
        assert known_processes(testbed) == set()
    finally:
        await client.close()
