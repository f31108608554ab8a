"""Whatever a pod, a plugin or an image names: files change below the pod's and the plugin's own directories alone."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from act.runtime.rendering import SETTINGS
from hypothesis import given, settings
from hypothesis import strategies as st
from provide.volumes.samples import CONTEXT, NODE

from pykubelet.act.runtime.collect.gc_files import dangling_links, remove_container_log, remove_dangling_link
from pykubelet.act.runtime.lifecycle.start import _make_files, _write_hosts
from pykubelet.base.api.codec import from_object
from pykubelet.base.api.core import ConfigMap, Pod, Secret
from pykubelet.base.kit.values import replace
from pykubelet.base.model.content import Content, ContentKind, ObjectKey, Present
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.paths import Paths
from pykubelet.base.model.plugins import FlexDriver, FlexDrivers, Plugin, Plugins, PluginType
from pykubelet.base.model.roster import pod_ref
from pykubelet.edges.cri.logs import read_log_tail
from pykubelet.edges.host.fs import beneath, subpaths
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.provide.volumes import disk
from pykubelet.provide.volumes.csi.data import DevicePaths
from pykubelet.provide.volumes.csi.files import remove_around, write_data
from pykubelet.provide.volumes.directories import VolumeDirs, make_empty_volume_dir, make_pod_dirs, make_volume_dir
from pykubelet.provide.volumes.disks.block_map import remove_link
from pykubelet.provide.volumes.disks.block_paths import map_of
from pykubelet.provide.volumes.disks.disk_mount import make_disk_directory, remove_disk_directory
from pykubelet.provide.volumes.kind import DirectoryPlan, VolumePlan, VolumesError
from pykubelet.provide.volumes.kinds import empty_dir
from pykubelet.provide.volumes.kinds.empty_dir import EmptyDirPlan
from pykubelet.provide.volumes.model import Inputs
from pykubelet.provide.volumes.payloads import payload_kind
from pykubelet.provide.volumes.payloads.payload import PayloadPlan
from pykubelet.provide.volumes.plan import plan_volume

UID = PodUID("u1")
NAMES = (
    "..",
    ".",
    "",
    "a",
    "link",
    "up",
    "..data",
    "x/../..",
    "../KEPT",
    "/KEPT",
    "\0",
    "\ud800",
    "n" * 300,
    "mount",
    "0.log",
)
NAME = st.sampled_from(NAMES)
PATH = st.lists(NAME, min_size=1, max_size=4).map("/".join)


class Host:
    """A root directory with a pod's own directories, beside files of the agent and of other pods."""

    def __init__(self, top: str) -> None:
        self.top = Path(top)
        self.paths = Paths(f"{top}/root", f"{top}/logs", f"{top}/links")
        for kept in (
            "KEPT",
            "root/KEPT",
            "root/pods/KEPT",
            "root/pods/u2/KEPT",
            "root/plugins/KEPT",
            "logs/KEPT",
            "logs/other/0.log",
        ):
            (self.top / kept).parent.mkdir(parents=True, exist_ok=True)
            (self.top / kept).write_text("kept")
        (self.top / "links").mkdir()
        self.own = (
            self.paths.pod(UID),
            f"{self.paths.logs}/shop_web_u1",
            f"{self.paths.plugins}/kubernetes.io",
            self.paths.log_links,
        )
        make_pod_dirs(self.paths, UID)

    def outside(self) -> dict[str, tuple[int, str]]:
        """Everything but the pod's own directories and those of plugins: modes and contents."""
        found = {}
        for where, directories, files in os.walk(self.top):
            directories[:] = [name for name in directories if not f"{where}/{name}".startswith(self.own)]
            for path in (Path(where, name) for name in (*directories, *files)):
                status = path.lstat()
                found[str(path)] = (status.st_mode, path.read_text() if stat.S_ISREG(status.st_mode) else "")
        return found

    def plant_links(self, targets: list[str]) -> None:
        """Put links out of the pod's directories into each of them, as a container with access to them could."""
        for own in self.own[:3]:
            for where, directories, _ in os.walk(own):
                for name, target in zip(("link", "up", "mount", "0.log"), targets, strict=True):
                    with contextlib.suppress(FileExistsError):
                        os.symlink(target, f"{where}/{name}")
                directories[:] = directories[:3]


TARGETS = st.lists(
    st.sampled_from(["../../..", "/", "../KEPT", "../../u2", "../../../../KEPT", "{top}", "{top}/root/pods/u2"]),
    min_size=4,
    max_size=4,
)


@st.composite
def volumes(draw: st.DrawFn) -> dict[str, Any]:
    items = [{"key": "k", "path": draw(PATH)} for _ in range(draw(st.integers(0, 2)))]
    fields = [{"path": draw(PATH), "fieldRef": {"fieldPath": "metadata.name"}}]
    sources: list[dict[str, Any]] = [
        {"emptyDir": {}},
        {"configMap": {"name": "m", "items": items}},
        {"configMap": {"name": "m"}},
        {"secret": {"secretName": "s", "items": items}},
        {"downwardAPI": {"items": fields}},
        {"projected": {"sources": [{"configMap": {"name": "m", "items": items}}, {"downwardAPI": {"items": fields}}]}},
        {"csi": {"driver": draw(PATH)}},
        {"flexVolume": {"driver": draw(PATH)}},
        {"nfs": {"server": "s", "path": draw(PATH)}},
        {"iscsi": {"targetPortal": draw(PATH), "iqn": draw(PATH), "lun": 0, "iscsiInterface": draw(PATH)}},
        {"fc": {"targetWWNs": [draw(PATH)], "lun": 1}},
    ]
    return {"name": draw(PATH), **draw(st.sampled_from(sources))}


@st.composite
def pods(draw: st.DrawFn) -> Pod:
    listed = draw(st.lists(volumes(), max_size=3))
    names = [volume["name"] for volume in listed]
    mounts = [
        {"name": draw(st.sampled_from(names)), "mountPath": draw(PATH), "subPath": draw(PATH)}
        for _ in range(draw(st.integers(0, 3)) if names else 0)
    ]
    container = {"name": draw(PATH), "volumeMounts": mounts, "terminationMessagePath": draw(PATH)}
    about = {"name": "web", "namespace": "shop", "uid": UID}
    return from_object(Pod, {"metadata": about, "spec": {"containers": [container], "volumes": listed}})


def content_of(names: list[str]) -> Content:
    data = dict.fromkeys((*names, "k"), "text")
    found = {
        ObjectKey(ContentKind.CONFIG_MAP, "shop", "m"): Present(ConfigMap(data=data)),
        ObjectKey(ContentKind.SECRET, "shop", "s"): Present(Secret(data=dict.fromkeys(data, b"text"))),
    }
    return Content(True, found)


def plugins_of(pod: Pod) -> Plugins:
    """Every driver that the pod names, as if it had registered."""
    csi = {volume.csi.driver for volume in pod.spec.volumes if volume.csi is not None}
    flex = {volume.flexVolume.driver for volume in pod.spec.volumes if volume.flexVolume is not None}
    plugins = {name: Plugin(PluginType.CSI, name, f"/{name}", f"/{name}", ("1.0.0",), 1.0) for name in csi}
    return Plugins(
        plugins, is_settled=True, flex=FlexDrivers({name: FlexDriver(name, "/x") for name in flex}, is_settled=True)
    )


def steps(host: Host, pod: Pod, content: Content, name: str) -> Iterator[Callable[[], object]]:
    """The work on files for the pod. No step needs a mount. `name`: one that a plugin, an image or a directory has."""
    paths, ref = host.paths, pod_ref(pod)
    inputs = Inputs(node=NODE, content=content, plugins=plugins_of(pod))
    for volume in pod.spec.volumes:
        plan = plan_volume(pod, volume, inputs, paths)
        if isinstance(plan, VolumePlan):
            yield from volume_steps(host, plan, pod)
    for container in pod.spec.containers:
        logs, link = paths.container_logs(ref, container.name), paths.log_link(ref, container.name, name)
        yield partial(_make_files, pod, container, (), paths)
        yield partial(_write_hosts, pod, replace(SETTINGS, paths=paths), ("192.0.2.1",))
        yield partial(beneath.write_in_place, logs / "0.log", b"log")
        yield partial(beneath.replace_symlink, logs / name, link)
        yield partial(read_log_tail, logs / name, name)
        yield partial(remove_dangling_links, paths)
        yield partial(remove_container_log, paths, logs / "0.log", link)
        yield partial(beneath.remove_tree, paths.container(UID, container.name))
    devices = DevicePaths(paths.plugins)
    for place in (devices.mounted(name, "handle"), devices.block_map(name), devices.block_published(name, name)):
        yield partial(write_data, place.parent, b"{}")
        yield partial(remove_around, place.parent, place)
    yield partial(disk.read_volumes, paths, UID)
    for volume in pod.spec.volumes:
        yield partial(disk.tear_down, paths, UID, "kubernetes.io~empty-dir", volume.name)
        yield partial(disk.tear_down, paths, UID, name, volume.name)
        yield partial(disk.clean_subpaths, paths, UID, volume.name)
    yield partial(beneath.remove_tree, paths.pod_logs(ref))
    yield partial(disk.remove_pod, paths, UID)


def remove_dangling_links(paths: Paths) -> None:
    for link in dangling_links(paths):
        remove_dangling_link(paths, link)


def volume_steps(host: Host, plan: VolumePlan, pod: Pod) -> Iterator[Callable[[], object]]:
    if isinstance(plan, EmptyDirPlan):
        yield partial(empty_dir.set_up, plan, CONTEXT)
    elif isinstance(plan, PayloadPlan):
        yield partial(payload_kind.set_up, replace(plan, in_memory=False), CONTEXT)
    elif isinstance(plan, DirectoryPlan):
        dirs = VolumeDirs(plan.directory, plan.directory, is_block=True, plugins=host.paths.plugins)
        yield partial(make_empty_volume_dir, plan.directory)
        yield partial(make_volume_dir, plan.directory)
        yield partial(write_data, plan.directory, b"{}")
        yield partial(remove_link, map_of(plan.directory, dirs))
    device = plan.device
    if device is not None:
        yield partial(make_disk_directory, device.directory, device.name)
        yield partial(remove_disk_directory, device.directory)
    for mount in (mount for container in pod.spec.containers for mount in container.volumeMounts):
        yield partial(subpaths.make_beneath, plan.path, mount.subPath, 0o755)
        yield partial(subpaths.read_beneath, plan.path, mount.subPath, 100)


@settings(max_examples=150, deadline=None)
@given(pods(), st.lists(PATH, max_size=3), PATH, TARGETS)
def test_nothing_outside_of_the_pods_directories_changes(
    pod: Pod, keys: list[str], name: str, targets: list[str]
) -> None:
    with tempfile.TemporaryDirectory() as top:
        host = Host(top)
        before = host.outside()
        for is_planted in (False, True):
            if is_planted:
                host.plant_links([target.format(top=top) for target in targets])
            for step in steps(host, pod, content_of(keys), name):
                with contextlib.suppress(HostError, VolumesError):
                    step()
                assert host.outside() == before
