"""Carries out commands: each runs as blocking work in a thread, and its result is posted as an event. All I/O on volumes starts here.

At most one piece of work runs for each volume. Work that misses its deadline ends as uncertain. Until that work has returned,
further commands for the same volume end as uncertain at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar, assert_never

from pykubelet.act.volumes import disk
from pykubelet.act.volumes.directories import VolumeDirs
from pykubelet.act.volumes.expand import Expander
from pykubelet.act.volumes.expansion import Expansion
from pykubelet.act.volumes.kind import (
    EXPANDING,
    SET_UP,
    CallContext,
    DevicePlan,
    FoundDevice,
    SetUpContext,
    TransientError,
    UncertainError,
    VolumesError,
)
from pykubelet.act.volumes.metrics import count_expansion, count_found, count_operation, count_unstaging
from pykubelet.act.volumes.model import (
    Command,
    DeviceCommand,
    DeviceStaged,
    DeviceUnstaged,
    DirectoryMade,
    DirectoryRemoved,
    Event,
    ExpandVolume,
    FoundPod,
    MakePodDirectory,
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
)
from pykubelet.act.volumes.registry import kind_in, kind_named
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.flight import Done, Failed, Outcome, SingleFlight, Uncertain
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.mailbox import Post
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import Value, replace
from pykubelet.base.model.kube_events import KubeEvent
from pykubelet.base.model.paths import Paths
from pykubelet.base.model.plugins import Plugins
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.quotas import VolumeQuotas

log = Log("act.volumes")
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


class VolumeEdges(Value):
    """What work on volumes uses besides the host. `flight`: runs it in threads."""

    quotas: VolumeQuotas
    flight: SingleFlight
    expander: Expander


class Executor:
    """Carries out commands and posts their results."""

    def __init__(
        self,
        paths: Paths,
        edges: VolumeEdges,
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
        self._events = events

    def run(self, command: Command, plugins: Plugins) -> None:
        """Begin to carry out a command; never waits. `plugins`: those that are registered now."""
        if isinstance(command, RecordEvent):
            self._events.post(command.kube_event)
        else:
            self._tasks.start_child(f"volumes {type(command).__name__}", self._carry_out(command, plugins))

    async def _carry_out(
        self,
        command: SetUp | ExpandVolume | TearDown | DeviceCommand | MakePodDirectory | RemovePodDirectory | Scan,
        plugins: Plugins,
    ) -> None:
        paths = self._paths
        match command:
            case SetUp():
                self._ended.post(await self._set_up_and_expand(command, plugins))
            case ExpandVolume(uid, key):
                result, error, size = await self._expand(command, command.expansion, plugins)
                self._ended.post(VolumeExpanded(uid, key, result, size, error))
            case TearDown(uid, key):
                began = self._clock.monotonic()
                result, error = await self._unmount(command, plugins)
                count_operation(command, result, self._clock.monotonic() - began)
                self._ended.post(TearDownEnded(uid, key, result, error))
            case StageDevice(plan):
                result, error = await self._stage(plan, plugins)
                self._ended.post(DeviceStaged(plan.name, result, error))
            case UnstageDevice(device):
                began = self._clock.monotonic()
                result, error = await self._unstage(device, plugins)
                count_unstaging(device, result, self._clock.monotonic() - began)
                self._ended.post(DeviceUnstaged(device.name, result, error))
            case MakePodDirectory(uid):
                result, error, _ = await self._fly(f"pod/{uid}", lambda: disk.make_tree(paths, uid), SET_UP_S)
                self._ended.post(DirectoryMade(uid, result, error))
            case RemovePodDirectory(uid):
                result, error, left = await self._fly(f"pod/{uid}", lambda: disk.remove_pod(paths, uid), TEAR_DOWN_S)
                self._ended.post(DirectoryRemoved(uid, result, error, left or ()))
            case Scan():
                result, error, found = await self._fly("pods", self._scan, SET_UP_S)
                count_found(found[0] if found is not None else None)
                self._ended.post(ScanFailed(error) if found is None else Scanned(*found))
            case _:
                assert_never(command)

    async def _set_up_and_expand(self, command: SetUp, plugins: Plugins) -> SetUpEnded:
        """Set a volume up, then expand it. A volume that cannot be expanded is mounted, but must not be used yet."""
        began = self._clock.monotonic()
        steps: list[str] = []
        result, error = await self._mount(command, plugins, steps)
        count_operation(command, result, self._clock.monotonic() - began)
        ended = SetUpEnded(command.uid, command.key, result, error, steps[0] if steps else SET_UP)
        if result is not Result.DONE or command.expansion is None:
            return ended
        result, error, size = await self._expand(command, command.expansion, plugins)
        if result is not Result.DONE:
            return replace(ended, result=Result.UNCERTAIN, error=error, step=EXPANDING)
        return replace(ended, size=size)

    async def _expand(
        self, command: SetUp | ExpandVolume, expansion: Expansion, plugins: Plugins
    ) -> tuple[Result, str, int]:
        """Expand a mounted volume. The number is that of `Expander.expand`."""
        plan, began = command.plan, self._clock.monotonic()
        grow, sizes = kind_named(plan.kind).expand, [0]
        assert grow is not None, f"{plan.kind} volumes cannot be expanded"

        async def work(context: CallContext) -> None:
            sizes[0] = await self._edges.expander.expand(expansion, lambda size: grow(plan, size, context))

        result, error = await self._call(f"volume/{command.uid}/{command.key}", work, plugins)
        count_expansion(plan, result, self._clock.monotonic() - began)
        return result, error, sizes[0]

    async def _mount(self, command: SetUp, plugins: Plugins, steps: list[str]) -> tuple[Result, str]:
        """Set a volume up, by its driver or in a thread. `steps`: as in `_set_up`."""
        key, mount = f"volume/{command.uid}/{command.key}", kind_named(command.plan.kind).mount
        if mount is None:
            result, error, _ = await self._fly(key, lambda: self._set_up(command, steps), SET_UP_S)
            return result, error

        async def work(context: CallContext) -> None:
            await context.blocking(lambda: disk.make_tree(self._paths, command.uid))
            await mount(command.plan, context)

        return await self._call(key, work, plugins)

    async def _unmount(self, command: TearDown, plugins: Plugins) -> tuple[Result, str]:
        """Tear a volume down, by its driver or in a thread."""
        paths, uid, plugin, name = self._paths, command.uid, command.plugin, command.name
        key, unmount = f"volume/{uid}/{command.key}", kind_in(plugin).unmount if plugin else None

        def tear_down() -> None:
            disk.tear_down(paths, uid, plugin, name)
            if plugin:
                self._quotas.release(f"{paths.pod_volumes(uid)}/{plugin}/{name}")

        if unmount is None:
            result, error, _ = await self._fly(key, tear_down, TEAR_DOWN_S)
            return result, error

        async def work(context: CallContext) -> None:
            dirs = VolumeDirs.of(paths, uid, plugin, name)
            await context.blocking(lambda: disk.prepare_tear_down(paths, uid, name, dirs.path))
            await unmount(dirs, context)

        return await self._call(key, work, plugins)

    async def _stage(self, plan: DevicePlan, plugins: Plugins) -> tuple[Result, str]:
        stage = kind_named(plan.kind).stage
        assert stage is not None, f"{plan.kind} volumes have devices, but these cannot be staged"
        return await self._call(f"device/{plan.name}", lambda context: stage(plan, context), plugins)

    async def _unstage(self, found: FoundDevice, plugins: Plugins) -> tuple[Result, str]:
        unstage = kind_named(found.kind).unstage
        assert unstage is not None, f"{found.kind} volumes have devices, but these cannot be unstaged"
        return await self._call(f"device/{found.name}", lambda context: unstage(found, context), plugins)

    async def _call(
        self, key: str, calls: Callable[[CallContext], Awaitable[None]], plugins: Plugins
    ) -> tuple[Result, str]:
        async def blocking(work: Callable[[], T], deadline_s: float = SET_UP_S) -> T:
            match outcome := await self._flight.run(key, work, deadline_s):
                case Done(value):
                    return value
                case Failed(error):
                    raise error
            raise UncertainError(self._no_answer(outcome.since))

        try:
            await calls(CallContext(plugins, blocking))
        except Exception as error:  # noqa: BLE001 - work of a kind never ends the agent
            return _result_of(error), self._text_of(error, key)
        return Result.DONE, ""

    @staticmethod
    def _text_of(error: Exception, key: str) -> str:
        """The text for users. An error that nothing expects is logged."""
        if not isinstance(error, (HostError, VolumesError)):
            log.error("work on a volume crashed", key=key, error=repr(error), exc_info=error)
        return str(error) or repr(error)

    def _no_answer(self, since: float) -> str:
        waited = asyncio.get_running_loop().time() - since
        text = f"no answer after {waited:.0f}s" if waited >= 1 else "work begun earlier has not come back"
        return f"{text}; it may still be under way"

    async def _fly(self, key: str, work: Callable[[], T], deadline_s: float) -> tuple[Result, str, T | None]:
        outcome: Outcome[T] = await self._flight.run(key, work, deadline_s)
        match outcome:
            case Done(value):
                return Result.DONE, "", value
            case Failed(error):
                return _result_of(error), self._text_of(error, key), None
            case Uncertain(since):
                return Result.UNCERTAIN, self._no_answer(since), None
        assert_never(outcome)

    def _set_up(self, command: SetUp, steps: list[str]) -> None:
        """Carry out the plan. On failure, the step that failed is appended to `steps`."""
        kind = kind_named(command.plan.kind)
        assert kind.set_up is not None, f"{kind.name} volumes are planned, but cannot be set up"
        if kind.has_directory:
            disk.make_tree(self._paths, command.uid)
        try:
            kind.set_up(command.plan, SetUpContext(self._clock.wall(), self._quotas))
        except VolumesError as error:
            steps.append(error.step)
            raise

    def _scan(self) -> tuple[tuple[FoundPod, ...], tuple[FoundDevice, ...]]:
        self._quotas.prune(self._paths.pods)
        return disk.scan(self._paths), disk.scan_devices(self._paths)
