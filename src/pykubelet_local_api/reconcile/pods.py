"""Facts about pods that several reconcilers look at. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, Generic, TypeVar

from pykubelet_local_api.objects import Json, name_of
from pykubelet_local_api.reconcile.changes import spec_of, status_of

T = TypeVar("T")
#: Results of objects that are gone may be so many before they are forgotten.
MAX_STALE = 64
ENDED = ("Failed", "Succeeded")


def has_ended(pod: Json) -> bool:
    """Whether none of its containers will run again."""
    return status_of(pod).get("phase") in ENDED


def node_of(pod: Json) -> str:
    """The node to which the pod is bound; "" for none."""
    return str(spec_of(pod).get("nodeName") or "")


def priority_of(pod: Json) -> int:
    """The pod's priority."""
    return int(spec_of(pod).get("priority") or 0)


def claims_of(pod: Json) -> Iterator[tuple[str, bool]]:
    """The names of the PersistentVolumeClaims that the pod uses, and whether a claim is one of the pod's own (ephemeral)."""
    for volume in spec_of(pod).get("volumes") or ():
        if claim := volume.get("persistentVolumeClaim"):
            yield claim.get("claimName", ""), False
        elif volume.get("ephemeral"):
            yield f"{name_of(pod)}-{volume['name']}", True


class Remembered(Generic[T]):
    """Results by object, while the object is the same: a pod is decoded once, not in every decision."""

    def __init__(self) -> None:
        self._results: dict[Any, tuple[Json, T]] = {}

    def get(self, found: Json) -> T | None:
        """The result for this object."""
        known = self._results.get(found["metadata"].get("uid"))
        return known[1] if known is not None and known[0] is found else None

    def put(self, found: Json, result: T) -> T:
        """Remember the result for this object, in place of that of its former version."""
        self._results[found["metadata"].get("uid")] = (found, result)
        return result

    def keep_only(self, objects: Collection[Json]) -> None:
        """Forget all others, once they are many."""
        if len(self._results) > len(objects) + MAX_STALE:
            uids = {found["metadata"].get("uid") for found in objects}
            self._results = {uid: known for uid, known in self._results.items() if uid in uids}
