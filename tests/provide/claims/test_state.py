"""The state file, in the reference's format."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pykubelet.base.kit.flight import SingleFlight
from pykubelet.base.model.claims import ClaimDevice
from pykubelet.base.model.ids import PodUID
from pykubelet.provide.claims.model import Cache, ClaimError, ClaimInfo, ClaimKey
from pykubelet.provide.claims.state import StateError, decode_state, encode_state
from pykubelet.provide.claims.store import ClaimStore

#: The reference's own test data.
TEXT = (
    '{"kind":"DRACheckpoint","apiVersion":"checkpoint.dra.kubelet.k8s.io/v1","ClaimInfoStateList":[{"ClaimUID":'
    '"067798be-454e-4be4-9047-1aa06aea63f7","ClaimName":"example","Namespace":"default","PodUIDs":'
    '{"139cdb46-f989-4f17-9561-ca10cfb509a6":{}},"DriverState":{"test-driver.cdi.k8s.io":{"Devices":[{"PoolName":'
    '"worker-1","DeviceName":"dev-1","ShareID":null,"RequestNames":["test request"],"CDIDeviceIDs":'
    '["example.com/example=cdi-example"]}]}}}]}'
)
GOLDEN = {"Data": TEXT, "Checksum": 2570581864}
KEY = ClaimKey("default", "example")


def content(**changes: object) -> bytes:
    return json.dumps({**GOLDEN, **changes}).encode()


def test_the_references_file_is_read_and_written() -> None:
    cache = decode_state(content())
    device = ClaimDevice(
        "test-driver.cdi.k8s.io", "worker-1", "dev-1", ("test request",), ("example.com/example=cdi-example",)
    )
    pods = frozenset({PodUID("139cdb46-f989-4f17-9561-ca10cfb509a6")})
    assert cache == {KEY: ClaimInfo(KEY, "067798be-454e-4be4-9047-1aa06aea63f7", pods, {device.driver: (device,)})}
    assert json.loads(encode_state(cache)) == GOLDEN


def test_empty_lists_are_null() -> None:
    text = json.loads(encode_state({KEY: ClaimInfo(KEY, "1", frozenset(), {"d": ()})}))["Data"]
    assert json.loads(text)["ClaimInfoStateList"][0]["DriverState"] == {"d": {"Devices": None}}
    assert json.loads(json.loads(encode_state({}))["Data"])["ClaimInfoStateList"] is None


def test_what_a_driver_skips_survives_a_restart() -> None:
    cache: Cache = {
        KEY: ClaimInfo(KEY, "1", frozenset(), {"d": (), "e": ()}, skips={"d": frozenset({"NodePrepareResources"})})
    }
    assert decode_state(encode_state(cache)) == cache


@pytest.mark.parametrize("size", [0, 1, 40, len(content()) - 1])
def test_a_cut_file_is_refused(size: int) -> None:
    with pytest.raises(StateError):
        decode_state(content()[:size])


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (content(Checksum=1), "checkpoint is corrupted: the checksum does not match the data"),
        (content(Data=TEXT.replace("dev-1", "dev-2")), "checkpoint is corrupted: the checksum does not match the data"),
        (content(Data="{}", Checksum=2745614147), "incorrect checkpoint kind: none, expected DRACheckpoint"),
        (b'{"version":"v1","entries":{}}', "checkpoint is corrupted: object missing required field Data"),
    ],
)
def test_a_wrong_file_is_refused(data: bytes, error: str) -> None:
    with pytest.raises(StateError, match=error):
        decode_state(data)


def test_a_newer_version_is_refused() -> None:
    newer = encode_state({}).replace(b"kubelet.k8s.io/v1", b"kubelet.k8s.io/v9")
    with pytest.raises(StateError):
        decode_state(newer)


def test_a_bad_file_states_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "dra_manager_state"
    path.write_bytes(content()[:50])
    with pytest.raises(StateError) as raised:
        ClaimStore(str(path), SingleFlight("test")).load()
    assert str(raised.value).startswith(
        "could not initialize checkpoint manager, please drain node and remove DRA state file, err: "
        "checkpoint is corrupted"
    )
    assert str(path) in str(raised.value)


async def test_the_file_is_written_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "dra_manager_state"
    store = ClaimStore(str(path), SingleFlight("test"))
    assert store.load() == {}
    cache: Cache = decode_state(content())
    await store.save(lambda: cache, "checkpoint ResourceClaim cache")
    assert (path.stat().st_mode & 0o777, ClaimStore(str(path), SingleFlight("test")).load()) == (0o600, cache)


async def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    store = ClaimStore(str(tmp_path / "gone" / "state"), SingleFlight("test"))
    with pytest.raises(ClaimError, match=r"^checkpoint ResourceClaim cache: write .*: no such file or directory$"):
        await store.save(dict, "checkpoint ResourceClaim cache")
