"""Whatever is mounted wherever below the directories of pods and devices: removing volumes deletes no file behind a mount."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.paths import Paths
from pykubelet.base.model.plugins import Plugins
from pykubelet.edges.host.fs import mounts
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.provide.volumes import disk
from pykubelet.provide.volumes.directories import VolumeDirs, make_pod_dirs
from pykubelet.provide.volumes.kind import CallContext, VolumesError
from pykubelet.provide.volumes.plan import kind_in, kind_named

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root for mounts")
UID = PodUID("0f1e2d3c")
PLUGINS = ("empty-dir", "local-volume", "nfs", "configmap", "csi", "iscsi", "unheard-of")
DRIVER = "plugins/kubernetes.io/csi/driver"
T = TypeVar("T")
IN_POD = (
    "",
    "volumes",
    "plugins/kubernetes.io~empty-dir/v",
    *(f"volume-subpaths{below}" for below in ("", "/v", "/v/main", "/v/main/0")),
    "plugins",
    "plugins/kubernetes.io~empty-dir",
    "containers/main",
    *(f"volumes/kubernetes.io~{plugin}" for plugin in PLUGINS),
    *(f"volumes/kubernetes.io~{plugin}/v{below}" for plugin in PLUGINS for below in ("", "/mount", "/deep/er")),
    "volumeDevices",
    *(f"volumeDevices/kubernetes.io~{plugin}{below}" for plugin in PLUGINS for below in ("", "/v", "/v/er")),
)
ON_NODE = (
    "plugins/kubernetes.io",
    *(f"plugins/kubernetes.io/local-volume{below}" for below in ("", "/mounts", "/mounts/v", "/mounts/v/er")),
    *(f"plugins/kubernetes.io~local-volume{b}" for b in ("", *("/volumeDevices" + c for c in ("", "/v", f"/v/{UID}")))),
    *(f"{DRIVER}{below}" for below in ("", "/hash", "/hash/globalmount", "/hash/globalmount/er")),
    *(f"plugins/kubernetes.io/csi/volumeDevices{b}" for b in ("", "/v", "/v/dev", f"/v/dev/{UID}", "/v/data")),
    *(f"plugins/kubernetes.io/csi/volumeDevices/{b}" for b in ("staging/v", "publish/v", f"publish/v/{UID}")),
    *(f"plugins/kubernetes.io/flexvolume/{below}" for below in ("a/b/mounts", "a/b/mounts/v", "a/b/mounts/v/er")),
)
PLACES = (*(f"pods/{UID}/{place}".rstrip("/") for place in IN_POD), *ON_NODE)


class Put(StrEnum):
    """What is made at a place: a directory with a file, a bind of precious data, a file system, or a link to the data."""

    PLAIN = "plain"
    BIND = "bind"
    OWN = "own"
    LINK = "link"


MADE = st.lists(st.tuples(st.sampled_from(PLACES), st.sampled_from(Put)), min_size=1, max_size=6)


@settings(max_examples=120, deadline=None)
@given(MADE)
def test_nothing_is_deleted_across_a_mount(made: list[tuple[str, Put]]) -> None:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        paths, precious = Paths(f"{folder}/root", f"{folder}/logs"), Path(folder, "precious")
        (precious / "below").mkdir(parents=True)
        kept = [precious / "kept", precious / "below" / "kept", precious / UID, precious / "vol_data.json"]
        for file in kept:
            file.write_text("precious")
        make_pod_dirs(paths, UID)
        own: list[int] = []
        try:
            for place, put in made:
                make(Path(paths.root, place), put, precious, own)
            for _ in range(2):
                asyncio.run(remove_everything(paths))
            assert [file.read_text() for file in kept] == ["precious"] * len(kept)
            assert all("own" in os.listdir(descriptor) for descriptor in own), "a file system of its own was emptied"
        finally:
            for descriptor in own:
                os.close(descriptor)
            for mount in reversed(mounts.mounts_below(folder)):  # several may be stacked
                mounts.unmount(mount.target, detach=True)


def make(target: Path, put: Put, precious: Path, own: list[int]) -> None:
    """Make it, unless a link or another file is in the way. `own`: descriptors of the new file systems, each with a file."""
    with contextlib.suppress(FileExistsError, NotADirectoryError):
        if put is Put.LINK:
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.parent.resolve() == target.parent:
                target.symlink_to(precious)
            return
        target.mkdir(parents=True, exist_ok=True)
        if target.resolve() != target or target.is_relative_to(precious):
            return
        if put is Put.OWN:
            mounts.mount_tmpfs(str(target))
            (target / "own").touch()
            own.append(os.open(target, os.O_RDONLY | os.O_DIRECTORY))
        elif put is Put.BIND:
            mounts.bind(str(precious), str(target))
        elif not mounts.is_mount_point(str(target)):
            (target / "mine").touch()


async def remove_everything(paths: Paths) -> None:
    """Tear each volume down, remove the pod's directory and unstage each device, as the volume manager does; any may fail."""

    async def blocking(work: Callable[[], T], deadline_s: float = 0.0) -> T:
        return work()

    context = CallContext(Plugins(is_settled=True), blocking)
    with contextlib.suppress(HostError, VolumesError):
        for found in disk.read_volumes(paths, UID):
            with contextlib.suppress(HostError, VolumesError):
                unmount = kind_in(found.plugin).unmount if found.plugin else None
                if unmount is None:
                    disk.tear_down(paths, UID, found.plugin, found.name, is_block=found.is_block)
                else:
                    dirs = VolumeDirs.of(paths, UID, found.plugin, found.name, is_block=found.is_block)
                    disk.prepare_tear_down(paths, UID, found.name, dirs.path)
                    await unmount(dirs, context)
    with contextlib.suppress(HostError, VolumesError):
        disk.remove_pod(paths, UID)
    for device in disk.scan_devices(paths):
        unstage = kind_named(device.kind).unstage
        assert unstage is not None
        with contextlib.suppress(HostError, VolumesError):
            await unstage(device, context)
