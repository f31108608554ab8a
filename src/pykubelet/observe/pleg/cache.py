"""The pod cache: the newest view of each pod, as published in the cell `Observed`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from pykubelet.base.kit.cells import CellWriter
from pykubelet.base.kit.values import with_changes
from pykubelet.base.model.ids import PodRef, PodUID
from pykubelet.base.model.observed import ContainerEnd, Observed, PodView
from pykubelet.observe.pleg.decide import merge_view


class PodCache:
    """The pod cache. Each published change copies the mapping once."""

    def __init__(self, observed: CellWriter[Observed]) -> None:
        self._observed = observed
        self._owners = _owners(observed.get().pods)

    @property
    def pods(self) -> Mapping[PodUID, PodView]:
        """All views, by pod UID."""
        return self._observed.get().pods

    def view(self, uid: PodUID) -> PodView | None:
        """The pod's newest view; None before its first read."""
        return self._observed.get().pods.get(uid)

    def owner(self, runtime_id: str) -> PodUID | None:
        """The pod of a container or sandbox ID; None if no view shows it."""
        return self._owners.get(runtime_id)

    def is_outdated(self, view: PodView) -> bool:
        """Whether the pod has a view from a read that began later."""
        known = self.view(view.ref.uid)
        return known is not None and known.read_at > view.read_at

    def update(self, view: PodView, ends: Sequence[ContainerEnd] = ()) -> None:
        """Publish a pod's view, unless it is outdated. `ends`: exits of its containers that earlier hints have reported."""
        if self.is_outdated(view):
            return
        now, uid = self._observed.get(), view.ref.uid
        merged = merge_view(now.pods.get(uid), view, ends)
        for runtime_id in _ids(now.pods[uid]) if uid in now.pods else ():
            self._owners.pop(runtime_id, None)
        self._owners |= dict.fromkeys(_ids(merged), uid)
        self._observed.publish(Observed(with_changes(now.pods, {uid: merged}), now.listed_at, now.unread - {view.ref}))

    def relisted(self, changed: Mapping[PodUID, PodView | None], listed: Mapping[PodRef, object], at: float) -> None:
        """Publish a relist that began at `at`. `changed`: the result of `missing_pods`. `listed`: the pods in the list."""
        pods = with_changes(self.pods, changed)
        self._owners = _owners(pods)
        self._observed.publish(Observed(pods, at, frozenset(ref for ref in listed if ref.uid not in pods)))


def _owners(pods: Mapping[PodUID, PodView]) -> dict[str, PodUID]:
    return {runtime_id: uid for uid, view in pods.items() for runtime_id in _ids(view)}


def _ids(view: PodView) -> Iterator[str]:
    return chain((sandbox.id for sandbox in view.sandboxes), (container.id for container in view.containers))
