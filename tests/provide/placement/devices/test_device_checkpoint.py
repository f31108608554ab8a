"""The file of device allocations: test values of its checksum, what is written, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pykubelet.base.kit.flight import SingleFlight
from pykubelet.provide.placement.checkpoint import StateFileError
from pykubelet.provide.placement.devices.device_checkpoint import DeviceFile, decode, encode
from pykubelet.provide.placement.devices.device_files import DeviceFiles
from pykubelet.provide.placement.devices.device_manager import DeviceManager
from pykubelet.provide.placement.devices.device_state import DeviceAllocations, DeviceEntry, state_of

RESOURCE = "example.com/r"
FILE: dict[str, Any] = {
    "Data": {
        "PodDeviceEntries": [
            {
                "PodUID": "u",
                "ContainerName": "c",
                "ResourceName": RESOURCE,
                "DeviceIDs": {"0": ["d1"]},
                "AllocResp": "CgM=",
            }
        ],
        "RegisteredDevices": {RESOURCE: ["d1"]},
    },
    "Checksum": 3657626058,
}
STATE = state_of({"u": {"c": {RESOURCE: DeviceEntry({0: frozenset({"d1"})}, bytes([10, 3]))}}})


def test_the_test_values() -> None:
    assert encode(STATE, {RESOURCE: frozenset({"d1"})}) == json.dumps(FILE, separators=(",", ":"))
    assert decode(json.dumps(FILE, indent=1)) == DeviceFile(STATE, frozenset({RESOURCE}))
    empty = '{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":3467439661}'
    assert encode(DeviceAllocations(), {}) == empty
    assert decode(empty) == DeviceFile(DeviceAllocations(), frozenset())


def test_everything_survives_but_what_no_plugin_has_answered() -> None:
    answered = DeviceEntry({-1: frozenset({"b", "a"}), 3: frozenset({"c"})}, b"")
    entries = {"u": {"c": {RESOURCE: answered, "example.com/s": DeviceEntry({-1: frozenset({"z"})})}}}
    read = decode(encode(state_of(entries), {RESOURCE: frozenset(), "example.com/s": frozenset({"y", "z"})}))
    assert read == DeviceFile(state_of({"u": {"c": {RESOURCE: answered}}}), frozenset({RESOURCE, "example.com/s"}))
    assert read.state.in_use == {RESOURCE: frozenset({"a", "b", "c"})}


def test_the_order_of_ids_in_the_file_counts() -> None:
    text = encode(state_of({"u": {"c": {RESOURCE: DeviceEntry({-1: frozenset({"a", "b"})}, b"x")}}}), {})
    assert '"DeviceIDs":{"-1":["a","b"]},"AllocResp":"eA=="' in text
    with pytest.raises(StateFileError, match="checkpoint is corrupted"):
        decode(text.replace('"a","b"', '"b","a"'))


def test_every_node_id_that_a_plugin_can_send_is_read_back() -> None:
    entry = DeviceEntry({node: frozenset({f"d{node}"}) for node in (-(2**63), -1, 0, 2**63 - 1)}, b"x")
    state = state_of({"u": {"c": {RESOURCE: entry}}})
    assert decode(encode(state, {})).state == state


async def test_a_file_that_could_not_be_written_is_written_by_the_next_save(tmp_path: Path) -> None:
    root, away = tmp_path / "root", tmp_path / "away"
    root.mkdir()
    files = DeviceFiles(str(root), SingleFlight("test"))
    assert await files.save(DeviceManager(state=STATE))
    root.rename(away)
    assert not await files.save(DeviceManager())
    away.rename(root)
    assert files.read() == DeviceFile(STATE, frozenset())
    assert await files.save(DeviceManager())
    assert files.read() == DeviceFile(DeviceAllocations(), frozenset())


def changed(**changes: Any) -> str:
    return json.dumps({**FILE, "Data": {**FILE["Data"], **changes}})


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "unexpected end of JSON input"),
        (json.dumps(FILE)[:-9], "unexpected end of JSON input"),
        ("[]", "json: the file must be an object"),
        ("{}", "json: Data must be an object"),
        (json.dumps({**FILE, "Checksum": 1}), "checkpoint is corrupted"),
        (json.dumps(FILE).replace('"d1"', '"d2"', 1), "checkpoint is corrupted"),
        (changed(PodDeviceEntries={}), "json: PodDeviceEntries must be an array"),
        (changed(PodDeviceEntries=[{"DeviceIDs": {"x": []}}]), 'json: DeviceIDs: "x" is not the id of a NUMA node'),
        (
            changed(PodDeviceEntries=[{"DeviceIDs": {str(2**63): []}}]),
            f'json: DeviceIDs: "{2**63}" is not the id of a NUMA node',
        ),
        (changed(PodDeviceEntries=[{"AllocResp": "*"}]), "json: AllocResp: "),
        (changed(PodDeviceEntries=[{"DeviceIDs": {"0": [7]}}]), "json: DeviceIDs must be a string"),
        (changed(RegisteredDevices=[]), "json: RegisteredDevices must be an object"),
    ],
)
def test_refused_files(text: str, problem: str) -> None:
    with pytest.raises(StateFileError) as caught:
        decode(text)
    assert str(caught.value).startswith(problem)
