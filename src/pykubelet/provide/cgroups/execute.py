"""Makes, limits and removes cgroups through the host's cgroup driver.

Owns: the agent's groups below `cgroupRoot`, and the Events about them. `decide` computes the limits, `names` the names;
`loop` and `act/pods` decide when. Slow calls run in a `SingleFlight`, one at a time for each pod, so that a slow group delays
only its own pod.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TypeVar

from pykubelet.base.api.core import Pod
from pykubelet.base.kit.backoff import BackoffPolicy
from pykubelet.base.kit.cells import Post
from pykubelet.base.kit.flight import Done, Failed, Outcome, SingleFlight, Uncertain
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.metrics import Gauge, Histogram
from pykubelet.base.kit.values import Value, changed_keys, replace
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.kube_events import KubeEvent, normal, warning
from pykubelet.base.model.reasons import EVENT_FAILED_NODE_ALLOCATABLE, EVENT_NODE_ALLOCATABLE_ENFORCED
from pykubelet.base.model.sizing import MIN_SHARES, QOSClass, qos_class
from pykubelet.edges.host.cgroups.cgroup_values import CgroupLimits, CgroupVersion
from pykubelet.edges.host.cgroups.cgroups import Cgroups
from pykubelet.edges.host.cgroups.cgroups_v1 import CgroupsV1
from pykubelet.edges.host.cgroups.realtime import give_realtime
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.provide.cgroups import decide
from pykubelet.provide.cgroups.model import (
    CgroupDriver,
    CgroupError,
    Enforce,
    MemoryProtection,
    NodeResources,
    ResourcesError,
    ResourceSettings,
)

log = Log("resources")
T = TypeVar("T")

FIRST_PAUSE_S = 0.005
LONGEST_PAUSE_S = 0.5
REMOVAL = BackoffPolicy(FIRST_PAUSE_S, LONGEST_PAUSE_S)
NEEDED = {CgroupVersion.V1: ("cpu", "cpuacct", "cpuset", "memory"), CgroupVersion.V2: ("cpu", "cpuset", "memory")}
_RESERVED_GROUPS = (
    (Enforce.SYSTEM_RESERVED, "System Reserved", "system", False),
    (Enforce.KUBE_RESERVED, "Kube Reserved", "kube", False),
    (Enforce.SYSTEM_RESERVED_COMPRESSIBLE, "System Reserved Compressible", "system", True),
    (Enforce.KUBE_RESERVED_COMPRESSIBLE, "Kube Reserved Compressible", "kube", True),
)

DURATIONS = Histogram(
    "kubelet_cgroup_manager_duration_seconds",
    "Duration in seconds for cgroup manager operations. Broken down by method.",
    ("operation_type",),
)
MEMORY_MIN_BYTES = Gauge(
    "kubelet_memory_qos_node_memory_min_bytes",
    "Total cgroup v2 memory.min in bytes for Guaranteed pods. This memory is hard-reserved and never reclaimed by the kernel.",
)
MEMORY_LOW_BYTES = Gauge(
    "kubelet_memory_qos_node_memory_low_bytes",
    "Total cgroup v2 memory.low in bytes for Burstable pods. This memory is soft-reserved and may be reclaimed under"
    " extreme pressure.",
)


class _UnusableGroup(HostError):
    """A configured group, which the agent does not make, is missing or cannot be limited."""

    def __str__(self) -> str:
        return self.message


class RetryLimits(Value):
    """How long to wait for the kernel or systemd. `deadline_s`: for one step. `start_s`: for making the groups at the start;
    it is retried until then. `uncertain_s`: for an earlier step that is still running. `removals`: tries to remove a busy
    group."""

    deadline_s: float = 10.0
    start_s: float = 120.0
    uncertain_s: float = 1.0
    removals: int = 12


DEFAULT_RETRY_LIMITS = RetryLimits()


class PodCgroups:
    """The groups of the node, its QoS classes and its pods. Without QoS groups (`cgroupsPerQOS: false`), calls about pods and
    QoS classes do nothing."""

    def __init__(
        self,
        settings: ResourceSettings,
        node: NodeResources,
        cgroups: Cgroups,
        flight: SingleFlight,
        recorder: Post[KubeEvent],
        retry_limits: RetryLimits = DEFAULT_RETRY_LIMITS,
    ) -> None:
        self._settings = settings
        self._node = node
        self._cgroups = cgroups
        self._flight = flight
        self._recorder = recorder
        self._retry_limits = retry_limits
        self._paths: dict[PodUID, str] = {}
        self._active: Mapping[PodUID, Pod] = {}
        #: What each active pod requests, and the sums by QoS class.
        self._shares: dict[PodUID, decide.Share] = {}
        self._sums = Counter[tuple[QOSClass, str]]()
        self._applied: dict[QOSClass, CgroupLimits] = {}
        self._limited = False
        self._failing: dict[QOSClass, str] = {}
        #: The limits that extensions have changed, with the unchanged ones, of the newest sizes of each pod.
        self._changed: dict[PodUID, tuple[tuple[CgroupLimits, CgroupLimits], ...]] = {}

    @property
    def _maker(self) -> str:
        """The program that makes cgroups, for log lines and errors."""
        return "systemd" if self._settings.driver is CgroupDriver.SYSTEMD else "the kernel"

    def cgroup_parent(self, pod: Pod) -> str:
        """`linux.cgroup_parent` of the pod's sandbox."""
        return decide.cgroup_parent(self._settings, qos_class(pod), PodUID(pod.metadata.uid))

    # The node

    async def ensure_root(self) -> None:
        """Make the groups of the node and its QoS classes, and enforce what is reserved.

        ResourcesError when pods cannot run, or reservations cannot be met or enforced. The kernel may refuse the limits on the
        group of all pods, because the group already uses more. That is only an Event, and `retry_node_limits` tries again.
        """
        problem = decide.allocatable_problem(self._node.capacity, self._settings)
        if problem is not None:
            raise ResourcesError(problem)
        missing = [name for name in NEEDED[self._cgroups.version] if name not in self._cgroups.controllers()]
        if missing:
            listed = " ".join(missing)
            raise ResourcesError(f"system validation failed - Following Cgroup subsystem not mounted: [{listed}]")
        if self._settings.cgroups_per_qos:
            root = decide.split_root(self._settings.cgroup_root)
            try:
                # The name is a path with both drivers.
                self._check_usable(root, decide.driver_path(root, CgroupDriver.CGROUPFS))
            except HostError as error:
                raise ResourcesError(f"error validating root container [{' '.join(root)}] : {error}") from error
            await self._call_root("create", self._make_groups)
        await self.retry_node_limits()
        for enforced, title, word, compressible in _RESERVED_GROUPS:
            if enforced in self._settings.enforce:
                await self._enforce_reserved(title, word, compressible)

    def _make_groups(self) -> None:
        node = decide.node_group(self._settings)
        self._cgroups.create(self._path(node), CgroupLimits())
        for qos, limits in decide.qos_limits({}, self._node, self._settings).items():
            if qos is not QOSClass.BEST_EFFORT:
                # Pods may be running: the group keeps its shares and protection until the pods are known.
                limits = CgroupLimits(huge_pages=limits.huge_pages)
            self._cgroups.create(self._path(decide.qos_group(self._settings, qos)), limits)

    async def _call_root(self, what: str, work: Callable[[], T]) -> T:
        """Run one step of the start. Repeated without an answer, because systemd may be busy for long during boot."""
        loop = asyncio.get_running_loop()
        began, waiting = loop.time(), False
        while True:
            outcome = await self._flight.run("cgroup:root", work, self._retry_limits.deadline_s)
            match outcome:
                case Done(value):
                    if waiting:
                        log.info("the top level cgroups can be created now", answered=self._maker)
                    return value
                case Failed(HostError() as error):
                    if error.errno_name != "ETIMEDOUT":
                        raise ResourcesError(f"failed to initialize top level QOS containers: {error}") from error
                case Failed(error):
                    raise error
                case Uncertain():
                    pass
            waited = loop.time() - began
            if waited > self._retry_limits.start_s:
                problem = f"{self._maker} has not answered for {waited:.0f} s ({what})"
                raise ResourcesError(f"failed to initialize top level QOS containers: {problem}")
            if not waiting:
                log.warning("no pod starts before the top level cgroups are made", waits_for=self._maker, step=what)
            waiting = True
            await asyncio.sleep(LONGEST_PAUSE_S)

    async def retry_node_limits(self) -> None:
        """Set the limits of the group of all pods unless they are set already."""
        name = decide.node_group(self._settings)
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
        message = f"Failed to update Node Allocatable Limits {decide.quoted(name)}: {problem}"
        self._recorder.post(warning(EVENT_FAILED_NODE_ALLOCATABLE, message))

    async def _enforce_reserved(self, title: str, word: str, compressible: bool) -> None:
        is_system = word == "system"
        settings = self._settings
        group = settings.system_reserved_cgroup if is_system else settings.kube_reserved_cgroup
        amounts = settings.system_reserved if is_system else settings.kube_reserved
        name = decide.parse_group(group, settings.driver)
        limits = decide.reserved_limits(amounts, self._node, settings, compressible=compressible)
        problem = await self._try(f"cgroup:{word}-reserved", lambda: self._enforce(name, limits), aside=True)
        if problem is not None:
            message = f'Failed to enforce {title} Cgroup Limits on "{group}": {problem}'
            self._recorder.post(warning(EVENT_FAILED_NODE_ALLOCATABLE, message))
            raise ResourcesError(message)
        message = f"Updated limits on {word} reserved cgroup {group}"
        self._recorder.post(normal(EVENT_NODE_ALLOCATABLE_ENFORCED, message))

    def _enforce(self, name: decide.GroupName, limits: CgroupLimits) -> None:
        path = self._path(name)
        self._check_usable(name, path)
        self._cgroups.update(path, limits)

    def _check_usable(self, name: decide.GroupName, path: str) -> None:
        """Raise a HostError with the reference kubelet's text unless all controllers can limit the group."""
        try:
            missing = self._cgroups.missing(path)
        except HostError as error:
            message = f"could not read controllers for cgroup {decide.quoted(name)}: {error}"
            raise _UnusableGroup(error.op, path, error.errno_name, message) from error
        if missing:
            kind = "paths" if self._cgroups.version is CgroupVersion.V1 else "controllers"
            message = f"cgroup {decide.quoted(name)} has some missing {kind}: {', '.join(missing)}"
            raise _UnusableGroup("check", path, "ENOENT", message)

    # QoS groups

    async def update_qos(self, pods: Mapping[PodUID, Pod], *, force: bool = False) -> None:
        """Set the limits of the QoS groups for these active pods. `force`: even if the limits have not changed."""
        if not self._settings.cgroups_per_qos:
            return
        before, self._active = self._active, pods
        for uid in changed_keys(before, pods):
            self._count(uid, pods.get(uid))
        await self._set_qos_limits(force=force)

    def _count(self, uid: PodUID, pod: Pod | None) -> None:
        """Have what the pod requests in the sums; None: it is not active any more."""
        share = self._shares.pop(uid, None)
        if share is not None:
            self._sums.subtract(decide.amounts_of(share))
        if pod is not None:
            share = self._shares[uid] = self._share(pod)
            self._sums.update(decide.amounts_of(share))

    async def _set_qos_limits(self, *, force: bool = False) -> None:
        for qos, limits in decide.qos_limits(self._sums, self._node, self._settings).items():
            if self._applied.get(qos) == limits and not force:
                continue
            path = self._path(decide.qos_group(self._settings, qos))
            work = _creating(self._cgroups, path, limits)
            problem = await self._try(f"cgroup:{qos}", work, aside=limits.memory_bytes is not None)
            if problem is None:
                self._applied[qos] = limits
                if self._settings.memory_protection is not MemoryProtection.OFF:
                    _report_protection(limits)
            elif limits.memory_bytes is not None:
                await self._limit_to_usage(qos, path, limits)
            self._note(qos, problem)

    async def _limit_to_usage(self, qos: QOSClass, path: str, limits: CgroupLimits) -> None:
        """Limit the memory of a class to what it uses, because it already uses more than `qosReserved` leaves to it."""

        def work() -> None:
            self._cgroups.update(path, replace(limits, memory_bytes=self._cgroups.memory_used(path)))

        problem = await self._try(f"cgroup:{qos}", work, aside=True)
        if problem is not None:
            log.debug("memory of a QoS class cannot be limited to what it uses", qos=qos, error=problem)

    def _note(self, qos: QOSClass, problem: HostError | None) -> None:
        """Log when updates begin to fail or fail differently, and when they work again."""
        if problem is not None and self._failing.get(qos) != str(problem):
            log.warning("the cgroup of a QoS class cannot be updated", qos=qos, error=problem)
            self._failing[qos] = str(problem)
        elif problem is None and self._failing.pop(qos, None) is not None:
            log.info("the cgroup of a QoS class is updated again", qos=qos)

    # Pods

    async def ensure_pod(self, pod: Pod, *, exclusive_cpus: bool = False) -> CgroupError | None:
        """Make the pod's group and set its limits. May be repeated. Returns the error, else None."""
        if not self._settings.cgroups_per_qos:
            return None
        uid = PodUID(pod.metadata.uid)
        path = self._path(decide.pod_group(self._settings, qos_class(pod), uid))
        limits = self._limits(pod, exclusive_cpus=exclusive_cpus)
        if self._settings.ask_extensions is not None:
            await self._protect(pod)
        problem = await self._try(f"cgroup:{uid}", lambda: self._cgroups.create(path, limits), "create")
        if problem is None:
            self._paths[uid] = path
            return None
        message = f"failed to create container for [{' '.join(path.strip('/').split('/'))}] : {problem}"
        return CgroupError(message)

    async def widen_pod(self, before: Pod, after: Pod, *, exclusive_cpus: bool = False) -> CgroupError | None:
        """Set limits that allow both sizes of a pod that is being resized. `ensure_pod` sets the final limits later."""
        if not self._settings.cgroups_per_qos:
            return None
        uid = PodUID(after.metadata.uid)
        path = self._path(decide.pod_group(self._settings, qos_class(after), uid))
        limits = decide.wider(
            self._limits(before, exclusive_cpus=exclusive_cpus), self._limits(after, exclusive_cpus=exclusive_cpus)
        )
        problem = await self._try(f"cgroup:{uid}", lambda: self._cgroups.update(path, limits))
        return CgroupError(str(problem)) if problem is not None else None

    def _limits(self, pod: Pod, *, exclusive_cpus: bool) -> CgroupLimits:
        """The limits of the pod's group. Extensions are asked once for each size, so that all that write them write the same."""
        settings, uid = self._settings, PodUID(pod.metadata.uid)
        limits = decide.pod_cgroup_limits(pod, settings, self._node.page_sizes, exclusive_cpus=exclusive_cpus)
        if settings.ask_extensions is None:
            return limits
        known = self._changed.get(uid, ())
        for built_in, changed in known:
            if built_in == limits:
                return changed
        changed = decide.changed_limits(pod, limits, settings)
        self._changed[uid] = ((limits, changed), *known[:1])
        return changed

    def _share(self, pod: Pod) -> decide.Share:
        known = self._changed.get(PodUID(pod.metadata.uid), ())
        return decide.share_of(pod, known[0][1] if known else None, self._node.capacity.get("memory", 0))

    async def _protect(self, pod: Pod) -> None:
        """Protect the memory of the QoS groups as much as that of this pod, as the kernel protects a group no better than its parents.

        The loop does so for a pod that it does not have yet.
        """
        uid = PodUID(pod.metadata.uid)
        known = self._shares.get(uid)
        if known is not None and known != self._share(pod):
            self._count(uid, pod)
            await self._set_qos_limits()

    async def give_realtime(self, pod: Pod, container: str, runtime_us: int) -> str:
        """Let a container use SCHED_FIFO and SCHED_RR for so many microseconds of a second (cgroup v1). Returns the error, or an empty
        string. The container may be started afterwards, as the runtime takes a cgroup that exists.
        """
        driver, settings = self._cgroups, self._settings
        if (
            not isinstance(driver, CgroupsV1)
            or settings.driver is not CgroupDriver.CGROUPFS
            or not settings.cgroups_per_qos
        ):
            return (
                ""
                if not runtime_us
                else "cpu.rt_runtime_us needs cgroup v1, the cgroup driver cgroupfs and cgroupsPerQOS"
            )
        uid = PodUID(pod.metadata.uid)
        path = self._path((*decide.pod_group(settings, qos_class(pod), uid), container))
        top = self._path(decide.split_root(settings.cgroup_root))
        problem = await self._try(f"cgroup:{uid}", lambda: give_realtime(driver, top, path, runtime_us))
        return f"the time for real-time scheduling cannot be set: {problem}" if problem is not None else ""

    async def is_gone(self, pod: Pod) -> bool:
        """Whether the pod's group is certainly gone; False when that cannot be read."""
        return await self._read(pod, self._cgroups.exists) is False

    async def memory_used(self, pod: Pod) -> int | None:
        """Bytes of memory that the pod uses now; None when that is not known."""
        return await self._read(pod, self._cgroups.memory_used)

    async def _read(self, pod: Pod, read: Callable[[str], T]) -> T | None:
        """What is read of the pod's group; None when it cannot be read."""
        if not self._settings.cgroups_per_qos:
            return None
        uid = PodUID(pod.metadata.uid)
        path = self._path(decide.pod_group(self._settings, qos_class(pod), uid))
        outcome = await self._run(f"cgroup:{uid}", lambda: read(path))
        if isinstance(outcome, Failed) and not isinstance(outcome.error, HostError):
            raise outcome.error
        return outcome.value if isinstance(outcome, Done) else None

    async def lower_pod(self, uid: PodUID) -> None:
        """Give what still runs in the pod's group the least CPU time, where the group is there."""
        if not self._settings.cgroups_per_qos:
            return
        known = self._paths.get(uid)

        def work() -> None:
            for path in (known,) if known else self._possible_paths(uid):
                if self._cgroups.exists(path):
                    self._cgroups.update(path, CgroupLimits(cpu_shares=MIN_SHARES))

        problem = await self._try(f"cgroup:{uid}", work)
        if problem is not None and not problem.is_not_found:
            log.info("the CPU time of a pod that has ended cannot be lowered", uid=uid, error=problem)

    async def remove_pod(self, uid: PodUID) -> bool:
        """Remove the pod's group, killing what still runs in it. True when nothing is left; False: try again later."""
        if not self._settings.cgroups_per_qos:
            return True
        known = self._paths.get(uid)
        paths = (known,) if known else self._possible_paths(uid)
        for failures in range(1, self._retry_limits.removals + 1):
            outcome = await self._run(f"cgroup:{uid}", lambda: self._remove_or_kill(paths), "destroy")
            if outcome == Done(True):
                self._paths.pop(uid, None)
                self._changed.pop(uid, None)
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

    async def list_pods(self, among: Iterable[PodUID] | None = None) -> frozenset[PodUID]:
        """The pods that have a group now, of these pods or of all; empty when that cannot be read."""
        if not self._settings.cgroups_per_qos:
            return frozenset()
        work = self._list if among is None else partial(self._existing, tuple(among))
        outcome = await self._flight.run("cgroup:list", work, self._retry_limits.deadline_s)
        if isinstance(outcome, Failed) and not isinstance(outcome.error, HostError):
            raise outcome.error
        return outcome.value if isinstance(outcome, Done) else frozenset()

    def _list(self) -> frozenset[PodUID]:
        found: set[PodUID] = set()
        for qos in QOSClass:
            group = decide.qos_group(self._settings, qos)
            for entry in self._cgroups.children(self._path(group)):
                uid = decide.read_pod_uid(entry, group, self._settings.driver)
                if uid is not None:
                    found.add(uid)
        return frozenset(found)

    def _existing(self, uids: Iterable[PodUID]) -> frozenset[PodUID]:
        return frozenset(uid for uid in uids if any(map(self._cgroups.exists, self._possible_paths(uid))))

    async def sweep(
        self,
        unknown: Callable[[frozenset[PodUID]], Iterable[PodUID]],
        among: Iterable[PodUID] | None = None,
    ) -> frozenset[PodUID]:
        """Remove the groups of pods that are not known any more, of these pods or of all. Returns their UIDs.

        `unknown` of the pods that have a group is asked after the groups were listed: a pod is known before its group is made, so no
        group of a known pod is removed.
        """
        found = await self.list_pods(among)
        removed = set()
        for uid in sorted(unknown(found)):
            log.info("removing the cgroup of a pod that is gone", uid=uid)
            if await self.remove_pod(uid):
                removed.add(uid)
        return frozenset(removed)

    # Shared

    def _path(self, name: decide.GroupName) -> str:
        return decide.driver_path(name, self._settings.driver)

    def _possible_paths(self, uid: PodUID) -> tuple[str, ...]:
        return tuple(self._path(decide.pod_group(self._settings, qos, uid)) for qos in QOSClass)

    async def _run(self, key: str, work: Callable[[], T], operation: str = "", *, aside: bool = False) -> Outcome[T]:
        """Run work on a cgroup. Most cgroup files answer in microseconds, less than a thread costs, so the work runs inline.
        It runs in a thread with systemd, because its D-Bus calls may be slow, and with `aside`, for memory limits of many pods: the
        kernel may free memory before it answers. `operation`: its label in the metric."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        outcome = await self._ask(key, work, aside)
        if operation:
            DURATIONS.observe(loop.time() - began, operation)
        return outcome

    async def _ask(self, key: str, work: Callable[[], T], aside: bool) -> Outcome[T]:
        if aside or self._settings.driver is CgroupDriver.SYSTEMD:
            return await self._flight.run(key, work, self._retry_limits.deadline_s)
        try:
            return Done(work())
        except HostError as error:
            return Failed(error)

    async def _try(
        self, key: str, work: Callable[[], None], operation: str = "update", *, aside: bool = False
    ) -> HostError | None:
        """Run one step. Returns its HostError, else None; raises other exceptions, which are bugs."""
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
                    if loop.time() - since > self._retry_limits.uncertain_s:
                        return HostError("cgroup", key, "ETIMEDOUT", f"{self._maker} has not answered yet")
                    # A step of an abandoned sync is about to end.
                    await asyncio.sleep(FIRST_PAUSE_S)


def _report_protection(limits: CgroupLimits) -> None:
    """Show on `/metrics` how much memory the kernel protects for all pods, and for Burstable ones."""
    for file, gauge in ((decide.MEMORY_MIN, MEMORY_MIN_BYTES), (decide.MEMORY_LOW, MEMORY_LOW_BYTES)):
        if file in limits.unified:
            gauge.set(int(limits.unified[file]))


def _creating(cgroups: Cgroups, path: str, limits: CgroupLimits) -> Callable[[], None]:
    return lambda: cgroups.create(path, limits)
