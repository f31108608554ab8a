"""Trees: what a pod puts into its own volume must not lead the agent out of it, nor stop it."""

from __future__ import annotations

import os
import stat
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from pykubelet.edges.host.fs import mounts, trees
from pykubelet.edges.host.fs.errors import HostError

needs_root = pytest.mark.integration


def test_remove_takes_everything_and_follows_nothing(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    tree = tmp_path / "tree"
    (tree / "a" / "b").mkdir(parents=True)
    (tree / "a" / "f").touch()
    os.mkfifo(tree / "pipe")
    os.symlink(outside, tree / "a" / "link")
    (tree / "a" / "b").chmod(0)
    assert trees.remove_tree(str(tree))
    assert not tree.exists()
    assert (outside / "precious").read_text() == "x"
    assert not trees.remove_tree(str(tree))


def test_what_no_file_system_can_have_is_absent(tmp_path: Path) -> None:
    assert not trees.remove_tree(str(tmp_path / ("n" * 300)))
    assert not trees.remove_tree(str(tmp_path / ("n" * 300) / "below"))
    assert not trees.remove_tree(str(tmp_path / "/".join(["n" * 200] * 30)))


def test_remove_of_a_link_removes_the_link(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    os.symlink("d", tmp_path / "link")
    assert trees.remove_tree(str(tmp_path / "link"))
    assert os.listdir(tmp_path) == ["d"]


def test_remove_of_a_tree_deeper_than_any_path_may_be_long(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    here = os.open(tree, os.O_RDONLY)
    for _ in range(2500):
        os.mkdir("directory", dir_fd=here)
        deeper = os.open("directory", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = deeper
    os.close(here)
    assert trees.remove_tree(str(tree))
    assert not tree.exists()


def test_a_directory_of_very_many_files_takes_little_memory(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    for number in range(12_000):
        os.mknod(tree / f"file-{number}")
    tracemalloc.start()
    try:
        assert trees.read_disk_usage(str(tree))[1] == 12_001
        assert trees.remove_tree(str(tree))
        assert tracemalloc.get_traced_memory()[1] < 600_000
    finally:
        tracemalloc.stop()
    assert not tree.exists()


def test_a_tree_deeper_than_any_path_may_be_long_is_measured(tmp_path: Path) -> None:
    here = os.open(tmp_path, os.O_RDONLY)
    for _ in range(2500):
        for name in ("a", "directory"):
            os.mkdir(name, dir_fd=here)
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=here))
        deeper = os.open("directory", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = deeper
    os.close(here)
    try:
        assert trees.read_disk_usage(str(tmp_path))[1] == 1 + 3 * 2500
    finally:
        assert trees.remove_tree(str(tmp_path))  # which is too deep for others


def test_what_is_replaced_while_it_is_walked_is_passed_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name / "inner").mkdir(parents=True)
    look = os.stat

    def look_and_swap(path: str, **how: Any) -> os.stat_result:
        found = look(path, **how)
        if path == "b" and not os.path.islink(tmp_path / "b"):
            (tmp_path / "b").rename(tmp_path / "c" / "b")
            os.symlink("/", tmp_path / "b")
        return found

    monkeypatch.setattr(os, "stat", look_and_swap)
    assert trees.read_disk_usage(str(tmp_path))[1] in (5, 7)


@needs_root
def test_remove_refuses_while_something_is_mounted_below(tmp_path: Path) -> None:
    inner = tmp_path / "tree" / "volume"
    inner.mkdir(parents=True)
    (tmp_path / "tree" / "a").touch()
    mounts.mount_tmpfs(str(inner), 1 << 20)
    try:
        (inner / "precious").touch()
        with pytest.raises(HostError) as caught:
            trees.remove_tree(str(tmp_path / "tree"))
        assert caught.value.is_busy
        assert str(inner) in str(caught.value)
        assert (tmp_path / "tree" / "a").exists() and (inner / "precious").exists()
    finally:
        mounts.unmount(str(inner))
    assert trees.remove_tree(str(tmp_path / "tree"))


@needs_root
def test_remove_without_a_look_at_the_mounts_enters_none(tmp_path: Path) -> None:
    tree, precious = tmp_path / "tree", tmp_path / "precious"
    (tree / "a" / "mounted").mkdir(parents=True)
    precious.mkdir()
    (precious / "file").write_text("keep me")
    assert not trees.remove_tree(str(tmp_path / "missing"), may_hold_mounts=False)
    mounts.bind(str(precious), str(tree / "a" / "mounted"))
    try:
        with pytest.raises(HostError) as caught:
            trees.remove_tree(str(tree), may_hold_mounts=False)
        assert caught.value.is_busy and str(tree / "a" / "mounted") in str(caught.value)
        assert (precious / "file").read_text() == "keep me"
    finally:
        mounts.unmount(str(tree / "a" / "mounted"))
    assert trees.remove_tree(str(tree), may_hold_mounts=False)
    assert not tree.exists()


@needs_root
def test_remove_stops_at_a_bind_mount_that_appears_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "data").touch()
    target = tmp_path / "tree" / "sub"
    target.mkdir(parents=True)
    monkeypatch.setattr(trees, "mounts_below", lambda _: ())  # the look before found nothing yet
    mounts.bind(str(precious), str(target))
    try:
        with pytest.raises(HostError) as caught:
            trees.remove_tree(str(tmp_path / "tree"))
        assert caught.value.errno_name == "EXDEV"
        assert (precious / "data").exists()
    finally:
        mounts.unmount(str(target))


@needs_root
def test_fs_group_owns_files_and_directories_but_not_the_targets_of_links(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.touch(mode=0o600)
    volume = tmp_path / "volume"
    (volume / "d").mkdir(parents=True, mode=0o755)
    (volume / "d" / "f").touch(mode=0o600)
    os.symlink(outside, volume / "link")
    assert not trees.group_is_applied(str(volume), 2000)
    trees.apply_group(str(volume), 2000)
    assert trees.group_is_applied(str(volume), 2000)
    file, directory = (volume / "d" / "f").stat(), (volume / "d").stat()
    assert (file.st_gid, stat.S_IMODE(file.st_mode)) == (2000, 0o660)
    assert (directory.st_gid, stat.S_IMODE(directory.st_mode)) == (2000, 0o2775)
    assert (volume / "link").lstat().st_gid == 2000
    assert (outside.stat().st_gid, stat.S_IMODE(outside.stat().st_mode)) == (0, 0o600)


@needs_root
def test_fs_group_of_a_read_only_volume(tmp_path: Path) -> None:
    (tmp_path / "v").mkdir(mode=0o700)
    (tmp_path / "v" / "f").touch(mode=0o600)
    trees.apply_group(str(tmp_path / "v"), 2000, read_only=True)
    assert stat.S_IMODE((tmp_path / "v" / "f").stat().st_mode) == 0o640
    assert stat.S_IMODE((tmp_path / "v").stat().st_mode) == 0o2750


@needs_root
def test_fs_group_keeps_the_set_uid_bit_and_counts_files(tmp_path: Path) -> None:
    (tmp_path / "v").mkdir()
    program = tmp_path / "v" / "program"
    program.touch()
    program.chmod(0o4755)
    counted: list[int] = []
    trees.apply_group(str(tmp_path / "v"), 2000, progress=counted.append)
    assert (program.stat().st_gid, stat.S_IMODE(program.stat().st_mode)) == (2000, 0o4775)
    assert counted == [0, 1]


@needs_root
def test_fs_group_passes_over_files_that_cannot_be_changed(tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    (volume / "locked").mkdir(parents=True)
    (volume / "locked" / "file").touch(mode=0o600)
    (volume / "file").touch(mode=0o600)
    mounts.bind(str(volume / "locked"), str(volume / "locked"), read_only=True)
    try:
        trees.apply_group(str(volume / "locked"), 2000)
        assert not trees.group_is_applied(str(volume / "locked"), 2000)
        trees.apply_group(str(volume), 2000)
    finally:
        mounts.unmount(str(volume / "locked"))
    assert (volume / "file").stat().st_gid == 2000 and trees.group_is_applied(str(volume), 2000)
    assert (volume / "locked" / "file").stat().st_gid == 0


def test_disk_usage_is_exact_without_remembering_every_hard_link(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    for number in range(20):
        (first / str(number)).write_bytes(b"x" * 10_000)
        os.link(first / str(number), second / str(number))
    exact = trees.read_disk_usage(str(tmp_path))
    assert exact[1] == 3 + 20
    for limit in (0, 1, 7, 20):
        assert trees.read_disk_usage(str(tmp_path), limit) == exact
    (first / "0").unlink()
    assert trees.read_disk_usage(str(tmp_path), 0) == exact


def test_disk_usage_counts_hard_links_once(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 100_000)
    os.link(tmp_path / "a", tmp_path / "b")
    used, inodes = trees.read_disk_usage(str(tmp_path))
    assert 100_000 <= used < 150_000
    assert inodes == 2
