from collections.abc import Iterable
from typing import Any

import pytest
from act.runtime.failures import refusal
from act.runtime.rendering import CONTEXT, SETTINGS, make_container, make_pod

from pykubelet.act.runtime.render.context import (
    ContainerContext,
    ImageVolume,
    RenderSettings,
    SandboxContext,
)
from pykubelet.act.runtime.render.render_mounts import container_devices, container_mounts, relative_sub_paths
from pykubelet.act.runtime.start_error import ContainerStartError
from pykubelet.base.kit.values import replace
from pykubelet.base.model.lifecycle import StartError
from pykubelet.base.model.mounts import MountedVolume
from pykubelet.base.model.node import HandlerFeatures
from pykubelet.base.model.placement import DeviceMount, DeviceNode, Devices
from pykubelet.edges.cri import cri_pb2

DATA = MountedVolume("data", "kubernetes.io/empty-dir", "/v/data", supports_relabel=True)
CONF = MountedVolume("conf", "kubernetes.io/config-map", "/v/conf", read_only=True)
DISK = MountedVolume("disk", "kubernetes.io/csi", "/dev/disk0", is_block=True)
MOUNTED = replace(CONTEXT, mounts={"data": DATA, "conf": CONF, "disk": DISK})
RRO = replace(MOUNTED, sandbox=SandboxContext(handler_features=HandlerFeatures(recursive_read_only_mounts=True)))


def mounts(
    *volume_mounts: dict[str, Any],
    ctx: ContainerContext = MOUNTED,
    settings: RenderSettings = SETTINGS,
    env: dict[str, str] | None = None,
    **fields: Any,
) -> list[cri_pb2.Mount]:
    container = make_container(volumeMounts=list(volume_mounts), **fields)
    return container_mounts(make_pod(container), container, settings, ctx, env or {})


def sub_paths(
    *volume_mounts: dict[str, Any], ctx: ContainerContext = MOUNTED, env: Iterable[dict[str, Any]] = ()
) -> dict[int, str]:
    container = make_container(volumeMounts=list(volume_mounts), env=list(env))
    return relative_sub_paths(make_pod(container), container, SETTINGS, ctx)


def test_volumes_in_order() -> None:
    found = mounts({"name": "data", "mountPath": "/data"}, {"name": "conf", "mountPath": "conf"})
    assert [(m.container_path, m.host_path, m.readonly) for m in found] == [
        ("/data", "/v/data", False),
        ("/conf", "/v/conf", True),
    ]
    assert not any(m.selinux_relabel for m in found)


def test_read_only_and_relabelling() -> None:
    found = mounts(
        {"name": "data", "mountPath": "/a", "readOnly": True},
        {"name": "conf", "mountPath": "/b"},
        settings=replace(SETTINGS, selinux_enabled=True),
    )
    assert [(m.readonly, m.selinux_relabel) for m in found] == [(True, True), (True, False)]


@pytest.mark.parametrize(("mode", "expected"), [("", 0), ("None", 0), ("HostToContainer", 1), ("Bidirectional", 2)])
def test_propagation(mode: str, expected: int) -> None:
    [mount] = mounts({"name": "data", "mountPath": "/a", "mountPropagation": mode})
    assert mount.propagation == expected


def rro(mode: str, ctx: ContainerContext, **fields: Any) -> bool:
    [mount] = mounts(
        {"name": "data", "mountPath": "/a", "readOnly": True, "recursiveReadOnly": mode, **fields}, ctx=ctx
    )
    return mount.recursive_read_only


def test_flags_of_bind_mounts_are_passed_on_with_the_gate() -> None:
    mount = {"name": "data", "mountPath": "/data", "bindMountOptions": ["noexec", "nosuid"]}
    on = replace(SETTINGS, bind_options=True)
    assert [list(m.mount_options) for m in mounts(mount, settings=on)] == [["noexec", "nosuid"]]
    assert not mounts(mount)[0].mount_options
    with pytest.raises(ContainerStartError, match='invalid bindMountOptions "ro" of volume "data"'):
        mounts({**mount, "bindMountOptions": ["noexec", "ro"]}, settings=on)


def test_recursive_read_only() -> None:
    assert rro("Enabled", RRO) is True
    assert rro("IfPossible", RRO) is True
    assert rro("IfPossible", MOUNTED) is False
    assert rro("Disabled", RRO) is False


@pytest.mark.parametrize(
    ("mode", "ctx", "fields", "message"),
    [
        (
            "Enabled",
            MOUNTED,
            {},
            'volume "data" requested recursive read-only mode, but it is not supported by the runtime',
        ),
        (
            "Enabled",
            RRO,
            {"readOnly": False},
            'volume "data" requested recursive read-only mode, but it is not read-only',
        ),
        (
            "IfPossible",
            RRO,
            {"mountPropagation": "Bidirectional"},
            'volume "data" requested recursive read-only mode, but it is not compatible with propagation "Bidirectional"',
        ),
        ("Odd", RRO, {}, 'unknown recursive read-only mode "Odd"'),
    ],
)
def test_recursive_read_only_refusals(mode: str, ctx: ContainerContext, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ContainerStartError) as caught:
        rro(mode, ctx, **fields)
    assert caught.value.message == f"failed to resolve recursive read-only mode: {message}"


@pytest.mark.parametrize(
    ("mount", "message"),
    [
        ({"name": "none", "mountPath": "/a"}, 'cannot find volume "none" to mount into container "app"'),
        ({"name": "disk", "mountPath": "/a"}, 'cannot find volume "disk" to mount into container "app"'),
        ({"name": "data", "mountPath": "/a", "mountPropagation": "Odd"}, 'invalid MountPropagation mode: "Odd"'),
        (
            {"name": "data", "mountPath": "/a", "subPath": "x"},
            'failed to prepare subPath for volumeMount "data" of container "app"',
        ),
    ],
)
def test_refusals(mount: dict[str, Any], message: str) -> None:
    with pytest.raises(ContainerStartError) as caught:
        mounts(mount)
    assert caught.value.message == message


def test_sub_paths_are_bound_instead_of_the_volume() -> None:
    plain = {"name": "data", "mountPath": "/a"}
    below = {"name": "data", "mountPath": "/b", "subPath": "x/y"}
    found = mounts(plain, below, ctx=replace(MOUNTED, subpaths={1: "/subpaths/data/app/1"}))
    assert [m.host_path for m in found] == ["/v/data", "/subpaths/data/app/1"]


def test_sub_paths_are_asked_for_by_index() -> None:
    assert sub_paths(
        {"name": "data", "mountPath": "/a"},
        {"name": "data", "mountPath": "/b", "subPath": "x/y"},
        {"name": "data", "mountPath": "/c", "subPathExpr": "logs/$(POD)"},
        env=[{"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
    ) == {1: "x/y", 2: "logs/web"}


@pytest.mark.parametrize(
    ("mount", "message"),
    [
        ({"subPath": "/etc"}, "error SubPath `/etc` must not be an absolute path"),
        ({"subPath": "a/../../etc"}, "unable to provision SubPath `a/../../etc`: must not contain '..'"),
        ({"subPathExpr": "$(B)/$(A)"}, "missing value for A, B"),
        ({"subPathExpr": "$(UP)"}, "unable to provision SubPath `..`: must not contain '..'"),
        ({"subPath": "a" * 4096}, 'subPath of volumeMount "data" is too long: it has more than 4095 bytes'),
        ({"subPath": "/" + "é" * 2048}, 'subPath of volumeMount "data" is too long: it has more than 4095 bytes'),
    ],
)
def test_sub_paths_that_lead_out(mount: dict[str, Any], message: str) -> None:
    result = refusal(sub_paths, {"name": "data", "mountPath": "/a", **mount}, env=[{"name": "UP", "value": ".."}])
    assert result == StartError("CreateContainerConfigError", message)


def test_a_sub_path_may_be_as_long_as_a_path() -> None:
    assert sub_paths({"name": "data", "mountPath": "/a", "subPath": "a/" * 2047 + "b"}) == {0: "a/" * 2047 + "b"}


def test_sub_path_names_may_have_dots() -> None:
    assert sub_paths({"name": "data", "mountPath": "/a", "subPath": "..data/a..b"}) == {0: "..data/a..b"}


HOSTS = replace(MOUNTED, etc_hosts_host_path="/p/etc-hosts")


def test_etc_hosts() -> None:
    [mount] = mounts(ctx=HOSTS)
    assert (mount.container_path, mount.host_path, mount.readonly) == ("/etc/hosts", "/p/etc-hosts", False)
    assert mounts(ctx=replace(HOSTS, pod_ips=())) == []
    assert [m.host_path for m in mounts({"name": "conf", "mountPath": "/etc/hosts"}, ctx=HOSTS)] == ["/v/conf"]
    assert len(mounts({"name": "conf", "mountPath": "/etc/hosts/"}, ctx=HOSTS)) == 2


def test_termination_message_file() -> None:
    ctx = replace(MOUNTED, termination_log_host_path="/p/containers/app/1f")
    [mount] = mounts(ctx=ctx, terminationMessagePath="/dev/termination-log")
    assert (mount.container_path, mount.host_path) == ("/dev/termination-log", "/p/containers/app/1f")
    assert mounts(ctx=ctx) == []
    assert mounts(terminationMessagePath="/dev/termination-log") == []


def test_image_volumes() -> None:
    ctx = replace(MOUNTED, image_volumes={"models": ImageVolume("sha256:1", "registry/models:1")})
    [mount] = mounts({"name": "models", "mountPath": "/m", "subPath": "small"}, ctx=ctx)
    assert (mount.container_path, mount.host_path, mount.image_sub_path) == ("/m", "", "small")
    assert mount.image == cri_pb2.ImageSpec(image="sha256:1", user_specified_image="registry/models:1")
    assert mount.readonly, "runtimes refuse images that could be written to"
    assert sub_paths({"name": "models", "mountPath": "/m", "subPath": "small"}, ctx=ctx) == {}


def test_devices_come_first() -> None:
    devices = Devices(
        nodes=(DeviceNode("/dev/gpu0", "/dev/gpu0", "rw"),), mounts=(DeviceMount("/lib/gpu", "/lib/gpu", True),)
    )
    ctx = replace(MOUNTED, devices=devices)
    found = mounts({"name": "data", "mountPath": "/data"}, ctx=ctx)
    assert [(m.container_path, m.readonly) for m in found] == [("/lib/gpu", True), ("/data", False)]
    container = make_container(volumeDevices=[{"name": "disk", "devicePath": "/dev/xvda"}])
    assert [(d.host_path, d.container_path, d.permissions) for d in container_devices(container, ctx)] == [
        ("/dev/gpu0", "/dev/gpu0", "rw"),
        ("/dev/disk0", "/dev/xvda", "mrw"),
    ]
    read_only = replace(ctx, mounts={"disk": replace(DISK, read_only=True)})
    assert container_devices(container, read_only)[1].permissions == "r"


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ({"name": "disk", "devicePath": "xvda"}, "error DevicePath `xvda` must be an absolute path"),
        ({"name": "data", "devicePath": "/dev/a"}, 'cannot find volume "data" to pass into container "app"'),
    ],
)
def test_device_refusals(device: dict[str, str], message: str) -> None:
    with pytest.raises(ContainerStartError) as caught:
        container_devices(make_container(volumeDevices=[device]), MOUNTED)
    assert caught.value.message == message
