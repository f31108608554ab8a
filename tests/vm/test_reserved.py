"""Cgroups of the system's and the node's daemons under systemd: their limits, other limits after a restart, and who is moved."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.agent import NotYet
from support.unit import CGROUP_MOUNT, LONG_S, UnitAgent, show, systemctl

pytestmark = pytest.mark.vm

MakeUnit = Callable[..., UnitAgent]
MIB = 1 << 20
SYSTEM, NODE = "vmsystem.slice", "vmnode.slice"
STRAYS = CGROUP_MOUNT / "strays"
HUGE_PAGES = ("hugetlb.2MB.max", "hugetlb.2MB.rsvd.max")
FIRST = {
    "enforceNodeAllocatable": ["pods", "system-reserved", "kube-reserved-compressible"],
    "systemReserved": {"cpu": "500m", "memory": "200Mi", "pid": "500"},
    "kubeReserved": {"cpu": "250m", "memory": "300Mi", "pid": "600"},
}
SECOND = {
    "enforceNodeAllocatable": ["pods", "system-reserved-compressible", "kube-reserved"],
    "systemReserved": {"cpu": "1", "memory": "210Mi", "pid": "510"},
    "kubeReserved": {"cpu": "300m", "memory": "310Mi", "pid": "610"},
}


@pytest.fixture
def daemons() -> Iterator[None]:
    """A slice for the system's daemons and one for the node's, each with a daemon."""
    for name in (SYSTEM, NODE):
        unit = f"daemon-{name.removesuffix('.slice')}"
        subprocess.run(["systemd-run", f"--unit={unit}", f"--slice={name}", "sleep", "infinity"], check=True)
    yield
    for name in (SYSTEM, NODE):
        systemctl("stop", name, check=False)
        systemctl("revert", name, check=False)  # its properties would stay until the next boot


@pytest.fixture
def stray() -> Iterator[int]:
    """A process in the root cgroup."""
    with subprocess.Popen(["sleep", "infinity"]) as process:
        (CGROUP_MOUNT / "cgroup.procs").write_text(str(process.pid))
        yield process.pid
        process.kill()
    STRAYS.rmdir()


def values(name: str, *files: str) -> dict[str, str]:
    return {file: (CGROUP_MOUNT / name / file).read_text().strip() for file in files}


async def wait_limited(agent: UnitAgent, name: str, wanted: tuple[dict[str, str], dict[str, str]]) -> None:
    """Until files and unit properties are these: systemd takes an agent as started before it has limited anything."""
    with contextlib.suppress(NotYet):
        await agent.wait_for("limits", lambda: (limits(name), properties(name)) == wanted, 60)
    assert (limits(name), properties(name)) == wanted


def limits(name: str) -> dict[str, str]:
    return values(name, "cpu.weight", "cpuset.cpus", "memory.max", "pids.max", *HUGE_PAGES)


def properties(name: str) -> dict[str, str]:
    return show(name, "CPUWeight", "MemoryMax", "TasksMax", "AllowedCPUs")


def limited(weight: int, memory: int, pids: int) -> tuple[dict[str, str], dict[str, str]]:
    """Files and unit properties of a slice that is limited in everything."""
    files = {"cpu.weight": str(weight), "cpuset.cpus": "0-3", "memory.max": str(memory), "pids.max": str(pids)}
    unit = {"CPUWeight": str(weight), "MemoryMax": str(memory), "TasksMax": str(pids), "AllowedCPUs": "0-3"}
    return files | dict.fromkeys(HUGE_PAGES, "0"), unit


async def test_reserved_cgroups_are_limited_and_follow_the_configuration(
    make_unit: MakeUnit, daemons: None, stray: int
) -> None:
    """A slice of which only the CPU is reserved keeps what else it had. `kubepods` gets what is left, in each of the runs."""
    total = int(Path("/proc/meminfo").read_text().split()[1]) * 1024
    threads = min(int(Path("/proc/sys/kernel", name).read_text()) for name in ("pid_max", "threads-max"))
    named = {"systemReservedCgroup": f"/{SYSTEM}", "kubeReservedCgroup": f"/{NODE}"}
    before = properties(NODE)
    agent = make_unit(cgroupRoot="/", systemCgroups=f"/{STRAYS.name}", **named, **FIRST).start()
    # shares of 1024 for a CPU, on the scale from 2 to 262144 that is one from 1 to 10000
    await wait_limited(agent, SYSTEM, limited(20, 200 * MIB, 500))
    unlimited = dict.fromkeys(("memory.max", "pids.max", *HUGE_PAGES), "max")
    files = {"cpu.weight": "10", "cpuset.cpus": "0-3"} | unlimited
    await wait_limited(agent, NODE, (files, before | {"CPUWeight": "10", "AllowedCPUs": "0-3"}))
    assert values("kubepods.slice", "memory.max", "pids.max", "cpu.weight") == {
        "memory.max": str(total - 500 * MIB),
        "pids.max": str(threads - 1100),
        "cpu.weight": str(1 + (3250 * 1024 // 1000 - 2) * 9999 // 262142),
    }
    await agent.wait_for(
        "the stray process is moved", lambda: str(stray) in (STRAYS / "cgroup.procs").read_text(), LONG_S
    )

    systemctl("daemon-reload")  # systemd writes the files of its units anew
    assert limits(SYSTEM) == limited(20, 200 * MIB, 500)[0]
    assert agent.stop() == 0
    agent.change_settings(**SECOND)
    agent.start()
    # what was limited stays so where only the CPU is reserved now, as with the kubelet
    await wait_limited(agent, SYSTEM, limited(39, 200 * MIB, 500))
    await wait_limited(agent, NODE, limited(12, 310 * MIB, 610))
    assert values("kubepods.slice", "memory.max", "pids.max", "cpu.weight") == {
        "memory.max": str(total - 520 * MIB),
        "pids.max": str(threads - 1120),
        "cpu.weight": str(1 + (2700 * 1024 // 1000 - 2) * 9999 // 262142),
    }
    assert agent.stop() == 0
