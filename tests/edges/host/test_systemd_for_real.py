"""The systemd driver with the systemd of this machine, on slices of our own."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pykubelet.edges.host.cgroups.cgroup_detect import detect_cgroups
from pykubelet.edges.host.cgroups.cgroup_values import UNLIMITED, CgroupLimits
from pykubelet.edges.host.cgroups.cgroups import Cgroups
from pykubelet.edges.host.cgroups.dbus import DBusConnection
from pykubelet.edges.host.cgroups.systemd import (
    BUS_SOCKET,
    PRIVATE_SOCKET,
    SliceUnits,
    Systemd,
    connect_manager,
)

pytestmark = [pytest.mark.integration, pytest.mark.systemd, pytest.mark.cgroup_v2]

TOP = "/pykubelettest.slice"
POD = f"{TOP}/pykubelettest-pod1.slice"
LIMITS = CgroupLimits(cpu_shares=512, cpu_quota_us=12_300, cpu_period_us=100_000, memory_bytes=1 << 30, pids=99)


@pytest.fixture(params=["bus", "private"])
def systemd(request: pytest.FixtureRequest) -> Iterator[Systemd]:
    """Over the system bus, and over systemd's own socket."""

    def connect() -> DBusConnection:
        absent = "/nonexistent"
        over_bus = request.param == "bus"
        return connect_manager(BUS_SOCKET if over_bus else absent, absent if over_bus else PRIVATE_SOCKET)

    made = Systemd(connect)
    yield made
    made.close()


@pytest.fixture
def driver(systemd: Systemd) -> Iterator[Cgroups]:
    made = detect_cgroups(units=SliceUnits(systemd))
    yield made
    made.kill(TOP)
    made.remove(TOP)
    assert not made.exists(TOP)


def value(path: str, name: str) -> str:
    return Path(f"/sys/fs/cgroup{path}", name).read_text().strip()


def values(path: str) -> list[str]:
    return [value(path, name) for name in ("cpu.weight", "cpu.max", "memory.max", "pids.max")]


def test_slices_have_the_limits_and_keep_them_over_a_reload(driver: Cgroups) -> None:
    driver.create(TOP, CgroupLimits())
    driver.create(POD, LIMITS)
    assert values(POD) == ["20", "12300 100000", str(1 << 30), "99"]
    driver.update(TOP, CgroupLimits(cpus="0", unified={"memory.min": str(1 << 20)}))
    driver.create(POD, LIMITS)  # once more is fine
    driver.update(POD, CgroupLimits(memory_bytes=1 << 29, pids=UNLIMITED))
    subprocess.run(["systemctl", "daemon-reload"], check=True, timeout=120)
    weight, _, memory, pids = values(POD)
    assert (weight, memory, pids) == ("20", str(1 << 29), "max")
    assert (value(TOP, "cpuset.cpus"), value(TOP, "memory.min")) == ("0", str(1 << 20))
    shown = subprocess.run(
        ["systemctl", "show", "-p", "ActiveState,CPUWeight", "pykubelettest-pod1.slice"],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    ).stdout
    assert set(shown.split()) == {"ActiveState=active", "CPUWeight=20"}
    assert driver.remove(POD)
    assert not driver.exists(POD)


def test_many_calls_at_once_do_not_stall(systemd: Systemd, driver: Cgroups) -> None:
    driver.create(TOP, CgroupLimits())
    paths = [f"{TOP}/pykubelettest-pod{number}.slice" for number in range(64)]

    def life(path: str) -> float:
        began = time.monotonic()
        driver.create(path, LIMITS)
        assert driver.remove(path)
        return time.monotonic() - began

    with ThreadPoolExecutor(8) as threads:
        slowest = max(threads.map(life, paths))
    assert slowest < 25  # a stalled call ends with an error after 30 s


def test_systemd_executed_anew(driver: Cgroups) -> None:
    driver.create(TOP, CgroupLimits())
    driver.create(POD, LIMITS)
    subprocess.run(["systemctl", "daemon-reexec"], check=True, timeout=120)
    driver.update(POD, CgroupLimits(memory_bytes=1 << 28))
    assert value(POD, "memory.max") == str(1 << 28)
    driver.create(f"{TOP}/pykubelettest-pod2.slice", LIMITS)
    assert driver.remove(f"{TOP}/pykubelettest-pod2.slice")
