"""What a reconciler is: a pure function from the objects to the changes that are due, with what it reads. Pure."""

from __future__ import annotations

from collections.abc import Callable

from pykubelet.base.kit.values import Value
from pykubelet_local_api.view import ObjectChange, View


def any_write(view: View, resource: str, namespace: str, name: str) -> bool:
    """Every write to a resource that is read may change the answer."""
    return True


def never(view: View) -> float | None:
    """Time alone does not change the answer."""
    return None


class Reconciler(Value):
    """One task of a control plane. `reconcile` is its definition, everything else only saves work.

    `reconcile`: the changes that are due. They do not depend on each other, and it returns none when they have been made.
    `reads`: the resources of the storage that the answer depends on.
    `concerns`: whether the write of an object may change the answer, given the view after it, the resource, the namespace and the
    name. The object is gone if the view does not have it. Must cost little, because it is asked about every write.
    `wakes_at`: the next moment, in seconds since 1970, at which time alone changes the answer; None: never.
    """

    name: str
    reads: frozenset[str]
    reconcile: Callable[[View], list[ObjectChange]]
    concerns: Callable[[View, str, str, str], bool] = any_write
    wakes_at: Callable[[View], float | None] = never
