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
_BEGIN, _END = b'{"entries":{', b"}}"
#: The checksum is that of a text with its type before it.
_NO_TEXT = fnv1a_32(b"(string)")


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


class _Part(Struct, frozen=True):
    """A pod's part of the text. `checksum`: of the text up to its end."""

    uid: PodUID
    size: PodSize
    text: bytes
    checksum: int


class StateEncoder:
    """Encodes one state after the other. The checksum of all pods takes milliseconds, so what stands before the first pod that has
    changed is not made again: the newest pods stand last, and most changes are of those.
    """

    def __init__(self) -> None:
        self._parts: list[_Part] = []

    def encode(self, sizes: Mapping[PodUID, PodSize]) -> bytes:
        """The content of a file with these sizes."""
        known, pods = self._parts, list(sizes.items())
        same = next((i for i, (now, part) in enumerate(zip(pods, known, strict=False)) if not _is(part, *now)), None)
        del known[min(len(known), len(pods)) if same is None else same :]
        for uid, size in pods[len(known) :]:
            entry = msgspec.json.encode(_Entry(dict(size.containers), size.whole), order="deterministic")
            text = b"%s%s:%s" % (b"," if known else _BEGIN, msgspec.json.encode(uid), entry)
            before = known[-1].checksum if known else _NO_TEXT
            known.append(_Part(uid, size, text, fnv1a_32(text, before)))
        if not known:
            return encode(_Envelope("{}", fnv1a_32(b"{}", _NO_TEXT), WRITER))
        whole = b"".join([*(part.text for part in known), _END]).decode()
        return encode(_Envelope(whole, fnv1a_32(_END, known[-1].checksum), WRITER))


def _is(part: _Part, uid: PodUID, size: PodSize) -> bool:
    return part.uid == uid and part.size is size


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
    return fnv1a_32(text.encode("utf-8", "surrogatepass"), _NO_TEXT)
