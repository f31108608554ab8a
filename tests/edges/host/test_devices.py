"""Block devices, loop devices and the tools for file systems, on real loop devices."""

from __future__ import annotations

import os
import stat
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.block import block_device, clean_folder
from support.processes import wait_end

from pykubelet.edges.host.devices import block_devices, disk_formats, loops
from pykubelet.edges.host.devices.disk_formats import DiskFormat, FilesystemMismatchError
from pykubelet.edges.host.fs import mounts, programs
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.programs import run_program

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root for loop devices")


@pytest.fixture
def device() -> Iterator[str]:
    with block_device() as path:
        yield path


@pytest.fixture
def folder() -> Iterator[Path]:
    with clean_folder() as path:
        yield path


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory whose programs are found before all others."""
    with clean_folder() as path:
        monkeypatch.setenv("PATH", f"{path}:{os.environ['PATH']}")
        yield path


def write_tool(tools: Path, name: str, script: str) -> None:
    (tools / name).write_text(f"#!/bin/sh\n{script}\n")
    (tools / name).chmod(0o755)


def content(device: str) -> bytes:
    return Path(device).read_bytes()


# Programs


def test_a_missing_program_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(programs, "_DIRECTORIES", ())
    with pytest.raises(
        HostError, match=r"the program mkfs\.xfs is not installed: on Debian, install the package xfsprogs"
    ):
        run_program("mkfs.xfs", (), 1)


def test_a_program_that_hangs_is_killed_with_its_children(tools: Path, folder: Path) -> None:
    write_tool(tools, "hangs", f"echo working; sleep 1000 & echo $! > {folder}/child; wait")
    with pytest.raises(HostError, match=r"did not end within 0.5s; it printed: working") as caught:
        run_program("hangs", (), 0.5)
    assert caught.value.errno_name == "ETIMEDOUT"
    child = int((folder / "child").read_text())
    wait_end(child)


def test_endless_output_is_cut_and_does_not_block_the_program(tools: Path) -> None:
    write_tool(tools, "talks", "head -c 3000000 /dev/zero | tr '\\0' x; exit 3")
    ran = run_program("talks", (), 30)
    assert (ran.status, ran.output) == (3, "x" * programs.OUTPUT_BYTES)


def test_a_daemon_that_keeps_the_output_open_is_not_waited_for(tools: Path, folder: Path) -> None:
    write_tool(tools, "daemon", f"sleep 60 & echo $! > {folder}/child; echo started")
    began = time.monotonic()
    assert run_program("daemon", (), 30).output == "started\n"
    assert time.monotonic() - began < 15
    os.kill(int((folder / "child").read_text()), 9)


# Devices


def test_the_size_of_a_device(device: str) -> None:
    assert block_devices.device_size(device) == 16 << 20
    assert block_devices.is_block_device(device)


@pytest.mark.parametrize("path", ["/dev/null", "/etc/passwd", "/etc"])
def test_what_is_no_block_device_is_not_opened(path: str) -> None:
    assert not block_devices.is_block_device(path)
    with pytest.raises(HostError, match="not a block device"):
        block_devices.device_size(path)


def test_a_mounted_device_is_in_use(device: str, folder: Path) -> None:
    assert not block_devices.is_device_in_use(device)
    disk_formats.format_and_mount(device, str(folder))
    assert block_devices.is_device_in_use(device)
    mounts.unmount(str(folder))
    assert not block_devices.is_device_in_use(device)


def test_a_loop_device_is_found_by_its_file_and_detached(folder: Path) -> None:
    image = folder / "a file"
    image.write_bytes(bytes(1 << 20))
    loop = loops.attach_loop(str(image))
    assert loops.find_loops(str(image)) == [loop]
    assert loops.find_loops(f"{image}2") == []
    assert loops.detach_loop(loop)
    assert loops.find_loops(str(image)) == []
    assert not loops.detach_loop(loop)


def test_a_loop_device_is_found_after_its_file_was_deleted(folder: Path) -> None:
    image = folder / "image"
    image.write_bytes(bytes(1 << 20))
    loop = loops.attach_loop(str(image))
    image.unlink()
    assert loops.find_loops(str(image)) == [loop]
    loops.detach_loop(loop)


def test_a_loop_device_that_detaches_itself_is_waited_for(folder: Path) -> None:
    image = folder / "image"
    image.write_bytes(bytes(1 << 20))
    device = loops.attach_loop(str(image))
    assert loops.wait_let_go(str(image)) == [device], "it stays until it is detached"
    held = os.open(device, os.O_RDONLY)
    with ThreadPoolExecutor() as threads:
        detached = threads.submit(loops.detach_loop, device)
        while Path(f"/sys/block/{Path(device).name}/loop/autoclear").read_text() == "0\n":
            os.sched_yield()
        let_go = threads.submit(loops.wait_let_go, str(image))
        assert loops.find_loops(str(image)) == [device], "another program has it open"
        os.close(held)
        assert let_go.result() == [] and detached.result()


# Formats


def test_an_empty_device_is_formatted_and_mounted_once(device: str, folder: Path) -> None:
    disk_formats.format_and_mount(device, str(folder))
    (folder / "kept").write_text("data")
    assert [mount.fs_type for mount in mounts.mounts_below(str(folder))] == ["ext4"]
    mounts.unmount(str(folder))
    assert disk_formats.read_format(device) == DiskFormat("ext4")
    disk_formats.format_and_mount(device, str(folder))
    assert (folder / "kept").read_text() == "data"


def test_mount_options_take_effect(device: str, folder: Path) -> None:
    disk_formats.format_and_mount(device, str(folder), "ext3", ("noexec", "nodev"))
    (mount,) = mounts.mounts_below(str(folder))
    assert mount.fs_type == "ext3" and {"noexec", "nodev"} <= set(mount.options)


def test_an_empty_device_is_not_formatted_for_a_reader(device: str, folder: Path) -> None:
    with pytest.raises(
        HostError, match=f"cannot mount unformatted disk {device} as we are manipulating it in read-only"
    ):
        disk_formats.format_and_mount(device, str(folder), "ext4", ("ro",))
    assert not any(content(device))


def test_another_file_system_is_left_as_it_is(device: str, folder: Path) -> None:
    subprocess.run(["mkswap", device], check=True, capture_output=True)
    before = content(device)
    with pytest.raises(FilesystemMismatchError, match='holds "swap" and not ext4: mount failed: exit status'):
        disk_formats.format_and_mount(device, str(folder))
    assert content(device) == before


def test_partitions_are_left_as_they_are(device: str, folder: Path) -> None:
    entry = struct.pack("<B3sB3sII", 0, b"\x20\x21\x00", 0x83, b"\xfe\xff\xff", 2048, 30720)
    with Path(device).open("r+b") as disk:  # the partition table of a PC
        disk.seek(446)
        disk.write(entry + bytes(48) + b"\x55\xaa")
    before = content(device)
    with pytest.raises(HostError, match="unknown data, probably partitions"):
        disk_formats.format_and_mount(device, str(folder))
    assert content(device) == before


@pytest.mark.parametrize("script", ["exit 8", "exit 4", "echo cannot open; exit 2", "kill -9 $$"])
def test_nothing_is_formatted_when_blkid_fails(device: str, folder: Path, tools: Path, script: str) -> None:
    write_tool(tools, "blkid", script)
    with pytest.raises(HostError, match="blkid"):
        disk_formats.format_and_mount(device, str(folder))
    assert not any(content(device))


@pytest.mark.parametrize("path", ["", ":", ".", "tools:."])
def test_tools_do_not_come_from_the_current_directory(
    device: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """Neither the agent's tools, nor those that they start: fsck looks for fsck.ext4."""
    (tmp_path / "tools").mkdir()
    for place in (tmp_path, tmp_path / "tools"):
        for name in ("blkid", "mkfs.ext4", "fsck", "fsck.ext4", "mount"):
            write_tool(place, name, f"echo {name} >> {tmp_path}/ran; exit 0")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", path)
    for _ in range(2):
        disk_formats.format_and_mount(device, str(folder))
        mounts.unmount(str(folder))
    assert not (tmp_path / "ran").exists()


def test_nothing_is_formatted_without_blkid(device: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(programs, "_DIRECTORIES", ())
    with pytest.raises(
        HostError, match="the program blkid is not installed: on Debian, install the package util-linux"
    ):
        disk_formats.format_and_mount(device, str(folder))
    assert not any(content(device))


def test_a_failed_format_shows_the_output(device: str, folder: Path, tools: Path) -> None:
    write_tool(tools, "mkfs.ext4", "echo no luck; exit 7")
    with pytest.raises(HostError) as caught:
        disk_formats.format_and_mount(device, str(folder), options=("noatime",))
    assert caught.value.message == (
        f'format of disk "{device}" failed: type:("ext4") target:("{folder}") options:("[noatime]") '
        "errcode:(exit status 7) output:(no luck\n) "
    )


@pytest.mark.parametrize("fs_type", ["../../tmp/x", "-t", "a b", "ext4 -F", "x" * 40])
def test_a_strange_name_of_a_file_system_is_refused(device: str, folder: Path, fs_type: str) -> None:
    with pytest.raises(HostError, match="is no name of a file system"):
        disk_formats.format_and_mount(device, str(folder), fs_type)
    assert not any(content(device))


@pytest.mark.parametrize(
    "fs_type", ["proc", "sysfs", "tmpfs", "devtmpfs", "cgroup2", "fuse", "fuse.sh", "fuseblk", "nfs", "9p"]
)
def test_a_file_system_that_is_on_no_device_is_refused(device: str, folder: Path, fs_type: str) -> None:
    """The kernel ignores the device, and a pod would get a file system of the host."""
    subprocess.run(["mkfs.ext4", "-q", device], check=True)
    before = content(device)
    with pytest.raises(HostError, match=f'"{fs_type}" is no file system of block devices that this node knows'):
        disk_formats.format_and_mount(device, str(folder), fs_type)
    assert mounts.mounts_below(str(folder)) == ()
    assert content(device) == before


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ("exit 1", ""),
        ("echo broken; exit 4", "'fsck' found errors on device .* but could not correct them: broken"),
        ("exit 8", ""),
    ],
)
def test_fsck_comes_before_the_mount(device: str, folder: Path, tools: Path, script: str, error: str) -> None:
    disk_formats.format_and_mount(device, str(folder))
    mounts.unmount(str(folder))
    write_tool(tools, "fsck", f'echo "$@" >> {tools}/asked; {script}')
    if error:
        with pytest.raises(HostError, match=error):
            disk_formats.format_and_mount(device, str(folder))
    else:
        disk_formats.format_and_mount(device, str(folder))
    assert mounts.is_mount_point(str(folder)) is not bool(error)
    assert (tools / "asked").read_text() == f"-a {device}\n"


def test_a_reader_does_not_check(device: str, folder: Path, tools: Path) -> None:
    disk_formats.format_and_mount(device, str(folder))
    mounts.unmount(str(folder))
    write_tool(tools, "fsck", "exit 4")
    disk_formats.format_and_mount(device, str(folder), options=("ro",))
    (mount,) = mounts.mounts_below(str(folder))
    assert mount.is_read_only


def test_two_do_not_format_at_once(device: str, folder: Path, tools: Path) -> None:
    """The lock is that of the program itself, so it holds after its starter was killed."""
    write_tool(tools, "mkfs.ext4", f'echo begun > {tools}/begun; sleep 1; exec /usr/sbin/mkfs.ext4 "$@"')
    os.mkfifo(tools / "begun")
    target, other = folder / "one", folder / "two"
    target.mkdir()
    other.mkdir()
    first = threading.Thread(target=disk_formats.format_and_mount, args=(device, str(target)))
    first.start()
    assert (tools / "begun").read_text() == "begun\n"  # it waits for the writer
    write_tool(tools, "mkfs.ext4", "exit 1")
    disk_formats.format_and_mount(device, str(other))
    first.join()
    (other / "file").touch()
    assert (target / "file").exists()


def test_growing_what_has_the_size_changes_nothing(device: str, folder: Path) -> None:
    disk_formats.format_and_mount(device, str(folder))
    before = mounts.read_fs_usage(str(folder)).capacity_bytes
    disk_formats.grow_file_system(device, str(folder))
    assert mounts.read_fs_usage(str(folder)).capacity_bytes == before


@pytest.mark.parametrize(
    ("fs_type", "program", "arguments"),
    [
        ("ext4", "resize2fs", "{device}"),
        ("xfs", "xfs_growfs", "-d {folder}"),
        ("btrfs", "btrfs", "filesystem resize max {folder}"),
    ],
)
def test_each_file_system_has_its_tool(
    device: str, folder: Path, tools: Path, fs_type: str, program: str, arguments: str
) -> None:
    write_tool(tools, "blkid", f"echo TYPE={fs_type}")
    write_tool(tools, program, 'echo "$@"; exit 9')
    with pytest.raises(HostError) as caught:
        disk_formats.grow_file_system(device, str(folder))
    assert caught.value.message == f"exit status 9: {arguments.format(device=device, folder=folder)}"


def test_an_unknown_file_system_is_not_grown(device: str, folder: Path) -> None:
    subprocess.run(["mkswap", device], check=True, capture_output=True)
    text = f"resize of format swap is not supported for device {device} mounted at {folder}"
    with pytest.raises(HostError, match=text):
        disk_formats.grow_file_system(device, str(folder))
    assert stat.S_ISBLK(os.stat(device).st_mode)
