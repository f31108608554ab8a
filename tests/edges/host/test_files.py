"""Files: exact modes, nothing half-written, nothing but regular files read, one error."""

from __future__ import annotations

import errno
import gzip
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from pykubelet.edges.host.fs import files
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.files import DirEntry, FileKind


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_write_atomic_replaces_with_the_exact_mode(tmp_path: Path) -> None:
    target = tmp_path / "f"
    before = os.umask(0o077)
    try:
        files.write_atomic(str(target), b"one", 0o644)
        files.write_atomic(str(target), b"two", 0o666, durable=True)
    finally:
        os.umask(before)
    assert target.read_bytes() == b"two"
    assert mode_of(target) == 0o666
    assert os.listdir(tmp_path) == ["f"]


def test_each_sync_is_counted(tmp_path: Path) -> None:
    counts = []
    for how in ({}, {"whole": True}, {"durable": True}):
        before = files.SYNCS.value()
        files.write_atomic(str(tmp_path / "f"), b"data", **how)
        counts.append(files.SYNCS.value() - before)
    assert counts == [0, 1, 2], "nothing; the content; the content and the name"


def test_write_atomic_that_fails_leaves_the_old_file_and_no_rest(tmp_path: Path) -> None:
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "x").touch()
    with pytest.raises(HostError) as caught:
        files.write_atomic(str(tmp_path / "f"), b"data")
    assert caught.value.errno_name == "EISDIR"
    assert os.listdir(tmp_path) == ["f"]


@pytest.mark.parametrize("name", ["missing", "n" * 300, "file/below", "/".join(["n" * 200] * 30)])
def test_a_name_that_no_file_has_or_can_have_is_absent(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    path = str(tmp_path / name)
    assert files.stat_file(path) is None
    assert files.stat_file(path, follow=False) is None
    assert files.read_link(path) is None
    assert not files.remove_file(path)
    if name != "file/below":
        assert files.names_in(path) == []
    with pytest.raises(HostError) as caught:
        files.read_bytes(path, 10)
    assert caught.value.is_not_found
    with pytest.raises(HostError) as caught:
        files.list_dir(path)
    assert caught.value.is_not_found


KILLED = """
import os, sys
from pykubelet.edges.host.fs import files
os.rename = lambda *_: os.kill(os.getpid(), 9)
open(sys.argv[1], "w").close()
if sys.argv[2] == "file":
    files.write_atomic(sys.argv[1], b"new")
else:
    files.replace_symlink("target", sys.argv[1])
"""


@pytest.mark.parametrize("kind", ["file", "link"])
def test_what_a_killed_process_left_incomplete_is_removed_and_nothing_else(tmp_path: Path, kind: str) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "state"), kind])
    assert done.returncode == -signal.SIGKILL
    others = {"state", ".state", "state.tmp-0123abcd", ".state.tmp-0123abcd.x", ".state.tmp-xyz"}
    for name in others:
        (tmp_path / name).touch()
    assert len(os.listdir(tmp_path)) == len(others) + 1
    files.remove_temporaries(str(tmp_path))
    assert set(os.listdir(tmp_path)) == others
    files.remove_temporaries(str(tmp_path / "missing"))


def test_full_disk_is_recognized() -> None:
    with pytest.raises(HostError) as caught:
        files.append("/dev/full", b"x")
    assert caught.value.is_no_space
    assert str(caught.value) == "append /dev/full: no space left on device"


def test_write_in_place_keeps_the_inode(tmp_path: Path) -> None:
    target = tmp_path / "hosts"
    files.write_in_place(str(target), b"a long first version")
    inode = target.stat().st_ino
    files.write_in_place(str(target), b"short", 0o600)
    assert target.read_bytes() == b"short"
    assert target.stat().st_ino == inode
    assert mode_of(target) == 0o600


def test_a_full_disk_does_not_empty_a_file_that_is_written_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "hosts"
    files.write_in_place(str(target), b"127.0.0.1 localhost")

    def full(_: int, __: bytes) -> int:
        raise OSError(errno.ENOSPC, "")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(HostError, match="no space left on device"):
        files.write_in_place(str(target), b"127.0.0.1 localhost web")
    assert target.read_bytes() == b"127.0.0.1 localhost"


def test_read_refuses_what_is_no_regular_file_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path, kind in ((tmp_path / "fifo", "fifo"), (Path("/dev/zero"), "char-device")):
        with pytest.raises(HostError, match=f"not a regular file but a {kind}"):
            files.read_bytes(str(path), 10)
    with pytest.raises(HostError, match="is a directory"):
        files.read_bytes(str(tmp_path), 10)


def test_read_limits_and_tails(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"0123456789")
    assert files.read_bytes(str(tmp_path / "f"), 10) == b"0123456789"
    assert files.read_tail(str(tmp_path / "f"), 3) == b"789"
    assert files.read_tail(str(tmp_path / "f"), 30) == b"0123456789"
    with pytest.raises(HostError) as caught:
        files.read_bytes(str(tmp_path / "f"), 9)
    assert caught.value.is_too_large
    with pytest.raises(HostError) as caught:
        files.read_bytes(str(tmp_path / "nothing" / "f"), 9)
    assert caught.value.is_not_found


def test_proc_files_which_claim_to_be_empty_are_read() -> None:
    assert b"MemTotal" in files.read_bytes("/proc/meminfo", 1 << 20)


def test_stat_returns_kinds_and_none_for_nothing(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"abc")
    os.symlink("f", tmp_path / "link")
    os.symlink("nowhere", tmp_path / "dangling")
    os.mkfifo(tmp_path / "pipe")
    found = files.stat_file(str(tmp_path / "f"))
    assert found is not None and found.is_file and found.size == 3
    assert files.stat_file(str(tmp_path / "nothing")) is None
    assert files.stat_file(str(tmp_path / "f" / "below")) is None
    assert files.stat_file(str(tmp_path / "dangling")) is None
    link = files.stat_file(str(tmp_path / "link"), follow=False)
    assert link is not None and link.kind is FileKind.SYMLINK
    assert files.list_dir(str(tmp_path)) == (
        DirEntry("dangling", FileKind.SYMLINK),
        DirEntry("f", FileKind.FILE),
        DirEntry("link", FileKind.SYMLINK),
        DirEntry("pipe", FileKind.FIFO),
    )


def test_make_dirs_gives_new_directories_the_mode_and_leaves_others(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir(mode=0o700)
    assert files.make_dirs(str(tmp_path / "old" / "a" / "b"), 0o777)
    assert mode_of(tmp_path / "old") == 0o700
    assert mode_of(tmp_path / "old" / "a") == mode_of(tmp_path / "old" / "a" / "b") == 0o777
    assert not files.make_dirs(str(tmp_path / "old" / "a" / "b"), 0o700)
    (tmp_path / "file").touch()
    with pytest.raises(HostError, match="not a directory"):
        files.make_dirs(str(tmp_path / "file"), 0o755)


def test_replace_symlink_in_one_step(tmp_path: Path) -> None:
    link = tmp_path / "..data"
    files.replace_symlink("one", str(link))
    files.replace_symlink("two", str(link))
    assert files.read_link(str(link)) == "two"
    assert os.listdir(tmp_path) == ["..data"]
    assert files.read_link(str(tmp_path / "nothing")) is None
    (tmp_path / "plain").touch()
    assert files.read_link(str(tmp_path / "plain")) is None


def test_remove_file_and_dir_say_whether_something_was_there(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "f").touch()
    with pytest.raises(HostError) as caught:
        files.remove_dir(str(tmp_path / "d"))
    assert caught.value.is_busy
    assert files.remove_file(str(tmp_path / "d" / "f"))
    assert not files.remove_file(str(tmp_path / "d" / "f"))
    assert files.remove_dir(str(tmp_path / "d"))
    assert not files.remove_dir(str(tmp_path / "d"))


def test_gzip_file_takes_the_place_of_the_plain_one(tmp_path: Path) -> None:
    log = tmp_path / "0.log.20240101-000000"
    log.write_bytes(b"line\n" * 50_000)
    log.chmod(0o640)
    assert files.gzip_file(str(log)) == f"{log}.gz"
    assert os.listdir(tmp_path) == [f"{log.name}.gz"]
    packed = tmp_path / f"{log.name}.gz"
    assert gzip.decompress(packed.read_bytes()) == b"line\n" * 50_000
    assert mode_of(packed) == 0o640


SWAP = """
import os, sys
from pykubelet.edges.host.fs import files
from pykubelet.edges.host.fs.errors import HostError

folder = sys.argv[1]
made, canary = f"{folder}/made", f"{folder}/canary"

def swap(event, _):
    if event in ("os.chmod", "open") and os.path.isdir(made) and not os.path.islink(made):
        os.rename(made, f"{folder}/away")
        os.symlink(canary, made)

sys.addaudithook(swap)
try:
    files.make_dirs(made, 0o755)
except HostError:
    pass
assert os.path.islink(made), "nothing was swapped"
"""


def test_a_link_in_place_of_a_new_directory_does_not_lend_its_mode(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    canary.touch(0o600)
    subprocess.run([sys.executable, "-c", SWAP, str(tmp_path)], check=True, timeout=60)
    assert mode_of(canary) == 0o600


def test_gzip_file_follows_no_link(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    folder = tmp_path / "logs"
    folder.mkdir()
    link = folder / "0.log.20200101-000000"
    link.symlink_to(secret)
    with pytest.raises(HostError):
        files.gzip_file(str(link))
    assert os.listdir(folder) == [link.name]
    link.unlink()
    link.write_text("line")
    (folder / f"{link.name}.tmp").symlink_to(secret)
    files.gzip_file(str(link))
    assert gzip.decompress((folder / f"{link.name}.gz").read_bytes()) == b"line"
    assert secret.read_text() == "secret"


def test_gzip_file_does_not_wait_for_the_other_end_of_a_fifo(tmp_path: Path) -> None:
    fifo = tmp_path / "0.log.20200101-000000"
    os.mkfifo(fifo)
    with pytest.raises(HostError, match="not a regular file"):
        files.gzip_file(str(fifo))
    assert os.listdir(tmp_path) == [fifo.name]


def test_create_file_once(tmp_path: Path) -> None:
    assert files.create_file(str(tmp_path / "f"), 0o666)
    assert not files.create_file(str(tmp_path / "f"), 0o600)
    assert mode_of(tmp_path / "f") == 0o666


def test_lock_is_held_until_closed(tmp_path: Path) -> None:
    first = files.lock_file(str(tmp_path / "lock"))
    assert first is not None
    assert files.lock_file(str(tmp_path / "lock")) is None
    os.close(first)
    again = files.lock_file(str(tmp_path / "lock"))
    assert again is not None
    os.close(again)
