"""What `pykubelet explain` shows of volumes that are not as they should be: who works on them, and who holds them."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from support.agent import Agent, Json, make_container, make_pod
from support.csi import DRIVER, csi_driver
from support.world import World
from testbed.fuse import HangingFileSystem

pytestmark = pytest.mark.integration
MakeAgent = Callable[..., Agent]
CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"


def using(name: str, **source: Json) -> Json:
    container = make_container(volumeMounts=[{"name": "data", "mountPath": "/data"}])
    return make_pod(name, container, volumes=[{"name": "data", **source}])


async def shown(agent: Agent, pod: str, *words: str) -> str:
    """The part about volumes of what a person sees, as soon as it has these words."""
    seen: list[str] = []

    async def has_words() -> bool:
        answer = await asyncio.to_thread(agent.ask, "explain", pod)
        _, _, text = answer.stdout.partition("\nVolumes:\n")
        seen[:] = [text.partition("\n\n")[0]]
        return all(word in seen[0] for word in words)

    try:
        await agent.wait_for(f"explain shows of {pod}: {words}", has_words)
    except AssertionError as error:
        raise AssertionError(f"{error}\nseen:\n{seen[0]}") from None
    return seen[0]


async def test_who_holds_an_unmount_up(make_agent: MakeAgent) -> None:
    agent = make_agent().start()
    agent.put(using("web", emptyDir={"medium": "Memory"}))
    (pod,) = await agent.wait_running("web")
    volume = agent.root / "pods" / pod["metadata"]["uid"] / "volumes/kubernetes.io~empty-dir/data"
    assert "data (emptyDir): mounted" in await shown(agent, "web-node")
    holder = await asyncio.create_subprocess_exec("sleep", "600", cwd=volume)
    try:
        agent.remove("web")
        held = f"held by process {holder.pid} (sleep): working directory {volume}"
        await shown(agent, "web-node", "data (emptyDir): not unmounted, for ", "busy", held)
    finally:
        holder.kill()
        await holder.wait()
    await agent.wait_gone("web")
    await agent.wait_nothing_left()


async def test_the_program_that_mounts(make_agent: MakeAgent, tmp_path: Path) -> None:
    """Stand-ins for mount(8) and its helper, as they wait for a server that is away."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, script in (
        ("mount.nfs", f"echo $$ > {tmp_path}/pid; exec sleep 600"),
        ("mount", f'case " $* " in *" nfs "*) {folder}/mount.nfs; exit 32 ;; esac; exec /usr/bin/mount "$@"'),
    ):
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    agent = make_agent()
    agent.environment["PATH"] = f"{folder}:{agent.testbed.env['PATH']}"
    agent.start()
    agent.put(using("web", nfs={"server": "away", "path": "/"}))
    await agent.wait_for("it mounts", (tmp_path / "pid").exists)
    pid = (tmp_path / "pid").read_text().strip()
    await shown(agent, "web-node", "data (nfs): being mounted, for ", f"  runs  sleep, pid {pid}, for ")
    agent.remove("web")
    os.kill(int(pid), signal.SIGKILL)
    await agent.wait_gone("web")
    await agent.wait_nothing_left()


async def test_a_driver_that_is_stopped_and_a_file_system_that_does_not_answer(
    make_agent: MakeAgent, tmp_path: Path
) -> None:
    agent = make_agent().start()
    with HangingFileSystem(tmp_path / "mounted", tmp_path / "shown") as system:
        async with csi_driver(agent.root, agent.folder / "csi") as driver:
            agent.put(using("first", csi={"driver": DRIVER}))
            await agent.wait_running("first")
            os.kill(driver.pid, signal.SIGSTOP)
            system.hang()
            agent.put(using("web", csi={"driver": DRIVER}))
            agent.put(using("file", hostPath={"path": str(tmp_path / "mounted"), "type": "Directory"}))
            stopped = f"note  the driver {DRIVER} is process {driver.pid} (python), which a signal has stopped"
            await shown(agent, "web-node", f"calls NodeGetCapabilities of {DRIVER}, for ", "; given up in 1m", stopped)
            agent.remove("first")
            await shown(agent, "first-node", "being unmounted", f"calls NodeUnpublishVolume of {DRIVER}, for ", stopped)
            await shown(agent, "file-node", "being mounted, for ", "waits for the answer of a FUSE file system")
            system.answer()
            agent.remove("file")
            os.kill(driver.pid, signal.SIGKILL)
            await shown(agent, "web-node", "uncertain", "nothing listens on ", "next  try again")
        async with csi_driver(agent.root, agent.folder / "csi") as driver:
            await agent.wait_running("web")
            agent.remove("web")
            await agent.wait_gone("first", "web", "file")
            await agent.wait_for("the volumes are deleted", lambda: driver.volumes() == [])
            await agent.wait_nothing_left()  # while the driver runs, because its last answers may be under way


async def test_a_driver_and_a_claim_that_are_not_there_yet(world: World) -> None:
    agent, fields = (
        world.agent,
        {"attachRequired": False, "podInfoOnMount": True, "volumeLifecycleModes": ["Ephemeral"]},
    )
    world.server.create("/apis/storage.k8s.io/v1/csidrivers", {"metadata": {"name": DRIVER}, "spec": fields})
    spec = {"storageClassName": "fast"}
    world.server.create(CLAIMS, {"metadata": {"name": "data"}, "spec": spec, "status": {"phase": "Pending"}})
    async with csi_driver(agent.root, agent.folder / "other", "other.csi.example.com"):
        world.run(using("early", csi={"driver": DRIVER}))
        world.run(using("claiming", persistentVolumeClaim={"claimName": "data"}))
        await shown(agent, "early", "note  the CSI drivers that are registered on this node: other.csi.example.com")
        await shown(
            agent, "claiming", "data: not mounted, for ", "why   error processing PVC default/data: PVC is not bound"
        )
        answer = await asyncio.to_thread(agent.ask, "explain", "claiming")
        until = "try again when the claim default/data is bound (Pending, storage class fast; its Events say more)"
        assert until in answer.stdout
        for name in ("early", "claiming"):
            world.delete(name)
        await world.wait_gone("early", "claiming")
        await world.wait_nothing_left()
