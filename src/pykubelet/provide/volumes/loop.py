"""The loop of the volume manager: waits for events, calls `decide`, publishes `Mounts`, runs commands.

Owns: the cell `Mounts`, and the diagnostics of volumes. Reads: `Roster`, `Lifecycles`, `Observed`, `NodeView`,
`Content`, `Plugins` and `ApiNode`. Makes no decisions and does not block.
"""

from __future__ import annotations

import asyncio

from pykubelet.base.kit.cells import Cell, CellWriter, LazyCellWriter, Mailbox, Post, set_on_change
from pykubelet.base.kit.clock import Clock, Moment, moment_of
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import Value
from pykubelet.base.model.content import Content
from pykubelet.base.model.diagnostics import Diagnostics
from pykubelet.base.model.extensions import ExtensionStates
from pykubelet.base.model.kube_events import KubeEvent
from pykubelet.base.model.lifecycle import Lifecycles
from pykubelet.base.model.mounts import Mounts
from pykubelet.base.model.node import ApiNode, NodeView
from pykubelet.base.model.observed import Observed
from pykubelet.base.model.paths import Paths
from pykubelet.base.model.plugins import Plugins
from pykubelet.base.model.roster import Roster
from pykubelet.base.model.selinux import SelinuxHost
from pykubelet.provide.volumes.decide import next_timer, step_all
from pykubelet.provide.volumes.execute import Executor, VolumeAdapters
from pykubelet.provide.volumes.kind import VolumePlan
from pykubelet.provide.volumes.metrics import count_mounted, count_orphans
from pykubelet.provide.volumes.model import (
    DeviceStaged,
    DeviceUnstaged,
    DirectoryRemoved,
    Event,
    Inputs,
    InputsChanged,
    MountPhase,
    Result,
    Resumed,
    Scanned,
    SetUpEnded,
    State,
    TearDownEnded,
    VolumesTimerFired,
)
from pykubelet.provide.volumes.plan import plugin_of_plan
from pykubelet.provide.volumes.project import diagnose

log = Log("provide.volumes")
SCAN_PERIOD_S = 120.0
#: Times of retries this close together are handled in one step.
TIMER_SLACK_S = 0.05


NO_EXTENSIONS = ExtensionStates()
_BEING_MADE = Content(has_manifests=True)


class VolumeInputs(Value):
    """What decisions about volumes read: cells, and what never changes: `selinux`, `by_controller` and `resizes_memory` (see `Inputs`).

    `extensions`: None if no extension can provide volumes.
    """

    roster: Cell[Roster]
    lifecycles: Cell[Lifecycles]
    observed: Cell[Observed]
    node: Cell[NodeView]
    content: Cell[Content]
    plugins: Cell[Plugins]
    api_node: Cell[ApiNode]
    selinux: SelinuxHost = SelinuxHost()
    by_controller: bool = True
    resizes_memory: bool = False
    extensions: Cell[ExtensionStates] | None = None

    def read(self) -> Inputs:
        """The current snapshots of all cells. Content from other manifests than those of the roster is being made anew."""
        roster, content = self.roster.get(), self.content.get()
        if content.has_manifests and content.made_from != roster.objects:
            content = _BEING_MADE
        return Inputs(
            roster,
            self.lifecycles.get(),
            self.observed.get(),
            self.node.get(),
            content,
            self.plugins.get(),
            self.api_node.get(),
            self.selinux,
            self.by_controller,
            self.resizes_memory,
            self.extensions.get() if self.extensions is not None else NO_EXTENSIONS,
        )


class Volumes:
    """Public: the volume manager; `run` lasts as long as the agent. Stopping it unmounts nothing."""

    def __init__(
        self,
        paths: Paths,
        inputs: VolumeInputs,
        outputs: tuple[CellWriter[Mounts], LazyCellWriter[Diagnostics]],
        edges: VolumeAdapters,
        clock: Clock,
        recorder: Post[KubeEvent],
    ) -> None:
        self._paths = paths
        self._inputs = inputs
        self._mounts, diagnostics = outputs
        diagnostics.answer_with(lambda: diagnose(self._state))
        self._edges = edges
        self._clock = clock
        self._recorder = recorder
        self._state = State(mounts=self._mounts.get())
        self._wake = asyncio.Event()
        self._mailbox: Mailbox[Event] = Mailbox("volumes", self._wake)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: float | None = None

    async def run(self) -> None:
        """Scan the disk, then follow the cells. Never returns."""
        async with Supervisor("provide.volumes") as tasks:
            executor = Executor(self._paths, self._edges, self._clock, tasks, self._mailbox, self._recorder)
            cells = self._inputs
            try:
                with set_on_change(
                    self._wake,
                    cells.roster,
                    cells.lifecycles,
                    cells.observed,
                    cells.node,
                    cells.content,
                    cells.plugins,
                    cells.api_node,
                    *((cells.extensions,) if cells.extensions is not None else ()),
                ):
                    scan = tasks.start_root("volumes scan", self._scan_again())
                    await asyncio.gather(tasks.start_root("volumes loop", self._run_steps(executor)), scan)
            finally:
                executor.stop()
                if self._timer is not None:
                    self._timer.cancel()

    async def _scan_again(self) -> None:
        while True:
            self._mailbox.post(VolumesTimerFired(scan=True))
            await asyncio.sleep(SCAN_PERIOD_S)

    async def _run_steps(self, executor: Executor) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            self._handle(self._mailbox.take_all(), executor)
            if self._state.unfinished:
                await asyncio.sleep(0)  # other tasks go on between two parts of a large pod
                self._mailbox.post(Resumed())

    def _handle(self, batch: list[Event], executor: Executor) -> None:
        """Handle all waiting events, changes of the cells first, with at most one publication."""
        now = moment_of(self._clock)
        inputs = self._inputs.read()
        if not inputs.is_same_as(self._state.inputs):
            batch.insert(0, InputsChanged(inputs))
        if self._timer_at is not None and now.mono >= self._timer_at:
            self._timer_at = None
            batch.append(VolumesTimerFired())
        before = self._state
        for event in batch:
            _log_change(event, before)
            _count_change(event, before, now)
        self._state, commands = step_all(before, batch, now, self._paths)
        if self._state.mounts is not before.mounts:
            self._mounts.publish(self._state.mounts)
        for command in commands:
            executor.run(command, self._state.inputs.plugins)
        if self._state.pods is not before.pods or self._state.scan is not before.scan:
            self._set_timer(before, now)

    def _set_timer(self, before: State, now: Moment) -> None:
        """Set the timer if something new is due before it. It may fire when nothing is due any more, and is then set again: a crowd of
        pods that wait for their volumes is not looked through for each of them."""
        at = next_timer(self._state, now, before if self._timer_at is not None else None)
        if at is None or (self._timer_at is not None and self._timer_at <= at):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        delay_s = max(at - now.mono, TIMER_SLACK_S)
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer_at = None
        self._mailbox.post(VolumesTimerFired())


def _count_change(event: Event, before: State, now: Moment) -> None:
    """Count a volume that was not mounted before, and is, and what the periodic scan finds of unknown pods."""
    if isinstance(event, Scanned):
        count_orphans(before.pods.values())
    if isinstance(event, SetUpEnded) and event.result is Result.DONE:
        volume = before.pods[event.uid].volumes[event.key]
        if volume.phase is MountPhase.SETTING_UP:
            assert isinstance(volume.plan, VolumePlan)
            count_mounted(plugin_of_plan(volume.plan), volume.plan, now.wall - volume.since)


def _log_change(event: Event, before: State) -> None:
    """Log the first of several failures, and the recovery."""
    if isinstance(event, (SetUpEnded, TearDownEnded)):
        pod = before.pods[event.uid]
        failing = pod.volumes[event.key].failure is not None
        what = "set up" if isinstance(event, SetUpEnded) else "torn down"
        if event.result is Result.DONE and failing:
            log.info("volume recovered", pod=pod.ref, uid=event.uid, volume=event.key, now=what)
        elif isinstance(event, SetUpEnded) and event.pending is not None:
            log.debug("volume not set up yet", pod=pod.ref, uid=event.uid, volume=event.key, why=event.error)
        elif event.result is not Result.DONE and not failing:
            log.warning(f"volume not {what}", pod=pod.ref, uid=event.uid, volume=event.key, cause=event.error)
        elif event.result is Result.DONE:
            log.debug(f"volume {what}", pod=pod.ref, uid=event.uid, volume=event.key)
    elif isinstance(event, (DeviceStaged, DeviceUnstaged)):
        failing = before.devices[event.name].failure is not None
        what = "staged" if isinstance(event, DeviceStaged) else "unstaged"
        if event.result is not Result.DONE and not failing:
            log.warning(f"device not {what}", device=event.name, cause=event.error)
        elif event.result is Result.DONE:
            log.debug(f"device {what}", device=event.name)
    elif isinstance(event, DirectoryRemoved):
        failing = before.pods[event.uid].directory_failure is not None
        if event.result is Result.DONE and not event.left:
            log.debug("pod directory removed", uid=event.uid)
        elif not failing:
            cause = event.error or "volumes are still there"
            log.warning("orphaned pod directory not removed", uid=event.uid, cause=cause)
