"""Mounts: the table as kernels write it, and real mounts below a temporary directory."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from testbed.fuse import HangingFileSystem

from pykubelet.edges.host.fs import mounts
from pykubelet.edges.host.fs.errors import HostError

TABLE = r"""
22 28 0:21 / /proc rw,nosuid,nodev,noexec,relatime shared:12 - proc proc rw
28 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,errors=remount-ro
97 28 8:1 /var/lib/a /var/lib/kubelet/pods/u1/volumes/x\040y\134z ro,noatime shared:5 master:1 - ext4 /dev/sda1 rw
98 97 0:44 / /var/lib/kubelet/pods/u1/volumes/x\040y\134z/deep rw master:7 propagate_from:2 - tmpfs tmp\011fs rw,size=64k
99 28 0:45 / /var/lib/kubelet/pods/u10 rw - nfs4 10.0.0.1:/export rw,addr=10.0.0.1
not a line of the table
30 28 0:26 / /sys/fs/cgroup rw unbindable - cgroup2 cgroup2 rw
"""


def test_parse_mountinfo() -> None:
    table = mounts.parse_mountinfo(TABLE)
    assert [m.id for m in table] == [22, 28, 97, 98, 99, 30]
    bound, deep = table[2], table[3]
    assert bound.target == "/var/lib/kubelet/pods/u1/volumes/x y\\z"
    assert (bound.root, bound.shared, bound.master, bound.is_read_only) == ("/var/lib/a", 5, 1, True)
    assert (deep.shared, deep.master, deep.fs_type, deep.source) == (None, 7, "tmpfs", "tmp\tfs")
    assert deep.super_options == ("rw", "size=64k")


@pytest.mark.parametrize(
    "line",
    [
        " 20 0:33 / /target rw - tmpfs tmpfs rw",
        "40  0:33 / /target rw - tmpfs tmpfs rw",
        "4² 20 0:33 / /target rw - tmpfs tmpfs rw",
        "9" * 5000 + " 20 0:33 / /target rw - tmpfs tmpfs rw",
        "40 20 0:33 / /target rw shared: - tmpfs tmpfs rw",
        "40 20 0:33 / /target rw shared:x - tmpfs tmpfs rw",
        "40 20 0:33 / /target rw master:-1 - tmpfs tmpfs rw",
    ],
)
def test_a_line_that_the_kernel_does_not_write_is_skipped(line: str) -> None:
    assert [m.id for m in mounts.parse_mountinfo(f"{line}\n{TABLE}")] == [22, 28, 97, 98, 99, 30]


@given(st.lists(st.text(alphabet="0123456789 -:/abcsharedmt\\²", max_size=60), max_size=3))
def test_any_text_is_parsed(lines: list[str]) -> None:
    mounts.parse_mountinfo("\n".join(lines))


@pytest.mark.parametrize("end", ["\r", "\x0c", "\x85", "\u2028"])
def test_a_name_with_another_end_of_line_hides_no_mount(tmp_path: Path, end: str) -> None:
    line = f"40 20 0:33 /pods/a{end}1 /target rw shared:1 master:2 propagate_from:3 - tmpfs tmpfs rw\n"
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "mountinfo").write_text(line, encoding="utf-8", newline="\n")
    assert [(m.root, m.target) for m in mounts.read_mounts(str(tmp_path))] == [(f"/pods/a{end}1", "/target")]


def test_mounts_of_one_type_are_those_of_the_whole_table(tmp_path: Path) -> None:
    decoy = "41 20 0:34 / /a\\040-\\040proc rw - tmpfs none rw,x - proc \n"
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "mountinfo").write_text(TABLE + decoy, encoding="utf-8", newline="\n")
    table = mounts.read_mounts(str(tmp_path))
    for types in {(mount.fs_type,) for mount in table} | {("proc", "tmpfs"), ("none",)}:
        assert mounts.read_mounts_of_type(*types, proc=str(tmp_path)) == tuple(m for m in table if m.fs_type in types)


def test_below_is_deepest_first_and_stops_at_names() -> None:
    table = mounts.parse_mountinfo(TABLE)
    assert [m.id for m in mounts.mounts_below("/var/lib/kubelet/pods/u1", table)] == [98, 97]
    assert [m.id for m in mounts.mounts_below("/var/lib/kubelet/pods/u10", table)] == [99]
    assert len(mounts.mounts_below("/", table)) == len(table)


@pytest.mark.parametrize(
    ("release", "known"), [("6.4.0", True), ("6.3.9-1-amd64", False), ("5.15.0", False), ("7.0", True), ("?", False)]
)
def test_tmpfs_no_swap_by_kernel(release: str, known: bool, tmp_path: Path) -> None:
    """No mount can be tried out where there is no directory for it."""
    assert mounts.tmpfs_no_swap_supported(release, str(tmp_path / "none")) is known


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts")
def test_tmpfs_no_swap_by_a_trial(tmp_path: Path) -> None:
    """An older kernel may have taken the option over; on this machine the kernel is asked."""
    known = mounts.tmpfs_no_swap_supported(os.uname().release, str(tmp_path / "none"))
    assert mounts.tmpfs_no_swap_supported("5.14.0-427.el9", str(tmp_path)) is known
    assert list(tmp_path.iterdir()) == []


def test_fs_usage_adds_up(tmp_path: Path) -> None:
    usage = mounts.read_fs_usage(str(tmp_path))
    assert usage.capacity_bytes > usage.available_bytes > 0
    assert usage.used_bytes == usage.capacity_bytes - usage.free_bytes
    with pytest.raises(HostError) as caught:
        mounts.read_fs_usage(str(tmp_path / "nothing"))
    assert caught.value.is_not_found


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    for mount in mounts.mounts_below(str(tmp_path)):
        mounts.unmount(mount.target, detach=True)


@pytest.mark.integration
def test_tmpfs_with_size_and_mode(place: Path) -> None:
    (place / "m").mkdir()
    mounts.mount_tmpfs(str(place / "m"), 1 << 20, 0o1777, no_swap=True)
    assert mounts.is_mount_point(str(place / "m"))
    assert mounts.read_fs_usage(str(place / "m")).capacity_bytes == 1 << 20
    assert (place / "m").stat().st_mode & 0o7777 == 0o1777
    with pytest.raises(OSError, match="No space left"):
        (place / "m" / "f").write_bytes(b"x" * (2 << 20))
    assert mounts.unmount(str(place / "m"))
    assert not mounts.unmount(str(place / "m"))
    assert not mounts.unmount(str(place / "nothing"))


@pytest.mark.integration
def test_read_only_bind_of_a_file_and_a_directory(place: Path) -> None:
    (place / "src").mkdir()
    (place / "src" / "f").write_text("hello")
    (place / "d").mkdir()
    (place / "f").touch()
    mounts.bind(str(place / "src"), str(place / "d"), read_only=True)
    mounts.bind(str(place / "src" / "f"), str(place / "f"))
    assert mounts.is_mount_point(str(place / "d")) and mounts.is_mount_point(str(place / "f"))
    assert not mounts.is_mount_point(str(place / "src"))
    with pytest.raises(OSError, match="Read-only"):
        (place / "d" / "g").touch()
    (place / "src" / "g").touch()
    assert (place / "f").read_text() == "hello"
    os.symlink("d", place / "link")
    assert not mounts.is_mount_point(str(place / "link"))


@pytest.mark.integration
def test_read_only_remount_keeps_the_other_flags(place: Path) -> None:
    (place / "m").mkdir()
    (place / "b").mkdir()
    mounts.mount("tmpfs", str(place / "m"), "tmpfs", ("nosuid", "nodev", "noexec", "size=64k", "rw"))
    mounts.bind(str(place / "m"), str(place / "b"), read_only=True)
    (bound,) = mounts.mounts_below(str(place / "b"))
    assert {"ro", "nosuid", "nodev", "noexec"} <= set(bound.options)


@pytest.mark.integration
def test_a_file_system_that_the_kernel_has_not_is_named(place: Path) -> None:
    (place / "m").mkdir()
    with pytest.raises(
        HostError, match="the kernel of this node has no file system nosuchfs, or its module is not installed"
    ):
        mounts.mount_by_program("none", str(place / "m"), "nosuchfs", (), 20.0)


@pytest.mark.integration
def test_shared_root_directory_propagates(place: Path) -> None:
    mounts.mount_tmpfs(str(place))
    subprocess.run(["mount", "--make-private", place], check=True)  # as on a machine without systemd
    (place / "root").mkdir()
    mounts.make_shared(str(place / "root"))
    mounts.make_shared(str(place / "root"))
    (found,) = mounts.mounts_below(str(place / "root"))
    assert found.shared is not None


@pytest.mark.integration
def test_a_directory_of_a_shared_file_system_stays_as_it_is(place: Path) -> None:
    (place / "shared").mkdir()
    mounts.make_shared(str(place / "shared"))
    (place / "shared/root/volume").mkdir(parents=True)
    mounts.make_shared(str(place / "shared/root"))
    assert not mounts.is_mount_point(str(place / "shared/root"))
    mounts.mount_tmpfs(str(place / "shared/root/volume"))
    (found,) = mounts.mounts_below(str(place / "shared/root"))
    assert found.shared is not None


@pytest.mark.integration
def test_busy_mount_is_an_error_and_can_be_detached(place: Path) -> None:
    (place / "m").mkdir()
    mounts.mount_tmpfs(str(place / "m"))
    with (place / "m" / "f").open("w"):
        with pytest.raises(HostError) as caught:
            mounts.unmount(str(place / "m"))
        assert caught.value.is_busy
        assert mounts.unmount(str(place / "m"), detach=True)
    assert not mounts.is_mount_point(str(place / "m"))


@pytest.mark.parametrize("mode", ["stop", "hang"])
def test_whether_something_is_mounted_is_known_without_asking_it(tmp_path: Path, mode: str) -> None:
    with HangingFileSystem(tmp_path / "mounted", tmp_path / "data") as storage:
        bound = tmp_path / "bound"
        bound.mkdir()
        mounts.bind(str(storage.path), str(bound))
        getattr(storage, mode)()
        found = list(map(str, (storage.path, bound)))
        answers: list[bool] = []
        asking = threading.Thread(target=lambda: answers.extend(map(mounts.is_mount_point, found)), daemon=True)
        asking.start()
        asking.join(20)
        assert answers == [True, True]
        assert mounts.unmount(str(bound))
