"""Plans the next actions for one pod from its spec and the view of the runtime. Pure.

Rules (source: the Kubernetes documentation "Pod Lifecycle", "Init Containers", "Sidecar Containers"):
- A pod needs one ready sandbox with the right network mode and an address. Otherwise everything is stopped and a new
  sandbox is created, unless the pod has ended for good.
- Init containers run one after the other, each to its end; sidecars among them are started and keep running. The last
  init container that has a state shows the pod's progress.
- A regular container that is not running is started if its restart policy allows it. A running container is killed if its
  definition changed, a probe failed, or its resize requires a restart. Other resizes are done in place (KEP-1287; KEP-5419 for the pod as a
  whole).
- When no container is kept or started, the pod is stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from enum import StrEnum

from msgspec import Struct

from pykubelet.base.api.core import Container, Pod, ResourceRequirements
from pykubelet.base.kit.values import Value, field, replace
from pykubelet.base.model.ids import ContainerID, SandboxID
from pykubelet.base.model.labels import CONTAINER_HASH
from pykubelet.base.model.observed import ContainerView, NetworkMode, ObservedState, PodView, SandboxView
from pykubelet.base.model.phase import UNKNOWN_EXIT_CODE, has_initialized
from pykubelet.base.model.probes import ProbeKind, ProbeResult, ProbeResults
from pykubelet.base.model.restart import (
    NEVER,
    AfterExit,
    after_exit,
    after_init_failure,
    asks_for_all,
    init_failed,
    is_sidecar,
    may_ever_restart,
    restart_all_trigger,
    should_restart,
)
from pykubelet.base.model.sizing import NOTHING, RESTART_CONTAINER, Amounts, amounts_of, resizable

HashOf = Callable[[Container], str]


class KillCause(StrEnum):
    """Why one container is killed. Startup and liveness probes may have grace periods of their own."""

    CHANGED = "changed"
    LIVENESS = "liveness"
    STARTUP = "startup"
    UNKNOWN = "unknown"
    RESIZE = "resize"
    RESTART_ALL = "restart-all"

    @property
    def words(self) -> str:
        """The cause in words, for the pod's history."""
        return _CAUSE_WORDS[self]


_CAUSE_WORDS = {
    KillCause.CHANGED: "its definition changed",
    KillCause.LIVENESS: "its liveness probe failed",
    KillCause.STARTUP: "its startup probe failed",
    KillCause.UNKNOWN: "its state was unknown",
    KillCause.RESIZE: "its new size wants a restart",
    KillCause.RESTART_ALL: "all containers start again",
}


class ContainerKill(Value):
    """One container to be killed, with the cause and the message of its Event."""

    container: ContainerView
    cause: KillCause
    message: str


class PodPlan(Value):
    """The actions for one pod: kill and remove first, then create the sandbox, resize, and start.

    `sandbox`: the one to start containers in; None if it must be created (`create_sandbox`, with `attempt`).
    `stop_pod`: stop all containers and all sandboxes first. `restart_all`: the container whose exit restarts the whole pod
    (KEP-5532): all containers are removed.
    Names in `start*` are in the order of starts. `holding`: the init container or sidecar that later containers wait for.
    `hooks`: running containers whose postStart hook is run. `resizes`: running containers that are resized in place.
    `resize_pod`: there is a resize of a container or of the pod.
    """

    stop_pod: bool = False
    create_sandbox: bool = False
    attempt: int = 0
    sandbox: SandboxView | None = None
    kills: tuple[ContainerKill, ...] = ()
    remove: tuple[ContainerID, ...] = ()
    restart_all: str = ""
    start_ephemeral: tuple[str, ...] = ()
    start_init: tuple[str, ...] = ()
    start: tuple[str, ...] = ()
    holding: str = ""
    hooks: tuple[str, ...] = ()
    resizes: tuple[ContainerResize, ...] = ()
    resize_pod: bool = False

    @property
    def is_empty(self) -> bool:
        """True if the plan contains no kill, removal, restart, start, hook, sandbox creation or pod resize."""
        others = self.kills or self.remove or self.restart_all or self.starts or self.hooks
        return not (self.stop_pod or self.create_sandbox or others or self.resize_pod)

    @property
    def starts(self) -> tuple[str, ...]:
        """Names of the containers to start: ephemeral, then init, then regular ones."""
        return (*self.start_ephemeral, *self.start_init, *self.start)


class _Draft(Struct):
    """A plan that is being made. `changes`: the new resources of running containers. `to_restart`: as in `plan_pod`."""

    to_restart: Collection[ContainerID] = ()
    changes: Mapping[ContainerID, ContainerResize] = field(default_factory=dict)
    kills: list[ContainerKill] = field(default_factory=list)
    start_init: list[str] = field(default_factory=list)
    start: list[str] = field(default_factory=list)
    stop_pod: bool = False
    initialized: bool = False
    holding: str = ""
    kept: int = 0


def plan_pod(
    pod: Pod,
    view: PodView,
    probes: ProbeResults,
    hash_of: HashOf,
    applied: Applied | None = None,
    to_restart: Collection[ContainerID] = (),
    outside_cgroup: SandboxID | None = None,
) -> PodPlan:
    """The plan for one pod. `view`: the newest view of the runtime, empty for a pod that was never started.

    `applied`: the resources that its containers have; None: those of the spec. `to_restart`: instances that were killed to be
    started again regardless of their restart policy. `outside_cgroup`: a sandbox that cannot be used any more, because its
    containers run outside of the pod's cgroup.
    """
    needs, sandbox = _sandbox_needs(pod, view)
    if needs or (sandbox is not None and sandbox.id == outside_cgroup):
        return _plan_new_sandbox(pod, view)
    assert sandbox is not None
    if trigger := restart_all_trigger(pod, view, to_restart):
        return _plan_restart_all(pod, view, trigger)
    changes = changes_of(pod, view, applied) if applied is not None else ()
    draft = _Draft(to_restart=to_restart, changes={change.instance: change for change in changes})
    _plan_init(pod, view, probes, hash_of, draft)
    if draft.initialized and not draft.stop_pod:
        _plan_regular(pod, view, probes, hash_of, draft)
        stays = draft.kept or draft.start or draft.start_init
        draft.stop_pod = not stays
    if draft.stop_pod:
        return PodPlan(stop_pod=True, kills=tuple(draft.kills))
    killed = {kill.container.id for kill in draft.kills}
    return PodPlan(
        resizes=tuple(change for change in changes if change.instance not in killed),
        resize_pod=bool(changes) or (applied is not None and bool(view.running) and whole_changes(pod, applied)),
        sandbox=sandbox,
        kills=tuple(draft.kills),
        remove=_prune_init(pod, view),
        start_ephemeral=tuple(c.name for c in pod.spec.ephemeralContainers if view.newest(c.name) is None),
        start_init=tuple(draft.start_init),
        start=tuple(draft.start),
        holding=draft.holding,
    )


def _sandbox_needs(pod: Pod, view: PodView) -> tuple[bool, SandboxView | None]:
    """Whether a sandbox must be created, and the newest sandbox; it is the one to use if none must be created."""
    if not view.sandboxes:
        return True, None
    newest = view.sandboxes[0]
    if len(view.ready_sandboxes) > 1 or not newest.ready:
        return True, newest
    host_network = bool(pod.spec.hostNetwork)
    if (newest.network is NetworkMode.NODE) != host_network:
        return True, newest
    if not host_network and not newest.ips:
        return True, newest
    return False, newest


def _plan_new_sandbox(pod: Pod, view: PodView) -> PodPlan:
    attempt = view.sandboxes[0].attempt + 1 if view.sandboxes else 0
    stop = PodPlan(stop_pod=True)
    has_run = any(c.state is not ObservedState.CREATED for c in view.containers)
    if _never_restarts(pod) and attempt != 0 and has_run:
        return stop
    names = {c.name for c in pod.spec.containers}
    starts = tuple(c.name for c in pod.spec.containers if not _has_ended_for_good(pod, c, view))
    if not starts and any(c.name in names for c in view.containers):
        return stop
    plan = PodPlan(stop_pod=True, create_sandbox=True, attempt=attempt)
    if pod.spec.initContainers:
        return replace(plan, start_init=(pod.spec.initContainers[0].name,), holding=pod.spec.initContainers[0].name)
    return replace(plan, start=starts)


def _never_restarts(pod: Pod) -> bool:
    """Whether no container of the pod can ever run a second time. Sidecars do not count: they alone do not keep a pod alive."""
    counted = (*(c for c in pod.spec.initContainers if not is_sidecar(c)), *pod.spec.containers)
    return (pod.spec.restartPolicy or "") == NEVER and not any(
        (c.restartPolicy and c.restartPolicy != NEVER) or c.restartPolicyRules for c in counted
    )


def _has_ended_for_good(pod: Pod, container: Container, view: PodView) -> bool:
    """Whether the container has ended and its restart policy and rules do not allow another start, even in a new sandbox."""
    newest = view.newest(container.name)
    if newest is None or newest.state is not ObservedState.EXITED:
        return False
    return after_exit(pod, container, newest.exit_code) is AfterExit.STAY


def _plan_restart_all(pod: Pod, view: PodView, trigger: str) -> PodPlan:
    """The plan to remove all instances. Those whose exit requires it come last, so that a restarted agent still finds them.

    Ephemeral containers are kept, because they are never started twice.
    """
    sources: list[ContainerView] = []
    others: list[ContainerView] = []
    for container in (*pod.spec.containers, *pod.spec.initContainers):
        for instance in view.instances(container.name):
            (sources if asks_for_all(pod, container, instance) else others).append(instance)
    kills = tuple(
        ContainerKill(c, KillCause.RESTART_ALL, "killing")
        for c in others
        if c.state in (ObservedState.RUNNING, ObservedState.UNKNOWN)
    )
    return PodPlan(restart_all=trigger, kills=kills, remove=tuple(c.id for c in (*others, *sources)))


def _probe(probes: ProbeResults, container: ContainerView, kind: ProbeKind) -> ProbeResult | None:
    return probes.get(container.id, kind)


def _is_started(container: Container, newest: ContainerView, probes: ProbeResults) -> bool:
    if container.startupProbe is None or ProbeKind.STARTUP not in probes.watched:
        return True
    return _probe(probes, newest, ProbeKind.STARTUP) is ProbeResult.SUCCESS


def _given_up(
    pod: Pod, container: Container, newest: ContainerView, probes: ProbeResults, hash_of: HashOf, draft: _Draft
) -> tuple[ContainerKill, bool] | None:
    """The kill of a running container, and whether the container is started again; None: keep it."""
    recorded = newest.annotations.get(CONTAINER_HASH)
    again = may_ever_restart(pod, container)
    if recorded is not None and recorded != hash_of(container):
        cause, why, again = KillCause.CHANGED, "definition changed", True
    elif _probe(probes, newest, ProbeKind.LIVENESS) is ProbeResult.FAILURE:
        cause, why = KillCause.LIVENESS, "failed liveness probe"
    elif _probe(probes, newest, ProbeKind.STARTUP) is ProbeResult.FAILURE:
        cause, why = KillCause.STARTUP, "failed startup probe"
    else:
        kill = _resize_kill(container, newest, draft)
        return (kill, True) if kill is not None else None
    if any(init.name == container.name for init in pod.spec.initContainers):
        return ContainerKill(newest, cause, f"Init container {container.name} {why}"), True
    message = f"Container {container.name} {why}"
    return ContainerKill(newest, cause, f"{message}, will be restarted" if again else message), again


def _resize_kill(container: Container, newest: ContainerView, draft: _Draft) -> ContainerKill | None:
    """The kill of a running container whose resize requires a restart; None for others."""
    change = draft.changes.get(newest.id)
    if change is None or not needs_restart(container, change):
        return None
    return ContainerKill(newest, KillCause.RESIZE, f"Container {container.name} resize requires restart")


def _unknown_kill(newest: ContainerView, what: str = "Container") -> ContainerKill:
    message = f'{what} is in "unknown" state, try killing it before restart'
    return ContainerKill(newest, KillCause.UNKNOWN, message)


def _plan_init(pod: Pod, view: PodView, probes: ProbeResults, hash_of: HashOf, draft: _Draft) -> None:
    """Find the progress of the init containers. Sets `initialized`, or what to start and what later containers wait for."""
    inits = pod.spec.initContainers
    if not inits:
        draft.initialized = True
        return
    past = has_initialized(pod, view)
    if past:
        draft.initialized = True
        _keep_sidecars(pod, view, probes, hash_of, draft)
        return
    for index in range(len(inits) - 1, -1, -1):
        newest = view.newest(inits[index].name)
        if newest is None or newest.sandbox_id != view.sandboxes[0].id:
            continue
        _keep_sidecars(pod, view, probes, hash_of, draft, before=index)
        _plan_init_at(pod, index, newest, probes, hash_of, draft)
        return
    draft.start_init.append(inits[0].name)
    draft.holding = inits[0].name


def _next_init(pod: Pod, index: int, draft: _Draft) -> None:
    if index + 1 < len(pod.spec.initContainers):
        draft.start_init.append(pod.spec.initContainers[index + 1].name)
        draft.holding = pod.spec.initContainers[index + 1].name
    else:
        draft.initialized = True


def _plan_init_at(
    pod: Pod, index: int, newest: ContainerView, probes: ProbeResults, hash_of: HashOf, draft: _Draft
) -> None:
    """Plan the last init container that has a state."""
    container = pod.spec.initContainers[index]
    name = container.name
    match newest.state:
        case ObservedState.RUNNING:
            if not is_sidecar(container):
                draft.holding = name
                if resize := _resize_kill(container, newest, draft):
                    draft.kills.append(resize)
                    draft.start_init.append(name)
                else:
                    draft.kept += 1
                return
            if given_up := _given_up(pod, container, newest, probes, hash_of, draft):
                draft.kills.append(given_up[0])
                draft.start_init.append(name)
                draft.holding = name
                return
            draft.kept += 1
            if _is_started(container, newest, probes):
                _next_init(pod, index, draft)
            else:
                draft.holding = name
        case ObservedState.EXITED:
            if is_sidecar(container):
                draft.start_init.append(name)
                draft.holding = name
            elif newest.id not in draft.to_restart and not init_failed(newest):
                _next_init(pod, index, draft)
            elif newest.id not in draft.to_restart and after_init_failure(pod, container, newest) is AfterExit.STAY:
                draft.stop_pod = True
            else:
                draft.start_init.append(name)
                draft.holding = name
        case ObservedState.CREATED:
            draft.start_init.append(name)
            draft.holding = name
        case ObservedState.UNKNOWN:
            draft.kills.append(_unknown_kill(newest, "Init container"))
            draft.holding = name
            if not is_sidecar(container) and after_exit(pod, container, UNKNOWN_EXIT_CODE) is AfterExit.STAY:
                draft.stop_pod = True
            else:
                draft.start_init.append(name)


def _keep_sidecars(
    pod: Pod, view: PodView, probes: ProbeResults, hash_of: HashOf, draft: _Draft, before: int | None = None
) -> None:
    """Restart sidecars that the pod has passed, if they do not run or must be killed. `before`: only those with a lower index."""
    for container in pod.spec.initContainers[:before]:
        if not is_sidecar(container):
            continue
        newest = view.newest(container.name)
        if newest is None or newest.state in (ObservedState.EXITED, ObservedState.CREATED):
            draft.start_init.append(container.name)
        elif newest.state is ObservedState.UNKNOWN:
            draft.kills.append(_unknown_kill(newest, "Init container"))
            draft.start_init.append(container.name)
        elif given_up := _given_up(pod, container, newest, probes, hash_of, draft):
            draft.kills.append(given_up[0])
            draft.start_init.append(container.name)


def _plan_regular(pod: Pod, view: PodView, probes: ProbeResults, hash_of: HashOf, draft: _Draft) -> None:
    for container in pod.spec.containers:
        newest = view.newest(container.name)
        if newest is None or newest.state is not ObservedState.RUNNING:
            if should_restart(pod, container, newest) or (newest is not None and newest.id in draft.to_restart):
                if newest is not None and newest.state is ObservedState.UNKNOWN:
                    draft.kills.append(_unknown_kill(newest))
                draft.start.append(container.name)
            continue
        if given_up := _given_up(pod, container, newest, probes, hash_of, draft):
            draft.kills.append(given_up[0])
            if given_up[1]:
                draft.start.append(container.name)
            elif container.restartPolicyRules:
                draft.kept += 1  # its exit code decides whether it starts again
        else:
            draft.kept += 1
    if not draft.kept and not draft.start:
        draft.start_init.clear()


def _prune_init(pod: Pod, view: PodView) -> tuple[ContainerID, ...]:
    """The exited instances of init containers except the newest of each, which shows how a restarted sidecar ended."""
    names = [c.name for c in pod.spec.initContainers]
    ended = [[c for c in view.instances(name) if c.state is ObservedState.EXITED] for name in names]
    return tuple(old.id for instances in ended for old in instances[1:])


class Applied(Value):
    """The resources that were last requested from the runtime, for each container instance and for the pod as a whole."""

    containers: Mapping[ContainerID, ResourceRequirements] = field(default_factory=dict)
    whole: ResourceRequirements | None = None

    def amounts(self, instance: ContainerID) -> Amounts:
        """The resources applied to one instance. Raises KeyError for an instance without a record."""
        return amounts_of(self.containers[instance], self.whole)


class ContainerResize(Value):
    """A change of CPU or memory of one running container."""

    name: str
    instance: ContainerID
    before: Amounts
    after: Amounts


def changes_of(pod: Pod, view: PodView, applied: Applied) -> tuple[ContainerResize, ...]:
    """The running containers with other applied resources than in the spec, in the order of the spec."""
    found: list[ContainerResize] = []
    same_whole = pod.spec.resources == applied.whole
    for container in resizable(pod):
        newest = view.newest(container.name)
        if newest is None or newest.state is not ObservedState.RUNNING or newest.id not in applied.containers:
            continue
        if same_whole and applied.containers[newest.id] == (container.resources or NOTHING):
            continue
        before, after = applied.amounts(newest.id), amounts_of(container.resources, pod.spec.resources)
        if before != after:
            found.append(ContainerResize(container.name, newest.id, before, after))
    return tuple(found)


def whole_changes(pod: Pod, applied: Applied) -> bool:
    """True if the pod-level resources differ from the applied ones in their amounts. Pure."""
    if pod.spec.resources == applied.whole:
        return False
    return amounts_of(pod.spec.resources, None) != amounts_of(applied.whole, None)


def is_under_way(pod: Pod, view: PodView, applied: Applied) -> bool:
    """Whether a running container or the pod as a whole does not have the size of the spec yet."""
    return bool(view.running) and (whole_changes(pod, applied) or bool(changes_of(pod, view, applied)))


def needs_restart(container: Container, change: ContainerResize) -> bool:
    """Whether the container's resizePolicy requires a restart for this change."""
    before, after = change.before, change.after
    changed = set()
    if (before.cpu_request, before.cpu_limit) != (after.cpu_request, after.cpu_limit):
        changed.add("cpu")
    if (before.memory_request, before.memory_limit) != (after.memory_request, after.memory_limit):
        changed.add("memory")
    return any(p.resourceName in changed and p.restartPolicy == RESTART_CONTAINER for p in container.resizePolicy)
