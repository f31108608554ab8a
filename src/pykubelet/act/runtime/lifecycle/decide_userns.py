"""Which host ids the user namespace of a pod gets. Pure; `userns.py` reads and writes the files.

Rules:
- The node's range of ids is cut into slots of equal length; a pod gets the first free one, for users and groups alike.
- What a pod has is written into its directory. After a restart the slots are taken again by what those files say.
- A file counts only when it says what the agent itself would write: one range, the same for users and groups, that
  maps the container's root, is a slot of the node, and is nobody else's.
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
    """A mapping that cannot be used; the text says why."""


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
    who = f'RuntimeClass handler "{handler}"' if handler else "runtime"
    text = f"can't set `spec.hostUsers: false`, {who} does not support user namespaces"
    return text if features is not None else f'{text}: the handler "{handler}" is not known'


def namespace_at(host_id: int, length: int) -> UserNamespace:
    """The container's ids from 0 on are the host's from `host_id` on."""
    ids = (IDMapping(host_id, 0, length),)
    return UserNamespace(ids, ids)


def parse_mapping(data: bytes) -> UserNamespace:
    """The content of a pod's mapping file; MappingError for anything the agent would not write."""
    try:
        file = msgspec.json.decode(data, type=_File)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MappingError(f"invalid user namespace mappings file: {error}") from error
    return make_namespace(
        [(one.hostId, one.containerId, one.length) for one in file.uidMappings],
        [(one.hostId, one.containerId, one.length) for one in file.gidMappings],
    )


def make_namespace(uids: Sequence[tuple[int, int, int]], gids: Sequence[tuple[int, int, int]]) -> UserNamespace:
    """From ranges as (host id, container id, length); MappingError when they are none of the agent's."""
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
        tuple(_Range(one.host_id, one.container_id, one.length) for one in ids)
        for ids in (namespace.uids, namespace.gids)
    )
    return msgspec.json.encode(_File(uids, gids))


class IdSlots(Value):
    """The node's ids, `count` slots of `length` from `first` on, and who has which. `used`: a bit for each slot."""

    first: int
    length: int
    count: int
    used: int = 0
    holders: Mapping[PodUID, int] = field(default_factory=dict)

    def namespace_of(self, uid: PodUID) -> UserNamespace | None:
        """What the pod has."""
        slot = self.holders.get(uid)
        return None if slot is None else namespace_at(self.first + slot * self.length, self.length)

    @property
    def is_full(self) -> bool:
        """True if all ID slots are taken."""
        return len(self.holders) >= self.count

    def take(self, uid: PodUID) -> IdSlots:
        """The first free slot for the pod; one that has a slot keeps it. MappingError when all are taken."""
        if uid in self.holders:
            return self
        slot = (~self.used & (self.used + 1)).bit_length() - 1
        if slot >= self.count:
            raise MappingError(NO_SLOT)
        return self._with(uid, slot)

    def record(self, uid: PodUID, namespace: UserNamespace) -> IdSlots:
        """The pod has this range already. MappingError when that cannot be."""
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
        """The pod has nothing any more."""
        slot = self.holders.get(uid)
        if slot is None:
            return self
        holders = {pod: held for pod, held in self.holders.items() if pod != uid}
        return replace(self, used=self.used & ~(1 << slot), holders=holders)

    def _with(self, uid: PodUID, slot: int) -> IdSlots:
        return replace(self, used=self.used | 1 << slot, holders={**self.holders, uid: slot})
