"""All that a pod, and the node, waits for, from every room that knows. Pure.

What a room tells in detail takes the place of the coarse wait for that room. A container that runs and is not what the
pod needs it to be (an init container that has not ended, a probe that has not passed) is waited for, too.
"""

from __future__ import annotations

from collections.abc import Iterable

from pykubelet.base.api import core
from pykubelet.base.api.times import parse_time
from pykubelet.base.model.lifecycle import PodLifecycle, Stage
from pykubelet.base.model.mounts import PodMounts
from pykubelet.base.model.node import RuntimeReady
from pykubelet.base.model.reasons import CONTAINERS_READY, READINESS_GATES_NOT_READY
from pykubelet.base.model.reasons import POD_READY as READY
from pykubelet.base.model.restart import is_sidecar
from pykubelet.base.model.roster import Roster
from pykubelet.base.model.waits import Wait

PROBES = "observe/probes"
#: So long after the last full look at the runtime's pods the node is no longer ready.
LOOK_LOST_S = 180.0


def pod_waits(
    lifecycle: PodLifecycle | None, mounts: PodMounts | None, more: Iterable[Wait], status: core.PodStatus
) -> tuple[Wait, ...]:
    """Oldest first. `more`: what further rooms tell, such as pulls."""
    detailed = [*more, *(mounts.waits if mounts is not None else ())]
    owners = {wait.owner for wait in detailed}
    coarse = lifecycle.waits if lifecycle is not None else ()
    waits = [*(wait for wait in coarse if wait.owner not in owners), *detailed]
    if lifecycle is not None and lifecycle.stage is Stage.SYNCING:
        told = {wait.subject for wait in detailed if wait.owner == PROBES}
        waits.extend(w for w in _on_containers(lifecycle.pod, status) if w.owner != PROBES or w.subject not in told)
    return tuple(sorted(set(waits), key=lambda wait: (wait.since, wait.what, wait.subject)))


def _on_containers(pod: core.Pod, status: core.PodStatus) -> Iterable[Wait]:
    specs = {c.name: c for c in (*pod.spec.initContainers, *pod.spec.containers)}
    conditions = {c.type: c for c in status.conditions}
    for found in (*status.initContainerStatuses, *status.containerStatuses):
        running = found.state.running if found.state is not None else None
        container = specs.get(found.name)
        if running is None or container is None:
            continue
        since = parse_time(running.startedAt) if running.startedAt else 0.0
        if container in pod.spec.initContainers and not is_sidecar(container):
            yield Wait("init container to end", "container", since, found.name, next_step="start the next one")
        elif not found.started:
            yield Wait("startup probe", PROBES, since, found.name, next_step="probe again")
        elif not found.ready:
            yield Wait("readiness probe", PROBES, since, found.name, next_step="probe again")
    ready = conditions.get(READY)
    if ready is not None and ready.reason == READINESS_GATES_NOT_READY:
        since = parse_time(conditions[CONTAINERS_READY].lastTransitionTime)
        step = "take the pod for ready once somebody sets them"
        yield Wait("readiness gates", "API server", since, "", ready.reason, ready.message, step)


def node_waits(runtime: RuntimeReady, roster: Roster, started_at: float) -> tuple[Wait, ...]:
    """What all pods wait for. `started_at`: the agent's start, wall seconds."""
    since = runtime.since or started_at
    waits = []
    if runtime.answer_error or not runtime.ok:
        reason = runtime.runtime_error or "the last good answer still counts"
        step = "ask again"
        waits.append(
            Wait("container runtime", "report/node", since, "", reason, runtime.answer_error, step, runtime.next_at)
        )
    if runtime.unseen_since is not None:
        waits.append(_late_look(runtime.unseen_since, runtime.pleg_error))
    if runtime.ok and runtime.network_error:
        step, error = "ask the runtime again", runtime.network_error
        waits.append(Wait("pod network", "report/node", since, "", "", error, step, runtime.next_at))
    if not roster.sources_ready:
        detail = f"not all have delivered their pods yet{_named(roster)}"
        waits.append(Wait("pod sources", "desired/sources", started_at, detail=detail, next_step="ask them again"))
    return tuple(waits)


def _named(roster: Roster) -> str:
    """Which sources are meant; why is among the problems, where they told."""
    return f": {', '.join(roster.missing)}" if roster.missing else ""


def _late_look(since: float, error: str) -> Wait:
    what, owner = "look at all pods", "observe/pleg"
    detail = "the runtime has not answered the question for all its pods since then"
    if error:
        return Wait(what, owner, since, "", error, detail, "ask again; the node is ready once it answers")
    return Wait(what, owner, since, "", "", detail, "ask again, and call the node not ready", since + LOOK_LOST_S)
