"""Limits without a field in Docker: they are in the files of a container's cgroup, or the container does not run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from cri_docker.parts import make_containers
from cri_docker.test_engine import Docker, ok, serving

from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.host.cgroups.cgroup_values import CgroupLimits, CgroupVersion
from pykubelet.edges.host.cgroups.cgroups_v2 import CgroupsV2
from pykubelet.edges.host.cgroups.systemd import limit_properties
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.net.grpc.status import RpcError
from pykubelet_cri_docker import labels
from pykubelet_cri_docker.container_limits import ContainerLimits, ContainerScopes
from pykubelet_cri_docker.containers import Containers
from pykubelet_cri_docker.host_work import HostWork

PID = 7
WANTED = {"memory.high": "1000", "io.max": "8:0 rbps=1\n8:16 rbps=2\n"}


class Machine:
    """A cgroup of version 2, the process of a container in it, and the program's parts."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.group = root / "fs/kubepods/c1"
        self.group.mkdir(parents=True)
        (root / "fs/cgroup.controllers").write_text("cpu io memory hugetlb")
        for name in ("memory.high", "memory.low", "io.max", "hugetlb.2MB.max", "hugetlb.2MB.rsvd.max"):
            (self.group / name).write_text("")
        self.process = root / "proc" / str(PID)
        self.process.mkdir(parents=True)
        (self.process / "stat").write_text(f"{PID} (sh) S 1")
        (self.process / "cgroup").write_text("0::/kubepods/c1\n")

    def limits(self) -> ContainerLimits:
        cgroups = CgroupsV2(str(self.root / "fs"))
        return ContainerLimits(
            cgroups, ContainerScopes(), HostWork(), str(self.root / "state/limits"), str(self.root / "proc")
        )

    def read(self, name: str) -> str:
        return (self.group / name).read_text()


def container(status: str, pid: int, resources: pb.LinuxContainerResources) -> bytes:
    config = pb.ContainerConfig(linux=pb.LinuxContainerConfig(resources=resources))
    state = {"Status": status, "Pid": pid}
    return ok(
        msgspec.json.encode(
            {
                "Id": "c1",
                "Name": "/k8s_c1",
                "Names": ["/k8s_c1"],
                "State": state,
                "Config": {"Labels": labels.container_labels(config, "s1", "")},
            }
        )
    )


def resources(**unified: str) -> pb.LinuxContainerResources:
    return pb.LinuxContainerResources(unified={name.replace("_", "."): value for name, value in unified.items()})


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


class Starting(Docker):
    """A container that is created, and runs once it was started."""

    def __init__(self, resources: pb.LinuxContainerResources, pid: int = PID) -> None:
        super().__init__({"/c1/json": container("created", 0, resources)})
        self.running = container("running", pid, resources)

    def answer(self, target: str) -> bytes:
        if target.endswith("/start"):
            self.answers["/c1/json"] = self.running
        return super().answer(target)


@asynccontextmanager
async def node(machine: Machine, docker: Docker) -> AsyncIterator[Containers]:
    async with serving(machine.root, docker) as (_, engine):
        yield make_containers(engine, machine.root, machine.limits())


async def test_a_started_container_has_its_limits(machine: Machine) -> None:
    wanted = pb.LinuxContainerResources(unified=WANTED)
    wanted.hugepage_limits.add(page_size="2MB", limit=4 << 20)
    docker = Starting(wanted)
    async with node(machine, docker) as containers:
        await containers.start("c1")
        assert (machine.read("memory.high"), machine.read("hugetlb.2MB.max")) == ("1000", str(4 << 20))
        assert machine.read("io.max") == "8:16 rbps=2", "each line was a write, and the kernel keeps all"
        shown = (await containers.status("c1")).resources.linux
        assert dict(shown.unified) == WANTED
        assert [(limit.page_size, limit.limit) for limit in shown.hugepage_limits] == [("2MB", 4 << 20)]
    assert not any("kill" in request for request in docker.requests)


async def test_a_container_that_cannot_be_limited_does_not_go_on(machine: Machine) -> None:
    docker = Starting(resources(memory_max="5"))
    async with node(machine, docker) as containers:
        with pytest.raises(HostError, match=r"^write .*/kubepods/c1/memory\.max: cannot set '5': no such file"):
            await containers.start("c1")
    assert docker.requests[-1] == "POST /v1.41/containers/c1/kill?signal=KILL"


@pytest.mark.virtual_time
@pytest.mark.parametrize(("limited", "kills"), [(resources(memory_high="5"), 1), (resources(), 0)])
async def test_a_start_that_is_given_up_leaves_no_container_without_its_limits(
    machine: Machine, limited: pb.LinuxContainerResources, kills: int
) -> None:
    docker = Docker({"/c1/json": container("created", 0, limited), "/start": b"HTTP/1.1 200 OK\r\n"})
    async with node(machine, docker) as containers:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await containers.start("c1")
    assert len([request for request in docker.requests if "/kill" in request]) == kills


async def test_a_process_of_another_is_not_limited(machine: Machine) -> None:
    (machine.process / "cgroup").write_text("0::/kubepods/c2\n")
    async with node(machine, Starting(resources(memory_high="5"))) as containers:
        with pytest.raises(HostError, match="process 7 is in no cgroup of the container"):
            await containers.start("c1")
    assert machine.read("memory.high") == ""


@pytest.mark.parametrize("ended", ["gone", "zombie", "known"])
async def test_a_container_that_ended_at_once_has_started(machine: Machine, ended: str) -> None:
    if ended == "zombie":
        (machine.process / "stat").write_text(f"{PID} (sh) Z 1")
        (machine.process / "cgroup").write_text("0::/\n")
    elif ended == "gone":
        (machine.process / "stat").unlink()
        (machine.process / "cgroup").unlink()
    docker = Starting(resources(memory_high="5"), 0 if ended == "known" else PID)
    async with node(machine, docker) as containers:
        await containers.start("c1")
    assert not any("kill" in request for request in docker.requests)


async def test_what_no_file_can_have_is_refused_before_anything_is_changed(machine: Machine) -> None:
    docker = Docker({"/c1/json": container("running", PID, resources())})
    async with node(machine, docker) as containers:
        for wanted in (resources(cgroup_kill="1"), resources(rdma_max="1")):
            with pytest.raises(RpcError, match="unified"):
                await containers.update("c1", wanted)
    assert not any("update" in request for request in docker.requests)


async def test_an_update_is_written_shown_and_kept(machine: Machine) -> None:
    docker = Docker({"/c1/json": container("running", PID, resources(memory_high="1", memory_low="2"))})
    async with node(machine, docker) as containers:
        await containers.update("c1", resources(memory_high="3"))
        assert (machine.read("memory.high"), machine.read("memory.low")) == ("3", "2")
        machine.group.joinpath("memory.high").write_text("9")
        await containers.update("c1", pb.LinuxContainerResources(cpuset_cpus="1"))
        assert machine.read("memory.high") == "3"
    async with node(machine, docker) as containers:  # another run of the program
        shown = (await containers.status("c1")).resources.linux
        assert dict(shown.unified) == {"memory.high": "3", "memory.low": "2"}
        await containers.remove("c1")
    assert list((machine.root / "state/limits").iterdir()) == []


async def test_limits_of_huge_pages_are_neither_set_nor_shown_without_the_controller(machine: Machine) -> None:
    (machine.root / "fs/cgroup.controllers").write_text("memory")
    docker = Docker({"/c1/json": container("running", PID, resources())})
    wanted = resources(memory_high="3")
    wanted.hugepage_limits.add(page_size="2MB", limit=4 << 20)
    async with node(machine, docker) as containers:
        await containers.update("c1", wanted)
        shown = (await containers.status("c1")).resources.linux
    assert (dict(shown.unified), len(shown.hugepage_limits)) == ({"memory.high": "3"}, 0)
    assert (machine.read("memory.high"), machine.read("hugetlb.2MB.max")) == ("3", "")


async def test_updates_at_once_do_not_undo_each_other(machine: Machine) -> None:
    docker = Docker({"/c1/json": container("running", PID, resources(memory_high="1", memory_low="1"))})
    updates = (resources(memory_high="3"), resources(memory_low="4"), pb.LinuxContainerResources(cpuset_cpus="1"))
    async with node(machine, docker) as containers:
        await asyncio.gather(*(containers.update("c1", wanted) for wanted in updates))
        assert (machine.read("memory.high"), machine.read("memory.low")) == ("3", "4")
        shown = (await containers.status("c1")).resources.linux
        assert dict(shown.unified) == {"memory.high": "3", "memory.low": "4"}


async def test_an_update_before_the_start_holds_for_the_start(machine: Machine) -> None:
    async with node(machine, Starting(resources(memory_high="1"))) as containers:
        await containers.update("c1", resources(memory_high="3"))
        assert machine.read("memory.high") == ""
        await containers.start("c1")
        assert machine.read("memory.high") == "3"


async def test_the_program_goes_on_with_limits_after_it_was_killed(machine: Machine) -> None:
    limited = container("running", PID, resources(memory_high="1"))
    listed = {
        "Id": "c1",
        "Name": "/k8s_c1",
        "Names": ["/k8s_c1"],
        "State": "running",
        "Labels": {labels.TYPE: "container"},
    }
    docker = Docker({"/c1/json": limited, "/containers/json": ok(msgspec.json.encode([listed]))})
    kept = machine.root / "state/limits"
    kept.mkdir(parents=True)
    (kept / "c0").write_bytes(resources(memory_high="1").SerializeToString())
    (kept / "c1").write_bytes(b"\xff damaged")
    async with node(machine, docker) as containers:
        await containers.resume()
        assert machine.read("memory.high") == "1"
        assert [path.name for path in kept.iterdir()] == ["c1"]


class Recorder:
    """Records the properties that a scope gets."""

    def __init__(self) -> None:
        self.set: list[tuple[str, object]] = []

    def update(self, path: str, limits: CgroupLimits, version: CgroupVersion) -> None:
        self.set.append((path, limit_properties(limits, version)))


def test_the_scope_of_a_container_gets_the_limits_that_systemd_would_undo() -> None:
    systemd, limits = Recorder(), CgroupLimits(unified={"memory.high": "7", "memory.oom.group": "1"})
    for group in ("/kubepods/c1", "/kubepods.slice/docker-c1.scope"):
        ContainerScopes(systemd).update(group, limits, CgroupVersion.V2)
    assert systemd.set == [("/kubepods.slice/docker-c1.scope", [("MemoryHigh", ("t", 7))])]
