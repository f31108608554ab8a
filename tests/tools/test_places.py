"""Root's test runs touch nothing that another user may have put in their way."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from testbed import node, places
from testbed.errors import TestbedError

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="other users' files need root")
OTHER_USER = 65534


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory in which other users may do what they like, as in `/tmp`."""
    with TemporaryDirectory(prefix="shared-") as folder:
        Path(folder).chmod(0o1777)
        yield Path(folder)


@pytest.fixture
def dead_pid() -> int:
    with subprocess.Popen(["true"]) as ended:
        return ended.pid


def link(path: Path, victim: Path) -> None:
    path.symlink_to(victim)


def of_another_user(path: Path, victim: Path) -> None:
    path.mkdir()
    (path / "link").symlink_to(victim)
    os.chown(path, OTHER_USER, OTHER_USER)


def writable_by_others(path: Path, victim: Path) -> None:
    path.mkdir()
    (path / "link").symlink_to(victim)
    path.chmod(0o777)


def writable_by_a_group(path: Path, _: Path) -> None:
    path.mkdir()
    path.chmod(0o770)


def a_file(path: Path, _: Path) -> None:
    path.write_text("kept")


TRAPS = pytest.mark.parametrize("trap", [link, of_another_user, writable_by_others, writable_by_a_group, a_file])


@needs_root
@TRAPS
def test_what_another_user_may_have_made_is_not_swept(
    place: Path, tmp_path: Path, dead_pid: int, trap: Callable[[Path, Path], None]
) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "file").write_text("kept")
    (victim / "testbed.json").write_text(json.dumps({"name": "victim"}))
    trap(place / f"tests-{dead_pid}", victim)
    node.sweep_dead_runs(place)
    assert os.path.lexists(place / f"tests-{dead_pid}")
    assert (victim / "file").read_text() == "kept"


def test_the_run_of_a_process_that_is_gone_is_swept(place: Path, dead_pid: int) -> None:
    for name in (f"tests-{dead_pid}", f"tests-{os.getpid()}", "tests-", f"-{dead_pid}", "notes", "tests-x", "tests-1²"):
        (place / name).mkdir(mode=0o711)
    node.sweep_dead_runs(place)
    left = {path.name for path in place.iterdir()}
    assert left == {f"tests-{os.getpid()}", "tests-", f"-{dead_pid}", "notes", "tests-x", "tests-1²", "sweep.lock"}


@needs_root
@TRAPS
def test_a_directory_that_another_user_may_have_made_is_not_used(
    place: Path, tmp_path: Path, trap: Callable[[Path, Path], None]
) -> None:
    trap(place / "own", tmp_path)
    with pytest.raises(TestbedError, match="only its owner, this user, may change"):
        places.own_directory(place / "own")
    assert list(tmp_path.iterdir()) == []


def test_a_directory_of_our_own_is_made_once(place: Path) -> None:
    for _ in range(2):
        assert places.own_directory(place / "own") == place / "own"
    assert places.is_own_directory(place / "own")
    with pytest.raises(TestbedError, match="cannot make"):
        places.own_directory(place / "missing" / "own")


@needs_root
def test_nothing_of_root_is_in_a_directory_of_all_users() -> None:
    for path in (places.home(), *places.home().parents):
        assert places.is_own_directory(path), path
    assert places.run_folder("tests") == places.home() / f"tests-{os.getpid()}"
    assert len(os.fsencode(places.run_folder("tests", 4194304))) <= 26, "sockets below it have long names"
