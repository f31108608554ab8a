"""Parts of volumes: what containers may be given, and what they must not reach."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from pykubelet.base.kit.cells import make_cell
from pykubelet.base.kit.flight import SingleFlight
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.mounts import MountedVolume, Mounts, PodMounts
from pykubelet.base.model.paths import Paths
from pykubelet.edges.host.fs import mounts
from pykubelet.provide.volumes import disk
from pykubelet.provide.volumes.directories import make_pod_dirs
from pykubelet.provide.volumes.subpath import SubPathError, Subpaths

pytestmark = pytest.mark.virtual_time

UID = PodUID("0f1e2d3c")


def read(path: str) -> str:
    return Path(path).read_text()


def write(directory: str, name: str) -> None:
    Path(directory, name).write_text("x")


class Place:
    def __init__(self, tmp_path: Path) -> None:
        self.paths = Paths(str(tmp_path / "root"), str(tmp_path / "logs"))
        make_pod_dirs(self.paths, UID)
        self.volume = Path(self.paths.volume(UID, "kubernetes.io~empty-dir", "data"))
        self.volume.mkdir(parents=True)
        os.chmod(self.volume, 0o3775)
        self._volumes = {"data": MountedVolume("data", "emptyDir", str(self.volume))}
        cell, self._writer = make_cell("mounts", Mounts({UID: PodMounts(self._volumes, ready=True)}))
        self.subpaths = Subpaths(cell, self.paths, SingleFlight("test"))

    def mount(self, name: str, volume: MountedVolume) -> None:
        self._volumes = {**self._volumes, name: volume}
        self._writer.publish(Mounts({UID: PodMounts(self._volumes, ready=True)}))

    async def prepare(self, sub_path: str, index: int = 0, volume: str = "data") -> str | SubPathError:
        return await self.subpaths.prepare_subpath(UID, volume, "main", index, sub_path)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    yield Place(tmp_path)
    for mount in mounts.mounts_below(str(tmp_path)):
        mounts.unmount(mount.target)


@pytest.mark.integration
async def test_missing_directories_are_made_with_the_mode_of_the_volume(place: Place) -> None:
    path = await place.prepare("a/b")
    assert path == f"{place.paths.pod(UID)}/volume-subpaths/data/main/0"
    write(path, "file")
    assert (place.volume / "a" / "b" / "file").read_text() == "x"
    for made in ("a", "a/b"):
        assert stat.S_IMODE((place.volume / made).stat().st_mode) == 0o3775


@pytest.mark.integration
async def test_files_are_bound_and_a_restarted_container_gets_the_same(place: Place) -> None:
    (place.volume / "conf").write_text("one")
    first = await place.prepare("conf", 1)
    assert isinstance(first, str)
    assert read(first) == "one"
    assert await place.prepare("conf", 1) == first
    assert len(mounts.mounts_below(first)) == 1
    # The file is replaced, then by a directory: the next container sees what is there now.
    (place.volume / "conf.new").write_text("two")
    os.rename(place.volume / "conf.new", place.volume / "conf")
    assert await place.prepare("conf", 1) == first
    assert read(first) == "two"
    os.unlink(place.volume / "conf")
    (place.volume / "conf").mkdir()
    assert await place.prepare("conf", 1) == first
    assert stat.S_ISDIR(os.stat(first).st_mode)
    assert len(mounts.mounts_below(first)) == 1


def mount_dead(target: str) -> None:
    """Replace the bind by a FUSE file system of which the server has ended: every access fails with ENOTCONN."""
    mounts.unmount(target)
    server = os.open("/dev/fuse", os.O_RDWR)
    mounts.mount("test", target, "fuse", (f"fd={server}", "rootmode=40000", "user_id=0", "group_id=0"))
    os.close(server)
    with pytest.raises(OSError, match="not connected"):
        os.stat(target)


@pytest.mark.integration
async def test_a_bind_of_a_file_system_that_is_dead_is_replaced_for_the_next_container(place: Place) -> None:
    first = await place.prepare("a")
    assert isinstance(first, str)
    mount_dead(first)
    assert await place.prepare("a") == first
    write(first, "file")
    assert (place.volume / "a" / "file").exists()
    assert len(mounts.mounts_below(first)) == 1


@pytest.mark.integration
async def test_a_bind_of_a_file_system_that_is_dead_goes_with_its_volume(place: Place) -> None:
    first = await place.prepare("a")
    assert isinstance(first, str)
    mount_dead(first)
    disk.clean_subpaths(place.paths, UID, "data")
    assert not os.path.lexists(first)


@pytest.mark.integration
async def test_links_inside_the_volume_are_followed(place: Place) -> None:
    (place.volume / "real").mkdir()
    os.symlink("real", place.volume / "link")
    path = await place.prepare("link")
    assert isinstance(path, str)
    write(path, "x")
    assert (place.volume / "real" / "x").exists()


@pytest.mark.integration
@pytest.mark.parametrize(
    ("link", "sub_path"),
    [
        ("/etc", "out"),
        ("../../../../../..", "out"),
        ("/etc/passwd", "out"),
        ("/etc/passwd", "out/below"),
        ("/etc/not-there", "out"),
        ("/etc", "out/made-by-test"),
        ("../..", "out/made-by-test"),
    ],
)
async def test_links_out_of_the_volume_are_refused_whatever_is_there(place: Place, link: str, sub_path: str) -> None:
    os.symlink(link, place.volume / "out")
    refused = await place.prepare(sub_path)
    assert isinstance(refused, SubPathError)
    failed = 'failed to prepare subPath for volumeMount "data" of container "main"'
    assert str(refused) == f"{failed}: the path leads out of the volume"
    assert "made-by-test" not in os.listdir("/etc")
    assert not (place.volume / "out" / "made-by-test").exists()
    assert mounts.mounts_below(place.paths.subpaths(UID)) == ()


@pytest.mark.parametrize(
    ("sub_path", "error"),
    [
        ("/etc", "error SubPath `/etc` must not be an absolute path"),
        ("a/../..", "unable to provision SubPath `a/../..`: must not contain '..'"),
    ],
)
async def test_paths_that_are_refused_as_written(place: Place, sub_path: str, error: str) -> None:
    assert str(await place.prepare(sub_path)) == error


async def test_a_volume_that_is_not_there(place: Place) -> None:
    refused = await place.prepare("a", volume="other")
    assert isinstance(refused, SubPathError)
    assert "it is not mounted" in str(refused)


async def test_a_file_in_the_way(place: Place) -> None:
    (place.volume / "file").write_text("")
    refused = await place.prepare("file/below")
    failed = 'failed to create subPath directory for volumeMount "data" of container "main"'
    assert str(refused) == f"{failed}: not a directory"
    refused = await place.prepare("n" * 256)
    assert str(refused) == f"{failed}: file name too long"


async def test_a_host_path_must_have_its_type_before_each_start(place: Place, tmp_path: Path) -> None:
    (tmp_path / "dir").mkdir()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "sock"))
    kinds = {"dir": "Directory", "sock": "Socket", "made": "DirectoryOrCreate"}
    volumes = [MountedVolume(name, "hostPath", f"{tmp_path}/{name}", host_type=kind) for name, kind in kinds.items()]
    assert await place.subpaths.check_host_paths(UID, "main", volumes) is None
    assert (tmp_path / "made").is_dir()
    listener.close()
    (tmp_path / "sock").unlink()
    (tmp_path / "made").rmdir()
    refused = await place.subpaths.check_host_paths(UID, "main", volumes)
    failed = (
        f'MountVolume.SetUp failed for volume "sock" : hostPath type check failed: {tmp_path}/sock is not a socket file'
    )
    assert str(refused) == failed
    assert await place.subpaths.check_host_paths(UID, "main", [volumes[0], volumes[2]]) is None
    assert (tmp_path / "made").is_dir() and not (tmp_path / "sock").exists()


@pytest.mark.integration
async def test_binds_go_with_their_volume(place: Place) -> None:
    (place.volume / "conf").write_text("one")
    assert isinstance(await place.prepare("conf", 0), str)
    assert isinstance(await place.prepare("dir", 1), str)
    disk.tear_down(place.paths, UID, "kubernetes.io~empty-dir", "data")
    assert mounts.mounts_below(place.paths.pod(UID)) == ()
    assert not place.volume.exists()
    assert disk.read_volumes(place.paths, UID) == ()
    assert disk.remove_pod(place.paths, UID) == ()
