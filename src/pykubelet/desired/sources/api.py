"""The API server as a source: the pods that are bound to this node.

Owns: the cell `ApiPods`. Reads: `NodeView`. Posts `SourceChanged` with the whole set, including mirror pods, on each change
that the agent acts on. A change that the agent itself has reported is only published in `ApiPods`.

Rules:
- The set counts only after it was listed. While the API server does not answer, the last set is kept.
- The first set waits until the node is registered with the API server, because admission needs its labels. The wait is
  limited, because the node may never be registered.
- A pod is annotated with its source and the time when it was first seen. An unchanged pod stays the same object.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

from pykubelet.base.api.core import Pod
from pykubelet.base.api.selectors import field_selector
from pykubelet.base.api.times import format_nano_time
from pykubelet.base.kit.cells import Cell, CellWriter, Post, within
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.values import changed_keys, replace, with_changes
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.labels import CONFIG_SEEN, CONFIG_SOURCE, SOURCE_API
from pykubelet.base.model.node import NodeView
from pykubelet.base.model.pod_changes import is_same, is_same_mirror
from pykubelet.base.model.roster import ApiPods, SourceChanged, is_mirror
from pykubelet.edges.kubeapi.listwatch import Listed

log = Log("sources")
NODE_WAIT_S = 10.0
PODS_PATH = "/api/v1/pods"


def pods_of_node(node_name: str) -> str:
    """The field selector of the pods that are bound to a node."""
    return field_selector(("spec.nodeName", node_name))


class ApiSource:
    """The API server as a source. `listed`: an endless list-watch. `node_wait_s`: how long the first set waits for the node."""

    def __init__(
        self,
        listed: AsyncIterator[Listed[Pod]],
        node: Cell[NodeView],
        out: Post[SourceChanged],
        pods: CellWriter[ApiPods],
        clock: Clock,
        node_wait_s: float = NODE_WAIT_S,
    ) -> None:
        self._listed = listed
        self._node = node
        self._out = out
        self._pods = pods
        self._clock = clock
        self._node_wait_s = node_wait_s
        self._items: Mapping[str, Pod] = {}
        self._known: Mapping[PodUID, Pod] = {}
        self._marked: Mapping[PodUID, Pod] = {}
        self._has_posted = False
        self._has_node = False

    async def run(self) -> None:
        """Follow the list-watch until cancelled."""
        async for now in self._listed:
            if now.synced:
                await self._take(now.items)

    async def _take(self, items: Mapping[str, Pod]) -> None:
        has_changes = self._take_changes(items)
        known = ApiPods(self._known, synced=True)
        if not self._has_node:
            self._pods.publish(known)
            await self._wait_for_node()
        if has_changes or not self._has_posted:
            self._has_posted = True
            self._out.post(SourceChanged(SOURCE_API, self._marked.values(), by_uid=self._marked))
        self._pods.publish(known)  # last: what is to be done comes before what is to be reported

    def _take_changes(self, items: Mapping[str, Pod]) -> bool:
        """Take a new set. Returns whether the agent acts on any of the changes."""
        seen = format_nano_time(int(self._clock.wall() * 1_000_000_000))
        known, marked = dict[PodUID, Pod | None](), dict[PodUID, Pod | None]()
        for key in changed_keys(self._items, items):
            before, pod = self._items.get(key), items.get(key)
            if before is not None and (pod is None or pod.metadata.uid != before.metadata.uid):
                gone = PodUID(before.metadata.uid)
                known[gone] = marked[gone] = None
            if pod is not None:
                uid = PodUID(pod.metadata.uid)
                known[uid], had = pod, self._marked.get(uid)
                if had is None or not _is_same(had, pod):
                    first = had.metadata.annotations.get(CONFIG_SEEN, seen) if had is not None else seen
                    marked[uid] = _annotated(pod, first)
        self._items, self._known, self._marked = (
            items,
            with_changes(self._known, known),
            with_changes(self._marked, marked),
        )
        return bool(marked)

    async def _wait_for_node(self) -> None:
        self._has_node = True
        if not await within(self._node_wait_s, self._node.wait_for(lambda node: node.registered)):
            log.warning("the node is not registered yet: its pods are admitted by the labels it is going to have")


def _is_same(before: Pod, now: Pod) -> bool:
    return is_same_mirror(before, now) if is_mirror(now) else is_same(before, now)


def _annotated(pod: Pod, seen: str) -> Pod:
    """The pod with annotations for its source and first-seen time. Mirror pods, which are not run, are left unchanged."""
    if is_mirror(pod):
        return pod
    annotations = {**pod.metadata.annotations, CONFIG_SOURCE: SOURCE_API, CONFIG_SEEN: seen}
    return replace(pod, metadata=replace(pod.metadata, annotations=annotations))
