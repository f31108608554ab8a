"""Volumes whose file system hangs while pods run on it, and its drivers and mount programs: only the pods that use it wait.

Nothing is timed here: the others have to get on while the fault lasts. How fast they do is measured by `bench`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.agent import Agent, Json, is_ready, make_container, make_pod
from support.api import NodeApi
from support.beside import READY, others_go_on
from support.csi import DRIVER, csi_driver
from support.world import World, a_world
from testbed.fuse import HangingFileSystem

MakeAgent = Callable[..., Agent]
CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"
VOLUMES = "/api/v1/persistentvolumes"
pytestmark = pytest.mark.integration
SETTINGS = {"authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}}}
BESIDE = 'echo hello; trap "exit 0" TERM; while :; do sleep 3600 & wait $!; done'
#: How a file system hangs: those who wait for it can be killed, or cannot.
MODES = ("stop", "hang")


@pytest.fixture
def storage() -> Iterator[HangingFileSystem]:
    with (
        tempfile.TemporaryDirectory(prefix="hang") as folder,
        HangingFileSystem(Path(folder, "mounted"), Path(folder, "data")) as system,
    ):
        yield system


def user_of(storage: HangingFileSystem, name: str, *, sub_path: str = "", **spec: Any) -> Json:
    """A pod with the file system as a volume."""
    mount = {"name": "data", "mountPath": "/data"} | ({"subPath": sub_path} if sub_path else {})
    volume = {"name": "data", "hostPath": {"path": str(storage.path), "type": "Directory"}}
    return make_pod(name, make_container(volumeMounts=[mount], **spec), volumes=[volume])


def kill(agent: Agent) -> subprocess.Popen[bytes]:
    """SIGKILL, without waiting for the end of the process."""
    process = agent.process
    assert process is not None
    process.kill()
    agent.process = None
    return process


async def the_node_goes_on(agent: Agent, tag: str, beside: str) -> None:
    """Others start and end; a pod that runs beside is measured, can be looked into, and its log read."""
    await others_go_on(agent, tag)
    code, text = agent.get("/stats/summary", agent.read_only_port)
    measured = {pod["podRef"]["name"]: pod for pod in json.loads(text)["pods"]} if code == 200 else {}
    assert measured[f"{beside}-node"]["containers"][0]["cpu"]["usageCoreNanoSeconds"] > 0
    code, text = agent.get("/metrics/resource", agent.read_only_port)
    assert code == 200 and f'pod="{beside}-node"' in text
    api = NodeApi(agent.port).wait_listening()
    assert api.ask(f"/containerLogs/default/{beside}-node/main") == (200, "hello\n")
    with api.exec(f"{beside}-node", "main", "echo", "seen") as stream:
        assert stream.all()[1] == b"seen\n"


@pytest.mark.parametrize("mode", MODES)
async def test_a_file_system_that_hangs_under_running_pods(
    make_agent: MakeAgent, storage: HangingFileSystem, mode: str
) -> None:
    """Twelve pods use it: more than there are threads for such things. Some look into it by their probes."""
    agent = make_agent(**SETTINGS).start()
    agent.put(make_pod("beside", make_container(script=BESIDE, readinessProbe=READY)))
    looks = {"exec": {"command": ["ls", "/data/part"]}, "periodSeconds": 1, "timeoutSeconds": 1}
    names = [f"user-{n}" for n in range(12)]
    (storage.directory / "part").mkdir()
    agent.put(*(user_of(storage, name) for name in names[:6]))
    agent.put(*(user_of(storage, name, sub_path="part") for name in names[6:9]))
    agent.put(*(user_of(storage, name, readinessProbe=looks) for name in names[9:]))
    await agent.wait_running("beside", *names)
    getattr(storage, mode)()
    try:
        late = [f"late-{n}" for n in range(3)]
        agent.put(*(user_of(storage, name, sub_path="part") for name in late))
        if mode == "stop":  # else not even the runtime can end the commands of the probes
            for name in names[9:]:
                await agent.wait_pod(name, "not ready", lambda pod: not is_ready(pod))
        await the_node_goes_on(agent, "first", "beside")
        before = (await agent.look()).of("beside-node").running[0].id
        killed = kill(agent)
        agent.start()
        await the_node_goes_on(agent, "restarted", "beside")
        assert (await agent.look()).of("beside-node").running[0].id == before
        assert (killed.poll() is None) == (mode == "hang"), (
            "a process that waits for a file system that hangs cannot end"
        )
        agent.remove(*names, *late)
        await the_node_goes_on(agent, "removed", "beside")
    finally:
        storage.answer()
    killed.wait()
    await agent.wait_gone(*names, *late)
    agent.remove("beside")
    await agent.wait_gone("beside")
    await agent.wait_nothing_left()


def claim(world: World, name: str, source: Json) -> None:
    """Create a claim with the volume that is bound to it, which both have this name."""
    spec = {"volumeName": name}
    made = world.server.create(CLAIMS, {"metadata": {"name": name}, "spec": spec, "status": {"phase": "Bound"}})
    reference = {"namespace": "default", "name": name, "uid": made["metadata"]["uid"]}
    volume = {**source, "claimRef": reference, "capacity": {"storage": "1Gi"}}
    world.server.create(VOLUMES, {"metadata": {"name": name}, "spec": volume, "status": {"phase": "Bound"}})


def claiming(name: str, claim_name: str, **source: Json) -> Json:
    source = source or {"persistentVolumeClaim": {"claimName": claim_name}}
    container = make_container(volumeMounts=[{"name": "data", "mountPath": "/data"}])
    return make_pod(name, container, volumes=[{"name": "data", **source}])


async def beside_world(world: World) -> None:
    world.agent.put(make_pod("beside", make_container(script=BESIDE, readinessProbe=READY)))
    await world.agent.wait_running("beside")


async def test_a_claimed_file_system_that_hangs(
    make_agent: MakeAgent, tmp_path: Path, storage: HangingFileSystem
) -> None:
    """The agent finds its mounts again after a restart, and unmounts them, while it hangs."""
    async with a_world(make_agent, tmp_path, **SETTINGS) as world:
        agent, names = world.agent, [f"user-{n}" for n in range(10)]
        for name in names:
            claim(world, name, {"local": {"path": str(storage.path)}})
            world.run(claiming(name, name))
        await world.wait_ready(*names)
        await beside_world(world)
        storage.stop()
        await others_go_on(agent, "hung")
        agent.kill9()
        agent.start()
        await others_go_on(agent, "restarted")
        for name in names:
            world.delete(name)
        await others_go_on(agent, "removed")
        await world.wait_gone(*names)
        storage.answer()
        agent.remove("beside")
        await world.wait_gone("beside-node")
        await world.wait_nothing_left()


async def test_a_driver_that_does_not_answer(make_agent: MakeAgent, tmp_path: Path) -> None:
    """It is stopped while pods use its volumes, others wait for theirs, and the agent is started again beside it."""
    async with a_world(make_agent, tmp_path, **SETTINGS) as world:
        agent, names, late = world.agent, [f"user-{n}" for n in range(10)], [f"late-{n}" for n in range(10)]
        fields = {"attachRequired": False, "podInfoOnMount": True, "volumeLifecycleModes": ["Ephemeral"]}
        world.server.create("/apis/storage.k8s.io/v1/csidrivers", {"metadata": {"name": DRIVER}, "spec": fields})
        async with csi_driver(agent.root, agent.folder / "driver") as driver:
            for name in names:
                world.run(claiming(name, "", csi={"driver": DRIVER}))
            await world.wait_ready(*names)
            await beside_world(world)
            os.kill(driver.pid, signal.SIGSTOP)
            for name in late:
                world.run(claiming(name, "", csi={"driver": DRIVER}))
            await the_node_goes_on(agent, "hung", "beside")
            agent.kill9()
            agent.start()
            await the_node_goes_on(agent, "restarted", "beside")
            for name in names:
                world.delete(name)
            await the_node_goes_on(agent, "removed", "beside")
            os.kill(driver.pid, signal.SIGCONT)
            await world.wait_ready(*late)
            for name in late:
                world.delete(name)
            await world.wait_gone(*names, *late)
            agent.remove("beside")
            await world.wait_gone("beside-node")
            await world.wait_nothing_left()
            assert driver.volumes() == []


async def test_a_mount_program_that_does_not_end(make_agent: MakeAgent, tmp_path: Path) -> None:
    """A stand-in for mount(8), as it waits for an NFS server that is away, until the server refuses the mounts."""
    program, refused = tmp_path / "bin" / "mount", tmp_path / "refused"
    program.parent.mkdir()
    hangs = f"while [ ! -e {refused} ]; do sleep 0.2; done; echo access denied; exit 32"
    program.write_text(f'#!/bin/sh\ncase " $* " in *" nfs "*) {hangs} ;; esac\nexec /usr/bin/mount "$@"\n')
    program.chmod(0o755)
    agent = make_agent(**SETTINGS)
    agent.environment["PATH"] = f"{program.parent}:{agent.testbed.env['PATH']}"
    agent.start()
    agent.put(make_pod("beside", make_container(script=BESIDE, readinessProbe=READY)))
    names = [f"user-{n}" for n in range(10)]
    agent.put(*(claiming(name, "", nfs={"server": "away", "path": "/"}) for name in names))
    try:
        await agent.wait_running("beside")
        await the_node_goes_on(agent, "hung", "beside")
        agent.remove(*names[:5])
        await the_node_goes_on(agent, "removed", "beside")
        agent.kill9()
        agent.start()
        await the_node_goes_on(agent, "restarted", "beside")
        agent.remove("beside", *names[5:])
        await agent.wait_gone("beside", *names)
    finally:
        refused.touch()
    await agent.wait_nothing_left()
