"""Volumes in quota projects: with a double of the kernel's calls, and with the kernel where it has them."""

from __future__ import annotations

import logging
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.quotas import FORMATS, LARGEST, MemoryQuotas, listed_in, quota_disk, volume_quotas

from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.project_files import FIRST_ID, read_projects
from pykubelet.edges.host.fs.quotas import KernelQuotas, VolumeQuotas
from pykubelet.edges.host.fs.trees import read_disk_usage

MIB = 1 << 20


@pytest.fixture
def calls() -> MemoryQuotas:
    return MemoryQuotas()


@pytest.fixture
def volume(tmp_path: Path) -> str:
    path = tmp_path / "pods" / "uid" / "data"
    path.mkdir(parents=True)
    (path / "file").write_bytes(b"x" * 10_000)
    return str(path)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_volume_in_a_project_is_not_walked(tmp_path: Path, volume: str, calls: MemoryQuotas) -> None:
    quotas = volume_quotas(tmp_path, calls)
    assert quotas.read_use(volume) is None
    quotas.assign(volume, is_limited=True)
    calls.used[FIRST_ID] = (123, 4)
    assert quotas.read_use(volume) == (123, 4)
    assert calls.limits == {FIRST_ID: LARGEST}
    assert calls.projects == {volume: FIRST_ID}


def test_a_volume_without_a_limit_gets_none(tmp_path: Path, volume: str, calls: MemoryQuotas) -> None:
    volume_quotas(tmp_path, calls).assign(volume, is_limited=False)
    assert calls.limits == {FIRST_ID: 0}


def test_without_the_feature_gate_nothing_is_touched(tmp_path: Path, volume: str, calls: MemoryQuotas) -> None:
    quotas = volume_quotas(tmp_path, calls, is_on=False)
    quotas.assign(volume, is_limited=True)
    quotas.release(volume)
    quotas.prune(f"{tmp_path}/pods")
    assert quotas.read_use(volume) is None
    assert not calls.projects and not os.path.exists(tmp_path / "projects")


def test_a_restart_finds_the_same_project_and_walks_no_files(tmp_path: Path, volume: str, calls: MemoryQuotas) -> None:
    volume_quotas(tmp_path, calls).assign(volume, is_limited=True)
    calls.fails = {"move"}
    again = volume_quotas(tmp_path, calls)
    again.assign(volume, is_limited=True)
    assert again.read_use(volume) == read_disk_usage(volume)


def test_a_removed_volume_leaves_nothing(tmp_path: Path, volume: str, calls: MemoryQuotas) -> None:
    quotas = volume_quotas(tmp_path, calls)
    quotas.assign(volume, is_limited=True)
    os.remove(f"{volume}/file")
    os.rmdir(volume)
    quotas.release(volume)
    assert quotas.read_use(volume) is None
    assert calls.limits == {FIRST_ID: 0}
    assert read_projects(listed_in(tmp_path)) == []
    assert Path(listed_in(tmp_path).names).read_text() == ""


def test_what_a_killed_process_left_is_removed_and_what_is_there_stays(
    tmp_path: Path, volume: str, calls: MemoryQuotas
) -> None:
    quotas, gone, elsewhere = volume_quotas(tmp_path, calls), f"{tmp_path}/pods/gone/data", f"{tmp_path}/podsgone"
    for path in (volume, gone, elsewhere):
        quotas.assign(path, is_limited=True)
    volume_quotas(tmp_path, calls, is_on=False).prune(f"{tmp_path}/pods")
    assert [path for _, path in read_projects(listed_in(tmp_path))] == [volume, elsewhere]


@pytest.mark.parametrize("call", ["state", "use", "limit", "move", "project"])
def test_what_fails_is_logged_once_and_walked(
    tmp_path: Path, volume: str, calls: MemoryQuotas, call: str, caplog: pytest.LogCaptureFixture
) -> None:
    calls.fails = {call}
    quotas = volume_quotas(tmp_path, calls)
    for _ in range(3):
        quotas.assign(volume, is_limited=True)
        assert quotas.read_use(volume) is None
    assert warnings(caplog) == [
        "project quotas cannot be used: directories are not limited, and their files are counted"
    ]
    assert read_projects(listed_in(tmp_path)) == [], "no id is kept for a volume that has no project"


def test_a_file_system_without_project_quotas_is_logged_once(
    tmp_path: Path, volume: str, calls: MemoryQuotas, caplog: pytest.LogCaptureFixture
) -> None:
    calls.largest = 0
    quotas = volume_quotas(tmp_path, calls)
    quotas.assign(volume, is_limited=True)
    quotas.assign(volume, is_limited=True)
    assert len(warnings(caplog)) == 1
    assert not os.path.exists(tmp_path / "projects")


def test_a_volume_in_a_project_of_others_is_walked(tmp_path: Path, volume: str, calls: MemoryQuotas) -> None:
    quotas = volume_quotas(tmp_path, calls)
    quotas.assign(volume, is_limited=True)
    calls.projects[volume] = 42
    assert quotas.read_use(volume) is None


def test_a_volume_that_vanishes_is_no_failure(
    tmp_path: Path, volume: str, calls: MemoryQuotas, caplog: pytest.LogCaptureFixture
) -> None:
    quotas = VolumeQuotas(is_on=True, files=listed_in(tmp_path), calls=Vanished(calls))
    quotas.assign(volume, is_limited=True)
    assert quotas.read_use(volume) is None
    assert warnings(caplog) == []


class Vanished(MemoryQuotas):
    """The directory is there until its use is read."""

    def __init__(self, calls: MemoryQuotas) -> None:
        super().__init__()
        self._asked = False

    def project_of(self, path: str) -> int:
        if self._asked:
            raise HostError("open", path, "ENOENT", "no such file or directory")
        self._asked = True
        return 0


# The kernel


def test_a_file_system_without_quotas_counts_nothing() -> None:
    assert KernelQuotas().largest_limit("/proc") == 0
    assert KernelQuotas().largest_limit("/dev/shm") == 0


def test_a_path_that_is_missing_is_an_error(tmp_path: Path) -> None:
    for ask in (KernelQuotas().largest_limit, KernelQuotas().project_of):
        with pytest.raises(HostError):
            ask(f"{tmp_path}/gone")


@pytest.fixture(params=FORMATS)
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Path, int]]:
    """A file system that counts what projects use, and its largest limit."""
    with quota_disk(request.param, tmp_path) as made:
        yield made, FORMATS[request.param].largest_limit


def until(holds: Callable[[], bool]) -> None:
    """XFS frees what was removed in the background."""
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.integration
def test_the_kernel_counts_what_a_volume_uses(disk: tuple[Path, int], tmp_path: Path) -> None:
    where, largest = disk
    volume = where / "pods" / "uid" / "data"
    (volume / "deep").mkdir(parents=True)
    (volume / "deep" / "before").write_bytes(b"x" * MIB)
    os.symlink("before", volume / "deep" / "link")
    os.mkfifo(volume / "pipe")
    (where / "beside").write_bytes(b"x" * MIB)
    kernel, quotas = KernelQuotas(), VolumeQuotas(is_on=True, files=listed_in(tmp_path))
    assert kernel.largest_limit(str(volume)) == largest
    quotas.assign(str(volume), is_limited=True)
    assert kernel.project_of(str(volume)) == FIRST_ID
    (volume / "deep" / "after").write_bytes(b"x" * 2 * MIB)
    (volume / "new").mkdir()
    os.sync()
    used, inodes = quotas.read_use(str(volume)) or (0, 0)
    assert 3 * MIB <= used <= 3 * MIB + 128 * 1024
    assert inodes == 5, "the links and FIFOs that were there before have no project"
    other = where / "pods" / "other"
    other.mkdir()
    quotas.assign(str(other), is_limited=False)
    assert kernel.project_of(str(other)) == FIRST_ID + 1
    for path in (volume / "deep" / "before", volume / "deep" / "after"):
        path.unlink()
    until(lambda: (quotas.read_use(str(volume)) or (MIB, 0))[0] < MIB)
    subprocess.run(["rm", "-r", str(volume)], check=True)
    quotas.release(str(volume))
    until(lambda: kernel.use_of(str(where), FIRST_ID) == (0, 0))
    assert read_projects(listed_in(tmp_path)) == [(FIRST_ID + 1, str(other))]
