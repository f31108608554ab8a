"""What decisions read and return: a view of the objects at one moment, the client of a request, and changes. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Protocol

from pykubelet.base.kit.values import Value, field
from pykubelet_local_api.objects import Json


class View(Protocol):
    """The objects at one moment. `resource` is that of the storage, such as `pods` or `leases.coordination.k8s.io`.

    The objects must not be changed.
    """

    @property
    def now(self) -> float:
        """The wall-clock time, in seconds since 1970."""

    def get(self, resource: str, namespace: str, name: str) -> Json | None:
        """The object; None if there is none. `namespace` is "" for objects of the cluster."""

    def list(self, resource: str, namespace: str = "") -> Iterable[Json]:
        """The objects of a namespace, or of all namespaces, in the order of their namespaces and names."""


class RequestUser(Value):
    """The client of a request, as authentication found it. `groups`: in the order of the credential. `extra`: further facts, by key."""

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: dict[str, tuple[str, ...]] = field(default_factory=dict)


#: The user of this package's own changes.
CONTROL = RequestUser("system:local-api", ("system:masters", "system:authenticated"))


class Verb(StrEnum):
    """What a change does. `STATUS` replaces only the status, `UPDATE` all but the status."""

    CREATE = "create"
    UPDATE = "update"
    STATUS = "status"
    DELETE = "delete"


class ObjectChange(Value):
    """A change that a reconciler wants. `object`: the whole object as it shall be; for a deletion, the one that was seen.
    `resource` may have a subresource, as in `pods/binding` (create, with a Binding) and `namespaces/finalize` (update).

    An object with `metadata.resourceVersion` is changed only if it still has that version: a change that comes too late is
    dropped, and the reconciler sees the newer objects. `grace_s`: the grace period of a deletion; None: the object's own.
    """

    verb: Verb
    resource: str
    object: Json
    grace_s: int | None = None
