"""What groups use, from fixture trees of both versions of the kernel's files, and from this machine's."""

from __future__ import annotations

from pathlib import Path

from pykubelet.base.kit.values import replace
from pykubelet.base.model.usage import CpuUse
from pykubelet.edges.host.cgroups.cgroup_stats import GroupsV1, GroupsV2, detect_reader, own_group
from pykubelet.edges.host.proc.boot_time import read_boot_time
from pykubelet.edges.host.proc.network_stats import parse_interfaces, read_network_use


def write(folder: Path, files: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)


V2 = {
    "cpu.stat": "usage_usec 5000\nuser_usec 3000\nsystem_usec 2000\nnr_periods 7\nnr_throttled 2\nthrottled_usec 40\n",
    "cpu.max": "50000 100000\n",
    "cpu.weight": "100\n",
    "memory.current": "1000000\n",
    "memory.max": "max\n",
    "memory.stat": "anon 400000\nfile 500000\ninactive_file 300000\nactive_file 1\npgfault 11\npgmajfault 3\n",
    "memory.events": "low 0\nmax 4\noom_kill 1\n",
    "memory.swap.current": "4096\n",
    "memory.swap.max": "8192\n",
    "pids.current": "3\n",
    "cgroup.procs": "12\n34\n",
    "cpu.pressure": "some avg10=1.50 avg60=0.10 avg300=0.00 total=123\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n",
}


def test_version_2(tmp_path: Path) -> None:
    write(tmp_path / "kubepods/pod1", V2)
    (tmp_path / "kubepods/pod1/abc").mkdir()
    reader = GroupsV2(str(tmp_path))
    use = reader.read("/kubepods/pod1", 5.0)
    assert use is not None
    assert (use.cpu.total_ns, use.cpu.user_ns, use.cpu.system_ns) == (5_000_000, 3_000_000, 2_000_000)
    assert (use.cpu.quota_us, use.cpu.period_us, use.cpu.throttled_ns) == (50_000, 100_000, 40_000)
    assert (use.memory.usage, use.memory.working_set, use.memory.limit) == (1_000_000, 700_000, None)
    assert (use.memory.swap, use.memory.swap_limit, use.memory.oom_kills) == (4096, 8192, 1)
    assert use.processes == 3
    brief = reader.read("/kubepods/pod1", 5.0, brief=True)
    assert brief is not None
    assert brief == replace(use, cpu=CpuUse(5_000_000), memory=replace(use.memory, peak=0, fail_count=0, oom_kills=0))
    cpu = use.pressure["cpu"]
    assert (cpu.some.total_us, cpu.some.avg10, cpu.full and cpu.full.total_us) == (123, 1.5, 7)
    assert "memory" not in use.pressure
    assert reader.children("/kubepods/pod1") == ["abc"]
    assert reader.processes("/kubepods/pod1") == [12, 34]
    assert reader.cpu_total("/kubepods/pod1") == use.cpu.total_ns and reader.cpu_total("/kubepods/gone") is None
    assert reader.read("/kubepods/gone", 5.0) is None and reader.children("/gone") == []


def test_version_1(tmp_path: Path) -> None:
    write(tmp_path / "cpu/p", {"cpu.shares": "1024\n", "cpu.cfs_quota_us": "-1\n", "cpu.cfs_period_us": "100000\n"})
    write(tmp_path / "cpuacct/p", {"cpuacct.usage": "777\n", "cpuacct.stat": "user 2\nsystem 1\n"})
    write(
        tmp_path / "memory/p",
        {
            "memory.usage_in_bytes": "1000\n",
            "memory.limit_in_bytes": "9223372036854771712\n",
            "memory.stat": "rss 1\ntotal_rss 600\ntotal_inactive_file 1500\npgfault 4\ntotal_pgfault 9\ntotal_swap 0\n",
            "memory.failcnt": "2\n",
        },
    )
    write(tmp_path / "pids/p", {"pids.current": "5\n"})
    reader = GroupsV1({name: str(tmp_path / name) for name in ("cpu", "cpuacct", "memory", "pids")})
    use = reader.read("/p", 1.0)
    assert use is not None
    assert (use.cpu.total_ns, use.cpu.user_ns, use.cpu.shares, use.cpu.quota_us) == (777, 20_000_000, 1024, 0)
    assert (use.memory.usage, use.memory.working_set, use.memory.limit) == (1000, 0, None)
    assert (use.memory.rss, use.memory.fail_count, use.processes) == (600, 2, 5)
    assert (use.memory.page_faults, use.memory.page_faults_below) == (4, 9)
    brief = reader.read("/p", 1.0, brief=True)
    assert brief == replace(use, cpu=CpuUse(777), memory=replace(use.memory, fail_count=0))
    assert reader.cpu_total("/p") == use.cpu.total_ns and reader.cpu_total("/q") is None
    assert reader.read("/q", 1.0) is None


def test_this_machine() -> None:
    reader = detect_reader()
    first, second = reader.read("/", 1.0), reader.read("/", 2.0)
    assert first is not None and second is not None
    assert 0 < first.cpu.total_ns <= second.cpu.total_ns
    assert first.memory.usage > 1 << 20
    assert reader.read(own_group(), 1.0) is not None
    assert read_boot_time() > 1_500_000_000


NET = """Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:     100       1    0    0    0     0          0         0      100       1    0    0    0     0       0          0
 veth12ab:    7       1    0    0    0     0          0         0        8       1    0    0    0     0       0          0
docker0:      7       1    0    0    0     0          0         0        8       1    0    0    0     0       0          0
 other:       7       1    0    0    0     0          0         0        8       1    0    0    0     0       0          0
  eth0:    1000      10    1    2    0     0          0         0     2000      20    3    4    0     0       0          0
"""


def test_interfaces() -> None:
    first, second = parse_interfaces(NET, "eth0")
    assert (first.name, first.rx_bytes, first.rx_errors, first.rx_dropped) == ("eth0", 1000, 1, 2)
    assert (first.tx_bytes, first.tx_packets, first.tx_errors, first.tx_dropped) == (2000, 20, 3, 4)
    assert second.name == "other"  # links to containers come and go: they are no series of the node
    assert read_network_use(1.0, 1 << 30) is None
    assert read_network_use(1.0) is not None


def test_swap_of_the_root_group_of_version_1_is_the_machines(tmp_path: Path) -> None:
    write(tmp_path / "cpuacct", {"cpuacct.usage": "777\n"})
    write(tmp_path / "proc", {"meminfo": "SwapTotal:      100 kB\nSwapFree:      70 kB\n"})
    root = GroupsV1({"cpuacct": str(tmp_path / "cpuacct")}, str(tmp_path / "proc")).read("/", 5.0, brief=True)
    assert root is not None
    assert (root.memory.swap, root.memory.swap_limit) == (30 * 1024, 100 * 1024)


def test_swap_of_the_root_group_of_version_2_is_the_machines(tmp_path: Path) -> None:
    write(tmp_path / "cgroup", {"cpu.stat": V2["cpu.stat"], "memory.stat": V2["memory.stat"]})
    write(tmp_path / "proc", {"meminfo": "MemTotal: 8 kB\nSwapTotal:      100 kB\nSwapFree:      70 kB\n"})
    root = GroupsV2(str(tmp_path / "cgroup"), str(tmp_path / "proc")).read("/", 5.0, brief=True)
    assert root is not None
    assert (root.memory.swap, root.memory.swap_limit) == (30 * 1024, 100 * 1024)
    unknown = GroupsV2(str(tmp_path / "cgroup"), str(tmp_path / "nowhere")).read("/", 5.0)
    assert unknown is not None and unknown.memory.swap is None
