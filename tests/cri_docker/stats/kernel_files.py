"""The kernel's files about containers, below a folder: both versions of cgroups, and the groups of both cgroup drivers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from support.sysfs import put

from pykubelet.base.kit.clock import Clock
from pykubelet.edges.host.cgroups.cgroup_stats import GroupsV1, GroupsV2
from pykubelet_cri_docker.stats.group_files import GroupFiles

CONTROLLERS = ("cpu", "cpuacct", "memory", "pids")
POD = "pod0b1c2d3e_4f50_6172_8394_a5b6c7d8e9f0"
HEADS = "Inter-|   Receive   |  Transmit\n face |bytes packets errs drop fifo frame compressed multicast|bytes\n"


@dataclass
class Used:
    """What a group has used. `limit` 0: unlimited."""

    cpu_ns: int = 5_000_000
    memory: int = 1_000_000
    inactive: int = 300_000
    limit: int = 0
    processes: int = 3


@dataclass
class KernelFiles:
    """`version`: of cgroups. `by_systemd`: the cgroup driver."""

    folder: Path
    version: int = 1
    by_systemd: bool = False

    def files(self, clock: Clock) -> GroupFiles:
        """The reader of these files."""
        root = self.folder / "cgroup"
        if self.version == 2:
            return GroupFiles(GroupsV2(str(root)), clock, str(self.folder / "proc"))
        return GroupFiles(GroupsV1({each: str(root / each) for each in CONTROLLERS}), clock, str(self.folder / "proc"))

    def group(self, container_id: str, *, in_pod: bool = True) -> str:
        """The cgroup of a container."""
        if self.by_systemd:
            above = f"kubepods.slice/kubepods-{POD}.slice" if in_pod else "system.slice"
            return f"/{above}/docker-{container_id}.scope"
        return f"/kubepods/{POD}/{container_id}" if in_pod else f"/docker/{container_id}"

    def put_process(self, pid: int, group: str, *lines: str) -> None:
        """A process in a group, which sees `lines` of interfaces."""
        first = f"0::{group}" if self.version == 2 else f"4:memory:{group}\n2:cpuacct:{group}\n0::/"
        put(self.folder / f"proc/{pid}/cgroup", first)
        put(self.folder / f"proc/{pid}/net/dev", HEADS + "\n".join(lines))

    def put_mounts(self, *lines: str) -> None:
        """The machine's mounts."""
        put(self.folder / "proc/self/mountinfo", "\n".join(lines))

    def put_group(self, group: str, used: Used) -> None:
        """The files of a group."""
        if self.version == 2:
            self._put_v2(self.folder / f"cgroup{group}", used)
            return
        found = {each: self.folder / f"cgroup/{each}{group}" for each in CONTROLLERS}
        put(found["cpuacct"] / "cpuacct.usage", used.cpu_ns)
        put(found["memory"] / "memory.usage_in_bytes", used.memory)
        put(found["memory"] / "memory.limit_in_bytes", used.limit or 9223372036854771712)
        put(
            found["memory"] / "memory.stat",
            f"pgfault 1\ntotal_inactive_file {used.inactive}\ntotal_rss 400000\ntotal_pgfault 11\ntotal_pgmajfault 3",
        )
        put(found["pids"] / "pids.current", used.processes)

    def _put_v2(self, group: Path, used: Used) -> None:
        put(group / "cpu.stat", f"usage_usec {used.cpu_ns // 1000}")
        put(group / "memory.current", used.memory)
        put(group / "memory.max", used.limit or "max")
        put(
            group / "memory.stat",
            f"anon 400000\nfile 500000\ninactive_file {used.inactive}\npgfault 11\npgmajfault 3",
        )
        put(group / "pids.current", used.processes)
        for name in ("cpu", "memory", "io"):
            put(group / f"{name}.pressure", "some avg10=1.50 avg60=0.10 avg300=0.00 total=123")


def interface(name: str, received: int, sent: int) -> str:
    """A line of /proc/PID/net/dev, with one error each way."""
    return f"  {name}: {received} 5 1 0 0 0 0 0 {sent} 4 1 0 0 0 0 0"
