"""All waits of a pod and of the node, merged from all components. Pure.

The detailed waits of an owner replace the pod worker's coarse wait for that owner. A running container that the pod still
waits for (an init container that has not ended, a probe that has not passed) is a wait too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from pykubelet.base.api import core
from pykubelet.base.api.times import parse_time
from pykubelet.base.model.lifecycle import PodLifecycle, Stage
from pykubelet.base.model.node import RuntimeReady
from pykubelet.base.model.reasons import (
    APP_ARMOR,
    CONTAINERS_READY,
    POD_FEATURE_UNSUPPORTED,
    POD_LEVEL_RESOURCES_NOT_SUPPORTED,
    POD_OS_NOT_SUPPORTED,
    POD_OS_SELECTOR_MISMATCH,
    READINESS_GATES_NOT_READY,
    SYSCTL_FORBIDDEN,
    VOLUME_ATTACHMENT_LIMIT_EXCEEDED,
)
from pykubelet.base.model.reasons import POD_READY as READY
from pykubelet.base.model.restart import is_sidecar
from pykubelet.base.model.roster import Roster, RosterPod, is_static
from pykubelet.base.model.waits import Owner, Wait

#: Rejections that depend on the pod itself, or on what does not change while the agent runs.
_UNTIL_RESTART = frozenset(
    {
        *(APP_ARMOR, POD_FEATURE_UNSUPPORTED, POD_LEVEL_RESOURCES_NOT_SUPPORTED, POD_OS_NOT_SUPPORTED),
        *(POD_OS_SELECTOR_MISMATCH, SYSCTL_FORBIDDEN, VOLUME_ATTACHMENT_LIMIT_EXCEEDED),
    }
)
#: The seconds after the last relist after which the node is no longer ready.
RELIST_LOST_S = 180.0


def pod_waits(
    lifecycle: PodLifecycle | None, coarse: Iterable[Wait], detailed: Collection[Wait], status: core.PodStatus
) -> tuple[Wait, ...]:
    """All waits of a pod, oldest first. `coarse`: those of its pod worker. `detailed`: those of other components."""
    owners = {wait.owner for wait in detailed}
    waits = [*(wait for wait in coarse if wait.owner not in owners), *detailed]
    if lifecycle is not None and lifecycle.stage is Stage.SYNCING:
        probed = {wait.subject for wait in detailed if wait.owner == Owner.PROBER}
        waits.extend(
            w for w in _on_containers(lifecycle.pod, status) if w.owner != Owner.PROBER or w.subject not in probed
        )
    return tuple(sorted(set(waits), key=lambda wait: (wait.since, wait.what, wait.subject)))


def admission_waits(entry: RosterPod | None, lifecycle: PodLifecycle | None) -> tuple[Wait, ...]:
    """The wait of a static pod that the node rejects. A rejected pod of the API has ended for good."""
    if entry is None or entry.rejection is None or not is_static(entry.pod):
        return ()
    reason, message = entry.rejection.reason, entry.rejection.message
    step = (
        "decide again at the next start of the agent"
        if reason in _UNTIL_RESTART
        else "admit the pod when that has changed"
    )
    since = lifecycle.stage_since if lifecycle is not None else entry.seen_at
    return (Wait("admission", Owner.POD_ADMISSION, since, "", reason, message, step),)


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
            yield Wait("init container to end", Owner.CONTAINER, since, found.name, next_step="start the next one")
        elif not found.started:
            yield Wait("startup probe", Owner.PROBER, since, found.name, next_step="probe again")
        elif not found.ready:
            yield Wait("readiness probe", Owner.PROBER, since, found.name, next_step="probe again")
    ready = conditions.get(READY)
    if ready is not None and ready.reason == READINESS_GATES_NOT_READY:
        since = parse_time(conditions[CONTAINERS_READY].lastTransitionTime)
        step = "report the pod as ready once they are True"
        yield Wait("readiness gates", Owner.API_SERVER, since, "", ready.reason, ready.message, step)


def node_waits(runtime: RuntimeReady, roster: Roster, started_at: float) -> tuple[Wait, ...]:
    """The waits of the node, which delay all pods. `started_at`: the agent's start in wall seconds."""
    since = runtime.since or started_at
    waits = []
    if runtime.answer_error or not runtime.ok:
        reason = runtime.runtime_error or "the last good answer still counts"
        step = "ask again"
        waits.append(
            Wait(
                "container runtime",
                Owner.RUNTIME_STATUS,
                since,
                "",
                reason,
                runtime.answer_error,
                step,
                runtime.next_at,
            )
        )
    if runtime.unseen_since is not None:
        waits.append(_late_look(runtime.unseen_since, runtime.pleg_error))
    if runtime.ok and runtime.network_error:
        step, error = "ask the runtime again", runtime.network_error
        waits.append(Wait("pod network", Owner.RUNTIME_STATUS, since, "", "", error, step, runtime.next_at))
    if not roster.sources_ready:
        detail = f"not all have delivered their pods yet{_named(roster)}"
        waits.append(Wait("pod sources", Owner.POD_SOURCES, started_at, detail=detail, next_step="ask them again"))
    return tuple(waits)


def _named(roster: Roster) -> str:
    """The sources that have not delivered their pods. Their reasons, if known, are among the problems."""
    return f": {', '.join(roster.missing)}" if roster.missing else ""


def _late_look(since: float, error: str) -> Wait:
    what, owner = "look at all pods", Owner.PLEG
    detail = "the runtime has not answered the question for all its pods since then"
    if error:
        return Wait(what, owner, since, "", error, detail, "ask again; the node is ready once it answers")
    return Wait(what, owner, since, "", "", detail, "ask again, and call the node not ready", since + RELIST_LOST_S)
