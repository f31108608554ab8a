"""Who holds a mount: real processes on a real mount below a temporary directory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pykubelet.edges.host.fs import mounts
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.proc.holders import Holder, HolderSearch


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "volume"
    path.mkdir()
    mounts.mount("tmpfs", str(path), "tmpfs")
    (path / "file").write_bytes(b"x" * 5000)
    yield path
    mounts.unmount(str(path), detach=True)


@contextmanager
def process(script: str, cwd: Path | None = None, *command: str) -> Iterator[int]:
    """A Python process that has run `script` and waits."""
    argv = [*command, sys.executable, "-c", f"{script}\nprint('ready', flush=True)\ninput()"]
    with subprocess.Popen(argv, cwd=cwd, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"ready\n"
        yield running.pid
        running.kill()


def found(path: Path) -> HolderSearch:
    search = HolderSearch((str(path),))
    search.run(60.0)
    assert search.is_complete
    return search


def uses(holders: list[Holder]) -> list[tuple[int, str, str]]:
    return [(holder.pid, holder.use, holder.path) for holder in holders]


@pytest.mark.parametrize(
    ("script", "inside", "use", "path"),
    [
        ("", True, "working directory", ""),
        ("f = open('{}/file')", False, "open file", "/file"),
        ("f = open('{}/file'); g = open('{}/file')", False, "2 open files", "/file"),
        (
            "import mmap; f = open('{}/file'); m = mmap.mmap(f.fileno(), 0, access=1); f.close(); import os;"
            "[os.close(n) for n in range(3, 20) if os.path.exists(f'/proc/self/fd/{{n}}')]",
            False,
            "mapped file",
            "/file",
        ),
    ],
    ids=["directory", "file", "files", "mapping"],
)
def test_a_process_that_holds_a_mount(mounted: Path, script: str, inside: bool, use: str, path: str) -> None:
    with process(
        script.replace("{}", str(mounted)).replace("{{", "{").replace("}}", "}"), mounted if inside else None
    ) as pid:
        with pytest.raises(HostError, match="busy"):
            mounts.unmount(str(mounted))
        assert uses(found(mounted).holders) == [(pid, use, f"{mounted}{path}")]
        assert found(mounted).holders[0].name.startswith("python")
    assert found(mounted).holders == []


def test_other_mounts_of_the_same_file_system(mounted: Path) -> None:
    (mounted / "below").mkdir()
    mounts.mount("tmpfs", str(mounted / "below"), "tmpfs")
    assert [(mount.pid, mount.target) for mount in found(mounted).mounts] == [(0, f"{mounted}/below")]
    assert mounts.unmount(str(mounted / "below"))
    with process("", None, "unshare", "--mount", "--propagation", "private") as pid:
        elsewhere = found(mounted).mounts  # other tests may have made mount namespaces meanwhile
        assert (pid, str(mounted)) in [(mount.pid, mount.target) for mount in elsewhere]
        assert mounts.unmount(str(mounted))


def test_a_mount_that_propagated_to_another_namespace_holds_nothing(tmp_path: Path) -> None:
    """As to the namespaces of services, where systemd makes / shared."""
    outer, volume = tmp_path / "outer", tmp_path / "outer/volume"
    outer.mkdir()
    mounts.mount("tmpfs", str(outer), "tmpfs")
    try:
        mounts.make_shared(str(outer))
        volume.mkdir()
        with process("", None, "unshare", "--mount", "--propagation", "slave") as pid:
            mounts.mount("tmpfs", str(volume), "tmpfs")
            assert str(volume) in Path(f"/proc/{pid}/mountinfo").read_text()
            assert found(volume).mounts == []
            assert mounts.unmount(str(volume))
            assert str(volume) not in Path(f"/proc/{pid}/mountinfo").read_text()
    finally:
        mounts.unmount(str(outer), detach=True)


def test_a_search_without_time_is_not_complete(mounted: Path) -> None:
    search = HolderSearch((str(mounted),))
    search.run(0.0)
    assert not search.is_complete
