"""The calls about statistics, with a server that answers as Docker does and files as the kernel has them, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cri_docker.parts import make_containers, make_logs, make_sandboxes
from cri_docker.stats.kernel_files import KernelFiles, Used, interface
from cri_docker.test_engine import Docker, ok, serving

from pykubelet.base.kit.clock import ManualClock
from pykubelet.base.kit.flight import SingleFlight
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet_cri_docker import labels
from pykubelet_cri_docker.engine.client import Engine
from pykubelet_cri_docker.engine.transport import EngineError
from pykubelet_cri_docker.host_work import HostWork
from pykubelet_cri_docker.logs.log_writers import LogWriters
from pykubelet_cri_docker.stats.group_files import GroupFiles
from pykubelet_cri_docker.stats.layers import WritableLayers
from pykubelet_cri_docker.stats.statistics import REMEMBERED_S, Statistics

pytestmark = pytest.mark.virtual_time
POD_UID = "io.kubernetes.pod.uid"
S1, S2, C1, C2, C3 = ("51" * 32, "52" * 32, "c1" * 32, "c2" * 32, "c3" * 32)
GONE = ok(b'{"message":"No such container"}', "404 Not Found")


@dataclass
class Machine:
    """Docker with two pods: `web` (C1 and C2) and `db` (C3). The pods have cgroups."""

    docker: Docker
    kernel: KernelFiles
    clock: ManualClock
    statistics: Statistics
    folder: Path

    def put(self, container_id: str, pid: int, *lines: str, used: Used | None = None) -> None:
        """The kernel's files about a container and its pod."""
        group = self.kernel.group(container_id)
        self.kernel.put_process(pid, group, *lines)
        self.kernel.put_group(group, used or Used())
        self.kernel.put_group(group.rpartition("/")[0], Used(cpu_ns=20_000_000))
        self.upper_dir(container_id).mkdir(parents=True, exist_ok=True)
        (self.upper_dir(container_id) / "file").write_bytes(b"x" * 5000)

    def upper_dir(self, container_id: str) -> Path:
        """The writable layer of a container."""
        return self.folder / container_id / "diff"

    def end(self, container_id: str, pid: int) -> None:
        """Its process ends; Docker's list may have it for a moment longer."""
        self.kernel.put_process(pid, "/another")
        self.docker.answers[f"/containers/{container_id}/json"] = GONE

    def inspected(self) -> list[str]:
        """The containers that Docker was asked about, since the last call."""
        asked = [request.split("/")[3] for request in self.docker.requests if request.endswith("/json")]
        self.docker.requests.clear()
        return sorted(asked)


def labels_of(container_id: str) -> dict[str, str]:
    if container_id in (S1, S2):
        name = "web" if container_id == S1 else "db"
        meta = pb.PodSandboxMetadata(name=name, namespace="shop", uid=f"u-{name}")
        return labels.sandbox_labels(pb.PodSandboxConfig(metadata=meta, labels={POD_UID: f"u-{name}"}))
    sandbox_id = S2 if container_id == C3 else S1
    meta_of = pb.ContainerMetadata(name=f"main-{container_id[:2]}")
    config = pb.ContainerConfig(metadata=meta_of, labels={POD_UID: "u-db" if container_id == C3 else "u-web"})
    return labels.container_labels(config, sandbox_id, "")


def inspect(container_id: str, pid: int, upper_dir: str | None) -> bytes:
    """Docker's answer. `upper_dir` None: it does not name the writable layer."""
    found: dict[str, Any] = {
        "Id": container_id,
        "Name": f"/k8s_{container_id}",
        "State": {"Status": "running", "Pid": pid},
        "Config": {"Labels": labels_of(container_id)},
        "HostConfig": {"CgroupParent": "/kubepods/pod1", "NetworkMode": "none"},
        "GraphDriver": {"Name": "overlay2", "Data": {"UpperDir": upper_dir, "MergedDir": "/m"} if upper_dir else None},
    }
    return ok(msgspec.json.encode(found))


def listed(*states: tuple[str, str]) -> bytes:
    return ok(
        msgspec.json.encode(
            [{"Id": i, "Names": [f"/k8s_{i}"], "State": state, "Labels": labels_of(i)} for i, state in states]
        )
    )


PIDS = {S1: 11, S2: 12, C1: 21, C2: 22, C3: 23}


@asynccontextmanager
async def machine(tmp_path: Path) -> AsyncIterator[Machine]:
    running = [(each, "running") for each in PIDS]
    answers = {
        "podsandbox": listed(*running[:2]),
        "%3Dcontainer": listed(*running[2:], ("0e" * 32, "exited")),
        **{f"/containers/{i}/json": inspect(i, pid, f"{tmp_path}/overlay2/{i}/diff") for i, pid in PIDS.items()},
    }
    async with serving(tmp_path, answers) as (made, engine):
        clock, kernel, logs = ManualClock(), KernelFiles(tmp_path), make_logs(tmp_path)
        calls = statistics(engine, kernel.files(clock), logs, clock, tmp_path)
        found = Machine(made, kernel, clock, calls, tmp_path / "overlay2")
        for container_id, pid in PIDS.items():
            lines = [interface("eth0", 300, 400)] if container_id in (S1, S2) else []
            found.put(container_id, pid, *lines)
        yield found
        await logs.close()


def statistics(engine: Engine, files: GroupFiles, logs: LogWriters, clock: ManualClock, folder: Path) -> Statistics:
    sandboxes, containers = make_sandboxes(engine, folder), make_containers(engine, folder, logs=logs)
    layers = WritableLayers(clock, SingleFlight("layers"))
    return Statistics(engine, sandboxes, containers, HostWork(), files, layers, clock)


def ids(stats: list[pb.ContainerStats]) -> list[str]:
    return [each.attributes.id for each in stats]


async def test_running_containers_are_listed_with_all_figures(tmp_path: Path) -> None:
    async with machine(tmp_path) as node:
        stats = await node.statistics.of_containers(pb.ContainerStatsFilter())
        assert ids(stats) == [C1, C2, C3]
        first = stats[0]
        assert (first.attributes.metadata.name, first.attributes.labels[POD_UID]) == ("main-c1", "u-web")
        assert (first.cpu.usage_core_nano_seconds.value, first.memory.working_set_bytes.value) == (5_000_000, 700_000)
        layer = first.writable_layer
        assert layer.used_bytes.value >= 5000 and layer.inodes_used.value == 2
        assert layer.fs_id.mountpoint == str(node.folder)
        node.clock.advance(10)
        node.kernel.put_group(node.kernel.group(C1), Used(cpu_ns=1_005_000_000))
        again = await node.statistics.of_containers(pb.ContainerStatsFilter(id=C1))
        assert [each.cpu.usage_nano_cores.value for each in again] == [100_000_000]


async def test_a_layer_in_containerd_is_found_by_its_mount(tmp_path: Path) -> None:
    """As Docker Engine has it from version 29 on."""
    async with machine(tmp_path) as node:
        for container_id in (C1, C2):
            node.docker.answers[f"/containers/{container_id}/json"] = inspect(container_id, PIDS[container_id], None)
        upper, top = tmp_path / "snapshots/7/fs", "/var/lib/docker/rootfs/overlayfs"
        upper.mkdir(parents=True)
        node.kernel.put_mounts(
            f"29 1 0:9 / {top}/{C1} rw - overlay overlay rw,lowerdir=/a,upperdir={upper},workdir=/w",
            f"30 1 0:9 / {top}/{C2} rw - overlay overlay ro,lowerdir=/a",
        )
        first, second, third = await node.statistics.of_containers(pb.ContainerStatsFilter())
        layer = first.writable_layer
        assert (layer.inodes_used.value, layer.fs_id.mountpoint) == (1, str(tmp_path / "snapshots"))
        assert not second.HasField("writable_layer")
        assert third.writable_layer.inodes_used.value == 2, "Docker named it itself"


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (pb.ContainerStatsFilter(id=C2), [C2]),
        (pb.ContainerStatsFilter(id="c3c3"), [C3]),
        (pb.ContainerStatsFilter(id="nothing"), []),
    ],
)
async def test_a_filter_selects(tmp_path: Path, wanted: pb.ContainerStatsFilter, found: list[str]) -> None:
    async with machine(tmp_path) as node:
        assert ids(await node.statistics.of_containers(wanted)) == found


async def test_filters_by_label_and_sandbox_are_dockers(tmp_path: Path) -> None:
    async with machine(tmp_path) as node:
        wanted = pb.ContainerStatsFilter(pod_sandbox_id=S1, label_selector={POD_UID: "u-web"})
        await node.statistics.of_containers(wanted)
        (asked,) = [request for request in node.docker.requests if "/containers/json" in request]
        assert f"{labels.SANDBOX_ID}%3D{S1}" in asked and f"{POD_UID}%3Du-web" in asked


async def test_docker_is_asked_about_each_container_once(tmp_path: Path) -> None:
    async with machine(tmp_path) as node:
        await node.statistics.of_containers(pb.ContainerStatsFilter())
        assert node.inspected() == [C1, C2, C3]
        await node.statistics.of_sandboxes(pb.PodSandboxStatsFilter())
        assert node.inspected() == [S1, S2]
        await node.statistics.of_containers(pb.ContainerStatsFilter())
        assert node.inspected() == []
        assert not any("size" in request for request in node.docker.requests)
        node.clock.advance(REMEMBERED_S + 1)
        await node.statistics.of_containers(pb.ContainerStatsFilter(id=C1))
        assert node.inspected() == [C1], "what nothing asks for is forgotten"


async def test_what_ends_meanwhile_is_left_out(tmp_path: Path) -> None:
    async with machine(tmp_path) as node:
        await node.statistics.of_containers(pb.ContainerStatsFilter())
        node.end(C1, PIDS[C1])
        assert ids(await node.statistics.of_containers(pb.ContainerStatsFilter())) == [C2, C3]
        assert ids(await node.statistics.of_containers(pb.ContainerStatsFilter())) == [C2, C3]
        node.end(S2, PIDS[S2])
        (pod,) = await node.statistics.of_sandboxes(pb.PodSandboxStatsFilter())
        assert pod.attributes.id == S1 and ids(list(pod.linux.containers)) == [C2]


async def test_a_container_that_was_started_again_by_hand_is_found_again(tmp_path: Path) -> None:
    async with machine(tmp_path) as node:
        await node.statistics.of_containers(pb.ContainerStatsFilter())
        node.kernel.put_process(PIDS[C1], "/another")
        node.put(C1, 77)
        node.docker.answers[f"/containers/{C1}/json"] = inspect(C1, 77, str(node.upper_dir(C1)))
        for _ in range(2):
            stats = await node.statistics.of_containers(pb.ContainerStatsFilter())
        assert ids(stats) == [C1, C2, C3]


async def test_a_sandbox_has_its_pods_figures_and_its_containers(tmp_path: Path) -> None:
    async with machine(tmp_path) as node:
        web, db = await node.statistics.of_sandboxes(pb.PodSandboxStatsFilter())
        assert (web.attributes.metadata.name, db.attributes.metadata.name) == ("web", "db")
        assert ids(list(web.linux.containers)) == [C1, C2] and ids(list(db.linux.containers)) == [C3]
        assert web.linux.cpu.usage_core_nano_seconds.value == 20_000_000
        assert web.linux.process.process_count.value == 6
        assert web.linux.network.default_interface.rx_bytes.value == 300
        assert web.linux.containers[0].writable_layer.inodes_used.value == 2


async def test_a_single_container_or_sandbox(tmp_path: Path) -> None:
    async with machine(tmp_path) as node:
        assert (await node.statistics.of_container(C2)).attributes.id == C2
        found = await node.statistics.of_sandbox(S2)
        assert (found.attributes.id, ids(list(found.linux.containers))) == (S2, [C3])
        with pytest.raises(EngineError) as caught:
            await node.statistics.of_container(S1)
        assert caught.value.is_not_found, "a sandbox is no container"
        node.end(S2, PIDS[S2])
        with pytest.raises(EngineError) as caught:
            await node.statistics.of_sandbox(S2)
        assert caught.value.is_not_found
        node.docker.answers["%3Dcontainer"] = listed((C1, "exited"))
        with pytest.raises(EngineError, match="is not running"):
            await node.statistics.of_container(C1)
        node.docker.answers["podsandbox"] = listed((S1, "exited"))
        with pytest.raises(EngineError, match="is not ready"):
            await node.statistics.of_sandbox(S1)


async def test_calls_at_once_all_get_their_answers(tmp_path: Path) -> None:
    async with machine(tmp_path) as node:
        answers = await asyncio.gather(*(node.statistics.of_containers(pb.ContainerStatsFilter()) for _ in range(10)))
        assert all(ids(found) == [C1, C2, C3] for found in answers)
        assert node.inspected() == [C1, C2, C3]
