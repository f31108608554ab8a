"""Making, limiting and removing the groups, through the host's cgroup driver.

Owns: the agent's groups below `cgroupRoot`, and the Events about them. Not here: the amounts (`decide`), the names
(`names`), when (`loop` and act/pods). Every call on the driver runs in a `Flight`, one at a time for each pod, so that a
group that the kernel is slow with holds up its own pod alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from typing import TypeVar

from pykubelet.act.resources import decide, names
from pykubelet.act.resources.model import CgroupDriver, CgroupError, Enforce, NodeResources, ResourceSettings
from pykubelet.base.api.core import Pod
from pykubelet.base.kit.backoff import BackoffPolicy
from pykubelet.base.kit.flight import Done, Failed, Flight, Outcome, Uncertain
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.mailbox import Post
from pykubelet.base.kit.metrics import Histogram
from pykubelet.base.kit.values import Value
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.kube_events import KubeEvent, normal, warning
from pykubelet.base.model.qos import QOSClass, qos_class
from pykubelet.base.model.reasons import EVENT_FAILED_NODE_ALLOCATABLE, EVENT_NODE_ALLOCATABLE_ENFORCED
from pykubelet.edges.host.cgroups.cgroup_values import CgroupLimits, CgroupVersion
from pykubelet.edges.host.cgroups.cgroups import Cgroups
from pykubelet.edges.host.fs.errors import HostError

log = Log("resources")
T = TypeVar("T")

FIRST_PAUSE_S = 0.005
LONGEST_PAUSE_S = 0.5
REMOVAL = BackoffPolicy(FIRST_PAUSE_S, LONGEST_PAUSE_S)
NEEDED = {CgroupVersion.V1: ("cpu", "cpuacct", "cpuset", "memory"), CgroupVersion.V2: ("cpu", "cpuset", "memory")}
_RESERVED_GROUPS = (
    (Enforce.SYSTEM_RESERVED, Enforce.SYSTEM_RESERVED_COMPRESSIBLE, "System", "system"),
    (Enforce.KUBE_RESERVED, Enforce.KUBE_RESERVED_COMPRESSIBLE, "Kube", "kube"),
)

DURATIONS = Histogram(
    "kubelet_cgroup_manager_duration_seconds",
    "Duration in seconds for cgroup manager operations. Broken down by method.",
    ("operation_type",),
)


class ResourcesError(Exception):
    """The node cannot hold pods as configured; the message is for the person who starts it."""


class Patience(Value):
    """With whoever makes groups. `deadline_s`: of one step; `start_s`: of the steps at the start, which are tried again
    until then; `uncertain_s`: so long an abandoned step may still be on its way; `removals`: tries to remove a group that
    is busy."""

    deadline_s: float = 10.0
    start_s: float = 120.0
    uncertain_s: float = 1.0
    removals: int = 12


DEFAULT_PATIENCE = Patience()


class PodCgroups:
    """The groups of the node, its QoS classes and its pods. Without QoS groups (`cgroupsPerQOS: false`) almost nothing
    is to be done, and every call says so at once."""

    def __init__(
        self,
        settings: ResourceSettings,
        node: NodeResources,
        cgroups: Cgroups,
        flight: Flight,
        recorder: Post[KubeEvent],
        patience: Patience = DEFAULT_PATIENCE,
    ) -> None:
        self._settings = settings
        self._node = node
        self._cgroups = cgroups
        self._flight = flight
        self._recorder = recorder
        self._patience = patience
        self._paths: dict[PodUID, str] = {}
        self._shares: dict[PodUID, tuple[Pod, decide.Share]] = {}
        self._applied: dict[QOSClass, CgroupLimits] = {}
        self._limited = False
        self._failing: dict[QOSClass, str] = {}

    @property
    def _maker(self) -> str:
        """Who makes cgroups, for log lines and errors."""
        return "systemd" if self._settings.driver is CgroupDriver.SYSTEMD else "the kernel"

    def cgroup_parent(self, pod: Pod) -> str:
        """`linux.cgroup_parent` of the pod's sandbox."""
        return names.cgroup_parent(self._settings, qos_class(pod), PodUID(pod.metadata.uid))

    # The node

    async def ensure_root(self) -> None:
        """Make the groups of the node and its QoS classes, and enforce what is reserved.

        ResourcesError when pods could not run at all. Limits on the group of all pods that the kernel refuses (it may
        already hold more than they allow) are an Event, and tried again by `retry_node_limits`.
        """
        missing = [name for name in NEEDED[self._cgroups.version] if name not in self._cgroups.controllers()]
        if missing:
            listed = " ".join(missing)
            raise ResourcesError(f"system validation failed - following Cgroup subsystem not mounted: [{listed}]")
        if self._settings.cgroups_per_qos:
            root = names.split_root(self._settings.cgroup_root)
            if root and not await self._call_root("exists", lambda: self._cgroups.exists(self._path(root))):
                log.warning("cgroupRoot did not exist and is made", path=self._path(root))
            await self._call_root("create", self._make_groups)
        await self.retry_node_limits()
        for plain, compressible, title, word in _RESERVED_GROUPS:
            if {plain, compressible} & self._settings.enforce:
                await self._enforce_reserved(title, word, compressible in self._settings.enforce)

    def _make_groups(self) -> None:
        node = names.node_group(self._settings)
        self._cgroups.create(self._path(node), CgroupLimits())
        for qos, limits in decide.qos_limits((), self._node, self._settings).items():
            if qos is not QOSClass.BEST_EFFORT:
                # Its pods may be running: their shares and protection stay until the pods are known.
                limits = CgroupLimits(huge_pages=limits.huge_pages)
            self._cgroups.create(self._path(names.qos_group(self._settings, qos)), limits)

    async def _call_root(self, what: str, work: Callable[[], T]) -> T:
        """Run one step of the start. A machine that boots may keep systemd busy for long, so no answer is not the end."""
        loop = asyncio.get_running_loop()
        began, waiting = loop.time(), False
        while True:
            outcome = await self._flight.run("cgroup:root", work, self._patience.deadline_s)
            match outcome:
                case Done(value):
                    if waiting:
                        log.info("the top level cgroups can be made after all", answered=self._maker)
                    return value
                case Failed(HostError() as error):
                    if error.errno_name != "ETIMEDOUT":
                        raise ResourcesError(f"failed to initialize top level QOS containers: {error}") from error
                case Failed(error):
                    raise error
                case Uncertain():
                    pass
            waited = loop.time() - began
            if waited > self._patience.start_s:
                problem = f"{self._maker} has not answered for {waited:.0f} s ({what})"
                raise ResourcesError(f"failed to initialize top level QOS containers: {problem}")
            if not waiting:
                log.warning("no pod starts before the top level cgroups are made", waits_for=self._maker, step=what)
            waiting = True
            await asyncio.sleep(LONGEST_PAUSE_S)

    async def retry_node_limits(self) -> None:
        """Set the limits of the group of all pods unless they are set already."""
        name = names.node_group(self._settings)
        if self._limited or not name:
            return
        limits = decide.node_limits(self._node, self._settings)
        problem = await self._try(
            "cgroup:node-limits", lambda: self._cgroups.update(self._path(name), limits), aside=True
        )
        if problem is None:
            self._limited = True
            message = "Updated Node Allocatable limit across pods"
            self._recorder.post(normal(EVENT_NODE_ALLOCATABLE_ENFORCED, message))
            return
        message = f"Failed to update Node Allocatable Limits {names.quoted(name)}: {problem}"
        self._recorder.post(warning(EVENT_FAILED_NODE_ALLOCATABLE, message))

    async def _enforce_reserved(self, title: str, word: str, compressible: bool) -> None:
        is_system = word == "system"
        settings = self._settings
        group = settings.system_reserved_cgroup if is_system else settings.kube_reserved_cgroup
        amounts = settings.system_reserved if is_system else settings.kube_reserved
        path = self._path(names.parse_group(group, settings.driver))
        limits = decide.reserved_limits(amounts, self._node, settings, compressible=compressible)
        problem = await self._try(f"cgroup:{word}-reserved", lambda: self._enforce(group, path, limits), aside=True)
        if problem is not None:
            message = f'Failed to enforce {title} Reserved Cgroup Limits on "{group}": {problem}'
            self._recorder.post(warning(EVENT_FAILED_NODE_ALLOCATABLE, message))
            raise ResourcesError(message)
        message = f"Updated limits on {word} reserved cgroup {group}"
        self._recorder.post(normal(EVENT_NODE_ALLOCATABLE_ENFORCED, message))

    def _enforce(self, group: str, path: str, limits: CgroupLimits) -> None:
        if not self._cgroups.exists(path):
            raise HostError("enforce", "", "ENOENT", f'["{group}"] cgroup does not exist')
        self._cgroups.update(path, limits)

    # QoS groups

    async def update_qos(self, pods: Iterable[Pod], *, force: bool = False) -> None:
        """Give the QoS groups what their active pods need; `force` also where nothing has changed."""
        if not self._settings.cgroups_per_qos:
            return
        had, self._shares = self._shares, {}
        for pod in pods:
            known = had.get(PodUID(pod.metadata.uid))
            share = known[1] if known is not None and known[0] is pod else decide.share_of(pod)
            self._shares[PodUID(pod.metadata.uid)] = (pod, share)
        shares = (share for _, share in self._shares.values())
        for qos, limits in decide.qos_limits(shares, self._node, self._settings).items():
            if self._applied.get(qos) == limits and not force:
                continue
            path = self._path(names.qos_group(self._settings, qos))
            work = _creating(self._cgroups, path, limits)
            problem = await self._try(f"cgroup:{qos}", work, aside=limits.memory_bytes is not None)
            if problem is None:
                self._applied[qos] = limits
            self._note(qos, problem)

    def _note(self, qos: QOSClass, problem: HostError | None) -> None:
        """Log when it begins to fail and when it works again, not each time."""
        if problem is not None and self._failing.get(qos) != str(problem):
            log.warning("the cgroup of a QoS class cannot be updated", qos=qos, error=problem)
            self._failing[qos] = str(problem)
        elif problem is None and self._failing.pop(qos, None) is not None:
            log.info("the cgroup of a QoS class is updated again", qos=qos)

    # Pods

    async def ensure_pod(self, pod: Pod, *, exclusive_cpus: bool = False) -> CgroupError | None:
        """Make the pod's group and set its limits; also right when it is there already."""
        if not self._settings.cgroups_per_qos:
            return None
        uid = PodUID(pod.metadata.uid)
        path = self._path(names.pod_group(self._settings, qos_class(pod), uid))
        limits = decide.pod_cgroup_limits(pod, self._settings, self._node.page_sizes, exclusive_cpus=exclusive_cpus)
        problem = await self._try(f"cgroup:{uid}", lambda: self._cgroups.create(path, limits), "create")
        if problem is None:
            self._paths[uid] = path
            return None
        message = f"failed to create container for [{' '.join(path.strip('/').split('/'))}] : {problem}"
        return CgroupError(uid, message, problem.is_no_space)

    async def widen_pod(self, before: Pod, after: Pod) -> CgroupError | None:
        """Let the pod's group hold both sizes of the pod, the present and the next; `ensure_pod` sets the next one."""
        if not self._settings.cgroups_per_qos:
            return None
        uid = PodUID(after.metadata.uid)
        path = self._path(names.pod_group(self._settings, qos_class(after), uid))
        sizes = self._node.page_sizes
        limits = decide.wider(
            decide.pod_cgroup_limits(before, self._settings, sizes),
            decide.pod_cgroup_limits(after, self._settings, sizes),
        )
        problem = await self._try(f"cgroup:{uid}", lambda: self._cgroups.update(path, limits))
        return CgroupError(uid, str(problem), problem.is_no_space) if problem is not None else None

    async def is_gone(self, pod: Pod) -> bool:
        """Whether the pod's group is surely not there."""
        if not self._settings.cgroups_per_qos:
            return False
        uid = PodUID(pod.metadata.uid)
        path = self._path(names.pod_group(self._settings, qos_class(pod), uid))
        outcome = await self._run(f"cgroup:{uid}", lambda: self._cgroups.exists(path))
        if isinstance(outcome, Failed) and not isinstance(outcome.error, HostError):
            raise outcome.error
        return outcome == Done(False)

    async def memory_used(self, pod: Pod) -> int | None:
        """Bytes that all processes of the pod have now; None when that is not known."""
        if not self._settings.cgroups_per_qos:
            return None
        uid = PodUID(pod.metadata.uid)
        path = self._path(names.pod_group(self._settings, qos_class(pod), uid))
        outcome = await self._run(f"cgroup:{uid}", lambda: self._cgroups.memory_used(path))
        if isinstance(outcome, Failed) and not isinstance(outcome.error, HostError):
            raise outcome.error
        return outcome.value if isinstance(outcome, Done) else None

    async def remove_pod(self, uid: PodUID) -> bool:
        """Remove the pod's group, killing what still runs in it. True when nothing is left; False: try again later."""
        if not self._settings.cgroups_per_qos:
            return True
        known = self._paths.get(uid)
        paths = (known,) if known else self._possible_paths(uid)
        for failures in range(1, self._patience.removals + 1):
            outcome = await self._run(f"cgroup:{uid}", lambda: self._remove_or_kill(paths), "destroy")
            if outcome == Done(True):
                self._paths.pop(uid, None)
                return True
            if isinstance(outcome, Failed):
                if not isinstance(outcome.error, HostError):
                    raise outcome.error
                log.warning("a pod's cgroup cannot be removed", uid=uid, error=outcome.error)
                return False
            await asyncio.sleep(REMOVAL.delay_s(failures))
        log.warning("a pod's cgroup is still in use", uid=uid, paths=paths)
        return False

    def _remove_or_kill(self, paths: tuple[str, ...]) -> bool:
        left = [path for path in paths if not self._cgroups.remove(path)]
        if not left:
            return True
        for path in left:
            self._cgroups.kill(path)
        return False

    async def list_pods(self) -> frozenset[PodUID]:
        """The pods that have a group now; empty when that cannot be read."""
        if not self._settings.cgroups_per_qos:
            return frozenset()
        outcome = await self._flight.run("cgroup:list", self._list, self._patience.deadline_s)
        if isinstance(outcome, Failed) and not isinstance(outcome.error, HostError):
            raise outcome.error
        return outcome.value if isinstance(outcome, Done) else frozenset()

    def _list(self) -> frozenset[PodUID]:
        found: set[PodUID] = set()
        for qos in QOSClass:
            group = names.qos_group(self._settings, qos)
            for entry in self._cgroups.children(self._path(group)):
                uid = names.read_pod_uid(entry, group, self._settings.driver)
                if uid is not None:
                    found.add(uid)
        return frozenset(found)

    async def sweep(self, known: Callable[[], AbstractSet[PodUID]]) -> frozenset[PodUID]:
        """Remove the groups of pods that nobody knows any more, and say which.

        `known` is asked after the groups were listed: a pod is known before its group is made, so none is hit by
        mistake.
        """
        found = await self.list_pods()
        removed = set()
        for uid in sorted(found - known()):
            log.info("removing the cgroup of a pod that is gone", uid=uid)
            if await self.remove_pod(uid):
                removed.add(uid)
        return frozenset(removed)

    # Shared

    def _path(self, name: names.GroupName) -> str:
        return names.driver_path(name, self._settings.driver)

    def _possible_paths(self, uid: PodUID) -> tuple[str, ...]:
        return tuple(self._path(names.pod_group(self._settings, qos, uid)) for qos in QOSClass)

    async def _run(self, key: str, work: Callable[[], T], operation: str = "", *, aside: bool = False) -> Outcome[T]:
        """The kernel's cgroup files answer in microseconds: going through a thread costs a pod more than the work
        itself. systemd is asked over D-Bus, which may take its time; and where a memory limit goes below what many pods
        use (`aside`), the kernel frees memory before it answers. `operation`: what it is counted as."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        outcome = await self._ask(key, work, aside)
        if operation:
            DURATIONS.observe(loop.time() - began, operation)
        return outcome

    async def _ask(self, key: str, work: Callable[[], T], aside: bool) -> Outcome[T]:
        if aside or self._settings.driver is CgroupDriver.SYSTEMD:
            return await self._flight.run(key, work, self._patience.deadline_s)
        try:
            return Done(work())
        except HostError as error:
            return Failed(error)

    async def _try(
        self, key: str, work: Callable[[], None], operation: str = "update", *, aside: bool = False
    ) -> HostError | None:
        """Run one step; what went wrong with the host is a value."""
        loop = asyncio.get_running_loop()
        while True:
            outcome = await self._run(key, work, operation, aside=aside)
            match outcome:
                case Done():
                    return None
                case Failed(HostError() as error):
                    return error
                case Failed(error):
                    raise error
                case Uncertain(since):
                    if loop.time() - since > self._patience.uncertain_s:
                        return HostError("cgroup", key, "ETIMEDOUT", f"{self._maker} has not answered yet")
                    # What an abandoned sync has begun is just ending.
                    await asyncio.sleep(FIRST_PAUSE_S)


def _creating(cgroups: Cgroups, path: str, limits: CgroupLimits) -> Callable[[], None]:
    return lambda: cgroups.create(path, limits)
