"""Stopping containers and sandboxes, and removing them.

Owns: the order in which a pod's containers end, and what of the grace period each still has. All preStop hooks run at
once, sidecars' too; then regular containers get their signal, and each sidecar waits for them and for the sidecars that
were started after it (KEP-753), as long as its grace period lasts. Hook and waiting are taken from the grace period in
whole seconds; the signal gets two seconds at least. A hook that takes longer goes on until its container has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

from pykubelet.act.runtime.lifecycle.hooks import HookRunner, HookTarget, hook_words
from pykubelet.act.runtime.lifecycle.removal import remove_container, remove_sandbox
from pykubelet.base.api.core import LifecycleHandler, Pod, Probe
from pykubelet.base.api.intorstring import go_quotable
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.mailbox import Post
from pykubelet.base.kit.values import Value
from pykubelet.base.model.fieldpath import container_field_path, every_container
from pykubelet.base.model.ids import ContainerID, PodRef, SandboxID
from pykubelet.base.model.kube_events import KubeEvent, normal, warning
from pykubelet.base.model.labels import CONTAINER_NAME
from pykubelet.base.model.observed import BeingStopped, ContainerState, PodView
from pykubelet.base.model.reasons import (
    EVENT_FAILED_PRE_STOP_HOOK,
    EVENT_KILLING,
    KILL_CONTAINER_ERROR,
    KILL_POD_SANDBOX_ERROR,
)
from pykubelet.base.model.restart import is_sidecar
from pykubelet.base.model.waits import UNRECORDED, Wait, Waits
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.client import CriClient
from pykubelet.edges.cri.errors import CriError

log = Log("runtime")
MIN_STOP_S = 2
_SANDBOX_WAIT = Wait(
    "sandbox to end",
    "container runtime",
    0.0,
    detail="StopPodSandbox: what still runs is killed, the network given back",
    next_step="remove it",
)


class StopTarget(Value):
    """One container to stop. `pod_ip`: for HTTP hooks, empty when it is not known. `for_good`: as in `BeingStopped`."""

    pod: Pod
    ref: PodRef
    name: str
    container: ContainerID
    pod_ip: str = ""
    for_good: bool = False


class ContainerEnd(Value):
    """How one container is to end. `message`: for the Event; empty for the ordinary words."""

    target: StopTarget
    grace_s: int
    message: str = ""


class PodRemains(Value):
    """What a stopped pod leaves in the runtime. `strays`: containers whose sandbox is gone already."""

    sandboxes: tuple[SandboxID, ...] = ()
    strays: tuple[ContainerID, ...] = ()


class NotStopped(CriError):
    """What of a pod could not be stopped. As text it reads
    `failed to "KillContainer" for "app" with KillContainerError: "rpc error: ..."`, several of them in brackets.
    """

    def __init__(self, failures: Sequence[tuple[str, CriError]]) -> None:
        first = failures[0][1]
        super().__init__(first.code, first.message, first.call)
        told = list(dict.fromkeys(f'failed to {what}: "{go_quotable(str(error))}"' for what, error in failures))
        self._text = told[0] if len(told) == 1 else f"[{', '.join(told)}]"

    def __str__(self) -> str:
        return self._text


class _RunningHook:
    """A preStop hook under way. One that takes longer than the grace period goes on beside the stop signal."""

    def __init__(self, handler: LifecycleHandler) -> None:
        self.handler = handler
        self.ended = asyncio.Event()
        self.limit = asyncio.timeout(None)

    async def wait(self, limit_s: float) -> None:
        """Until it has ended, at most `limit_s`."""
        try:
            async with asyncio.timeout(limit_s):
                await self.ended.wait()
        except TimeoutError:
            return

    def stop(self) -> None:
        if not self.ended.is_set():
            self.limit.reschedule(asyncio.get_running_loop().time())


class ContainerStopper:
    """Each call raises CriError only for what it could not do; what is gone already is fine."""

    def __init__(
        self,
        cri: CriClient,
        hooks: HookRunner,
        clock: Clock,
        recorder: Post[KubeEvent],
        stopped: Post[BeingStopped],
    ) -> None:
        self._cri = cri
        self._hooks = hooks
        self._clock = clock
        self._recorder = recorder
        self._stopped = stopped

    async def stop_container(
        self, target: StopTarget, grace_s: int, message: str = "", waits: Waits = UNRECORDED
    ) -> None:
        """preStop hook, stop signal, then SIGKILL, all within the grace period. Without one there is no hook."""
        await self._end(ContainerEnd(target, grace_s, message), _NO_ORDER, waits)

    async def stop_containers(self, ends: Iterable[ContainerEnd], waits: Waits = UNRECORDED) -> None:
        """Stop each, all together and each to its end; then raise the first error."""
        await _all(self._end(end, _NO_ORDER, waits) for end in ends)

    async def _end(self, end: ContainerEnd, order: TerminationOrder, waits: Waits) -> None:
        target, path = end.target, container_field_path(end.target.pod, end.target.name)
        text = end.message or f"Stopping container {target.name}"
        self._recorder.post(normal(EVENT_KILLING, text, target.ref, path))
        container = next((c for c in every_container(target.pod) if c.name == target.name), None)
        lifecycle = container.lifecycle if container is not None else None
        if end.grace_s <= 0 or container is None or lifecycle is None or lifecycle.preStop is None:
            await self._signal(end, order, waits, end.grace_s)
            return
        hook = _RunningHook(lifecycle.preStop)
        whose = HookTarget(target.ref, container, target.container, target.pod_ip)
        both = (self._pre_stop(hook, whose, path), self._end_hooked(end, hook, order, waits))
        for result in await asyncio.gather(*both, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result

    async def _end_hooked(self, end: ContainerEnd, hook: _RunningHook, order: TerminationOrder, waits: Waits) -> None:
        """Leave the hook its time, then end the container and with it a hook that still runs."""
        words = hook_words(hook.handler)
        wait = self._wait(end.target, "preStop hook", words, "send the stop signal", end.grace_s)
        try:
            with waits.waiting(wait):
                left = end.grace_s - await self._seconds(hook.wait(end.grace_s))
            if not hook.ended.is_set():
                log.warning("preStop hook not completed in grace period", pod=end.target.ref, container=end.target.name)
            await self._signal(end, order, waits, left)
        finally:
            hook.stop()

    async def _signal(self, end: ContainerEnd, order: TerminationOrder, waits: Waits, left: int) -> None:
        """`left`: seconds of the grace period."""
        target = end.target
        if left > 0:
            turn = self._wait(target, "turn to end", order.words(target.name), "send the stop signal", left)
            with waits.waiting(turn):
                left -= await self._seconds(order.wait_turn(target.name, left))
        left = max(MIN_STOP_S, left)
        detail = "StopContainer: the runtime sends the signal, and answers when the container has ended"
        wait = self._wait(target, "container to end", detail, "SIGKILL", left, "container runtime")
        with waits.waiting(wait), self._stopping(target.ref, target.container, target.for_good):
            await self._cri.stop_container(target.container, left)
        order.ended(target.name)

    def _wait(
        self, target: StopTarget, what: str, detail: str, step: str, within_s: int, owner: str = "act/runtime"
    ) -> Wait:
        next_at = self._clock.wall() + within_s
        return Wait(what, owner, 0.0, target.name, detail=detail, next_step=step, next_at=next_at)

    async def _seconds(self, work: Awaitable[None]) -> int:
        """Do it; how many whole seconds it took."""
        began = self._clock.monotonic()
        await work
        return int(self._clock.monotonic() - began)

    async def _pre_stop(self, hook: _RunningHook, whose: HookTarget, path: str) -> None:
        """Run the hook to its end, which is that of its container at the latest."""
        try:
            async with hook.limit:
                problem = await self._hooks.run(hook.handler, whose)
        except TimeoutError:
            # a sleep only waits: nothing has failed
            problem = "" if hook.handler.sleep is not None else "its container ended before it"
        finally:
            hook.ended.set()
        if problem:
            # what it said stays out of the Event: there may be secrets in it
            log.warning("preStop hook failed", pod=whose.ref, container=whose.container.name, error=problem)
            self._recorder.post(warning(EVENT_FAILED_PRE_STOP_HOOK, "PreStopHook failed", whose.ref, path))

    async def stop_pod(
        self,
        pod: Pod,
        ref: PodRef,
        grace_s: int,
        pod_ip: str,
        known: PodView | None = None,
        waits: Waits = UNRECORDED,
        *,
        for_good: bool = False,
    ) -> PodRemains:
        """Stop all that runs of the pod within `grace_s`, then its sandboxes; what there is left to remove.

        Raises NotStopped; a container that cannot be stopped does not save the sandboxes. `known`: a look at the pod
        after which nothing was done to it; without one the runtime is asked. `for_good`: it is removed next, and nobody
        asks how it ended.
        """
        containers: Sequence[pb.Container]
        sandboxes: Sequence[pb.PodSandbox]
        if known is not None:
            containers, sandboxes = _as_listed(known)
        else:
            containers, sandboxes = await asyncio.gather(
                self._cri.list_containers(uid=ref.uid), self._cri.list_pod_sandboxes(uid=ref.uid)
            )
        alive = [c for c in containers if c.state in (pb.CONTAINER_RUNNING, pb.CONTAINER_UNKNOWN)]
        order = TerminationOrder(pod, [_name(c) for c in alive])
        is_last = for_good and len(alive) == 1  # of several, people see which are left
        targets = [StopTarget(pod, ref, _name(c), ContainerID(c.id), pod_ip, is_last) for c in alive]
        ends = [self._end(ContainerEnd(target, grace_s), order, waits) for target in targets]
        whose = [f'"KillContainer" for "{target.name}" with {KILL_CONTAINER_ERROR}' for target in targets]
        failed = list(zip(whose, await _each(ends), strict=True))
        with waits.waiting(_SANDBOX_WAIT):
            whose = [f'"KillPodSandbox" for "{ref.uid}" with {KILL_POD_SANDBOX_ERROR}'] * len(sandboxes)
            failed += zip(whose, await _each(self._stop_sandbox(ref, s.id) for s in sandboxes), strict=True)
        _raise_what_failed(failed)
        ids = tuple(SandboxID(s.id) for s in sandboxes)
        strays = tuple(ContainerID(c.id) for c in containers if c.pod_sandbox_id not in ids)
        return PodRemains(ids, strays)

    async def remove_container(self, container: ContainerID, waits: Waits = UNRECORDED) -> None:
        """Remove one container from the runtime."""
        await remove_container(self._cri, container, waits)

    async def remove_pod(self, ref: PodRef, remains: PodRemains | None = None, waits: Waits = UNRECORDED) -> None:
        """Remove the sandboxes with their containers, and strays. `remains` None: look what there is."""
        if remains is None:
            containers, sandboxes = await asyncio.gather(
                self._cri.list_containers(uid=ref.uid), self._cri.list_pod_sandboxes(uid=ref.uid)
            )
            ids = tuple(SandboxID(s.id) for s in sandboxes)
            remains = PodRemains(ids, tuple(ContainerID(c.id) for c in containers if c.pod_sandbox_id not in ids))
        await _all(remove_sandbox(self._cri, sandbox, waits) for sandbox in remains.sandboxes)
        await _all(self.remove_container(stray, waits) for stray in remains.strays)

    async def _stop_sandbox(self, ref: PodRef, sandbox: str) -> None:
        with self._stopping(ref, sandbox):
            await self._cri.stop_pod_sandbox(sandbox)

    @contextmanager
    def _stopping(self, ref: PodRef, runtime_id: str, for_good: bool = False) -> Iterator[None]:
        """Around the call that stops it: its end is looked at when the call returns. What is gone already is fine."""
        self._stopped.post(BeingStopped(ref, runtime_id))
        try:
            yield
        except CriError as error:
            if not error.is_not_found:
                raise
        finally:
            self._stopped.post(BeingStopped(ref, runtime_id, is_over=True, for_good=for_good))


def restart_grace(pod: Pod, probe: Probe | None = None) -> int:
    """Seconds that one container of a pod has to end in, while the pod goes on; below one, there is no hook.

    `probe`: the one that gave the container up; its own period comes before the pod's (KEP-2238).
    """
    if pod.metadata.deletionGracePeriodSeconds is not None:
        return pod.metadata.deletionGracePeriodSeconds
    own = pod.spec.terminationGracePeriodSeconds
    if own is None:
        return MIN_STOP_S
    of_probe = probe.terminationGracePeriodSeconds if probe is not None else None
    return own if of_probe is None else of_probe


class TerminationOrder:
    """Who waits for whom: a sidecar for all regular containers and for the next sidecar after it. Only what runs counts."""

    def __init__(self, pod: Pod, alive: Iterable[str]) -> None:
        self._ended = {name: asyncio.Event() for name in alive}
        sidecars = [c.name for c in pod.spec.initContainers if is_sidecar(c)]
        regular = [c.name for c in pod.spec.containers]
        later = dict(pairwise(sidecars))
        self._before = {name: [*regular, *([later[name]] if name in later else [])] for name in sidecars}

    async def wait_turn(self, name: str, at_most_s: float) -> None:
        """Until those before it have ended, or the time is over."""
        try:
            async with asyncio.timeout(at_most_s):
                for other in self._before.get(name, ()):
                    if (event := self._ended.get(other)) is not None:
                        await event.wait()
        except TimeoutError:
            return

    def words(self, name: str) -> str:
        """Whom it waits for."""
        left = [other for other in self._before.get(name, ()) if other in self._ended]
        return f"first end: {', '.join(left)}" if left else ""

    def ended(self, name: str) -> None:
        """Note that the container `name` has ended, and wake the steps that wait for it."""
        if (event := self._ended.get(name)) is not None:
            event.set()


_NO_ORDER = TerminationOrder(Pod(), ())


def _as_listed(view: PodView) -> tuple[list[pb.Container], list[pb.PodSandbox]]:
    """A look at a pod, as far as stopping needs it, in the form of the runtime's lists."""
    states = {ContainerState.RUNNING: pb.CONTAINER_RUNNING, ContainerState.UNKNOWN: pb.CONTAINER_UNKNOWN}
    containers = [
        pb.Container(
            id=c.id,
            pod_sandbox_id=c.sandbox_id,
            metadata=pb.ContainerMetadata(name=c.name),
            state=states.get(c.state, pb.CONTAINER_EXITED),
        )
        for c in view.containers
    ]
    return containers, [pb.PodSandbox(id=s.id) for s in view.sandboxes]


def _name(container: pb.Container) -> str:
    return container.labels.get(CONTAINER_NAME) or container.metadata.name


def _raise_what_failed(outcomes: Sequence[tuple[str, BaseException | None]]) -> None:
    """Bugs before what the runtime refused."""
    refused: list[tuple[str, CriError]] = []
    for what, error in outcomes:
        if isinstance(error, CriError):
            refused.append((what, error))
        elif error is not None:
            raise error
    if refused:
        raise NotStopped(refused)


async def _each(calls: Iterable[Awaitable[None]]) -> list[BaseException | None]:
    """Make all calls together, each to its end; what went wrong with each."""
    return await asyncio.gather(*calls, return_exceptions=True)


async def _all(calls: Iterable[Awaitable[None]]) -> None:
    """Make all calls together, each to its end; then raise the first error."""
    for error in await _each(calls):
        if error is not None:
            raise error
