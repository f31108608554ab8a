"""Containers with CDI devices: each edit is in the request to Docker, or the device is refused."""

from __future__ import annotations

import msgspec
import pytest

from pykubelet.net.grpc.status import Code, RpcError
from pykubelet_cri_docker.cdi.edits import (
    MAX_DEVICES,
    DeviceEdits,
    HostNode,
    Injection,
    SpecFile,
    inject,
    own_node,
    requested,
    resolve,
)
from pykubelet_cri_docker.cdi.specs import CdiDevice, CdiMount, CdiNode, CdiSpec, ContainerEdits
from pykubelet_cri_docker.engine import messages as docker

NULL = HostNode("cu", 1, 3, 0o666, 0, 0)


def env(*variables: str) -> ContainerEdits:
    return ContainerEdits(env=variables)


def file(path: str, priority: int, *names: str, shared: ContainerEdits | None = None) -> SpecFile:
    devices = tuple(CdiDevice(name, env(f"OF={path}")) for name in names)
    return SpecFile(path, priority, CdiSpec("1.0.0", "v.com/gpu", devices, shared or ContainerEdits()))


def container() -> docker.NewContainer:
    mount = docker.DockerMount(type="bind", source="/old", target="/lib")
    host = docker.HostConfig(mounts=[mount], group_add=["7"], log_config=docker.LogConfig("none"))
    return docker.NewContainer(image="i", env=["A=1", "B=2"], host_config=host)


def with_edits(edits: ContainerEdits, **nodes: HostNode) -> docker.NewContainer:
    found = {f"/dev/{name}": node for name, node in nodes.items()}
    return inject(container(), Injection([DeviceEdits("v.com/gpu=0", edits)], found))


def test_edits_of_a_file_come_once_and_before_those_of_its_devices() -> None:
    files = [file("/a", 0, "0", "1", shared=env("ALL=1")), file("/b", 0, "2")]
    found = resolve(files, ["v.com/gpu=1", "v.com/gpu=0", "v.com/gpu=1", "v.com/gpu=2"])
    assert [each.edits.env for each in found] == [("ALL=1",), ("OF=/a",), ("OF=/a",), (), ("OF=/b",)]


def test_the_directory_of_higher_priority_counts() -> None:
    files = [file("/a", 0, "0"), file("/b", 1, "0"), file("/c", 0, "0")]
    assert [each.edits.env for each in resolve(files, ["v.com/gpu=0"])] == [(), ("OF=/b",)]


def test_two_files_of_a_directory_with_a_device_conflict() -> None:
    with pytest.raises(RpcError, match=r"unresolvable CDI devices v\.com/gpu=0 \(conflict: /a, /b\)"):
        resolve([file("/a", 0, "0"), file("/b", 0, "0", "1")], ["v.com/gpu=0"])
    assert resolve([file("/a", 0, "0"), file("/b", 0, "0", "1")], ["v.com/gpu=1"])


@pytest.mark.parametrize("name", ["v.com/gpu=9", "v.com/net=0", "v.com/gpu", "", "=0"])
def test_a_device_that_is_not_there_is_an_error_that_shows_broken_files(name: str) -> None:
    with pytest.raises(RpcError, match=r"unresolvable CDI devices .*\(/x: is broken\)"):
        resolve([file("/a", 0, "0"), SpecFile("/x", 0, None, "is broken")], [name])


def test_the_number_of_devices_has_a_bound() -> None:
    with pytest.raises(RpcError, match="more than 256"):
        resolve([], [str(number) for number in range(MAX_DEVICES + 1)])


def test_what_docker_has_fields_for_is_added() -> None:
    edits = ContainerEdits(
        env=("A=new", "C=3"),
        device_nodes=(
            CdiNode("/dev/x", "/dev/null", type="c", major=1, minor=3, file_mode=0o666),
            CdiNode("/dev/null", permissions="r"),
        ),
        mounts=(CdiMount("/new", "/lib", ("ro", "rbind", "rslave")), CdiMount("/etc/x", "/etc/x", ("bind",), "none")),
        additional_gids=(7, 0, 8),
    )
    made = with_edits(edits, null=NULL)
    host = made.host_config
    assert made.env == ["A=new", "B=2", "C=3"]
    assert [(d.path_on_host, d.path_in_container, d.cgroup_permissions) for d in host.devices] == [
        ("/dev/null", "/dev/x", "rwm"),
        ("/dev/null", "/dev/null", "r"),
    ]
    shown = [(mount.source, mount.target, mount.read_only, mount.bind_options) for mount in host.mounts]
    options = docker.DockerMount.BindOptions
    assert shown == [
        ("/new", "/lib", True, options(propagation="rslave")),
        ("/etc/x", "/etc/x", False, options(non_recursive=True)),
    ]
    assert host.group_add == ["7", "8"]


@pytest.mark.parametrize(
    ("edits", "field"),
    [
        (ContainerEdits(hooks=({"hookName": "createContainer"},)), "hooks"),
        (ContainerEdits(net_devices=({"name": "eth1"},)), "netDevices"),
        (ContainerEdits(intel_rdt={"closID": "a"}), "intelRdt"),
        (ContainerEdits(mounts=(CdiMount("/a", "/b", ("nosuid",)),)), "mounts[/b].options nosuid"),
        (ContainerEdits(mounts=(CdiMount("tmpfs", "/b", (), "tmpfs"),)), "mounts[/b].type tmpfs"),
        (ContainerEdits(device_nodes=(CdiNode("/dev/null", permissions="none"),)), "permissions none"),
        (ContainerEdits(device_nodes=(CdiNode("/dev/null", file_mode=0o600),)), "fileMode"),
        (ContainerEdits(device_nodes=(CdiNode("/dev/null", major=1, minor=5),)), "major"),
        (ContainerEdits(device_nodes=(CdiNode("/dev/null", type="b"),)), "type"),
        (ContainerEdits(device_nodes=(CdiNode("/dev/null", uid=5),)), "uid"),
        (ContainerEdits(device_nodes=(CdiNode("/dev/null", gid=5),)), "gid"),
    ],
)
def test_what_docker_has_no_field_for_is_refused_by_its_name(edits: ContainerEdits, field: str) -> None:
    with pytest.raises(RpcError) as caught:
        with_edits(edits, null=NULL)
    assert caught.value.code is Code.UNIMPLEMENTED
    assert caught.value.message.startswith("CDI device v.com/gpu=0: containerEdits.")
    assert field in caught.value.message and "Docker" in caught.value.message


def test_a_device_node_must_be_there() -> None:
    with pytest.raises(RpcError, match=r"deviceNodes\[/dev/a\]: /dev/a is no device of this machine"):
        with_edits(ContainerEdits(device_nodes=(CdiNode("/dev/a"),)))


def test_an_engine_that_has_cdi_itself_gets_the_names() -> None:
    sent = msgspec.json.decode(
        msgspec.json.encode(requested(container(), ["v.com/gpu=0", "v.com/gpu=0", "v.com/gpu=1"]))
    )
    assert sent["HostConfig"]["DeviceRequests"] == [{"Driver": "cdi", "DeviceIDs": ["v.com/gpu=0", "v.com/gpu=1"]}]


def test_a_relabeled_mount_gives_way_to_that_of_an_edit() -> None:
    made = container()
    made.host_config.binds = ["/a:/lib:ro,Z", "/b:/kept:rw,Z"]
    edits = ContainerEdits(mounts=(CdiMount(host_path="/new", container_path="/lib"),))
    assert inject(made, Injection([DeviceEdits("v.com/gpu=0", edits)], {})).host_config.binds == ["/b:/kept:rw,Z"]


@pytest.mark.parametrize(
    ("node", "found", "expected"),
    [
        (CdiNode("/dev/null"), NULL, None),
        (CdiNode("/dev/null", type="c", major=1, minor=3, file_mode=0o666, uid=0), NULL, None),
        (CdiNode("/dev/a", type="b", major=1, minor=2), None, HostNode("b", 1, 2, 0o666, 0, 0)),
        (CdiNode("/dev/a", type="c", major=1, minor=2, uid=5), NULL, HostNode("cu", 1, 2, 0o666, 5, 0)),
        (CdiNode("/dev/null", major=1, minor=5), NULL, HostNode("cu", 1, 5, 0o666, 0, 0)),
        (CdiNode("/dev/null", file_mode=0o100600, gid=7), NULL, HostNode("cu", 1, 3, 0o600, 0, 7)),
        (CdiNode("/dev/null", type="b"), NULL, None),
        (CdiNode("/dev/null", type="b", major=8), NULL, HostNode("b", 8, 0, 0o666, 0, 0)),
        (CdiNode("/dev/a", type="p"), None, None),
        (CdiNode("/dev/a", type="b"), None, None),
        (CdiNode("/dev/a", major=1), None, None),
        (CdiNode("/dev/a", type="b", major=1 << 40), None, None),
        (CdiNode("/dev/a", type="b", major=-1), None, None),
        (CdiNode("/dev/null", uid=1 << 32), NULL, None),
    ],
)
def test_a_device_that_is_described_and_not_on_the_host(
    node: CdiNode, found: HostNode | None, expected: HostNode | None
) -> None:
    assert own_node(node, found) == expected


def test_a_device_that_was_made_is_taken_in_place_of_the_hosts() -> None:
    node = CdiNode("/dev/a", type="b", major=1, permissions="r")
    edits = [DeviceEdits("v.com/gpu=0", ContainerEdits(device_nodes=(node,)))]
    injected = inject(container(), Injection(edits, {"/dev/a": NULL}, {node: "/own/b-1-0"}))
    assert injected.host_config.devices == [docker.DockerDevice("/own/b-1-0", "/dev/a", "r")]
