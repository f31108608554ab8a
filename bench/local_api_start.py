"""`python -m bench.local_api_start`: from the creation of a pod to the start of its container, with the local API and with a real one.

Two nodes of the same agent, each with a containerd of its own: one with the local API, one with a control plane of KUBEBUILDER_ASSETS
(etcd, API server, scheduler, controller manager). Both bind the pod, which has the usual token. They start one pod each alternately.
Exit code 1 if the median with the local API is above its target; 0 without a control plane, which is printed.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from testbed import containerd, controlplane, images, local_api, node, places
from testbed.host import TestbedError
from testbed.private_runtime import Testbed

from bench.agent import PROGRAM, manifest
from bench.api import AdminAccess, Api, PodWatch
from bench.baseline import NS_PER_MS, find_pod
from bench.stats import spread
from pykubelet.edges.cri.client import CriClient

#: The median with the local API by the median with a real one.
RATIO = 1.1
PAUSE_S = 0.5


@dataclass(frozen=True, slots=True)
class LocalAccess:
    """The local API, as its administrator uses it. `pki`: the certificate and the key of the kubeconfig file."""

    server: str
    authority: Path
    pki: Path


@dataclass(slots=True)
class StartSide:
    """One node. `started`: milliseconds from the creation to the start of the container, by the runtime's word; `ready`: to Ready."""

    name: str
    api: Api
    watch: PodWatch
    cri: CriClient
    started: list[float] = field(default_factory=list)
    ready: list[float] = field(default_factory=list)

    async def start_one(self, number: int, *, counts: bool) -> None:
        """Create a pod, wait until it is Ready, and delete it."""
        name = f"start-{number}"
        began = await self.api.create_pod(manifest(name))
        ready = await self.watch.ready_at(name)
        await asyncio.sleep(PAUSE_S)
        _, container = await find_pod(self.cri, name)
        started = (await self.cri.container_status(container)).status.started_at
        if counts:
            self.started.append((started - began) / NS_PER_MS)
            self.ready.append((ready - began) / NS_PER_MS)
        await self.api.delete_pod(name, 1)
        await self.watch.gone_at(name)
        await asyncio.sleep(PAUSE_S)


@contextlib.contextmanager
def started_node(folder: Path, *, is_local: bool) -> Iterator[tuple[Testbed, AdminAccess]]:
    """A node below `folder`, until the block ends."""
    try:
        testbed = containerd.up(folder, (images.PAUSE, images.BUSYBOX))
        manifests = local_api.no_manifests(folder)
        access: AdminAccess
        if is_local:
            kubeconfig, authority = local_api.start(folder, PROGRAM, node.NODE_NAME, manifests)
            access = _local_access(folder, kubeconfig.with_name("admin.kubeconfig"), authority)
        else:
            plane = controlplane.up(folder)
            kubeconfig, authority, access = controlplane.node_kubeconfig(plane, node.NODE_NAME), plane.authority, plane
        node.start_agent(testbed, PROGRAM, manifests, node.Joined(kubeconfig, authority))
        yield testbed, access
    finally:
        node.down(folder)


def _local_access(folder: Path, kubeconfig: Path, authority: Path) -> LocalAccess:
    found = yaml.safe_load(kubeconfig.read_text())
    user, pki = found["users"][0]["user"], folder / "pki"
    pki.mkdir()
    for name, key in (("admin.crt", "client-certificate-data"), ("admin.key", "client-key-data")):
        (pki / name).write_bytes(base64.b64decode(user[key]))
    return LocalAccess(found["clusters"][0]["cluster"]["server"], authority, pki)


@contextlib.asynccontextmanager
async def opened(name: str, made: tuple[Testbed, AdminAccess]) -> AsyncIterator[StartSide]:
    """The clients of one node."""
    testbed, access = made
    api, cri = Api(access), CriClient(testbed.endpoint)
    try:
        async with PodWatch(api) as watch:
            yield StartSide(name, api, watch, cri)
    finally:
        await cri.close()
        await api.close()


async def measure(local: tuple[Testbed, AdminAccess], real: tuple[Testbed, AdminAccess], pods: int) -> int:
    """Start `pods` pods on each node, alternately; print, and judge."""
    async with opened("local API", local) as ours, opened("real API server", real) as theirs:
        for number in range(pods + 2):
            for side in (ours, theirs) if number % 2 else (theirs, ours):
                await side.start_one(number, counts=number >= 2)  # the first ones warm up
        for side in (ours, theirs):
            for what, found in (("started", side.started), ("Ready", side.ready)):
                took = spread(found)
                row = f"{took.median:7.1f} ms [{took.low:.1f} to {took.high:.1f}]"
                print(f"  {side.name:16} created to {what:8} {row}")
    ratio = spread(ours.started).median / spread(theirs.started).median
    print(
        f"  ratio of the medians to the start {ratio:.2f}  target {RATIO}: {'reached' if ratio <= RATIO else 'MISSED'}"
    )
    return int(ratio > RATIO)


def main() -> int:
    """Start both nodes, and measure."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.local_api_start", description="Start of pods with the local API and with a real one."
    )
    parser.add_argument("--pods", type=int, default=30, help="pods on each node")
    options = parser.parse_args()
    if not os.environ.get("KUBEBUILDER_ASSETS"):
        print("skipped: KUBEBUILDER_ASSETS names no folder with a control plane")
        return 0
    node.sweep_dead_runs()
    folder = places.run_folder("bench")
    try:
        with (
            started_node(folder / "local", is_local=True) as local,
            started_node(folder / "real", is_local=False) as real,
        ):
            return asyncio.run(measure(local, real, options.pods))
    except (TestbedError, images.ImageError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
