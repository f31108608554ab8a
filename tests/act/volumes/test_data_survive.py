"""Whatever is mounted wherever below a pod's directory: removing the pod's volumes deletes no file behind a mount."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from pykubelet.act.volumes import disk
from pykubelet.act.volumes.kind import VolumesError
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.paths import Paths
from pykubelet.edges.host.fs import mounts
from pykubelet.edges.host.fs.errors import HostError

UID = PodUID("0f1e2d3c")
PLUGINS = ("empty-dir", "local-volume", "nfs", "configmap", "unheard-of")
PLACES = (
    "",
    "volumes",
    "plugins/kubernetes.io~empty-dir/v",
    *(f"volume-subpaths{below}" for below in ("", "/v", "/v/main", "/v/main/0")),
    "plugins",
    "plugins/kubernetes.io~empty-dir",
    "containers/main",
    *(f"volumes/kubernetes.io~{plugin}" for plugin in PLUGINS),
    *(f"volumes/kubernetes.io~{plugin}/v{below}" for plugin in PLUGINS for below in ("", "/mount", "/deep/er")),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(PLACES), st.booleans(), st.booleans()), min_size=1, max_size=5))
def test_nothing_is_deleted_across_a_mount(made: list[tuple[str, bool, bool]]) -> None:
    """Each of `made`: a directory below the pod's, whether something is mounted on it, and whether as a file system of its own."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        paths, precious = Paths(f"{folder}/root", f"{folder}/logs"), Path(folder, "precious")
        (precious / "below").mkdir(parents=True)
        (precious / "kept").touch()
        (precious / "below" / "kept").touch()
        disk.make_tree(paths, UID)
        try:
            for place, is_mounted, is_own in made:
                target = Path(paths.pod(UID), place)
                target.mkdir(parents=True, exist_ok=True)
                if is_mounted and is_own:
                    mounts.mount_tmpfs(str(target))
                elif is_mounted:
                    mounts.bind(str(precious), str(target))
                else:
                    (target / "mine").touch()
            remove_everything(paths)
            assert {"below", "kept"} <= set(os.listdir(precious))
            assert (precious / "below" / "kept").exists()
        finally:
            for mount in reversed(mounts.mounts_below(folder)):  # several may be stacked
                mounts.unmount(mount.target, detach=True)


def remove_everything(paths: Paths) -> None:
    """Tear each volume down, then remove the pod's directory, as the volume manager does; either may fail."""
    with contextlib.suppress(HostError, VolumesError):
        for found in disk.read_volumes(paths, UID):
            with contextlib.suppress(HostError, VolumesError):
                disk.tear_down(paths, UID, found.plugin, found.name)
        disk.remove_pod(paths, UID)
