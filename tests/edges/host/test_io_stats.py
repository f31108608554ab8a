"""Input and output of groups and disks, and open files, from the kernel's own words and from this machine."""

from __future__ import annotations

import os
import resource
import socket
from pathlib import Path

from pykubelet.base.model.usage import DeviceIo, GroupDetail, ProcessesUse
from pykubelet.edges.host.cgroups.cgroup_stats import GroupsV1, GroupsV2
from pykubelet.edges.host.cgroups.io_stats import device_of, parse_blkio, parse_io_stat, read_disks, read_processes

BYTES = "254:0 Read 4096\n254:0 Write 512\n254:0 Sync 4608\n254:0 Total 4608\n7:1 Read 10\nTotal 4618\n"
OPERATIONS = "254:0 Read 3\n254:0 Write 1\n254:0 Total 4\nTotal 4\n"


def test_version_1_has_bytes_and_operations_in_two_files() -> None:
    assert parse_blkio(BYTES, OPERATIONS) == (DeviceIo("254:0", 4096, 512, 3, 1), DeviceIo("7:1", 10))
    assert parse_blkio("Total 0\n", "") == ()


def test_version_2_has_all_in_one_line_a_device() -> None:
    text = "254:0 rbytes=4096 wbytes=512 rios=3 wios=1 dbytes=0 dios=0\n7:1 \n"
    assert parse_io_stat(text) == (DeviceIo("254:0", 4096, 512, 3, 1),)


def test_details_of_groups_of_both_versions(tmp_path: Path) -> None:
    for folder, files in {
        "blkio/p": {"blkio.throttle.io_service_bytes_recursive": BYTES},
        "pids/p": {"pids.max": "max\n"},
        "v2/p": {
            "io.stat": "8:0 rbytes=1 wbytes=2 rios=3 wios=4\n",
            "pids.max": "99\n",
            "cgroup.procs": f"{os.getpid()}\n",
        },
    }.items():
        (tmp_path / folder).mkdir(parents=True)
        for name, text in files.items():
            (tmp_path / folder / name).write_text(text)
    old = GroupsV1({name: str(tmp_path / name) for name in ("blkio", "pids")}).detail("/p")
    assert old == GroupDetail((DeviceIo("254:0", 4096, 512), DeviceIo("7:1", 10)), ProcessesUse(), None)
    new = GroupsV2(str(tmp_path / "v2")).detail("/p")
    assert (new.io, new.threads_max, new.processes.count) == ((DeviceIo("8:0", 1, 2, 3, 4),), 99, 1)
    assert GroupsV2(str(tmp_path / "v2")).detail("/gone") == GroupDetail()


def test_disks(tmp_path: Path) -> None:
    lines = " 7 0 loop0 1 0 0 0 0 0 0 0 0 0 0\n 254 0 vda 1 2 3 4 5 6 7 8 9 10 11 0 0 0 0 0 0\n 8 16 old 1 2\n"
    (tmp_path / "diskstats").write_text(lines)
    (disk,) = read_disks(str(tmp_path))
    assert (disk.name, disk.number, disk.reads, disk.sectors_read, disk.writes) == ("vda", "254:0", 1, 3, 5)
    assert (disk.write_ms, disk.in_progress, disk.busy_ms, disk.weighted_ms) == (8, 9, 10, 11)
    assert device_of(str(tmp_path)).count(":") == 1 and device_of(str(tmp_path / "gone")) == ""


def test_what_this_process_has_open() -> None:
    before = read_processes([os.getpid()])
    with socket.socket(), open(os.devnull):
        now = read_processes([os.getpid(), 1 << 30])
    assert (now.count, now.sockets - before.sockets) == (2, 1)
    assert now.descriptors - before.descriptors == 2
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert now.open_files_limit == soft
    assert read_processes([]) == ProcessesUse()
