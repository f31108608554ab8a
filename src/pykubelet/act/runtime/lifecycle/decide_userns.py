"""Assigns host IDs to the user namespaces of pods. Pure; `userns.py` reads and writes the files.

Rules:
- The node's range of IDs is divided into slots of equal length. A pod gets the first free slot, for users and groups.
- The mapping of a pod is written into its directory. After a restart, the slots are restored from those files.
- A file is valid only if it has what the agent itself would write: one range, the same for users and groups, that maps
  the container's root, is a slot of the node, and belongs to no other pod.
Source: KEP-127; the Kubernetes documentation "User Namespaces".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from pykubelet.act.runtime.render.context import IDMapping, UserNamespace
from pykubelet.base.kit.values import Value, field, replace
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.node import HandlerFeatures

NO_SLOT = "could not find an empty slot to allocate a user namespace"


class MappingError(ValueError):
    """The mapping cannot be used; the text has the reason."""


class _Range(msgspec.Struct, frozen=True):
    hostId: int
    containerId: int
    length: int


class _File(msgspec.Struct, frozen=True):
    uidMappings: tuple[_Range, ...]
    gidMappings: tuple[_Range, ...]


def user_namespace_refusal(handler: str, features: HandlerFeatures | None) -> str:
    """Why the runtime cannot give pods user namespaces; empty when it can. `features`: None for an unknown handler."""
    if features is not None and features.user_namespaces:
        return ""
    runtime = f'RuntimeClass handler "{handler}"' if handler else "runtime"
    text = f"can't set `spec.hostUsers: false`, {runtime} does not support user namespaces"
    return text if features is not None else f'{text}: the handler "{handler}" is not known'


def namespace_at(host_id: int, length: int) -> UserNamespace:
    """The mapping of the container's IDs 0 to `length` - 1 to the host's IDs from `host_id` on."""
    ids = (IDMapping(host_id, 0, length),)
    return UserNamespace(ids, ids)


def parse_mapping(data: bytes) -> UserNamespace:
    """The mapping in the content of a pod's file. Raises MappingError for anything that the agent would not write."""
    try:
        file = msgspec.json.decode(data, type=_File)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MappingError(f"invalid user namespace mappings file: {error}") from error
    return make_namespace(
        [(mapping.hostId, mapping.containerId, mapping.length) for mapping in file.uidMappings],
        [(mapping.hostId, mapping.containerId, mapping.length) for mapping in file.gidMappings],
    )


def make_namespace(uids: Sequence[tuple[int, int, int]], gids: Sequence[tuple[int, int, int]]) -> UserNamespace:
    """The mapping with these ranges (host ID, container ID, length). Raises MappingError if the agent would not write it."""
    if len(uids) != 1:
        raise MappingError("invalid user namespace configuration: no more than one mapping allowed.")
    if list(uids) != list(gids):
        raise MappingError("invalid user namespace configuration: GID and UID mapping should be identical")
    host_id, container_id, length = uids[0]
    if container_id != 0:
        raise MappingError("invalid user namespace configuration: UID 0 must be mapped")
    return namespace_at(host_id, length)


def format_mapping(namespace: UserNamespace) -> bytes:
    """The content of a pod's mapping file."""
    uids, gids = (
        tuple(_Range(mapping.host_id, mapping.container_id, mapping.length) for mapping in ids)
        for ids in (namespace.uids, namespace.gids)
    )
    return msgspec.json.encode(_File(uids, gids))


class IdSlots(Value):
    """The node's IDs: `count` slots of `length` from `first` on, and the slot of each pod. `used`: a bit for each slot."""

    first: int
    length: int
    count: int
    used: int = 0
    holders: Mapping[PodUID, int] = field(default_factory=dict)

    def namespace_of(self, uid: PodUID) -> UserNamespace | None:
        """The mapping of the pod; None if it has none."""
        slot = self.holders.get(uid)
        return None if slot is None else namespace_at(self.first + slot * self.length, self.length)

    @property
    def is_full(self) -> bool:
        """True if all ID slots are taken."""
        return len(self.holders) >= self.count

    def take(self, uid: PodUID) -> IdSlots:
        """Give the pod the first free slot; a pod that has a slot keeps it. Raises MappingError if all are taken."""
        if uid in self.holders:
            return self
        if not self.count:
            raise MappingError(
                f"{NO_SLOT}: the node has no {self.length} IDs (userNamespaces.idsPerPod) beside its own"
            )
        slot = (~self.used & (self.used + 1)).bit_length() - 1
        if slot >= self.count:
            raise MappingError(NO_SLOT)
        return self._with(uid, slot)

    def record(self, uid: PodUID, namespace: UserNamespace) -> IdSlots:
        """Take the slot of a range that the pod already has. Raises MappingError if it is no slot, or belongs to another pod."""
        host_id, length = namespace.uids[0].host_id, namespace.uids[0].length
        if length != self.length:
            raise MappingError(f"wrong user namespace length {length}")
        if host_id % self.length:
            raise MappingError(f"wrong user namespace offset specified {host_id}")
        slot = (host_id - self.first) // self.length
        if not 0 <= slot < self.count:
            raise MappingError(f"id {host_id} is out of range")
        own = self.holders.get(uid)
        if own == slot:
            return self
        if own is not None:
            raise MappingError(f'different user namespace range already used by pod "{uid}"')
        if self.used >> slot & 1:
            raise MappingError(f'range picked for pod "{uid}" already taken')
        return self._with(uid, slot)

    def free(self, uid: PodUID) -> IdSlots:
        """The slots without that of the pod."""
        slot = self.holders.get(uid)
        if slot is None:
            return self
        holders = {pod: held for pod, held in self.holders.items() if pod != uid}
        return replace(self, used=self.used & ~(1 << slot), holders=holders)

    def _with(self, uid: PodUID, slot: int) -> IdSlots:
        return replace(self, used=self.used | 1 << slot, holders={**self.holders, uid: slot})
