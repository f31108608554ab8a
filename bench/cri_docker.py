"""`python -m bench.cri_docker`: what `pykubelet cri-docker` adds to Docker Engine's own calls, and what it needs itself.

A private Docker Engine runs the same pod again and again, by the calls of the CRI and by the calls of Docker's API that it needs
at least, with the same requests and the same CNI plugins, by a client that does nothing else. Needs root.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from testbed import containerd, docker, host, images, places, runtimes
from testbed.host import TestbedError
from testbed.private_runtime import Testbed

from bench.agent import status_kib
from bench.runtime import BenchError
from bench.stats import spread
from bench.table import Figure, render_table
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.client import CriClient
from pykubelet.edges.cri.errors import CriError
from pykubelet_cri_docker.engine.client import Engine
from pykubelet_cri_docker.engine.transport import EngineError
from pykubelet_cri_docker.network.from_cri import network_of
from pykubelet_cri_docker.network.pinned_namespaces import PinnedNamespaces
from pykubelet_cri_docker.network.pod_networks import CniDirectories, PodNetworks
from pykubelet_cri_docker.render_container import RenderFacts, render_container, render_sandbox

PODS, CROWD, IDLE_S = 20, 50, 30.0


class Comparison:
    """Pods on one Docker Engine, made in two ways. All of them have no process but a shell that sleeps."""

    def __init__(self, bed: Testbed) -> None:
        self.bed = bed
        self.cri = CriClient(bed.endpoint)
        self.engine = Engine(str(docker.engine_socket(bed)))
        directories = CniDirectories(str(bed.root / "cni"), (bed.cni_bin,), str(bed.root / "raw-networks"))
        self.networks = PodNetworks(directories, PinnedNamespaces(str(bed.root / "raw-netns")))

    def pod(self, name: str, *, on_host: bool) -> tuple[pb.PodSandboxConfig, pb.ContainerConfig]:
        """The requests of a pod."""
        folder = Path(self.bed.folder, "logs", name)
        folder.mkdir(parents=True, exist_ok=True)
        sandbox = pb.PodSandboxConfig(
            metadata=pb.PodSandboxMetadata(name=name, uid=name, namespace="bench"),
            hostname=name,
            log_directory=str(folder),
        )
        sandbox.linux.cgroup_parent = f"/{self.bed.name}-pods"
        if on_host:
            sandbox.linux.security_context.namespace_options.network = pb.NODE
        container = pb.ContainerConfig(
            metadata=pb.ContainerMetadata(name="main"),
            image=pb.ImageSpec(image=images.BUSYBOX, user_specified_image=images.BUSYBOX),
            command=["sleep", "100000"],
            log_path="main.log",
        )
        container.linux.security_context.namespace_options.CopyFrom(sandbox.linux.security_context.namespace_options)
        return sandbox, container

    async def start(self, sandbox: pb.PodSandboxConfig, container: pb.ContainerConfig) -> Callable[[], Awaitable[None]]:
        """Start a pod by the CRI; returns what removes it."""
        sandbox_id = await self.cri.run_pod_sandbox(sandbox)
        await self.cri.start_container(await self.cri.create_container(sandbox_id, container, sandbox))

        async def remove() -> None:
            await self.cri.stop_pod_sandbox(sandbox_id)
            await self.cri.remove_pod_sandbox(sandbox_id)

        return remove

    async def start_raw(
        self, sandbox: pb.PodSandboxConfig, container: pb.ContainerConfig
    ) -> Callable[[], Awaitable[None]]:
        """The same by Docker's own calls."""
        facts = RenderFacts(api=await self.engine.api_version(), least_oom_score_adj=0)
        pause = await self.engine.create(
            f"raw_POD_{sandbox.metadata.name}", render_sandbox(sandbox, images.PAUSE, facts)
        )
        await self.engine.start(pause)
        network = None
        if sandbox.linux.security_context.namespace_options.network != pb.NODE:
            pid = (await self.engine.inspect(pause)).state.pid
            network = network_of(pause, f"/proc/{pid}/ns/net", sandbox)
            await self.networks.add(network)
        rendered = render_container(container, sandbox, pause, facts)
        made = await self.engine.create(f"raw_main_{sandbox.metadata.name}", rendered)
        await self.engine.start(made)

        async def remove() -> None:
            await self.engine.remove(made)
            if network is not None:
                await self.networks.delete(network)
            await self.engine.remove(pause)

        return remove

    async def starts(self, count: int, *, on_host: bool) -> tuple[list[float], list[float]]:
        """Milliseconds of each start by Docker's calls, and by those of the CRI."""
        taken: tuple[list[float], list[float]] = ([], [])
        for number in range(count + 1):
            for which, start in enumerate((self.start_raw, self.start)):
                pod = self.pod(f"{'host' if on_host else 'net'}-{which}-{number}", on_host=on_host)
                began = time.perf_counter()
                remove = await start(*pod)
                if number:  # the first of each finds nothing in any cache
                    taken[which].append((time.perf_counter() - began) * 1000)
                await remove()
                await asyncio.sleep(0.15)
        return taken

    async def crowd(self, count: int) -> tuple[float, float]:
        """The memory (MiB) of the program with so many pods, and its CPU (ms for each second) while nothing happens."""
        pid = self.bed.pid()
        if pid is None:
            raise BenchError("the program does not run")
        removals = [await self.start(*self.pod(f"crowd-{number}", on_host=False)) for number in range(count)]
        await self.cri.list_containers()
        await asyncio.sleep(2)
        before, memory = cpu_of(pid), status_kib(pid, "VmRSS") / 1024
        await asyncio.sleep(IDLE_S)
        idle = (cpu_of(pid) - before) / IDLE_S * 1000
        for remove in removals:
            await remove()
        return memory, idle


async def measure(bed: Testbed, pods: int, crowd: int) -> list[Figure]:
    """All rows."""
    made = Comparison(bed)
    figures = []
    for name, on_host in (("start, network of the host", True), ("start, network by CNI", False)):
        raw, ours = await made.starts(pods, on_host=on_host)
        baseline = spread(raw)
        figures.append(Figure(name, "ms", spread(ours), baseline, baseline.median * 1.15, "1.15 of Docker's calls"))
    memory, idle = await made.crowd(crowd)
    figures.append(Figure(f"memory with {crowd} pods", "MiB", spread([memory]), limit=40, target="40 MiB"))
    figures.append(Figure(f"CPU idle with {crowd} pods", "ms/s", spread([idle]), limit=1, target="1 ms/s"))
    await made.cri.close()
    made.engine.close()
    return figures


def cpu_of(pid: int) -> float:
    """CPU seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.cri_docker", description=__doc__)
    parser.add_argument("--pods", type=int, default=PODS, metavar="N", help="of each kind (default %(default)s)")
    parser.add_argument("--crowd", type=int, default=CROWD, metavar="N", help="at once (default %(default)s)")
    options = parser.parse_args()
    folder = places.run_folder("bench")
    try:
        bed = containerd.up(folder, (images.BUSYBOX,), str(runtimes.docker_bin()))
        host.make_cgroup(f"/{bed.name}-pods")
        print(render_table(asyncio.run(measure(bed, options.pods, options.crowd))))
    except (BenchError, CriError, EngineError, TestbedError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    finally:
        found = containerd.load(folder)
        containerd.down(folder, [f"/{found.name}-pods"] if found else [])
    return 0


if __name__ == "__main__":
    sys.exit(main())
