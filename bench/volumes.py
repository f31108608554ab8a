"""Pods with a persistent volume of a CSI driver, against the driver's calls and the runtime's made back to back. One scenario, `volumes`.

The driver is `pykubelet csi-local`, a process of its own. Claims and volumes are manifests, like the pods.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from testbed import host

from bench.agent import NODE_NAME, runtime_name
from bench.baseline import NS_PER_MS, Template, read_template
from bench.probes import until, with_container
from bench.scenarios import CALM_S, Bench
from bench.stats import spread
from bench.table import Figure
from pykubelet.edges.csi import csi_pb2 as pb
from pykubelet.edges.csi.node import LIMITS, CsiNode
from pykubelet.edges.plugins.channels import plugin_channel
from pykubelet.net.grpc.call import call

DRIVER = "local.csi.pykubelet"
_PATH, _SIZE = "/data", 8 << 20
_SETTLE_S, _STOP_S = 0.35, 10.0
#: What the agent may add to the calls of the driver and the runtime.
_MOST_MS = 15
_MOUNTED = pb.VolumeCapability(
    mount=pb.VolumeCapability.MountVolume(), access_mode=pb.VolumeCapability.AccessMode(mode="SINGLE_NODE_WRITER")
)


@dataclass
class Driver:
    """A running CSI driver. `folder`: where the baseline has its volumes staged and published."""

    pid: int
    endpoint: Path
    folder: Path

    async def create(self, name: str) -> None:
        """Create a volume whose id is its name."""
        request = pb.CreateVolumeRequest(
            name=name, capacity_range=pb.CapacityRange(required_bytes=_SIZE), volume_capabilities=[_MOUNTED]
        )
        channel = plugin_channel(str(self.endpoint), LIMITS)
        try:
            await call(channel, "/csi.v1.Controller/CreateVolume", request, pb.CreateVolumeResponse, 20)
        finally:
            channel.close()


@contextlib.asynccontextmanager
async def driver_running(bench: Bench) -> AsyncIterator[Driver]:
    """The driver, registered at the agent; stopped at the end."""
    folder, root = bench.agent.folder / "csi", bench.agent.folder / "kubelet"
    argv = [str(bench.agent.program), "csi-local", "--root-dir", str(root), "--data-dir", str(folder / "data")]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    pid = host.spawn([*argv, "--node-id", NODE_NAME], folder / "driver.log", env)
    try:
        driver = Driver(pid, root / "plugins" / DRIVER / "csi.sock", folder)

        async def is_there() -> bool:
            return driver.endpoint.exists() and (root / "plugins_registry" / f"{DRIVER}-reg.sock").exists()

        await until("the CSI driver has started", is_there)
        yield driver
    finally:
        host.end_process(pid, _STOP_S)


def _objects(name: str) -> list[dict[str, Any]]:
    """The claim `claim-<name>`, and the persistent volume for it."""
    terms: dict[str, Any] = {"accessModes": ["ReadWriteOnce"]}
    size = {"storage": str(_SIZE)}
    source = {"driver": DRIVER, "volumeHandle": name}
    about = {"namespace": "default", "name": f"claim-{name}"}
    volume = {**terms, "capacity": size, "csi": source, "claimRef": about}
    claim = {**terms, "resources": {"requests": size}, "volumeName": f"pv-{name}"}
    return [
        {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": f"pv-{name}"}, "spec": volume},
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": about, "spec": claim},
    ]


def _user(name: str) -> dict[str, Any]:
    """A pod with the volume of this name."""
    pod = with_container(name, volumeMounts=[{"name": "data", "mountPath": _PATH}])
    pod["spec"]["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": f"claim-{name}"}}]
    return pod


@dataclass
class _Seen:
    """Milliseconds. `calls`: those of the driver in `baseline`."""

    started: list[float] = field(default_factory=list)
    baseline: list[float] = field(default_factory=list)
    calls: list[float] = field(default_factory=list)


async def volumes(bench: Bench) -> None:
    """Pods one by one, each with a volume of its own that has to be staged, and as many of the baseline."""
    seen, names = _Seen(), [f"csi-{n}" for n in range(6 if bench.quick else 20)]
    async with driver_running(bench) as driver:
        for name in ("csi-first", *names):
            await driver.create(name)
            await driver.create(f"raw-{name}")
            bench.agent.place(_objects(name))
        await bench.agent.wait_quiet()
        await _start(bench, "csi-first")
        template = await read_template(bench.cri, runtime_name("csi-first"))
        await _baseline(bench, driver, template, "raw-csi-first")
        for name in names:
            total, calls = await _baseline(bench, driver, template, f"raw-{name}")
            seen.baseline.append(total)
            seen.calls.append(calls)
            seen.started.append(await _start(bench, name))
        await bench.remove_all(["csi-first", *names])
        bench.agent.withdraw([f"{kind}-{name}" for name in ("csi-first", *names) for kind in ("pv", "claim")])
        await bench.agent.wait_quiet()
    bench.figures += _figures(seen)


async def _start(bench: Bench, name: str) -> float:
    """Milliseconds from the manifest of a pod with a volume to the start of its container."""
    before = len(bench.watch.starts)
    placed = bench.agent.place([_user(name)])
    await bench.watch.wait_starts(before, 2, 20)
    await asyncio.sleep(_SETTLE_S)
    return (await bench.started_at(name) - placed) / NS_PER_MS


async def _baseline(bench: Bench, driver: Driver, template: Template, volume: str) -> tuple[float, float]:
    """Milliseconds from the first call of the driver to the container's start, and those of the driver's two calls alone.

    The agent is frozen meanwhile, and gets time to rest afterwards. The connection to the driver is made before.
    """
    pod = bench.baseline.prepare(template)
    staged, target = (str(driver.folder / volume / part) for part in ("staged", "mount"))
    (mount,) = [mount for mount in pod.container.mounts if mount.container_path == _PATH]
    mount.host_path = target
    stage = pb.NodeStageVolumeRequest(volume_id=volume, staging_target_path=staged, volume_capability=_MOUNTED)
    publish = pb.NodePublishVolumeRequest(
        volume_id=volume, staging_target_path=staged, target_path=target, volume_capability=_MOUNTED
    )
    with bench.agent.frozen(), CsiNode(DRIVER, str(driver.endpoint)) as node:
        await node.capabilities()
        await asyncio.sleep(CALM_S)
        began = time.time_ns()
        await node.stage(stage)
        await node.publish(publish)
        called = time.time_ns()
        made = await bench.baseline.make(pod)
        await asyncio.sleep(_SETTLE_S)
        started = await bench.baseline.started_at(made.container)
        await bench.baseline.remove(made)
        await node.unpublish(volume, target)
        await node.unstage(volume, staged)
        await asyncio.sleep(_SETTLE_S)
    await bench.rest()
    return (started - began) / NS_PER_MS, (called - began) / NS_PER_MS


def _figures(seen: _Seen) -> list[Figure]:
    baseline = spread(seen.baseline)
    what = f"manifest appears to container started, {len(seen.started)} pods with a CSI volume"
    target = f"<= baseline (with the driver's calls) + {_MOST_MS} ms"
    return [
        Figure(what, "ms", spread(seen.started), baseline, baseline.median + _MOST_MS, target),
        Figure("the driver's calls in the baseline of that", "ms", spread(seen.calls)),
    ]
