"""The file `kubelet_internal_checkpoint`: the registered resources, and who has which devices. Pure.

The format is the reference's, so that either can take over the other's file. Of the registered devices only the resources'
names are used: their plugins list the devices again.
Source: the Kubernetes documentation "Device Plugins"; the reference's package `devicemanager/checkpoint`.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Any

from pykubelet.base.kit.values import Value
from pykubelet.provide.placement.checkpoint import (
    CORRUPT,
    StateFileError,
    as_list,
    as_number,
    as_object,
    as_text,
    checksum,
    dump_list,
    dump_map,
    member,
    read_json,
    write_json,
)
from pykubelet.provide.placement.devices.device_state import DeviceAllocations, DeviceEntry, each, state_of

FILE_NAME = "kubelet_internal_checkpoint"
MAX_LISTED = 4096

_NUMBER = re.compile(r"-?[0-9]{1,19}", re.ASCII)
_MIN_NODE, _MAX_NODE = -(2**63), 2**63 - 1
#: One entry of the file: PodUID, ContainerName, ResourceName, DeviceIDs by node, AllocResp.
_Row = tuple[str, str, str, Mapping[int, list[str] | None] | None, bytes]


class DeviceFile(Value):
    """The content of the file: the allocations, and the names of the resources that were registered."""

    state: DeviceAllocations
    resources: frozenset[str]


def encode(state: DeviceAllocations, registered: Mapping[str, frozenset[str]]) -> str:
    """The file's text. `registered`: the ids of the healthy devices by resource. Entries that no plugin answered are left out.

    Of a resource with more than MAX_LISTED healthy devices, none is listed: nothing reads them, and the checksum takes time.
    """
    rows: list[_Row] = [
        (uid, name, resource, {node: sorted(ids) for node, ids in entry.by_node.items()}, entry.response)
        for uid, name, resource, entry in each(state.entries)
        if entry.response is not None
    ]
    listed = {name: sorted(ids) if len(ids) <= MAX_LISTED else [] for name, ids in sorted(registered.items())}
    entries = [
        {
            "PodUID": uid,
            "ContainerName": name,
            "ResourceName": resource,
            "DeviceIDs": {str(node): ids for node, ids in sorted((by_node or {}).items())},
            "AllocResp": base64.b64encode(response).decode(),
        }
        for uid, name, resource, by_node, response in rows
    ]
    data = {"PodDeviceEntries": entries or None, "RegisteredDevices": listed}
    return write_json({"Data": data, "Checksum": checksum(_dump(rows or None, listed))})


def decode(text: str) -> DeviceFile:
    """The content of a file. Raises CheckpointError: no such file, or a wrong checksum."""
    document = read_json(text)
    data = as_object(member(document, "Data"), "Data")
    found = as_number(member(document, "Checksum"), "Checksum")
    given = member(data, "PodDeviceEntries")
    rows = None if given is None else [_read_row(row) for row in as_list(given, "PodDeviceEntries")]
    devices = member(data, "RegisteredDevices")
    listed = None
    if devices is not None:
        listed = {
            name: _texts(ids, "RegisteredDevices") for name, ids in as_object(devices, "RegisteredDevices").items()
        }
    if found != checksum(_dump(rows, listed)):
        raise StateFileError(CORRUPT)
    entries: dict[str, dict[str, dict[str, DeviceEntry]]] = {}
    for uid, name, resource, by_node, response in rows or ():
        nodes = {node: frozenset(ids or ()) for node, ids in (by_node or {}).items()}
        entries.setdefault(uid, {}).setdefault(name, {})[resource] = DeviceEntry(nodes, response)
    return DeviceFile(state_of(entries), frozenset(listed or ()))


def _read_row(row: Any) -> _Row:
    fields = as_object(row, "PodDeviceEntries")
    uid, name, resource = (as_text(member(fields, key), key) for key in ("PodUID", "ContainerName", "ResourceName"))
    devices = member(fields, "DeviceIDs")
    by_node: dict[int, list[str] | None] | None = None
    if devices is not None:
        by_node = {}
        for node, ids in as_object(devices, "DeviceIDs").items():
            if not _NUMBER.fullmatch(node) or not _MIN_NODE <= int(node) <= _MAX_NODE:
                raise StateFileError(f'json: DeviceIDs: "{node}" is not the id of a NUMA node')
            by_node[int(node)] = _texts(ids, "DeviceIDs")
    try:
        response = base64.b64decode(as_text(member(fields, "AllocResp"), "AllocResp"), validate=True)
    except binascii.Error as error:
        raise StateFileError(f"json: AllocResp: {error}") from None
    return uid, name, resource, by_node, response


def _texts(value: Any, name: str) -> list[str] | None:
    return None if value is None else [as_text(item, name) for item in as_list(value, name)]


# The dump under the checksum


def _dump(rows: list[_Row] | None, listed: Mapping[str, list[str] | None] | None) -> str:
    return (
        "(checkpoint.checkpointData){PodDeviceEntries:([]checkpoint.PodDevicesEntry)"
        f"{dump_list(rows, _dump_row)} RegisteredDevices:(map[string][]string){dump_map(listed, dump_list)}}}"
    )


def _dump_row(row: _Row) -> str:
    uid, name, resource, by_node, response = row
    return (
        f"{{PodUID:(string){uid} ContainerName:(string){name} ResourceName:(string){resource}"
        f" DeviceIDs:(checkpoint.DevicesPerNUMA){dump_map(by_node, dump_list)}"
        f" AllocResp:([]uint8){dump_list(response)}}}"
    )
