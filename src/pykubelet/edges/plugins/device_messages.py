"""What device plugins send, as values: their lists of devices, and what they add to a container. Pure.

A list may have 100,000 devices, and parsing it takes a tenth of a second: do it in a worker thread. It is parsed in slices,
between which the event loop's thread can run.
Source: the Kubernetes documentation "Device Plugins".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from google.protobuf.message import DecodeError

from pykubelet.base.kit.text import shorten
from pykubelet.base.model.placement import HEALTHY, DeviceMount, DeviceNode, DeviceResource, Devices
from pykubelet.edges.plugins import deviceplugin_pb2 as pb

MAX_DEVICES = 131_072
#: Different sets of NUMA nodes that the devices of one resource may be on.
MAX_GROUPS = 1024
#: NUMA nodes of one device.
MAX_NODES = 256
#: The highest id of a NUMA node; of no Linux machine is there a higher one. A device with other ids only has no node.
MAX_NODE_ID = 1023
_SLICE = 2000
_SHOWN = 100
_DEVICE_TAG = 0x0A


class DeviceMessageError(ValueError):
    """A plugin's message cannot be used; the text has the reason."""


def read_devices(data: bytes) -> DeviceResource:
    """The devices in a `ListAndWatchResponse`. Of two with one id, the later one counts. Raises DeviceMessageError."""
    healthy, ill = set[str](), dict[str, str]()
    nodes = dict[str, tuple[int, ...]]()
    known = dict[tuple[int, ...], tuple[int, ...]]()
    for device in _devices(data):
        name = device.ID
        if device.health == HEALTHY:
            healthy.add(name)
            ill.pop(name, None)
        else:
            healthy.discard(name)
            ill[name] = device.health
        nodes.pop(name, None)
        if device.HasField("topology"):
            if len(device.topology.nodes) > MAX_NODES:
                raise DeviceMessageError(f"device {shorten(name, _SHOWN)} is on more than {MAX_NODES} NUMA nodes")
            own = tuple(sorted({node.ID for node in device.topology.nodes if 0 <= node.ID <= MAX_NODE_ID}))
            nodes[name] = known.setdefault(own, own)
            if len(known) > MAX_GROUPS:
                raise DeviceMessageError(f"the devices are on more than {MAX_GROUPS} different sets of NUMA nodes")
    groups: dict[tuple[int, ...], set[str]] = {own: set() for own in known if own}
    for name, own in nodes.items():
        if own:
            groups[own].add(name)
    grouped = {own: frozenset(names) for own, names in groups.items() if names}
    return DeviceResource(frozenset(healthy), frozenset(ill), nodes, grouped, ill)


def _devices(data: bytes) -> Iterator[pb.Device]:
    """All devices, parsed in slices. Fields of later versions of the message count as devices, and are ignored."""
    start = position = count = 0
    try:
        while position < len(data):
            position = _after_field(data, position)
            count += 1
            if count > MAX_DEVICES:
                raise DeviceMessageError(f"the list has more than {MAX_DEVICES} devices")
            if count % _SLICE == 0:
                yield from pb.ListAndWatchResponse.FromString(data[start:position]).devices
                start = position
        yield from pb.ListAndWatchResponse.FromString(data[start:]).devices
    except (DecodeError, IndexError) as error:
        raise DeviceMessageError(f"the received message cannot be decoded: {error}") from None


def _after_field(data: bytes, position: int) -> int:
    """Where the field that begins at `position` ends."""
    if data[position] == _DEVICE_TAG:
        size, position = _varint(data, position + 1)
        return position + size
    tag, position = _varint(data, position)
    match tag & 7:
        case 0:
            return _varint(data, position)[1]
        case 1:
            return position + 8
        case 2:
            size, position = _varint(data, position)
            return position + size
        case 5:
            return position + 4
        case _:
            raise DecodeError("a field of an unknown type")


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """The number that begins at `position`, and where it ends."""
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 63:
            raise DecodeError("a number of more than ten bytes")


def read_allocation(data: bytes) -> Devices:
    """What a `ContainerAllocateResponse` adds to a container; nothing if it cannot be parsed."""
    try:
        answer = pb.ContainerAllocateResponse.FromString(data)
    except DecodeError:
        return Devices()
    return Devices(
        nodes=tuple(
            DeviceNode(device.host_path, device.container_path, device.permissions) for device in answer.devices
        ),
        mounts=tuple(DeviceMount(mount.host_path, mount.container_path, mount.read_only) for mount in answer.mounts),
        env=dict(answer.envs),
        annotations=dict(answer.annotations),
        cdi=tuple(dict.fromkeys(device.name for device in answer.cdi_devices)),
    )


def merged(parts: Sequence[Devices]) -> Devices:
    """What several resources add to one container. Of two that add the same thing, the first one counts."""
    env, annotations = dict[str, str](), dict[str, str]()
    nodes, mounts = dict[str, DeviceNode](), dict[str, DeviceMount]()
    for part in parts:
        for name, value in part.env.items():
            env.setdefault(name, value)
        for name, value in part.annotations.items():
            annotations.setdefault(name, value)
        for node in part.nodes:
            nodes.setdefault(node.container_path, node)
        for mount in part.mounts:
            mounts.setdefault(mount.container_path, mount)
    cdi = dict.fromkeys(name for part in parts for name in part.cdi)
    return Devices(tuple(nodes.values()), tuple(mounts.values()), env, annotations, tuple(cdi))
