"""The pod cache: the newest view of each pod, as published in the cell `Observed`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pykubelet.base.kit.cells import CellWriter
from pykubelet.base.model.ids import PodRef, PodUID
from pykubelet.base.model.observed import ContainerEnd, Observed, PodView
from pykubelet.observe.pleg.decide import merge_view


class PodCache:
    """Keeps nothing beside the cell's own value: one copy of the mapping per published change."""

    def __init__(self, observed: CellWriter[Observed]) -> None:
        self._observed = observed

    @property
    def pods(self) -> Mapping[PodUID, PodView]:
        return self._observed.get().pods

    def view(self, uid: PodUID) -> PodView | None:
        """The pod's newest view; None before its first read."""
        return self._observed.get().pods.get(uid)

    def is_outdated(self, view: PodView) -> bool:
        """Whether a read that began later is known."""
        known = self.view(view.ref.uid)
        return known is not None and known.read_at > view.read_at

    def update(self, view: PodView, ends: Sequence[ContainerEnd] = ()) -> None:
        """Publish a pod's view, unless it is outdated. `ends`: exits of its containers that hints have told earlier."""
        if self.is_outdated(view):
            return
        now, uid = self._observed.get(), view.ref.uid
        merged = merge_view(now.pods.get(uid), view, ends)
        self._observed.publish(Observed({**now.pods, uid: merged}, now.listed_at, now.unread - {view.ref}))

    def relisted(self, changed: Mapping[PodUID, PodView | None], listed: Mapping[PodRef, object], at: float) -> None:
        """Publish a relist that began `at`. `changed`: see `missing_pods`; `listed`: the pods that it contained."""
        pods = {uid: view for uid, view in {**self.pods, **changed}.items() if view is not None}
        self._observed.publish(Observed(pods, at, frozenset(ref for ref in listed if ref.uid not in pods)))
