"""The log of one container on real files: rotations on both sides, restarts at any place, and disks that are full."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cri_docker.logs.docker_file import ID, DockerFile

from pykubelet.edges.host.fs.errors import HostError
from pykubelet_cri_docker.logs.copier import SAVE_BYTES, Copier
from pykubelet_cri_docker.logs.docker_log import MAX_ENTRY, SLICE
from pykubelet_cri_docker.logs.positions import Positions

LONG = "x" * 1000 + "\n"


class Node:
    """A container with both logs. `start` begins a run of the adapter; what it has open is dropped without being closed."""

    def __init__(self, top: Path) -> None:
        self.docker = DockerFile(top)
        self.cri = top / "pods" / "pod" / "container" / "0.log"
        self.cri.parent.mkdir(parents=True)
        self.state = top / "state"
        self.copier = self.start()

    def start(self) -> Copier:
        """Begin a run, as after kill -9."""
        self.copier = Copier(ID, str(self.docker.path), str(self.cri), Positions(str(self.state)))
        return self.copier

    def copy(self) -> bytes:
        """Copy all that is there. Returns the CRI log."""
        for _ in range(10_000):
            if self.copier.step():
                return self.cri.read_bytes()
        raise AssertionError("no end")

    def rename(self, name: str = "0.log.20260102-030405") -> Path:
        """Rotate the CRI log, as the kubelet does it before ReopenContainerLog."""
        return self.cri.rename(self.cri.with_name(name))


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    node.copier.close()


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """No file of this process grows beyond that: a write is cut off, and the next one fails."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_lines_are_copied_as_they_come(node: Node) -> None:
    node.docker.write("one\ntwo\n")
    node.docker.write("three\n", "stderr")
    assert node.copy() == node.docker.lines
    node.docker.write("y" * 50_000 + "\nlast")
    assert node.copy() == node.docker.lines
    assert node.cri.stat().st_mode & 0o777 == 0o640


def test_an_entry_is_copied_when_it_is_whole(node: Node) -> None:
    node.docker.write("one\n")
    before = node.docker.path.read_bytes()
    os.truncate(node.docker.path, len(before) - 10)
    assert node.copy() == b""
    node.docker.write_raw(before[-10:])
    assert node.copy() == node.docker.lines


def test_much_output_is_copied_in_slices(node: Node) -> None:
    node.docker.write(LONG * 2000)
    assert not node.copier.step()
    assert len(node.cri.read_bytes()) < 2 * SLICE
    assert node.copy() == node.docker.lines


@pytest.mark.parametrize("keep", [2, 5])
def test_docker_rotates_its_log(node: Node, keep: int) -> None:
    for number in range(4):
        node.docker.write(f"file {number}\n")
        node.copy()
        node.docker.write(f"end of file {number}\n")
        node.docker.rotate(keep)
    assert node.copy() == node.docker.lines
    assert not node.copier.lost


def test_docker_rotates_twice_while_a_file_is_read(node: Node) -> None:
    node.docker.write("a\n")
    node.copy()
    for text in "bc":
        node.docker.write(f"{text}\n")
        node.docker.rotate()
    node.docker.write("d\n")
    assert node.copy() == node.docker.lines


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("copied", [0, 1, 2, 3])
def test_docker_rotates_while_the_adapter_is_away(node: Node, copied: int, compress: bool) -> None:
    for number in range(4):
        node.docker.write(f"file {number}\n" * 3000 if number else "first\n")
        if number < copied:
            node.copy()
            node.copier.close()
        node.docker.write(f"end of file {number}\n")
        node.docker.rotate(5, compress=compress)
    node.start()
    assert node.copy() == node.docker.lines
    assert not node.copier.lost


def test_a_file_is_compressed_while_it_is_read(node: Node) -> None:
    node.docker.write("a\n")
    node.copy()
    node.docker.rotate(compress=True)
    node.docker.write("b\n")
    node.docker.rotate(compress=True)
    node.docker.write("c\n")
    assert node.copy() == node.docker.lines


def test_docker_removes_files_before_they_are_copied(node: Node) -> None:
    node.docker.write("copied\n")
    before = node.copy()
    node.copier.close()
    for number in range(4):
        node.docker.write(f"file {number}\n")
        node.docker.rotate(2)
    node.start()
    assert node.copy() == before + node.docker.lines.splitlines(keepends=True)[-1]
    assert node.copier.lost


def test_docker_removes_a_file_after_a_kill_before_the_position_is_saved(node: Node) -> None:
    for text in "ab":
        node.docker.write(f"{text}\n")
        node.docker.rotate(2)
        node.copy()
    node.start()
    node.docker.write("c\n")
    assert node.copy() == node.docker.lines


def test_an_administrator_empties_dockers_log(node: Node) -> None:
    node.docker.write("before, and long\n" * 3)
    node.copy()
    os.truncate(node.docker.path, 0)
    node.docker.write("after\n")
    assert node.copy() == node.docker.lines


def test_a_line_without_an_end_is_passed_over(node: Node) -> None:
    node.docker.write("before\n")
    for _ in range(3):
        node.docker.write_raw(b"x" * (MAX_ENTRY - 1))
        node.copy()
    node.docker.write_raw(b"\n")
    node.docker.write("after\n")
    assert node.copy() == node.docker.lines
    assert node.copier.skipped > 0


def test_half_an_entry_at_the_end_of_a_rotated_file(node: Node) -> None:
    node.docker.write("before\n")
    node.docker.write_raw(b'{"log":"hal')
    node.copy()
    node.docker.rotate()
    node.docker.write("after\n")
    assert node.copy() == node.docker.lines


def test_the_kubelet_rotates_the_log(node: Node) -> None:
    node.docker.write("old\n")
    node.copy()
    old = node.rename()
    node.docker.write("still old\n")
    node.copier.step()
    node.copier.reopen()
    first = old.read_bytes()
    node.docker.write("new\n")
    assert first + node.copy() == node.docker.lines
    assert old.read_bytes() == first
    assert b"still old" in first


def test_a_log_that_was_not_renamed_is_kept(node: Node) -> None:
    node.docker.write("one\n")
    node.copy()
    node.copier.reopen()
    node.docker.write("two\n")
    assert node.copy() == node.docker.lines


def test_a_log_that_cannot_be_created_leaves_the_old_one(node: Node) -> None:
    node.docker.write("one\n")
    node.copy()
    moved = node.cri.parent.rename(node.cri.parent.with_name("moved"))
    with pytest.raises(HostError, match=r"0\.log: no such file or directory"):
        node.copier.reopen()
    node.docker.write("two\n")
    node.copier.step()
    assert (moved / "0.log").read_bytes() == node.docker.lines
    moved.rename(node.cri.parent)


def test_no_link_of_a_pod_is_followed(node: Node, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine")
    node.cri.symlink_to(victim)
    node.docker.write("one\n")
    with pytest.raises(HostError, match="symbolic link"):
        node.copier.step()
    assert victim.read_bytes() == b"mine"
    node.cri.unlink()


def test_a_kill_in_the_middle_of_a_write(node: Node) -> None:
    node.copy()
    node.docker.write("one\ntwo\n")
    node.docker.write_raw(b"damaged\n")
    node.docker.write("parts" * 5000)
    node.docker.write("last\n", "stderr")
    whole = node.copy()
    for size in (*range(300), *range(len(whole) - 100, len(whole) + 1)):
        os.truncate(node.cri, size)
        node.start()
        assert node.copy() == node.docker.lines
    node.docker.write("more\n")
    assert node.copy() == node.docker.lines


@pytest.mark.parametrize("left", ["", "0.log.20260102-030405"])
def test_a_kill_between_two_saved_positions(node: Node, left: str) -> None:
    node.docker.write(LONG * (2 * SAVE_BYTES // 1000))
    node.copy()
    old = node.rename(left) if left else node.cri
    node.docker.write("more\n")
    node.start()
    node.copier.step()
    while not node.copier.step():
        pass
    assert old.read_bytes() == node.docker.lines
    node.copier.reopen()
    assert node.cri.exists()


def test_a_lost_position_is_found_by_the_lines(node: Node) -> None:
    for number in range(3):
        node.docker.write(f"file {number}\n" * 1000)
        node.docker.rotate(5)
        node.copy()
    for damage in (b"", b"{", b'{"offset":-1}', b"[" * 5000):
        (node.state / f"{ID}.json").write_bytes(damage)
        node.docker.write("more\n")
        node.start()
        assert node.copy() == node.docker.lines


def test_what_another_has_written_is_left_alone(node: Node) -> None:
    node.docker.write("one\n")
    first = node.copy()
    with node.cri.open("ab") as file:
        file.write(b"not ours")
    node.start()
    node.docker.write("two\n")
    assert node.copy() == first + b"not ours\n" + node.docker.lines.removeprefix(first)


def test_a_power_cut_has_shortened_the_logs(node: Node) -> None:
    node.docker.write("one\ntwo\n")
    node.copy()
    node.copier.close()
    os.truncate(node.cri, len(node.docker.lines) - 5)
    os.truncate(node.docker.path, node.docker.path.stat().st_size - 5)
    node.start()
    torn = node.copy()
    node.docker.write("\nthree\n")
    assert node.copy().startswith(torn)
    assert node.copy().endswith(b" stdout F three\n")


def test_nothing_is_lost_or_cut_on_a_full_disk(node: Node) -> None:
    node.docker.write("one\n")
    node.copy()
    for _ in range(3):
        node.docker.write("text\n" * 20)
    with files_of_at_most(len(node.docker.lines) - 50), pytest.raises(HostError, match=r"write .*0\.log"):
        node.copy()
    node.docker.write("more\n")
    assert node.copy() == node.docker.lines


def test_the_log_is_rotated_on_a_full_disk(node: Node) -> None:
    node.docker.write("one\n")
    node.copy()
    node.docker.write("text\n" * 20)
    with files_of_at_most(len(node.docker.lines) - 50), pytest.raises(HostError):
        node.copy()
    old = node.rename()
    node.copier.reopen()
    assert old.read_bytes() == node.docker.lines.splitlines(keepends=True)[0]
    assert old.read_bytes() + node.copy() == node.docker.lines


def test_a_position_that_cannot_be_saved_is_saved_later(node: Node) -> None:
    node.state.write_bytes(b"")
    node.docker.write("one\n")
    with pytest.raises(HostError):
        node.copier.step()
    node.state.unlink()
    assert node.copy() == node.docker.lines


def test_dockers_log_comes_later(node: Node) -> None:
    node.docker.path.unlink()
    assert node.copy() == b""
    node.docker.write("one\n")
    assert node.copy() == node.docker.lines


def test_the_adapter_is_killed_at_each_effect(tmp_path: Path) -> None:
    script = Path(__file__).with_name("killed_copier.py")
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout) > 100
