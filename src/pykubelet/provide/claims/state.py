"""The format of `dra_manager_state`, which the reference kubelet reads and writes too. Pure.

A JSON object with the state as text and the CRC-32 of this text. `SkippedCalls` is our own; the reference ignores it.
"""

from __future__ import annotations

import json
import zlib

from msgspec import Struct

from pykubelet.base.api.codec import DecodeError, decode
from pykubelet.base.model.claims import ClaimDevice
from pykubelet.base.model.ids import PodUID
from pykubelet.provide.claims.model import Cache, ClaimInfo, ClaimKey

KIND = "DRACheckpoint"
API_VERSION = "checkpoint.dra.kubelet.k8s.io/v1"


class StateError(Exception):
    """The state cannot be used. The message has the reason."""


class _Envelope(Struct):
    Data: str
    Checksum: int


class _Device(Struct):
    PoolName: str = ""
    DeviceName: str = ""
    ShareID: str | None = None
    RequestNames: tuple[str, ...] | None = None
    CDIDeviceIDs: tuple[str, ...] | None = None


class _Driver(Struct):
    Devices: tuple[_Device, ...] | None = None
    SkippedCalls: tuple[str, ...] = ()


class _Claim(Struct):
    ClaimUID: str
    ClaimName: str
    Namespace: str
    PodUIDs: dict[str, object] | None = None
    DriverState: dict[str, _Driver] | None = None


class _State(Struct):
    kind: str = ""
    apiVersion: str = ""
    ClaimInfoStateList: tuple[_Claim, ...] | None = None


def encode_state(cache: Cache) -> bytes:
    """The content of the file."""
    claims = [_encoded(cache[key]) for key in sorted(cache)]
    state = {"kind": KIND, "apiVersion": API_VERSION, "ClaimInfoStateList": claims or None}
    text = json.dumps(state, separators=(",", ":"), ensure_ascii=False)
    return json.dumps({"Data": text, "Checksum": _checksum(text)}, separators=(",", ":"), ensure_ascii=False).encode()


def _encoded(info: ClaimInfo) -> dict[str, object]:
    return {
        "ClaimUID": info.uid,
        "ClaimName": info.key.name,
        "Namespace": info.key.namespace,
        "PodUIDs": {uid: {} for uid in sorted(info.pods)},
        "DriverState": {
            driver: {
                "Devices": [_encoded_device(device) for device in info.drivers[driver]] or None,
                **({"SkippedCalls": sorted(calls)} if (calls := info.skips.get(driver)) else {}),
            }
            for driver in sorted(info.drivers)
        },
    }


def _encoded_device(device: ClaimDevice) -> dict[str, object]:
    return {
        "PoolName": device.pool,
        "DeviceName": device.device,
        "ShareID": device.share_id or None,
        "RequestNames": device.requests or None,
        "CDIDeviceIDs": device.cdi or None,
    }


def decode_state(data: bytes) -> dict[ClaimKey, ClaimInfo]:
    """The claims in the content of the file, none of them prepared. Raises StateError."""
    try:
        envelope = decode(_Envelope, data)
        if envelope.Checksum != _checksum(envelope.Data):
            raise StateError("checkpoint is corrupted: the checksum does not match the data")
        state = decode(_State, envelope.Data)
    except (DecodeError, UnicodeError) as error:
        raise StateError(f"checkpoint is corrupted: {error}") from error
    if state.kind != KIND:
        raise StateError(f"incorrect checkpoint kind: {state.kind or 'none'}, expected {KIND}")
    if state.apiVersion != API_VERSION:
        raise StateError(f"incorrect checkpoint apiVersion: {state.apiVersion or 'none'}, expected {API_VERSION}")
    infos = (_decoded(claim) for claim in state.ClaimInfoStateList or ())
    return {info.key: info for info in infos}


def _decoded(claim: _Claim) -> ClaimInfo:
    return ClaimInfo(
        ClaimKey(claim.Namespace, claim.ClaimName),
        claim.ClaimUID,
        frozenset(PodUID(uid) for uid in claim.PodUIDs or ()),
        {
            name: tuple(_decoded_device(name, device) for device in driver.Devices or ())
            for name, driver in (claim.DriverState or {}).items()
        },
        skips={
            name: frozenset(driver.SkippedCalls)
            for name, driver in (claim.DriverState or {}).items()
            if driver.SkippedCalls
        },
    )


def _decoded_device(driver: str, device: _Device) -> ClaimDevice:
    requests, cdi = device.RequestNames or (), device.CDIDeviceIDs or ()
    return ClaimDevice(driver, device.PoolName, device.DeviceName, requests, cdi, device.ShareID or "")


def _checksum(text: str) -> int:
    return zlib.crc32(text.encode())
