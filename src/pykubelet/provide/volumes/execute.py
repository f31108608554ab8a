"""Carries out commands: each runs as blocking work in a thread, and its result is posted as an event. All I/O on volumes starts here.

At most one piece of work runs for each volume. Work that misses its deadline ends as uncertain. Until that work has returned,
further commands for the same volume end as uncertain at once.

Each posted result costs a decision about its pod, which takes longer the more volumes the pod has. So the results of a pod on which many
operations run are posted together.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Protocol, TypeVar, assert_never

from pykubelet.base.api.storage import VolumeAttachment
from pykubelet.base.kit.cells import Post
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.flight import Done, Failed, Outcome, SingleFlight, Uncertain, value_of
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import Value, field, replace
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.kube_events import KubeEvent
from pykubelet.base.model.paths import Paths
from pykubelet.base.model.plugins import Plugins
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.quotas import VolumeQuotas
from pykubelet.edges.kubeapi.errors import ApiError
from pykubelet.provide.volumes import disk
from pykubelet.provide.volumes.attach_limit import is_at_limit
from pykubelet.provide.volumes.directories import VolumeDirs, make_pod_dirs
from pykubelet.provide.volumes.disks.device_mount import refuse_users
from pykubelet.provide.volumes.expand import Expander
from pykubelet.provide.volumes.expansion import Expansion
from pykubelet.provide.volumes.kind import (
    EXPANDING,
    MOUNT_DEVICE,
    SET_UP,
    CallContext,
    DevicePlan,
    ExtensionVolumes,
    FoundDevice,
    Note,
    NotYetError,
    Plan,
    SetUpContext,
    StillAtWork,
    TransientError,
    UncertainError,
    VolumesError,
    drop_note,
)
from pykubelet.provide.volumes.metrics import (
    count_context,
    count_expansion,
    count_found,
    count_operation,
    count_staging,
    count_unstaging,
)
from pykubelet.provide.volumes.model import (
    AttachmentsRead,
    CancelSetUp,
    Command,
    CountContext,
    DeviceCommand,
    DeviceStaged,
    DeviceUnstaged,
    DirectoryMade,
    DirectoryRemoved,
    Event,
    ExpandVolume,
    FoundPod,
    MakePodDirectory,
    Noted,
    PlanVolume,
    PodCommand,
    ReadAttachments,
    RecordEvent,
    RemovePodDirectory,
    Result,
    Scan,
    ScanFailed,
    Scanned,
    SetUp,
    SetUpEnded,
    StageDevice,
    TearDown,
    TearDownEnded,
    UnstageDevice,
    VolumeExpanded,
    VolumePlanned,
)
from pykubelet.provide.volumes.payloads.budget import PayloadBudget
from pykubelet.provide.volumes.plan import kind_in, kind_named, plan_volume, plugin_of, plugin_of_device, plugin_of_plan

log = Log("provide.volumes")
T = TypeVar("T")
SET_UP_S = 30.0
TEAR_DOWN_S = 120.0


def _result_of(error: Exception) -> Result:
    """How work ended that raised `error`. After an error that nothing expects, the volume may be mounted."""
    match error:
        case UncertainError():
            return Result.UNCERTAIN
        case TransientError():
            return Result.TRANSIENT
        case HostError() | VolumesError():
            return Result.FAILED
    return Result.UNCERTAIN


class VolumeAdapters(Value):
    """What work on volumes uses besides the host. `flight`: runs it in threads. `attachments`: None without an API server.

    `extensions`: as in `CallContext`.
    """

    quotas: VolumeQuotas
    flight: SingleFlight
    expander: Expander
    attachments: Attachments | None = None
    extensions: Mapping[str, ExtensionVolumes] = field(default_factory=dict)


class Attachments(Protocol):
    """The requests about VolumeAttachments."""

    async def get(self, name: str) -> VolumeAttachment:
        """The VolumeAttachment as it is now. ApiError."""
        ...


class _Ended(Value):
    """How work ended. Fields as in `SetUpEnded` and `DeviceStaged`; `step` None: the usual one."""

    result: Result
    error: str = ""
    step: str | None = None
    volume_reason: str = ""
    pending: StillAtWork | None = None


class Executor:
    """Carries out commands and posts their results."""

    def __init__(
        self,
        paths: Paths,
        edges: VolumeAdapters,
        clock: Clock,
        tasks: Supervisor,
        ended: Post[Event],
        events: Post[KubeEvent],
    ) -> None:
        self._paths = paths
        self._edges = edges
        self._quotas = edges.quotas
        self._flight = edges.flight
        self._clock = clock
        self._tasks = tasks
        self._ended = ended
        self._results = Results(ended)
        self._budget = PayloadBudget()
        self._events = events
        self._cancelled: set[str] = set()

    def stop(self) -> None:
        """Post no further results."""
        self._results.stop()

    def run(self, command: Command, plugins: Plugins) -> None:
        """Begin to carry out a command; never waits. `plugins`: those that are registered now."""
        if isinstance(command, RecordEvent):
            self._events.post(command.kube_event)
        elif isinstance(command, CountContext):
            count_context(command)
        else:
            self._tasks.start_child(f"volumes {type(command).__name__}", self._carry_out(command, plugins))

    async def _carry_out(
        self,
        command: PodCommand | DeviceCommand | Scan,
        plugins: Plugins,
    ) -> None:
        paths = self._paths
        match command:
            case SetUp(uid, key):
                self._results.begun(uid)
                self._cancelled.discard(f"volume/{uid}/{key}")
                self._results.ended(uid, await self._set_up_and_expand(command, plugins))
            case PlanVolume(uid, key):
                self._ended.post(VolumePlanned(uid, key, command, await self._plan(command)))
            case CancelSetUp(uid, key):
                self._cancelled.add(f"volume/{uid}/{key}")
            case ExpandVolume(uid, key):
                self._results.begun(uid)
                ended, size = await self._expand(command, command.expansion, plugins)
                self._results.ended(uid, VolumeExpanded(uid, key, ended.result, size, ended.error))
            case TearDown(uid, key):
                self._results.begun(uid)
                began = self._clock.monotonic()
                self._cancelled.discard(f"volume/{uid}/{key}")
                ended = await self._unmount(command, plugins)
                count_operation(plugin_of(command), command, ended.result, self._clock.monotonic() - began)
                self._results.ended(uid, TearDownEnded(uid, key, ended.result, ended.error))
            case StageDevice(plan):
                began = self._clock.monotonic()
                ended = await self._stage(plan, plugins)
                count_staging(plugin_of_device(plan), plan, ended.result, self._clock.monotonic() - began)
                step = ended.step if ended.step is not None and ended.step != SET_UP else MOUNT_DEVICE
                self._ended.post(DeviceStaged(plan.name, ended.result, ended.error, step, ended.volume_reason))
            case UnstageDevice(device):
                began = self._clock.monotonic()
                ended = await self._unstage(device, plugins)
                count_unstaging(plugin_of_device(device), device, ended.result, self._clock.monotonic() - began)
                self._ended.post(DeviceUnstaged(device.name, ended.result, ended.error))
            case MakePodDirectory(uid):
                ended, _ = await self._fly(f"pod/{uid}", lambda: make_pod_dirs(paths, uid), SET_UP_S)
                self._ended.post(DirectoryMade(uid, ended.result, ended.error))
            case RemovePodDirectory(uid):
                ended, left = await self._fly(f"pod/{uid}", lambda: disk.remove_pod(paths, uid), TEAR_DOWN_S)
                self._ended.post(DirectoryRemoved(uid, ended.result, ended.error, left or ()))
            case ReadAttachments(uid, drivers):
                self._ended.post(AttachmentsRead(uid, await self._drivers_at_limit(drivers)))
            case Scan():
                ended, found = await self._fly("pods", self._scan, SET_UP_S)
                count_found(found[0] if found is not None else None)
                self._ended.post(ScanFailed(ended.error) if found is None else Scanned(*found))
            case _:
                assert_never(command)

    async def _plan(self, command: PlanVolume) -> Plan | None:
        """Make the plan of a volume in a thread. None if that does not end in time, or for an error that nothing expects."""
        pod, volume, inputs = command.pod, command.volume, command.inputs
        work = partial(plan_volume, pod, volume, inputs, self._paths)
        ended, plan = await self._fly(f"plan/{command.uid}/{command.key}", work, SET_UP_S)
        return plan if ended.result is Result.DONE else None

    async def _drivers_at_limit(self, drivers: Mapping[str, str]) -> tuple[str, ...]:
        """Those drivers whose attachment reports that the node is at its limit. An attachment that cannot be read reports nothing."""
        found: set[str] = set()
        for name, driver in drivers.items():
            try:
                if self._edges.attachments is not None and is_at_limit(await self._edges.attachments.get(name)):
                    found.add(driver)
            except ApiError as error:
                log.debug("the attachment of a volume cannot be read", name=name, error=error)
        return tuple(sorted(found))

    async def _set_up_and_expand(self, command: SetUp, plugins: Plugins) -> SetUpEnded:
        """Set a volume up, then expand it. A volume that cannot be expanded is mounted, but must not be used yet."""
        began = self._clock.monotonic()
        ended = await self._mount(command, plugins)
        if ended.pending is None:
            count_operation(plugin_of(command), command, ended.result, self._clock.monotonic() - began)
        step = SET_UP if ended.step is None else ended.step
        result = SetUpEnded(command.uid, command.key, ended.result, ended.error, step, pending=ended.pending)
        if ended.result is not Result.DONE or command.expansion is None:
            return result
        ended, size = await self._expand(command, command.expansion, plugins)
        if ended.result is not Result.DONE:
            return replace(result, result=Result.UNCERTAIN, error=ended.error, step=EXPANDING)
        return replace(result, size=size)

    async def _expand(
        self, command: SetUp | ExpandVolume, expansion: Expansion, plugins: Plugins
    ) -> tuple[_Ended, int]:
        """Expand a mounted volume. The number is that of `Expander.expand`."""
        plan, began = command.plan, self._clock.monotonic()
        grow, sizes = kind_named(plan.kind).expand, [0]
        assert grow is not None, f"{plan.kind} volumes cannot be expanded"

        async def work(context: CallContext) -> None:
            context = replace(context, size=expansion.known)
            sizes[0] = await self._edges.expander.expand(expansion, lambda size: grow(plan, size, context))

        ended = await self._call(f"volume/{command.uid}/{command.key}", work, plugins)
        count_expansion(plugin_of_plan(plan), plan, ended.result, self._clock.monotonic() - began)
        return ended, sizes[0]

    async def _mount(self, command: SetUp, plugins: Plugins) -> _Ended:
        """Set a volume up, by its driver or in a thread."""
        key, mount = f"volume/{command.uid}/{command.key}", kind_named(command.plan.kind).mount
        loop = asyncio.get_running_loop()

        def note(wanted: Note) -> None:
            loop.call_soon_threadsafe(self._ended.post, Noted(command.uid, wanted))

        if mount is None:
            take_files = partial(self._budget.take, command.uid)
            context = SetUpContext(self._clock.wall(), self._quotas, note, lambda: self._go_on(key), take_files)
            ended, _ = await self._fly(key, lambda: self._set_up(command, context), SET_UP_S)
            return ended

        async def work(context: CallContext) -> None:
            await context.blocking(lambda: make_pod_dirs(self._paths, command.uid))
            await mount(command.plan, context)

        return await self._call(key, work, plugins, note)

    async def _unmount(self, command: TearDown, plugins: Plugins) -> _Ended:
        """Tear a volume down, by its driver or in a thread."""
        paths, uid, plugin, name = self._paths, command.uid, command.plugin, command.name
        key, unmount = f"volume/{uid}/{command.key}", kind_in(plugin).unmount if plugin else None

        def tear_down() -> None:
            disk.tear_down(paths, uid, plugin, name, is_block=command.is_block)
            if plugin:
                path = f"{paths.pod_volumes(uid)}/{plugin}/{name}"
                self._quotas.release(path)
                self._budget.release(uid, path)

        if unmount is None:
            ended, _ = await self._fly(key, tear_down, TEAR_DOWN_S)
            return ended

        async def work(context: CallContext) -> None:
            dirs = VolumeDirs.of(paths, uid, plugin, name, is_block=command.is_block)
            await context.blocking(lambda: disk.prepare_tear_down(paths, uid, name, dirs.path))
            await unmount(dirs, context)

        return await self._call(key, work, plugins)

    async def _stage(self, plan: DevicePlan, plugins: Plugins) -> _Ended:
        stage = kind_named(plan.kind).stage
        assert stage is not None, f"{plan.kind} volumes have devices, but these cannot be staged"
        return await self._call(f"device/{plan.name}", lambda context: stage(plan, context), plugins)

    async def _unstage(self, found: FoundDevice, plugins: Plugins) -> _Ended:
        unstage = kind_named(found.kind).unstage
        assert unstage is not None, f"{found.kind} volumes have devices, but these cannot be unstaged"

        async def work(context: CallContext) -> None:
            await unstage(found, context)
            if found.path:
                await context.blocking(lambda: refuse_users(found.path))

        return await self._call(f"device/{found.name}", work, plugins)

    async def _call(
        self,
        key: str,
        calls: Callable[[CallContext], Awaitable[None]],
        plugins: Plugins,
        note: Callable[[Note], None] = drop_note,
    ) -> _Ended:
        async def blocking(work: Callable[[], T], deadline_s: float = SET_UP_S) -> T:
            return value_of(
                await self._flight.run(key, work, deadline_s), lambda since: UncertainError(self._no_answer(since))
            )

        try:
            extensions = self._edges.extensions
            await calls(CallContext(plugins, blocking, note, progress=lambda: self._go_on(key), extensions=extensions))
        except Exception as error:  # noqa: BLE001 - work of a kind never ends the agent
            return self._failed(error, key)
        return _Ended(Result.DONE)

    def _go_on(self, key: str) -> None:
        """Note that work makes progress. UncertainError if it was abandoned. Called from threads."""
        if key in self._cancelled:
            raise UncertainError("it was abandoned, because its pod has ended")
        self._flight.renew(key)

    @staticmethod
    def _failed(error: Exception, key: str) -> _Ended:
        """The end of work that raised `error`. One that nothing expects is logged."""
        if not isinstance(error, (HostError, VolumesError)):
            log.error("work on a volume crashed", key=key, error=repr(error), exc_info=error)
        result, text = _result_of(error), str(error) or repr(error)
        if isinstance(error, VolumesError):
            pending = error.pending if isinstance(error, NotYetError) else None
            return _Ended(result, text, error.step, error.volume_reason, pending)
        return _Ended(result, text)

    def _no_answer(self, since: float) -> str:
        waited = asyncio.get_running_loop().time() - since
        text = f"no answer after {waited:.0f}s" if waited >= 1 else "work begun earlier has not come back"
        return f"{text}; it may still be under way"

    async def _fly(self, key: str, work: Callable[[], T], deadline_s: float) -> tuple[_Ended, T | None]:
        outcome: Outcome[T] = await self._flight.run(key, work, deadline_s)
        match outcome:
            case Done(value):
                return _Ended(Result.DONE), value
            case Failed(error):
                return self._failed(error, key), None
            case Uncertain(since):
                return _Ended(Result.UNCERTAIN, self._no_answer(since)), None
        assert_never(outcome)

    def _set_up(self, command: SetUp, context: SetUpContext) -> None:
        """Carry out the plan."""
        kind = kind_named(command.plan.kind)
        assert kind.set_up is not None, f"{kind.name} volumes are planned, but cannot be set up"
        if kind.has_directory:
            make_pod_dirs(self._paths, command.uid)
        kind.set_up(command.plan, context)

    def _scan(self) -> tuple[tuple[FoundPod, ...], tuple[FoundDevice, ...]]:
        self._quotas.prune(self._paths.pods)
        return disk.scan(self._paths), disk.scan_devices(self._paths)


#: While so many operations of a pod run, so many results are posted at a time, or those of so many seconds.
MANY = 32
COLLECTED_S = 0.02


class Results:
    """The results that are not posted yet, and the number of operations that run, by pod."""

    def __init__(self, post: Post[Event]) -> None:
        self._post = post
        self._running: Counter[PodUID] = Counter()
        self._waiting: dict[PodUID, list[Event]] = {}
        self._timers: dict[PodUID, asyncio.TimerHandle] = {}

    def begun(self, uid: PodUID) -> None:
        """Note that an operation on a volume of the pod begins."""
        self._running[uid] += 1

    def ended(self, uid: PodUID, result: Event) -> None:
        """Post the result of an operation, now or soon."""
        self._running[uid] -= 1
        if self._running[uid] < MANY and uid not in self._waiting:
            self._post.post(result)
        else:
            self._collect(uid, result)
        if not self._running[uid]:
            del self._running[uid]

    def _collect(self, uid: PodUID, result: Event) -> None:
        waiting = self._waiting.setdefault(uid, [])
        waiting.append(result)
        if len(waiting) >= MANY or self._running[uid] < MANY:
            self._flush(uid)
        elif uid not in self._timers:
            self._timers[uid] = asyncio.get_running_loop().call_later(COLLECTED_S, self._flush, uid)

    def _flush(self, uid: PodUID) -> None:
        timer = self._timers.pop(uid, None)
        if timer is not None:
            timer.cancel()
        for result in self._waiting.pop(uid, ()):
            self._post.post(result)

    def stop(self) -> None:
        """Post nothing more."""
        for timer in self._timers.values():
            timer.cancel()
