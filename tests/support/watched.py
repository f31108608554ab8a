"""What a cluster's watchers see of pods and their node while something goes on, and what of it should not have been."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Collection, Iterable, Iterator

from support.agent import NODE_NAME, Json, condition
from support.cluster import WITHIN_S, Cluster, node_condition

MARK = "example.com/mark"
MIRROR = "kubernetes.io/config.mirror"
#: Longer than any test.
_WITHIN_S = 3600.0


class Watched:
    """Keeps all events of the namespace's pods and of the node from its start to its `stop`. `mark`: the pod that gets marks."""

    def __init__(self, cluster: Cluster, mark: str) -> None:
        self.cluster = cluster
        self.events: list[tuple[str, Json]] = []
        self._pod = mark
        self._marks = itertools.count()
        self._end = threading.Event()
        self._threads = [
            threading.Thread(target=self._keep, args=(kind,), name=f"watch of {kind}", daemon=True)
            for kind in ("pods", "node")
        ]
        for thread in self._threads:
            thread.start()

    def _keep(self, kind: str) -> None:
        own = Cluster(self.cluster.plane, self.cluster.namespace)
        stream = own.watch_pods("", _WITHIN_S) if kind == "pods" else own.watch_node(NODE_NAME, _WITHIN_S)
        for event in stream:
            if self._end.is_set():
                break
            self.events.append(event)
        own.close()

    def sync(self) -> None:
        """Return when everything up to now is in `events`."""
        text = str(next(self._marks))
        self._mark(text)

        def is_seen(objects: Iterable[Json]) -> bool:
            return any(item["metadata"].get("annotations", {}).get(MARK) == text for item in objects)

        self.cluster.wait("the mark is seen", lambda: is_seen(self.pods()) and is_seen(self.nodes()), WITHIN_S)

    def stop(self) -> None:
        """End the watches."""
        self._end.set()
        self._mark("end")
        for thread in self._threads:
            thread.join(30)

    def _mark(self, text: str) -> None:
        for path in (f"{self.cluster.pods_path}/{self._pod}", f"/api/v1/nodes/{NODE_NAME}"):
            self.cluster.patch(path, {"metadata": {"annotations": {MARK: text}}})

    def keep_newest(self) -> None:
        """Forget all but the newest state of each object."""
        count = len(self.events)
        newest = {item["metadata"]["uid"]: (kind, item) for kind, item in self.events[:count]}
        self.events[:count] = [event for event in newest.values() if event[0] != "DELETED"]

    def pods(self) -> list[Json]:
        """The states of pods that were seen, in order."""
        return [item for _, item in list(self.events) if "containers" in item["spec"]]

    def nodes(self) -> list[Json]:
        """The states of the node that were seen, in order."""
        return [item for _, item in list(self.events) if "containers" not in item["spec"]]


def faults(watched: Watched, forgiven: Collection[str] = ()) -> list[str]:
    """What users of the cluster would call a disturbance: of pods that were not deleted, and of the node.

    `forgiven`: the UIDs of pods that may become unready.
    """
    nodes = [f"node: {node['status']['conditions']}" for node in _lost_nodes(watched.nodes())]
    by_uid: dict[str, list[Json]] = {}
    for pod in watched.pods():
        if "deletionTimestamp" not in pod["metadata"]:
            by_uid.setdefault(pod["metadata"]["uid"], []).append(pod)
    return [
        *nodes,
        *(f"{pods[0]['metadata']['name']}: {text}" for pods in by_uid.values() for text in _of_pod(pods, forgiven)),
    ]


def _lost_nodes(nodes: Iterable[Json]) -> list[Json]:
    """The states of a node that is not Ready after it was."""
    after = itertools.dropwhile(lambda node: node_condition(node, "Ready") != "True", nodes)
    return [node for node in after if node_condition(node, "Ready") != "True"]


def _of_pod(pods: Iterable[Json], forgiven: Collection[str]) -> Iterator[str]:
    """What is undone or changed from one state of a pod to a later one."""
    was_ready = False
    known: dict[str, str] = {}
    for pod in pods:
        is_ready = condition(pod, "Ready") == "True"
        if was_ready and not is_ready and pod["metadata"]["uid"] not in forgiven:
            yield f"not ready: {_shown(pod)}"
        was_ready = was_ready or is_ready
        for name, value in _lasting(pod):
            if known.setdefault(name, value) != value:
                yield f"{name} was {known[name]}, then {value}"


def _shown(pod: Json) -> str:
    """The conditions and the containers of a pod, in short."""
    conditions = [
        (entry["type"], entry["status"], entry["lastTransitionTime"]) for entry in pod["status"]["conditions"]
    ]
    entries = [
        (container["name"], container["ready"], container["state"])
        for container in pod["status"].get("containerStatuses", [])
    ]
    return f"{conditions} {entries}"


def _lasting(pod: Json) -> Iterator[tuple[str, str]]:
    """What of a pod's status stays once it is there, by name."""
    status = pod["status"]
    for name in ("startTime", "podIP", "hostIP", "qosClass"):
        # to the reference, a static pod starts with the agent
        if name in status and not (name == "startTime" and MIRROR in pod["metadata"].get("annotations", {})):
            yield name, status[name]
    for entry in (*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])):
        yield f"restarts of {entry['name']}", str(entry["restartCount"])
        if entry.get("containerID"):
            yield f"id of {entry['name']}", entry["containerID"]
