"""The answers of the root-only socket: pods, one pod, the node, as plain values for JSON.

Owns: their fields, which `pykubelet pods` and `pykubelet explain` print and programs read with `-o json`. All times are wall
seconds. Reads: every cell with state of a pod.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any

from msgspec.structs import asdict

from pykubelet import __version__
from pykubelet.base.api import core
from pykubelet.base.api.codec import encode
from pykubelet.base.api.times import parse_time
from pykubelet.base.kit.cells import Cell, LazyCell, Post, within
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.values import Value
from pykubelet.base.model.claims import Claims
from pykubelet.base.model.content import Content
from pykubelet.base.model.credentials import Credentials
from pykubelet.base.model.diagnostics import Diagnostics, PodDiagnostics
from pykubelet.base.model.evictions import Evictions, SignalStates
from pykubelet.base.model.extensions import ExtensionStates
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.kube_events import Occurrence, Recent
from pykubelet.base.model.labels import CONFIG_SOURCE, SOURCE_API
from pykubelet.base.model.lifecycle import Lifecycles, PodLifecycle
from pykubelet.base.model.mounts import Mounts
from pykubelet.base.model.node import ApiNode, ApiState, NodeView, RuntimeReady
from pykubelet.base.model.observed import Observed
from pykubelet.base.model.placement import Placements
from pykubelet.base.model.plugins import Plugins
from pykubelet.base.model.remarks import Remark
from pykubelet.base.model.restart import is_sidecar
from pykubelet.base.model.roster import Roster, pod_ref
from pykubelet.base.model.statuses import Statuses
from pykubelet.base.model.usage import Usage, UsageWanted
from pykubelet.base.model.waits import MODULES, Wait
from pykubelet.net.http.server import JSON, Request, Response, text
from pykubelet.observe.eviction.model import AskForRanking
from pykubelet.serve.explain.columns import columns_of
from pykubelet.serve.explain.node import (
    api_document,
    certificates_document,
    claim_documents,
    cluster_waits,
    eviction_document,
    extensions_document,
    plugins_document,
)
from pykubelet.serve.explain.placement import device_documents, map_document, pod_placement_document
from pykubelet.serve.explain.volumes import VolumeContext, VolumeSearch, volume_documents
from pykubelet.serve.explain.waits import admission_waits, node_waits, pod_waits

Document = dict[str, Any]

#: Pods that are gone but have volumes, so that these are shown.
MAX_LEFT = 20
#: The greatest age of the usage that `/node` shows, and the longest wait for it: seconds.
USAGE_AGE_S, USAGE_WAIT_S = 1.0, 3.0
ExplainRoute = Callable[[Request], Coroutine[Any, Any, Response]]


class EvictionCells(Value):
    """The cells about eviction. `usage_wanted`: where the usage of pods is requested. `ask_extensions`: as in `EvictionSettings`."""

    signals: Cell[SignalStates]
    evictions: Cell[Evictions]
    usage: Cell[Usage]
    usage_wanted: Post[UsageWanted]
    ask_extensions: AskForRanking | None = None


class PlacementCells(Value):
    """The cells about what containers have of the machine."""

    placements: Cell[Placements]
    claims: Cell[Claims]


class StorageCells(Value):
    """The cells about attached volumes and claims, and the search for what happens to volumes on this machine."""

    api_node: Cell[ApiNode]
    content: Cell[Content]
    search: VolumeSearch


class DiagnosticCells(Value):
    """The diagnostics of components. `detailed`: of those with more detailed waits than the pod workers'."""

    workers: LazyCell[Diagnostics]
    placement: LazyCell[Diagnostics]
    volumes: LazyCell[Diagnostics]
    detailed: tuple[LazyCell[Diagnostics], ...] = ()


class AskInputs(Value):
    """The cells from which the answers are made.

    `api`, `credentials`: those of a node in a cluster. `plugins`: the plugins that have registered. `remarks`: about the configuration.
    """

    roster: Cell[Roster]
    lifecycles: Cell[Lifecycles]
    observed: Cell[Observed]
    mounts: Cell[Mounts]
    statuses: Cell[Statuses]
    recent: Cell[Recent]
    node: Cell[NodeView]
    runtime: Cell[RuntimeReady]
    diagnostics: DiagnosticCells
    api: Cell[ApiState] | None = None
    credentials: Cell[Credentials] | None = None
    eviction: EvictionCells | None = None
    placement: PlacementCells | None = None
    plugins: Cell[Plugins] | None = None
    storage: StorageCells | None = None
    remarks: tuple[Remark, ...] = ()
    extensions: Cell[ExtensionStates] | None = None


def ask_routes(inputs: AskInputs, clock: Clock) -> ExplainRoute:
    """`/pods`: a summary of all pods. `/pods/<uid>`: one pod in full. `/node`: the node, its problems and its Events.

    `/node` waits for new usage of the pods, at most USAGE_WAIT_S.
    """
    started_at = clock.wall()

    async def route(request: Request) -> Response:
        if request.path == "/pods":
            return _json(pods_document(inputs, clock.wall(), started_at))
        if request.path == "/node/recording":
            recording = _placement_recording(inputs)
            return _json(recording) if recording is not None else text(404, "not found\n")
        if request.path == "/node":
            if inputs.eviction is not None:
                await _measure(inputs.eviction, clock.monotonic() - USAGE_AGE_S)
            placement, left = await _placement(inputs), await _left_volumes(inputs, clock)
            node = node_document(inputs, clock.wall(), started_at)
            return _json({**node, "placement": placement, "left_volumes": left})
        name, _, part = request.path.removeprefix("/pods/").partition("/")
        uid = PodUID(name)
        if part == "recording":
            recording = recording_document(inputs, uid)
            if recording is not None:
                return _json(recording)
        elif uid != request.path and not part:
            volumes = await _volumes(inputs, clock, (uid,))
            document = pod_document(inputs, uid, clock.wall())
            if document is not None:
                return _json({**document, "volumes": volumes.get(uid, [])})
        return text(404, "not found\n")

    return route


async def _measure(eviction: EvictionCells, at_least: float) -> None:
    """Wait for usage that was taken at `at_least` or later (monotonic seconds); without it the last one is shown."""
    eviction.usage_wanted.post(UsageWanted(at_least))
    wait = eviction.usage.wait_for(lambda usage: usage.taken_at is not None and usage.taken_at >= at_least)
    await within(USAGE_WAIT_S, wait)


async def _placement(inputs: AskInputs) -> Document | None:
    """The map of the node. Other tasks run between the resources of device plugins, each of which may have many devices."""
    if inputs.placement is None:
        return None
    placements, names = inputs.placement.placements.get(), _names(inputs)
    devices = []
    for document in device_documents(placements, names):
        devices.append(document)
        await asyncio.sleep(0)
    return {**map_document(placements, inputs.placement.claims.get(), names), "devices": devices}


async def _volumes(inputs: AskInputs, clock: Clock, uids: Iterable[PodUID]) -> dict[PodUID, list[Document]]:
    """The volumes of pods. Waits for the search of processes, at most `ANSWER_S` seconds."""
    before = inputs.diagnostics.volumes.get().pods
    pods = {uid: before[uid].volumes for uid in uids if uid in before}
    if inputs.storage is None or not pods:
        return {}
    every = await inputs.storage.search.find(pods)
    now, plugins = (
        inputs.diagnostics.volumes.get().pods,
        inputs.plugins.get() if inputs.plugins is not None else Plugins(),
    )
    statuses = {uid: known.volumes for uid, known in now.items()}
    node, in_use = inputs.storage.api_node.get(), inputs.mounts.get().in_use or ()
    names, mono = _names(inputs), clock.monotonic()
    return {
        uid: volume_documents(uid, VolumeContext(node, plugins, names, mono, in_use, statuses, facts))
        for uid, facts in every.items()
    }


async def _left_volumes(inputs: AskInputs, clock: Clock) -> list[Document]:
    """`[{"pod", "volumes"}]`: the volumes of pods that the node does not know any more, such as after a restart. `pod`: its UID."""
    known = _names(inputs)
    uids = [uid for uid in sorted(inputs.mounts.get().pods) if uid not in known]
    found = await _volumes(inputs, clock, uids[:MAX_LEFT])
    return [{"pod": uid, "volumes": volumes} for uid, volumes in found.items() if volumes]


def _placement_recording(inputs: AskInputs) -> Document | None:
    """The newest decisions of placement, as `pykubelet replay` reads them; None if there are none."""
    from pykubelet.provide.placement.recording import record_placement  # the health port does not wait for it

    return record_placement(inputs.diagnostics.placement.get().steps, __version__)


def _names(inputs: AskInputs) -> dict[PodUID, str]:
    """`namespace/name` of all pods."""
    pods = [entry.pod for entry in inputs.roster.get().pods.values()]
    pods += [lifecycle.pod for lifecycle in inputs.lifecycles.get().pods.values()]
    return {ref.uid: f"{ref.namespace}/{ref.name}" for ref in map(pod_ref, pods)}


def _json(document: Document) -> Response:
    return Response(200, encode(document), JSON)


def pods_document(inputs: AskInputs, now: float, started_at: float) -> Document:
    """`{"time", "node", "pods": [...], "problems": [...], "remarks": [...], "waits": [...]}`; pods are sorted by namespace and name."""
    lifecycles, roster = inputs.lifecycles.get().pods, inputs.roster.get()
    uids = {*lifecycles, *roster.pods}
    known = _PodDiagnostics(inputs)
    pods = [found for uid in uids if (found := _summary(inputs, uid, known)) is not None]
    pods.sort(key=lambda pod: (pod["namespace"], pod["name"], pod["uid"]))
    return {
        "time": now,
        "node": inputs.node.get().name,
        "pods": pods,
        "problems": [asdict(problem) for problem in roster.problems],
        "remarks": _all_remarks(inputs),
        "waits": [_plain_wait(wait) for wait in _waits_of_all(inputs, now, started_at)],
    }


def node_document(inputs: AskInputs, now: float, started_at: float) -> Document:
    """The node's runtime, API server, certificates, waits and Events. `now`, `started_at`: wall seconds."""
    node, runtime, roster = inputs.node.get(), inputs.runtime.get(), inputs.roster.get()
    return {
        "time": now,
        "name": node.name,
        "ips": list(node.ips),
        "started": started_at,
        "capacity": dict(node.capacity),
        "allocatable": dict(node.allocatable),
        "runtime": {
            "name": runtime.name,
            "version": runtime.version,
            "ok": runtime.ok,
            "error": runtime.runtime_error,
            "network_error": runtime.network_error,
            "answer_error": runtime.answer_error,
            "pleg_error": runtime.pleg_error,
            "since": runtime.since,
            "restarts_seen": runtime.epoch,
        },
        "sources_ready": roster.sources_ready,
        "problems": [asdict(problem) for problem in roster.problems],
        "remarks": _all_remarks(inputs),
        "api": api_document(_api(inputs), node),
        "eviction": _eviction(inputs),
        "certificates": certificates_document(_credentials(inputs)),
        "claims": claim_documents(inputs.storage.content.get()) if inputs.storage is not None else [],
        "extensions": extensions_document(inputs.extensions.get()) if inputs.extensions is not None else [],
        "plugins": plugins_document(inputs.plugins.get()) if inputs.plugins is not None else [],
        "waits": [_plain_wait(wait) for wait in _waits_of_all(inputs, now, started_at)],
        "timeline": [_event_line(found) for found in inputs.recent.get().node],
    }


def _all_remarks(inputs: AskInputs) -> list[Document]:
    """About the configuration and about all manifests."""
    return [asdict(remark) for remark in (*inputs.remarks, *inputs.roster.get().remarks)]


def _waits_of_all(inputs: AskInputs, now: float, started_at: float) -> tuple[Wait, ...]:
    """The waits of the node, which delay all pods."""
    waits = node_waits(inputs.runtime.get(), inputs.roster.get(), started_at)
    return waits + cluster_waits(_api(inputs), _credentials(inputs), inputs.node.get(), now, started_at)


def _eviction(inputs: AskInputs) -> Document | None:
    cells = inputs.eviction
    if cells is None:
        return None
    roster, lifecycles = inputs.roster.get(), inputs.lifecycles.get()
    return eviction_document(
        cells.signals.get(), cells.evictions.get(), roster, lifecycles, cells.usage.get(), cells.ask_extensions
    )


def _api(inputs: AskInputs) -> ApiState:
    return inputs.api.get() if inputs.api is not None else ApiState()


def _credentials(inputs: AskInputs) -> Credentials:
    return inputs.credentials.get() if inputs.credentials is not None else Credentials()


class _PodDiagnostics:
    """The diagnostics of all components. Made once for each answer, because it takes a look at all pods."""

    def __init__(self, inputs: AskInputs) -> None:
        self._workers = inputs.diagnostics.workers.get().pods
        self._detailed = [cell.get().pods for cell in inputs.diagnostics.detailed]
        self._mounts = inputs.mounts.get().pods

    def worker(self, uid: PodUID) -> PodDiagnostics:
        """What the pod worker knows."""
        return self._workers.get(uid, PodDiagnostics())

    def detailed(self, uid: PodUID) -> list[Wait]:
        """The waits of all other components."""
        mounts = self._mounts.get(uid)
        found = [wait for pods in self._detailed if uid in pods for wait in pods[uid].waits]
        return found + list(mounts.waits if mounts is not None else ())


def _summary(inputs: AskInputs, uid: PodUID, known: _PodDiagnostics) -> Document | None:
    found = _pod_of(inputs, uid)
    if found is None:
        return None
    pod, lifecycle = found
    ref = pod_ref(pod)
    status = inputs.statuses.get().pods.get(uid, core.PodStatus())
    columns = columns_of(pod, status, lifecycle)
    entry = inputs.roster.get().pods.get(uid)
    begun = [lifecycle.started_at] if lifecycle is not None else []
    if entry is not None:
        begun.append(entry.seen_at)
    if status.startTime:
        begun.append(parse_time(status.startTime))
    detailed = [*known.detailed(uid), *admission_waits(entry, lifecycle)]
    shown = pod_waits(lifecycle, known.worker(uid).waits, detailed, status)
    return {
        "namespace": ref.namespace,
        "name": ref.name,
        "uid": uid,
        "source": entry.source if entry is not None else pod.metadata.annotations.get(CONFIG_SOURCE, SOURCE_API),
        "desired": entry is not None,
        "phase": status.phase,
        "status": columns.status,
        "reason": status.reason,
        "message": status.message,
        "ready": f"{columns.ready}/{columns.total}",
        "restarts": columns.restarts,
        "created": min(begun, default=0.0),
        "stage": lifecycle.stage if lifecycle is not None else "",
        "stage_since": lifecycle.stage_since if lifecycle is not None else 0.0,
        "kill_reason": lifecycle.kill_reason if lifecycle is not None else None,
        "ip": status.podIP,
        "waits": [_plain_wait(wait) for wait in shown],
    }


def _pod_of(inputs: AskInputs, uid: PodUID) -> tuple[core.Pod, PodLifecycle | None] | None:
    lifecycle = inputs.lifecycles.get().pods.get(uid)
    if lifecycle is not None:
        return lifecycle.pod, lifecycle
    entry = inputs.roster.get().pods.get(uid)
    return (entry.pod, None) if entry is not None else None


def recording_document(inputs: AskInputs, uid: PodUID) -> Document | None:
    """The newest steps of the pod's state machine, as `pykubelet replay` reads them; None if there are none."""
    from pykubelet.act.pods.recording import record  # the health port does not wait for it

    found = inputs.diagnostics.workers.get().pods.get(uid)
    return record(found.steps, __version__) if found is not None else None


def pod_document(inputs: AskInputs, uid: PodUID, now: float) -> Document | None:
    """A pod's summary, its containers, conditions and timeline; None if there is no such pod."""
    known = _PodDiagnostics(inputs)
    summary = _summary(inputs, uid, known)
    found = _pod_of(inputs, uid)
    if summary is None or found is None:
        return None
    pod, _ = found
    status = inputs.statuses.get().pods.get(uid, core.PodStatus())
    view = inputs.observed.get().pods.get(uid)
    transitions = known.worker(uid).timeline
    timeline: list[Document] = [{"at": line.at, "what": line.what, "cause": line.cause} for line in transitions]
    timeline.extend(_event_line(occurrence) for occurrence in inputs.recent.get().pods.get(uid, ()))
    timeline.sort(key=lambda line: line["at"])
    return {
        **summary,
        "time": now,
        "qos": status.qosClass,
        "remarks": [asdict(remark) for remark in inputs.roster.get().remarks if remark.uid == uid],
        "placement": _pod_placement(inputs.placement, uid),
        "sandboxes": [
            {"id": s.id, "attempt": s.attempt, "ready": s.ready, "created": s.created_at / 1e9, "ips": list(s.ips)}
            for s in (view.sandboxes if view is not None else ())
        ],
        "containers": _containers(pod, status),
        "conditions": [
            {"type": c.type, "status": c.status, "reason": c.reason, "message": c.message} for c in status.conditions
        ],
        "timeline": timeline,
    }


def _pod_placement(cells: PlacementCells | None, uid: PodUID) -> Document | None:
    return pod_placement_document(cells.placements.get(), cells.claims.get(), uid) if cells is not None else None


def _containers(pod: core.Pod, status: core.PodStatus) -> list[Document]:
    sidecars = {c.name for c in pod.spec.initContainers if is_sidecar(c)}
    containers = [_container(s, "sidecar" if s.name in sidecars else "init") for s in status.initContainerStatuses]
    containers += [_container(s, "regular") for s in status.containerStatuses]
    return containers + [_container(s, "ephemeral") for s in status.ephemeralContainerStatuses]


def _container(status: core.ContainerStatus, kind: str) -> Document:
    return {
        "name": status.name,
        "kind": kind,
        "image": status.image,
        "id": status.containerID,
        "ready": status.ready,
        "started": bool(status.started),
        "restarts": status.restartCount,
        **_state(status.state),
        "last": _state(status.lastState) if status.lastState is not None else None,
    }


def _state(state: core.ContainerState | None) -> Document:
    """The fields of a container's state: `state`, since when, and why."""
    if state is not None and state.running is not None:
        return {"state": "running", "since": _seconds(state.running.startedAt), "reason": "", "message": ""}
    if state is not None and state.terminated is not None:
        ended = state.terminated
        return {
            "state": "terminated",
            "since": _seconds(ended.finishedAt),
            "reason": ended.reason,
            "message": ended.message,
            "exit_code": ended.exitCode,
        }
    waiting = state.waiting if state is not None and state.waiting is not None else core.ContainerStateWaiting()
    return {"state": "waiting", "since": None, "reason": waiting.reason, "message": waiting.message}


def _seconds(time: str) -> float | None:
    return parse_time(time) if time else None


def _plain_wait(wait: Wait) -> Mapping[str, Any]:
    """The fields of `Wait`, and `module`: the package of the code behind its owner."""
    return {**asdict(wait), "module": MODULES[wait.owner]}


def _event_line(found: Occurrence) -> Document:
    kube_event = found.kube_event
    return {
        "at": found.last_at,
        "what": found.message,
        "cause": "",
        "event": kube_event.reason,
        "type": kube_event.type,
        "object": kube_event.field_path,
        "count": found.count,
        "first_at": found.first_at,
    }
