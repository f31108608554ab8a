"""A node for the probes' loop: pods and containers set by hand, a prober that answers what the test wants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from pykubelet.base.api import core
from pykubelet.base.api.codec import from_object
from pykubelet.base.kit.cells import Sink, make_cell, make_lazy_cell
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import replace
from pykubelet.base.model.diagnostics import Diagnostics
from pykubelet.base.model.ids import ContainerID, PodRef, PodUID, SandboxID
from pykubelet.base.model.kube_events import KubeEvent
from pykubelet.base.model.lifecycle import Lifecycles, PodLifecycle, Stage, Starts
from pykubelet.base.model.node import NodeView
from pykubelet.base.model.observed import ContainerView, Observed, ObservedState, PodView, SandboxView
from pykubelet.base.model.probes import ProbeKind, ProbeResult, ProbeResults
from pykubelet.base.model.waits import Wait
from pykubelet.edges.probing.outcome import Outcome, passed
from pykubelet.observe.probes.decide import EarlierResults
from pykubelet.observe.probes.execute import Prober, ProbeRequest
from pykubelet.observe.probes.limiter import ProbeLimits
from pykubelet.observe.probes.loop import ProbeInputs, ProbesLoop

WALL = 1_700_000_000.0
TICK = 0.01
Json = dict[str, Any]


async def never(_ask: ProbeRequest) -> Outcome:
    """A probe that does not end."""
    await asyncio.Event().wait()
    return passed()


class LoopClock:
    """The event loop's time. `jump_s`: what an administrator has done to the wall clock."""

    jump_s = 0.0

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def wall(self) -> float:
        return WALL + self.jump_s + asyncio.get_running_loop().time()


@dataclass
class ScriptedProber:
    """Answers by container name; remembers when it was asked what."""

    answers: dict[str, Outcome | Callable[[ProbeRequest], Awaitable[Outcome]]] = field(default_factory=dict)
    asked: list[tuple[float, str, ContainerID]] = field(default_factory=list)
    asks: list[ProbeRequest] = field(default_factory=list)

    async def probe(self, ask: ProbeRequest) -> Outcome:
        self.asked.append((round(asyncio.get_running_loop().time(), 3), ask.container.name, ask.id))
        self.asks.append(ask)
        answer = self.answers.get(ask.container.name, passed())
        return answer if isinstance(answer, Outcome) else await answer(ask)

    def times(self, name: str) -> list[float]:
        return [at for at, asked, _ in self.asked if asked == name]


def probed(name: str = "app", *kinds: str, sidecar: bool = False, **terms: Any) -> Json:
    """A container with TCP probes of `kinds` (`readiness`, ...), all with the same terms."""
    probe = {"tcpSocket": {"port": 80}, "periodSeconds": 10, "timeoutSeconds": 1, "failureThreshold": 3, **terms}
    policy = {"restartPolicy": "Always"} if sidecar else {}
    return {"name": name, "image": "i", **policy, **{f"{kind}Probe": probe for kind in kinds}}


@dataclass
class Node:
    """The cells. Containers are `<pod>/<name>#<attempt>`, running from the moment they are set."""

    clock: LoopClock = field(default_factory=LoopClock)
    recorder: Sink[KubeEvent] = field(default_factory=Sink)

    def __post_init__(self) -> None:
        self.lifecycles, self._lifecycles = make_cell("lifecycles", Lifecycles())
        self.observed, self._observed = make_cell("observed", Observed(listed_at=0.0))
        self.node, _ = make_cell("node", NodeView("node", "node", ("192.0.2.1",)))
        self.results, self.results_writer = make_cell("probes", ProbeResults())
        self.diagnostics, self.diagnostics_end = make_lazy_cell("diagnostics", Diagnostics())
        self.starts = make_cell("starts", Starts())[1]

    def pod(self, name: str, *containers: Json, init: tuple[Json, ...] = (), **spec: Any) -> PodUID:
        """A pod in its normal life, nothing of it running yet."""
        ref = PodRef("shop", name, PodUID(name))
        given = {"containers": list(containers), "initContainers": list(init), **spec}
        metadata = {"name": name, "namespace": "shop", "uid": name}
        pod = from_object(core.Pod, {"metadata": metadata, "spec": given})
        self.take_up(PodLifecycle(ref, pod, Stage.SYNCING, 0.0, 0.0))
        self._set_view(PodView(ref, (SandboxView(SandboxID("s"), 0, True, 0, ("10.0.0.9", "fd00::9")),)))
        return ref.uid

    def stage(self, uid: PodUID, stage: Stage) -> None:
        self.take_up(replace(self.lifecycles.get().pods[uid], stage=stage))

    def post_starting(self, uid: PodUID, *names: str) -> None:
        """The postStart hooks of these containers run."""
        self.take_up(replace(self.lifecycles.get().pods[uid], post_starting=dict.fromkeys(names, 0)))

    def forget(self, uid: PodUID) -> None:
        pods = {key: known for key, known in self.lifecycles.get().pods.items() if key != uid}
        self._lifecycles.publish(Lifecycles(pods))

    def run(self, uid: PodUID, name: str, attempt: int = 0, ago_s: float = 0.0) -> ContainerID:
        """A new instance runs."""
        view = self.observed.get().pods[uid]
        made = ContainerView(
            id=ContainerID(f"{uid}/{name}#{attempt}"),
            name=name,
            sandbox_id=SandboxID("s"),
            state=ObservedState.RUNNING,
            attempt=attempt,
            created_at=attempt,
            started_at=int((self.clock.wall() - ago_s) * 1e9),
        )
        self._set_view(replace(view, containers=(made, *view.containers)))
        return made.id

    def report(self, uid: PodUID, name: str, container: ContainerID, *, ready: bool) -> None:
        """The API server has this status of a container."""
        lifecycle, state = self.lifecycles.get().pods[uid], {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
        entry = {
            "name": name,
            "containerID": f"containerd://{container}",
            "state": state,
            "started": True,
            "ready": ready,
        }
        status = from_object(core.PodStatus, {"containerStatuses": [entry]})
        self.take_up(replace(lifecycle, pod=replace(lifecycle.pod, status=status)))

    def list_pods(self) -> None:
        """A relist that finds every pod as it was."""
        now = self.clock.monotonic()
        pods = {uid: replace(view, read_at=now) for uid, view in self.observed.get().pods.items()}
        self._observed.publish(Observed(pods, listed_at=now))

    def hide(self, uid: PodUID) -> Callable[[], None]:
        """The runtime has the pod, and reports its status only when the returned function is called."""
        found = self.observed.get()
        view = found.pods[uid]
        others = {key: known for key, known in found.pods.items() if key != uid}
        self._observed.publish(Observed(others, found.listed_at, frozenset({view.ref})))
        return lambda: self._set_view(view)

    def exit(self, uid: PodUID, name: str) -> None:
        view = self.observed.get().pods[uid]
        containers = tuple(replace(c, state=ObservedState.EXITED) if c.name == name else c for c in view.containers)
        self._set_view(replace(view, containers=containers))

    def gone(self, uid: PodUID) -> None:
        pods = {key: view for key, view in self.observed.get().pods.items() if key != uid}
        self._observed.publish(Observed(pods, listed_at=self.clock.monotonic()))

    @property
    def waits(self) -> dict[PodUID, tuple[Wait, ...]]:
        """The waits of pods for their probes, as `explain` shows them."""
        return {uid: known.waits for uid, known in self.diagnostics.get().pods.items()}

    def take_up(self, lifecycle: PodLifecycle) -> None:
        self._lifecycles.publish(Lifecycles({**self.lifecycles.get().pods, lifecycle.ref.uid: lifecycle}))

    def _set_view(self, view: PodView) -> None:
        self._observed.publish(Observed({**self.observed.get().pods, view.ref.uid: view}, listed_at=0.0))

    def result(self, container: ContainerID, kind: ProbeKind) -> ProbeResult | None:
        return self.results.get().get(container, kind)

    @property
    def messages(self) -> list[str]:
        return [f"{h.reason} {h.field_path} {h.message}" for h in self.recorder.events]

    @asynccontextmanager
    async def probing(
        self,
        prober: Prober,
        remembered: Mapping[ContainerID, EarlierResults] | None = None,
        limits: ProbeLimits | None = None,
        fraction: float = 0.0,
        keeps: bool = True,
    ) -> AsyncIterator[ProbesLoop]:
        """The loop at work."""
        inputs = ProbeInputs(self.lifecycles, self.observed, self.node, self.starts.cell, remembered or {}, keeps)
        cells = (self.results_writer, self.diagnostics_end)
        loop = ProbesLoop(inputs, cells, prober, self.clock, self.recorder, limits, lambda: fraction)
        async with Supervisor("test") as supervisor:
            supervisor.start_root("probes", loop.run())
            for _ in range(10):
                await asyncio.sleep(0)  # the first relist, without time going by
            yield loop
