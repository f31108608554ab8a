"""Global mounts of block devices, on real loop devices."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.block import block_device, clean_folder

from pykubelet.base.model.paths import Beneath
from pykubelet.edges.host.devices import disk_formats
from pykubelet.edges.host.fs import mounts
from pykubelet.provide.volumes.disks.device_mount import MismatchError, mount_device, unmount_device
from pykubelet.provide.volumes.kind import MOUNT_DEVICE, UncertainError, VolumesError

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root for loop devices")


@pytest.fixture
def device() -> Iterator[str]:
    with block_device() as path:
        yield path


@pytest.fixture
def directory() -> Iterator[Beneath]:
    with clean_folder() as path:
        yield Beneath(f"{path}/plugins", "kubernetes.io/local-volume/mounts/pv-1")


def test_mounted_once_and_unmounted_twice(device: str, directory: Beneath) -> None:
    mount_device(device, directory)
    mount_device(device, directory)
    assert len(mounts.mounts_below(directory)) == 1
    assert oct(os.stat(os.path.dirname(directory)).st_mode)[-3:] == "750"
    unmount_device(directory, "pv-1")
    unmount_device(directory, "pv-1")
    assert not os.path.exists(directory)


def test_a_failed_mount_leaves_no_directory(device: str, directory: Beneath) -> None:
    with pytest.raises(VolumesError, match="cannot mount unformatted disk") as caught:
        mount_device(device, directory, "ext4", ("ro",))
    assert caught.value.step == MOUNT_DEVICE and not isinstance(caught.value, UncertainError)
    assert not os.path.exists(directory)


def test_a_device_with_another_file_system_is_a_mismatch(device: str, directory: Beneath) -> None:
    mount_device(device, directory, "ext2")
    unmount_device(directory, "pv-1")
    with pytest.raises(MismatchError, match='holds "ext2" and not xfs'):
        mount_device(device, directory, "xfs")
    assert not os.path.exists(directory)


def test_a_mount_that_does_not_end_is_uncertain(
    device: str, directory: Beneath, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "mount").write_text("#!/bin/sh\nexec sleep 100\n")
    (tmp_path / "mount").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(disk_formats, "MOUNT_S", 0.3)
    with pytest.raises(UncertainError, match=r"the program mount did not end within 0\.3s"):
        mount_device(device, directory)


def test_a_device_that_is_mounted_elsewhere_stays(device: str, directory: Beneath) -> None:
    mount_device(device, directory)
    pod = Path(directory).parents[4] / "pods/one/volumes/kubernetes.io~local-volume/pv-1"
    pod.mkdir(parents=True)
    mounts.bind(directory, str(pod))
    with pytest.raises(VolumesError, match=f"is still mounted by other references \\[{pod}\\]"):
        unmount_device(directory, "pv-1")
    assert mounts.is_mount_point(directory)
    mounts.unmount(str(pod))
    unmount_device(directory, "pv-1")
    assert not os.path.exists(directory)


def test_files_in_an_unmounted_directory_are_not_deleted(directory: Beneath) -> None:
    os.makedirs(directory)
    Path(directory, "kept").touch()
    with pytest.raises(Exception, match="not empty"):
        unmount_device(directory, "pv-1")
    assert Path(directory, "kept").exists()
