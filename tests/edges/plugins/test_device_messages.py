"""Lists and allocations of device plugins, and the limits for lists that are not what they should be."""

from __future__ import annotations

import pytest

from pykubelet.base.model.placement import DeviceMount, DeviceNode, DeviceResource, Devices
from pykubelet.edges.plugins import deviceplugin_pb2 as pb
from pykubelet.edges.plugins.device_messages import (
    MAX_DEVICES,
    MAX_GROUPS,
    DeviceMessageError,
    merged,
    read_allocation,
    read_devices,
)


def listed(*devices: pb.Device) -> bytes:
    return pb.ListAndWatchResponse(devices=devices).SerializeToString()


def on(name: str, *nodes: int, health: str = "Healthy") -> pb.Device:
    topology = pb.TopologyInfo(nodes=[pb.NUMANode(ID=node) for node in nodes])
    return pb.Device(ID=name, health=health, topology=topology)


def test_devices_with_and_without_a_topology() -> None:
    found = read_devices(listed(on("a", 1, 0, 1), on("b"), pb.Device(ID="c", health="Healthy"), on("d", 0, health="")))
    assert found == DeviceResource(
        frozenset("abc"),
        frozenset("d"),
        {"a": (0, 1), "b": (), "d": (0,)},
        {(0, 1): frozenset("a"), (0,): frozenset("d")},
        {"d": ""},
    )
    assert read_devices(b"") == DeviceResource()


def test_ids_that_no_numa_node_has_are_ignored() -> None:
    found = read_devices(listed(on("a", 2**63 - 1), on("b", 1023, 1024, -1), on("c", -(2**63))))
    assert found.healthy == frozenset("abc")
    assert found.nodes == {"a": (), "b": (1023,), "c": ()}
    assert found.groups == {(1023,): frozenset("b")}


def test_a_list_longer_than_a_slice_is_read_whole() -> None:
    names = [f"d{number}" for number in range(5000)]
    assert read_devices(listed(*(pb.Device(ID=name, health="Healthy") for name in names))).healthy == set(names)


def test_of_two_devices_with_one_id_the_later_one_counts() -> None:
    found = read_devices(listed(on("a", 0), on("b", 1, health="Unhealthy"), on("a", 1, health="Unhealthy"), on("b", 0)))
    assert (set(found.healthy), set(found.unhealthy), found.ill) == ({"b"}, {"a"}, {"a": "Unhealthy"})
    assert found.groups == {(0,): {"b"}, (1,): {"a"}}


def test_fields_of_later_versions_are_ignored() -> None:
    device = listed(pb.Device(ID="a", health="Healthy"))
    others = b"\x10\x96\x01", b"\x1a\x02hi", b"\x21" + bytes(8), b"\x2d" + bytes(4)
    assert read_devices(b"".join(other + device for other in others) + others[0]).healthy == {"a"}


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"\x0a\x05ab", "the received message cannot be decoded: "),
        (b"\x0a", "the received message cannot be decoded: "),
        (b"\x0a\xff\xff\xff\xff\xff\xff", "the received message cannot be decoded: "),
        (b"\x0a\x02\x0a\x05", "the received message cannot be decoded: "),
        (b"\x13", "the received message cannot be decoded: "),
        (b"\x0a\x00" * (MAX_DEVICES + 1), f"the list has more than {MAX_DEVICES} devices"),
        (listed(on("d", *[0] * 257)), "device d is on more than 256 NUMA nodes"),
        (
            listed(*(on(f"d{n}", n // 2, n // 2 + 1 + n % 2) for n in range(MAX_GROUPS + 1))),
            f"the devices are on more than {MAX_GROUPS} different sets of NUMA nodes",
        ),
    ],
)
def test_lists_that_are_refused(data: bytes, problem: str) -> None:
    with pytest.raises(DeviceMessageError) as caught:
        read_devices(data)
    assert str(caught.value).startswith(problem)


def test_what_several_resources_add_the_first_one_counts() -> None:
    first = pb.ContainerAllocateResponse(
        envs={"A": "1"},
        mounts=[pb.Mount(container_path="/m", host_path="/one")],
        devices=[pb.DeviceSpec(container_path="/dev/x", host_path="/dev/null", permissions="r")],
        cdi_devices=[pb.CDIDevice(name="v/c=1"), pb.CDIDevice(name="v/c=1")],
    )
    second = pb.ContainerAllocateResponse(
        envs={"A": "2", "B": "2"},
        mounts=[pb.Mount(container_path="/m", host_path="/two"), pb.Mount(container_path="/n", host_path="/two")],
        devices=[pb.DeviceSpec(container_path="/dev/x", host_path="/dev/zero", permissions="rw")],
        annotations={"a": "2"},
        cdi_devices=[pb.CDIDevice(name="v/c=2"), pb.CDIDevice(name="v/c=1")],
    )
    assert merged([read_allocation(part.SerializeToString()) for part in (first, second)]) == Devices(
        nodes=(DeviceNode("/dev/null", "/dev/x", "r"),),
        mounts=(DeviceMount("/one", "/m"), DeviceMount("/two", "/n")),
        env={"A": "1", "B": "2"},
        annotations={"a": "2"},
        cdi=("v/c=1", "v/c=2"),
    )
    assert read_allocation(b"\xff") == Devices()
