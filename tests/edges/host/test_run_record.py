"""The record of a run, in a folder of a tmpfs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykubelet.base.kit.flight import SIZE, OpenWork
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.services.run_record import Blame, EndedRun, RunRecord

#: Leaves the record of a run that has ended while it was at work, with what the program adds.
_PROGRAM = """
import faulthandler, sys, os, time
from pykubelet.base.kit.flight import WORK
from pykubelet.edges.host.services.run_record import Blame, RunRecord
record = RunRecord(sys.argv[1], (sys.argv[2],))
assert record.read_ended(0.0, 0.0) is None
memory, stacks = record.begin(time.monotonic())
WORK.attach(memory)
faulthandler.enable(file=stacks)
with WORK.on("uid-1"):
    record.note_memory(123)
    {}
"""


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder in memory, as `/run` usually is."""
    folder = Path(tempfile.mkdtemp(dir="/dev/shm"))
    yield folder
    shutil.rmtree(folder)


def run(root: Path, directory: Path, program: str) -> int:
    argv = [sys.executable, "-c", _PROGRAM.format(program), str(root), str(directory)]
    return subprocess.run(argv, timeout=60, stderr=subprocess.DEVNULL).returncode


def read(root: Path, directory: Path) -> EndedRun | None:
    return RunRecord(str(root), (str(directory),)).read_ended(1000.0, 2_000_000_000.0)


def test_a_run_that_was_killed_leaves_what_it_was_at(tmp_path: Path, memory: Path) -> None:
    blamed = 'record.blame(Blame("uid-2", "it was in the way"))'
    assert run(tmp_path, memory / "run", f"{blamed}; os.kill(os.getpid(), 9)") == -9
    ended = read(tmp_path, memory / "run")
    assert ended is not None
    assert [(work.key, work.is_main) for work in ended.works] == [("uid-1", True)]
    assert (ended.blame, ended.memory, ended.fatal) == (Blame("uid-2", "it was in the way"), 123, "")
    assert oct((memory / "run").stat().st_mode & 0o777) == "0o700"


def test_a_blame_is_withdrawn(tmp_path: Path, memory: Path) -> None:
    blamed = 'record.blame(Blame("uid-2", "x")); record.blame(None)'
    run(tmp_path, memory / "run", f"{blamed}; os._exit(1)")
    ended = read(tmp_path, memory / "run")
    assert ended is not None and ended.blame is None


@pytest.mark.parametrize(
    ("program", "code", "name"),
    [("os.abort()", -6, "Aborted"), ("import ctypes; ctypes.string_at(0)", -11, "Segmentation fault")],
)
def test_a_fatal_signal_leaves_its_name_and_the_stacks(
    tmp_path: Path, memory: Path, program: str, code: int, name: str
) -> None:
    assert run(tmp_path, memory / "run", program) == code
    ended = read(tmp_path, memory / "run")
    assert ended is not None and ended.fatal == name
    assert "most recent call first" in ended.stacks and "<string>" in ended.stacks
    assert len(ended.works) == 1


def test_an_orderly_end_leaves_nothing(tmp_path: Path, memory: Path) -> None:
    assert run(tmp_path, memory / "run", "record.end()") == 0
    assert read(tmp_path, memory / "run") is None
    assert list((memory / "run").iterdir()) == []


def test_a_run_that_goes_on_is_no_ended_one(tmp_path: Path, memory: Path) -> None:
    first = RunRecord(str(tmp_path), (str(memory / "run"),))
    assert first.begin(1.0) is not None
    second = RunRecord(str(tmp_path), (str(memory / "run"),))
    assert second.read_ended(1.0, 1.0) is None
    assert second.begin(1.0) is None, "the record of the first one is left alone"
    second.end()
    assert len(list((memory / "run").iterdir())) == 2


def test_each_root_directory_has_its_own_record(tmp_path: Path, memory: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        run(tmp_path / name, memory / "run", "os._exit(1)")
    assert read(tmp_path / "one", memory / "run") is not None
    assert read(tmp_path / "two", memory / "run") is not None


def test_the_records_of_root_directories_that_are_gone_are_removed(tmp_path: Path, memory: Path) -> None:
    for name in ("one", "two", "three"):
        (tmp_path / name).mkdir()
        run(tmp_path / name, memory / "run", "os._exit(1)")
    (tmp_path / "two").rmdir()
    RunRecord(str(tmp_path / "three"), (str(memory / "run"),)).begin(1.0)
    assert read(tmp_path / "one", memory / "run") is not None
    assert len(list((memory / "run").iterdir())) == 4


def test_the_record_of_an_agent_that_runs_is_kept_before_its_root_directory_is_made(
    tmp_path: Path, memory: Path
) -> None:
    """Another agent that starts at this moment would remove it, and this one's end would be charged to no pod."""
    new, other = tmp_path / "new", RunRecord(str(tmp_path), (str(memory / "run"),))
    program = "print(flush=True); sys.stdin.read(); os._exit(1)"
    argv = [sys.executable, "-c", _PROGRAM.format(program), str(new), str(memory / "run")]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"\n"
        assert other.begin(1.0) is not None
        process.communicate(timeout=60)
    ended = read(new, memory / "run")
    assert ended is not None and ended.works


def test_records_that_others_make_or_remove_meanwhile_are_left_alone(tmp_path: Path, memory: Path) -> None:
    (memory / "run").mkdir(0o700)
    (memory / "run" / "1111.run").write_bytes(bytes(4096 + SIZE))
    (memory / "run" / "2222.run").symlink_to(memory / "run" / "gone")
    record = RunRecord(str(tmp_path), (str(memory / "run"),))
    assert record.begin(1.0) is not None
    assert (memory / "run" / "1111.run").exists()


def test_the_first_folder_in_memory_is_used(tmp_path: Path, memory: Path) -> None:
    on_disk = Path(tempfile.mkdtemp(dir="/var/tmp"))
    try:
        record = RunRecord(str(tmp_path), (str(on_disk / "run"), str(memory / "run")))
        assert record.begin(1.0) is not None
        assert not (on_disk / "run").exists() and (memory / "run").exists()
        nowhere = RunRecord(str(tmp_path), (str(on_disk / "run"), "/nonexistent/run"))
        assert nowhere.read_ended(1.0, 1.0) is None and nowhere.begin(1.0) is None
        nowhere.note_memory(1)
        nowhere.blame(Blame("uid", "x"))
        nowhere.end()
    finally:
        shutil.rmtree(on_disk)


def test_a_folder_that_others_can_write_to_is_not_trusted(tmp_path: Path, memory: Path) -> None:
    """In `/dev/shm`, any user can make it first."""
    run(tmp_path, memory / "run", "os._exit(1)")
    (memory / "run").chmod(0o777)
    record = RunRecord(str(tmp_path), (str(memory / "run"),))
    assert record.read_ended(1.0, 1.0) is None
    with pytest.raises(HostError):
        record.begin(1.0)


def test_links_in_its_place_are_not_followed(tmp_path: Path, memory: Path) -> None:
    (tmp_path / "elsewhere").mkdir(0o700)
    (memory / "run").symlink_to(tmp_path / "elsewhere")
    record = RunRecord(str(tmp_path), (str(memory / "run"),))
    assert record.read_ended(1.0, 1.0) is None
    with pytest.raises(HostError):
        record.begin(1.0)


@given(st.binary(max_size=6000), st.binary(max_size=200))
def test_damaged_files_stop_no_start(data: bytes, stacks: bytes) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder, tempfile.TemporaryDirectory() as root:
        directory = Path(folder, "run")
        first = RunRecord(root, (str(directory),))
        assert first.begin(1.0) is not None
        for path in directory.iterdir():
            head = path.read_bytes()[:16] if path.suffix == ".run" else b""
            path.write_bytes(head + data if path.suffix == ".run" else stacks)
        second = RunRecord(root, (str(directory),))
        ended = second.read_ended(1.0, 1.0)
        for work in ended.works if ended is not None else ():
            assert isinstance(work, OpenWork)
        if ended is not None or not data:
            assert second.begin(2.0) is not None


def test_the_record_has_a_fixed_size(tmp_path: Path, memory: Path) -> None:
    record = RunRecord(str(tmp_path), (str(memory / "run"),))
    begun = record.begin(1.0)
    assert begun is not None and len(begun[0]) == SIZE
    record.blame(Blame("k" * 10_000, "c" * 10_000))
    assert sum(os.path.getsize(path) for path in (memory / "run").iterdir()) == 4096 + SIZE
