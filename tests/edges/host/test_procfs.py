"""Machine facts from fixture trees, and addresses from the kernel."""

from __future__ import annotations

import socket
import struct
from pathlib import Path

import pytest

from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.proc import netlink, procfs
from pykubelet.edges.host.proc.machine import read_machine

FILES = {
    "/proc/meminfo": "MemTotal:       16384 kB\nMemFree: 1 kB\nSwapTotal:   2048 kB\nHugePages_Total:       4\n",
    "/sys/devices/system/cpu/online": "0-3,8\n",
    "/sys/devices/system/cpu/cpu10/thermal_throttle/core_throttle_count": "0\n",
    "/sys/devices/system/cpu/cpu2/thermal_throttle/core_throttle_count": "0\n",
    "/sys/devices/system/cpu/cpu3/online": "1\n",
    "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages": "4\n",
    "/sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages": "1\n",
    "/proc/swaps": "Filename\tType\tSize\tUsed\tPriority\n/dev/sda2  partition\t2048\t16\t-2\n",
    "/proc/sys/kernel/random/boot_id": "b00t\n",
    "/proc/sys/kernel/osrelease": "6.1.0-test\n",
    "/proc/sys/kernel/hostname": "Node-A\n",
    "/proc/sys/kernel/pid_max": "4194304\n",
    "/proc/sys/kernel/threads-max": "1000\n",
    "/proc/loadavg": "0.1 0.2 0.3 2/345 6789\n",
    "/etc/machine-id": "abc123\n",
    "/sys/class/dmi/id/product_uuid": "UUID-1\n",
    "/etc/os-release": '# comment\nNAME=Test\nPRETTY_NAME="Test \\"OS\\" 1"\nID=\'test\'\nbroken\n',
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        file = tmp_path / name[1:]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path


def test_machine(root: Path) -> None:
    machine = read_machine(str(root), str(root))
    assert machine.cpu_milli == 5000
    assert machine.memory_bytes == 16 << 20
    assert machine.swap_bytes == 2 << 20
    assert machine.huge_pages == ((2 << 20, 8 << 20), (1 << 30, 1 << 30))
    assert machine.pids == 1000
    assert machine.throttle_paths == tuple(f"/sys/devices/system/cpu/cpu{n}/thermal_throttle" for n in (2, 10))
    assert (machine.machine_id, machine.system_uuid, machine.boot_id) == ("abc123", "UUID-1", "b00t")
    assert (machine.kernel_version, machine.os_image, machine.hostname) == ("6.1.0-test", 'Test "OS" 1', "Node-A")
    capacity = machine.capacity()
    assert capacity["cpu"] == 5000 and capacity["hugepages-2Mi"] == 8 << 20 and capacity["hugepages-1Gi"] == 1 << 30
    assert capacity["ephemeral-storage"] > 0 and capacity["pid"] == 1000


def test_ids_are_read_from_the_first_file_that_has_one(root: Path) -> None:
    (root / "mine").write_text(" m1\n")
    (root / "empty").write_text("\n")
    machine = read_machine(str(root), str(root), ["/none", "/empty", "/mine"], ["/mine", "/none"])
    assert (machine.machine_id, machine.boot_id) == ("m1", "m1")


def test_bare_machine_without_most_files(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "meminfo").write_text("MemTotal: 1 kB\n")
    (tmp_path / "proc" / "cpuinfo").write_text("processor\t: 0\nmodel name\t: x\n\nprocessor\t: 1\n")
    machine = read_machine(str(tmp_path), str(tmp_path))
    assert (machine.cpu_milli, machine.huge_pages, machine.machine_id, machine.pids) == (2000, (), "", 0)
    assert machine.os_image == "Linux"
    with pytest.raises(HostError):
        procfs.read_meminfo(str(tmp_path / "nothing"))


def test_process_count(root: Path) -> None:
    assert procfs.read_process_count(str(root)) == 345


def test_default_routes_cheapest_first(root: Path) -> None:
    net = root / "proc" / "net"
    net.mkdir(parents=True)
    head = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
    rows = (
        "wlan0\t00000000\t0102A8C0\t0003\t0\t0\t600\t00000000\t0\t0\t0\n"
        "eth0\t00000000\t0101A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0\n"
        "down0\t00000000\t0101A8C0\t0002\t0\t0\t1\t00000000\t0\t0\t0\n"
        "eth0\t0001A8C0\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0\n"
    )
    (net / "route").write_text(head + rows)
    zero = "0" * 32
    (net / "ipv6_route").write_text(
        f"{zero} 00 {zero} 00 fe80{'0' * 28} 00000400 00000001 00000000 00000003 eth0\n"
        f"{zero} 00 {zero} 00 {zero} ffffffff 00000001 00000000 00200200 lo\n"
    )
    assert procfs.read_default_routes(str(root)) == (
        procfs.DefaultRoute("eth0", 100, False),
        procfs.DefaultRoute("wlan0", 600, False),
        procfs.DefaultRoute("eth0", 1024, True),
    )


def test_loopback_is_among_the_real_addresses() -> None:
    found = {(a.interface, a.address, a.prefix) for a in netlink.read_addresses()}
    assert ("lo", "127.0.0.1", 8) in found


def test_netlink_answers_are_read_field_by_field() -> None:
    attributes = struct.pack("=HH4s", 8, 2, socket.inet_aton("10.0.0.5")) + struct.pack("=HHI", 8, 8, 0x40)
    body = struct.pack("=BBBBI", socket.AF_INET, 24, 0, 0, 3) + attributes
    wire = struct.pack("=IHHII", 16 + len(body), 20, 2, 1, 0) + body + struct.pack("=IHHIIi", 20, 3, 2, 1, 0, 0)
    first, end = netlink.parse_addresses(wire)
    assert first == (3, netlink.InterfaceAddress("", "10.0.0.5", 24, usable=False))
    assert end is None
    with pytest.raises(HostError, match="cut short"):
        list(netlink.parse_addresses(wire[:30]))
    refused = struct.pack("=IHHIIi", 20, 2, 0, 1, 0, -1)
    with pytest.raises(HostError, match="operation not permitted"):
        list(netlink.parse_addresses(refused))


def test_resolving_what_needs_no_server() -> None:
    assert "127.0.0.1" in procfs.resolve_host("127.0.0.1")
    assert procfs.resolve_host("") == () or "127.0.0.1" in procfs.resolve_host("")


def test_sockets_and_cores(tmp_path: Path) -> None:
    base = tmp_path / "sys/devices/system/cpu"
    for cpu, (package, core) in enumerate([("0", "0"), ("0", "1"), ("0", "0"), ("0", "1"), ("1", "0"), ("1", "0")]):
        (base / f"cpu{cpu}/topology").mkdir(parents=True)
        (base / f"cpu{cpu}/topology/physical_package_id").write_text(f"{package}\n")
        (base / f"cpu{cpu}/topology/core_id").write_text(f"{core}\n")
    (base / "online").write_text("0-5\n")
    assert procfs.read_cpu_topology(str(tmp_path)) == (2, 3)
    (base / "online").write_text("0-5,8-9\n")  # two of which nothing is known
    assert procfs.read_cpu_topology(str(tmp_path)) == (2, 5)


def test_without_a_topology_every_cpu_is_a_core(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("processor : 0\nprocessor : 1\n")
    assert procfs.read_cpu_topology(str(tmp_path)) == (1, 2)
