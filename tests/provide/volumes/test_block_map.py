"""Maps of block devices for pods, on real loop devices."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.block import block_device, clean_folder

from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.paths import Beneath
from pykubelet.edges.host.devices import loops
from pykubelet.edges.host.devices.block_devices import device_size
from pykubelet.edges.host.fs import files, mounts
from pykubelet.provide.volumes.disks import block_map
from pykubelet.provide.volumes.disks.block_map import map_device, remove_link, remove_map, unmap_device
from pykubelet.provide.volumes.disks.block_paths import BlockMap
from pykubelet.provide.volumes.kind import UncertainError, VolumesError

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root for loop devices")


@pytest.fixture
def device() -> Iterator[str]:
    with block_device(4 << 20) as path:
        yield path


@pytest.fixture
def folder() -> Iterator[Path]:
    with clean_folder() as path:
        yield path
        detach_all(path)


def map_for(folder: Path, uid: str) -> BlockMap:
    directory = Beneath(f"{folder}/plugins", "kubernetes.io~local-volume/volumeDevices/pv-1")
    return BlockMap(
        directory, PodUID(uid), Beneath(f"{folder}/pods", f"{uid}/volumeDevices/kubernetes.io~local-volume/pv-1")
    )


def detach_all(folder: Path) -> None:
    for file in folder.glob("plugins/*/volumeDevices/*/*"):
        for loop in loops.find_loops(str(file)):
            loops.detach_loop(loop)


def left(folder: Path) -> list[str]:
    """What of any map is left: mounts, loop devices, links and files."""
    files_left = [str(path) for path in folder.rglob("*") if not path.is_dir() or path.is_symlink()]
    return files_left + [mount.target for mount in mounts.mounts_below(str(folder))]


def unmap(map: BlockMap) -> None:
    unmap_device(map)
    remove_link(map)


def test_two_pods_share_a_device(folder: Path, device: str) -> None:
    first, second = map_for(folder, "one"), map_for(folder, "two")
    for map in (first, second, first):
        map_device(device, map)
    Path(first.link).write_bytes(b"written by one")
    assert Path(second.link).read_bytes()[:14] == b"written by one"
    assert os.readlink(first.link) == device
    assert device_size(first.file) == 4 << 20
    assert len(loops.find_loops(first.file)) == 1
    unmap(first)
    assert Path(second.link).read_bytes()[:14] == b"written by one"
    with pytest.raises(VolumesError, match=r'the device ".*/pv-1" is still referenced from other Pods \[two\]'):
        remove_map(second.directory)
    unmap(second)
    unmap(second)
    remove_map(second.directory)
    remove_map(second.directory)
    assert left(folder) == []
    assert not os.path.exists(second.directory)


def test_a_link_to_a_device_is_resolved(folder: Path, device: str) -> None:
    (folder / "by-id").symlink_to(device)
    map = map_for(folder, "one")
    map_device(str(folder / "by-id"), map)
    assert os.readlink(map.link) == device
    unmap(map)


@pytest.mark.parametrize(
    ("path", "text"),
    [("", "device path of the volume is empty"), ("/etc", "not a block device"), ("/absent", "no such file")],
)
def test_nothing_is_made_for_what_is_no_device(folder: Path, path: str, text: str) -> None:
    with pytest.raises(VolumesError, match=text) as caught:
        map_device(path, map_for(folder, "one"))
    assert not isinstance(caught.value, UncertainError)
    assert list(folder.iterdir()) == []


def test_the_map_of_another_device_is_kept(folder: Path, device: str) -> None:
    map = map_for(folder, "one")
    map_device(device, map)
    with block_device(4 << 20) as other, pytest.raises(UncertainError, match="another device than"):
        map_device(other, map)
    assert os.stat(map.file).st_rdev == os.stat(device).st_rdev
    unmap(map)


EFFECTS: list[tuple[object, str]] = [
    (files, "make_dirs"),
    (files, "replace_symlink"),
    (files, "create_file"),
    (files, "remove_file"),
    (mounts, "bind_fd"),
    (mounts, "unmount"),
    (block_map, "attach_loop"),
    (block_map, "detach_loop"),
]


class Stopped(BaseException):
    """The agent is killed."""


def stopping(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Stop at the effect number `after` on the host, before or after it."""
    count = 0

    def wrap(real: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **options: object) -> object:
            nonlocal count
            count += 1
            if count == after:
                raise Stopped
            result = real(*args, **options)
            count += 1
            if count == after:
                raise Stopped
            return result

        return call

    for module, name in EFFECTS:
        monkeypatch.setattr(module, name, wrap(getattr(module, name)))


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("after", range(1, 42))
def test_interrupted_anywhere_it_can_be_repeated_and_undone(
    folder: Path, device: str, monkeypatch: pytest.MonkeyPatch, after: int, again: bool
) -> None:
    map = map_for(folder, "one")
    with monkeypatch.context() as patched, contextlib.suppress(Stopped):
        stopping(patched, after)
        map_device(device, map)
        unmap(map)
        remove_map(map.directory)
    if left(folder):
        assert os.path.islink(map.link) or not mounts.mounts_below(str(folder)), "a restarted agent does not find it"
    if again:
        map_device(device, map)
        assert device_size(map.file) == 4 << 20 and len(loops.find_loops(map.file)) == 1
    unmap(map)
    remove_map(map.directory)
    assert left(folder) == [] and loops.find_loops(map.file) == []


def test_files_in_the_place_of_a_device_are_not_removed(folder: Path) -> None:
    map = map_for(folder, "one")
    Path(map.file).parent.mkdir(parents=True)
    Path(map.file).write_text("data")
    with pytest.raises(VolumesError, match="is not an empty file"):
        remove_map(map.directory)
    Path(map.link).mkdir(parents=True)
    with pytest.raises(VolumesError, match="is not a link to a device"):
        remove_link(map)
    assert Path(map.file).read_text() == "data"
