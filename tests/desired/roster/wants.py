"""Pods, circumstances and a running loop for the tests of the roster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pykubelet.base.api.codec import from_object
from pykubelet.base.api.core import Pod
from pykubelet.base.kit.values import replace
from pykubelet.base.model.evictions import NodePressure
from pykubelet.base.model.ids import ContainerID, PodUID, SandboxID
from pykubelet.base.model.labels import CONFIG_SOURCE
from pykubelet.base.model.lifecycle import KillReason, Lifecycles, PodLifecycle, Stage
from pykubelet.base.model.node import NodeView, RuntimeReady
from pykubelet.base.model.observed import ContainerView, Observed, ObservedState, PodView, SandboxView
from pykubelet.base.model.placement import Placements
from pykubelet.base.model.roster import NameHolder, Roster, SourceChanged, pod_ref
from pykubelet.desired.roster.decide import counted_now, settle
from pykubelet.desired.roster.merge import apply_quarantine, apply_source, roster_of
from pykubelet.desired.roster.model import AdmissionFacts, AdmissionRules, CountedPods, RosterState
from pykubelet.desired.roster.readmission import readmit
from pykubelet.desired.roster.resize import settle_sizes

NODE = NodeView(
    "node-1",
    "node-1",
    allocatable={"cpu": 1000, "memory": 1 << 30, "ephemeral-storage": 10 << 30, "pods": 110},
    labels={"kubernetes.io/os": "linux", "zone": "a", "rank": "7"},
)
LISTED = Observed(listed_at=1.0)
WALL = 1_700_000_000.0


def make_guaranteed(name: str = "web", **fields: Any) -> Pod:
    """As `make_pod`, with limits that are its requests."""
    pod = make_pod(name, **{"cpu": "10m", "memory": "1Mi", **fields})
    (container,) = pod.spec.containers
    assert container.resources is not None
    resources = replace(container.resources, limits=container.resources.requests)
    return replace(pod, spec=replace(pod.spec, containers=(replace(container, resources=resources),)))


def make_pod(name: str = "web", uid: str = "", *, source: str = "api", ports: Any = (), **fields: Any) -> Pod:
    """`cpu`, `memory`: requests. `metadata` and all else: in the words of a manifest."""
    requests = {key: fields.pop(key) for key in ("cpu", "memory") if key in fields}
    meta = fields.pop("metadata", {})
    annotations = {**({CONFIG_SOURCE: source} if source != "api" else {}), **meta.pop("annotations", {})}
    container = {"name": "app", "image": "busybox", "resources": {"requests": requests}, "ports": list(ports)}
    given = {
        "metadata": {"name": name, "namespace": "shop", "uid": uid or f"{name}-1", "annotations": annotations, **meta},
        "spec": {"containers": [container], **fields},
    }
    return from_object(Pod, given)


def sized(name: str, cpu: str, generation: int = 1, **more: Any) -> Pod:
    return make_pod(name, cpu=cpu, metadata={"generation": generation}, **more)


def facts(
    node: NodeView = NODE,
    observed: Observed = LISTED,
    lifecycles: Lifecycles | None = None,
    runtime: RuntimeReady | None = None,
    pressure: NodePressure | None = None,
    placements: Placements | None = None,
    **rules: Any,
) -> AdmissionFacts:
    return AdmissionFacts(
        node,
        runtime or RuntimeReady(checked=True),
        observed,
        lifecycles or Lifecycles(),
        AdmissionRules(**rules),
        pressure=pressure or NodePressure(),
        placements=placements or Placements(),
    )


def running(pod: Pod, state: ObservedState = ObservedState.RUNNING, exit_code: int = 0) -> PodView:
    """The pod as the runtime has it, with one container in that state."""
    alive = state is ObservedState.RUNNING
    container = ContainerView(
        ContainerID("c"), "app", SandboxID("s"), state, 0, 1, started_at=2, finished_at=3, exit_code=exit_code
    )
    return PodView(pod_ref(pod), (SandboxView(SandboxID("s"), 0, alive, 1),), (container,), 1.0)


def observe(*views: PodView, listed_at: float | None = 1.0) -> Observed:
    return Observed({view.ref.uid: view for view in views}, listed_at)


def stage(pod: Pod, at: Stage, reason: KillReason | None = None) -> Lifecycles:
    ref = pod_ref(pod)
    return Lifecycles({ref.uid: PodLifecycle(ref, pod, at, 0.0, 0.0, kill_reason=reason)})


class Desk:
    """A roster without a loop: the sets of sources go in, the published roster and Events come out."""

    def __init__(self, expected: tuple[str, ...] = ("file",), holders: Mapping[str, NameHolder] | None = None) -> None:
        self.state = RosterState(holders=holders or {})
        self.roster = Roster()
        self.events: list[tuple[str, str, str]] = []
        self.expected = frozenset(expected)

    def send(
        self, *pods: Pod, source: str = "file", at: AdmissionFacts | None = None, now: float = 0.0, wall: float = WALL
    ) -> Roster:
        return self.take(SourceChanged(source, pods), at, now, wall)

    def take(
        self, event: SourceChanged, at: AdmissionFacts | None = None, now: float = 0.0, wall: float = WALL
    ) -> Roster:
        self.state, recorder = apply_source(self.state, event, wall)
        self._note(recorder)
        self.state, recorder = apply_quarantine(self.state)
        self._note(recorder)
        return self.settle_again(at, now, wall)

    def settle_again(self, at: AdmissionFacts | None = None, now: float = 0.0, wall: float = WALL) -> Roster:
        self.state = readmit(self.state, at or facts(), now, wall)
        self.state, recorder = settle(self.state, at or facts(), now, wall)
        self._note(recorder)
        entries, counted, recorder = settle_sizes(self.state.entries, self.state.counted, at or facts(), wall)
        self.state = replace(self.state, entries=entries, counted=counted)
        self._note(recorder)
        self.roster = roster_of(self.state, self.expected, self.roster)
        return self.roster

    def check_counted(self, at: AdmissionFacts) -> None:
        """What is carried over from one decision to the next must be what a look at all pods gives."""
        state = self.state
        assert state.counted.demands == counted_now(CountedPods(), state.entries, at).demands
        assert state.counted.load.pods == len(state.counted.demands)
        assert self.roster.pods == {uid: entry.item for uid, entry in state.entries.items()}

    def _note(self, recorder: Any) -> None:
        self.events.extend((h.pod.name, h.reason, h.message) for h in recorder)

    def reason(self, uid: str) -> str | None:
        """Why the pod is refused, or None."""
        rejection = self.roster.pods[PodUID(uid)].rejection
        return None if rejection is None else rejection.reason

    def message(self, uid: str) -> str:
        rejection = self.roster.pods[PodUID(uid)].rejection
        return "" if rejection is None else rejection.message

    def is_held(self, uid: str) -> bool:
        return self.roster.pods[PodUID(uid)].admission_wait is not None
