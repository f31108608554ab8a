"""The need of a pod that a process extension meets: `prepare` before its containers start, `release` at its end.

Owns: how a pod waits for the process. A process that has offered the point once, to this agent or an earlier one, is waited for while it
is away, by the pods that it prepares. `docs/extensions/protocol.md` has the protocol.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from msgspec import Raw

from pykubelet.act.pods.need import PodNeed, SyncRun
from pykubelet.act.pods.tools import MakeNeed, PodTools
from pykubelet.act.pods.waitbook import WaitBook
from pykubelet.act.runtime.start_error import ContainerStartError
from pykubelet.base.api.codec import encode
from pykubelet.base.api.core import Pod
from pykubelet.base.kit.cells import Cell
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.values import replace
from pykubelet.base.model.extension_process import ExtensionProcessState, Point
from pykubelet.base.model.ids import PodRef
from pykubelet.base.model.lifecycle import KillReason, Lifecycles
from pykubelet.base.model.waits import Owner, Wait
from pykubelet.edges.plugins.extension_messages import PrepareAnswer, ProtocolError, parse_prepared
from pykubelet.edges.plugins.extension_process import ExtensionCallError, ExtensionProcess

log = Log("pods")

#: Seconds for an answer to `prepare`. Work that takes longer is answered by `wait`.
PREPARE_S = 30.0
#: Seconds for an answer to `release`, and for all of its tries; then the pod ends without it.
RELEASE_S, RELEASE_ALL_S = 10.0, 30.0
#: Seconds between two tries of `release`.
RELEASE_AGAIN_S = 1.0
#: Why a container waits, in its status.
EXTENSION_FAILED, EXTENSION_AWAY = "ExtensionFailed", "ExtensionAway"
_START, _END = "start the containers", "release volumes and cgroup"


def make_extension_need(process: ExtensionProcess, lifecycles: Cell[Lifecycles]) -> MakeNeed:
    """What makes the needs of pods for one process. `lifecycles`: the pods as their workers have them."""
    return partial(ExtensionNeed, process, lifecycles)


class ExtensionNeed(PodNeed):
    """What one process extension prepares for one pod. A process that was started again is asked again before the next start."""

    def __init__(
        self, process: ExtensionProcess, lifecycles: Cell[Lifecycles], tools: PodTools, ref: PodRef, /
    ) -> None:
        self._process = process
        self._lifecycles = lifecycles
        self._clock = tools.clock
        self._supervisor = tools.supervisor
        self._ref = ref
        self._preparing: asyncio.Task[str] | None = None
        #: What the pod waits for while it is being prepared, and what shows it.
        self._wait: Wait | None = None
        self._show: Callable[[Wait], object] | None = None
        self._ready_in = 0
        self._is_released = False
        self._release_until: float | None = None

    async def before_containers(self, run: SyncRun) -> None:
        """Wait until the process has prepared the pod. Raises ContainerStartError."""
        state = self._process.state.get()
        if self._preparing is None and self._is_met(run.pod, state):
            return
        if self._preparing is None:
            self._wait = self._wait_for(state, _START)
            self._preparing = self._supervisor.start_child(f"prepare-{self._ref.uid}", self._prepare(run.pod))
        try:
            assert self._wait is not None
            error = await run.wait_shown(self._follow, self._wait)
        finally:
            self._show = None
        self._preparing = None
        if error:
            raise ContainerStartError(f"extension {self._process.name}: {error}", EXTENSION_FAILED)

    async def _follow(self, show: Callable[[Wait], object]) -> str:
        """Wait for the end of the preparation, which goes on after an interruption."""
        assert self._preparing is not None
        self._show = show
        return await asyncio.shield(self._preparing)

    def cancel(self) -> None:
        """Wait for the process no longer."""
        if self._preparing is not None:
            self._preparing.cancel()
            self._preparing = None

    def _note(self, wait: Wait) -> None:
        self._wait = wait
        if self._show is not None:
            self._show(wait)

    def _is_met(self, pod: Pod, state: ExtensionProcessState) -> bool:
        """Whether the pod is prepared, or this process does not prepare it."""
        if not state.known:
            return _is_none(state)
        return not _prepares(state, pod) or self._ready_in == state.run

    async def _prepare(self, pod: Pod) -> str:
        """Have the process prepare the pod. Returns the error, or an empty text."""
        while True:
            state = await self._there(pod)
            if self._is_met(pod, state):
                return ""
            try:
                result = await self._process.call("prepare", {"pod": Raw(encode(pod))}, PREPARE_S)
                answer = parse_prepared(result)
            except ExtensionCallError as error:
                if error.is_away:
                    continue
                return str(error)
            except ProtocolError as error:
                return str(error)
            if answer.ready:
                self._ready_in = state.run
                return ""
            await self._pause(answer)

    async def _there(self, pod: Pod) -> ExtensionProcessState:
        """Wait until the process takes calls, or the pod does not need it."""

        def is_decided(state: ExtensionProcessState) -> bool:
            self._note(self._wait_for(state, _START))
            return state.is_running or self._is_met(pod, state)

        return await self._process.state.wait_for(is_decided)

    async def _pause(self, answer: PrepareAnswer) -> None:
        wait = self._wait_for(self._process.state.get(), "ask it again")
        self._note(replace(wait, detail=answer.wait, next_at=self._clock.wall() + answer.again_s))
        await asyncio.sleep(answer.again_s)

    def _wait_for(self, state: ExtensionProcessState, next_step: str) -> Wait:
        wait = Wait("extension", Owner.EXTENSION, 0.0, self._process.name, next_step=next_step)
        if state.is_running:
            return wait
        if not state.error:
            return replace(wait, detail="it has not answered hello yet")
        return replace(wait, reason=EXTENSION_AWAY, detail=state.error)

    async def release(self, waits: WaitBook) -> str:
        """Have the process give back what it has prepared, in this run of the agent or an earlier one."""
        state = self._process.state.get()
        if self._is_released or _is_none(state) or (state.known and not self._may_hold(state)):
            return ""
        now = self._clock.monotonic()
        if self._release_until is None:
            self._release_until = now + RELEASE_ALL_S
        wait = replace(self._wait_for(state, _END), next_at=self._clock.wall() + self._release_until - now)
        with waits.waiting(wait) as show:
            await self._release(self._release_until, partial(_show_failure, show, wait))
        self._is_released = True
        return ""

    def _may_hold(self, state: ExtensionProcessState) -> bool:
        """Whether the process may have prepared the pod. The annotations of a pod that only the runtime knows are not known."""
        life = self._lifecycles.get().pods.get(self._ref.uid)
        if life is None or life.kill_reason is KillReason.ORPHANED:
            return state.offered(Point.NEED)
        return _prepares(state, life.pod)

    async def _release(self, until: float, show: Callable[[str], None]) -> None:
        """Call `release` until it is answered, or there is no time left."""
        pod = {"metadata": {"namespace": self._ref.namespace, "name": self._ref.name, "uid": self._ref.uid}}
        while (left := until - self._clock.monotonic()) > 0:
            try:
                async with asyncio.timeout(left):
                    state = await self._process.state.wait_for(_is_decided)
                if not state.is_running or not self._may_hold(state):
                    return
                await self._process.call("release", {"pod": pod}, min(left, RELEASE_S))
                return
            except TimeoutError:
                break
            except ExtensionCallError as error:
                show(str(error))
            await asyncio.sleep(RELEASE_AGAIN_S)
        log.warning("a pod ends, and an extension has not released it", pod=self._ref, extension=self._process.name)


def _prepares(state: ExtensionProcessState, pod: Pod) -> bool:
    """Whether a process prepares a pod."""
    is_named = not state.annotation or state.annotation in pod.metadata.annotations
    return state.offered(Point.NEED) and is_named


def _is_none(state: ExtensionProcessState) -> bool:
    """Whether the agent works without the process: it is not known to prepare pods."""
    return state.missed and not state.known


def _is_decided(state: ExtensionProcessState) -> bool:
    return state.is_running or _is_none(state)


def _show_failure(show: Callable[[Wait], None], wait: Wait, error: str) -> None:
    show(replace(wait, reason=EXTENSION_FAILED, detail=error))
