"""The files `allocated_pods_state` and `actuated_pods_state`: the sizes that the node has allocated to pods, and those that hold. Pure.

The format is the reference's, so that either agent goes on with the resizes of the other. Each file has a JSON text with the resources
of the containers and of the pod as a whole, and its checksum: FNV-1a (32 bits) over `(string)` and the text. Our files also name
their writer, which the reference ignores and leaves out when it admits a pod: without that name, another agent has run since.
Source: KEP-1287; the reference's package `allocation/state`.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Struct

from pykubelet.base.api.codec import DecodeError, decode, encode
from pykubelet.base.api.core import ResourceRequirements
from pykubelet.base.kit.fnv import fnv1a_32
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.sizing import PodSize

ALLOCATED, ACTUATED = "allocated_pods_state", "actuated_pods_state"
MAX_STATE_BYTES = 64 << 20
WRITER = "pykubelet"
CORRUPT = "checkpoint is corrupted"


class AllocationStateError(ValueError):
    """The content of a file cannot be used; the message states why."""


class _Envelope(Struct):
    data: str
    checksum: int
    writer: str = ""


class _Entry(Struct, omit_defaults=False):
    ContainerResources: dict[str, ResourceRequirements] | None = None
    PodLevelResources: ResourceRequirements | None = None


class _Entries(Struct, omit_defaults=True):
    entries: dict[str, _Entry] = {}


def encode_state(sizes: Mapping[PodUID, PodSize]) -> bytes:
    """The content of a file."""
    entries: dict[str, _Entry] = {uid: _Entry(dict(size.containers), size.whole) for uid, size in sizes.items()}
    text = msgspec.json.encode(_Entries(entries), order="deterministic").decode()
    return encode(_Envelope(text, _checksum(text), WRITER))


def decode_state(content: bytes) -> dict[PodUID, PodSize]:
    """The sizes in the content of a file. Raises AllocationStateError."""
    try:
        envelope = decode(_Envelope, content)
        if envelope.checksum != _checksum(envelope.data):
            raise AllocationStateError(CORRUPT)
        found = decode(_Entries, envelope.data).entries
    except (DecodeError, UnicodeError) as error:
        raise AllocationStateError(f"{CORRUPT}: {error}") from error
    return {
        PodUID(uid): PodSize(containers=entry.ContainerResources or {}, whole=entry.PodLevelResources)
        for uid, entry in found.items()
    }


def is_of_another(content: bytes) -> bool:
    """Whether another agent has written this content of a file."""
    try:
        return decode(_Envelope, content).writer != WRITER
    except DecodeError:
        return False


def _checksum(text: str) -> int:
    return fnv1a_32(f"(string){text}".encode("utf-8", "surrogatepass"))
