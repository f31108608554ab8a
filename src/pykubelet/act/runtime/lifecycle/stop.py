"""Stops and removes containers and sandboxes.

Owns: the order in which a pod's containers end, and how much of the grace period each has left. All preStop hooks run at
once, including those of sidecars. Then regular containers get their signal. Each sidecar waits for them and for the
sidecars that were started after it (KEP-753), while its grace period lasts. The hook and the waiting are subtracted from
the grace period in whole seconds; the signal gets at least two seconds. A slower hook runs until its container has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise

from pykubelet.act.runtime.lifecycle.hooks import HookRunner, HookTarget, hook_words, words_for_log
from pykubelet.act.runtime.lifecycle.removal import remove_container, remove_sandbox, remove_unstarted
from pykubelet.base.api.core import LifecycleHandler, Pod, Probe
from pykubelet.base.api.intorstring import go_quotable
from pykubelet.base.kit.cells import Post, within
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.values import Value
from pykubelet.base.kit.yields import gather_staggered
from pykubelet.base.model.containers import container_field_path, find_container
from pykubelet.base.model.ids import ContainerID, PodRef, SandboxID
from pykubelet.base.model.kube_events import KubeEvent, normal, warning
from pykubelet.base.model.labels import CONTAINER_NAME
from pykubelet.base.model.observed import ObservedState, PodView, StopInProgress
from pykubelet.base.model.reasons import (
    EVENT_FAILED_PRE_STOP_HOOK,
    EVENT_KILLING,
    KILL_CONTAINER_ERROR,
    KILL_POD_SANDBOX_ERROR,
)
from pykubelet.base.model.restart import is_sidecar
from pykubelet.base.model.waits import UNRECORDED, Owner, Wait, Waits
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.client import CriClient
from pykubelet.edges.cri.errors import CriError

log = Log("runtime")
MIN_STOP_S = 2
#: So many containers of one pod begin to be stopped before other tasks go on.
BEGUN_AT_ONCE = 32
_SANDBOX_WAIT = Wait(
    "sandbox to end",
    Owner.CONTAINER_RUNTIME,
    0.0,
    detail="StopPodSandbox: what still runs is killed, the network given back",
    next_step="remove it",
)


class StopTarget(Value):
    """One container to stop. `pod_ip`: for HTTP hooks, empty when it is not known. `for_good`: as in `StopInProgress`."""

    pod: Pod
    ref: PodRef
    name: str
    container: ContainerID
    pod_ip: str = ""
    for_good: bool = False


class ContainerStop(Value):
    """How one container is to end. `message`: for the Event; empty for the default message."""

    target: StopTarget
    grace_s: int
    message: str = ""


class PodLeftovers(Value):
    """What a stopped pod leaves in the runtime. `strays`: containers that have outlived their sandbox."""

    sandboxes: tuple[SandboxID, ...] = ()
    strays: tuple[ContainerID, ...] = ()


class NotStopped(CriError):
    """Containers or sandboxes of a pod could not be stopped. The text is
    `failed to "KillContainer" for "app" with KillContainerError: "rpc error: ..."`, several of them in brackets.
    """

    def __init__(self, failures: Sequence[tuple[str, CriError]]) -> None:
        first = failures[0][1]
        super().__init__(first.code, first.message, first.call)
        texts = list(dict.fromkeys(f'failed to {what}: "{go_quotable(str(error))}"' for what, error in failures))
        self._text = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"

    def __str__(self) -> str:
        return self._text


class _RunningHook:
    """A running preStop hook. If it takes longer than the grace period, it continues while the container gets its signal."""

    def __init__(self, handler: LifecycleHandler) -> None:
        self.handler = handler
        self.ended = asyncio.Event()
        self.limit = asyncio.timeout(None)

    async def wait(self, limit_s: float) -> None:
        """Wait until the hook has ended, at most `limit_s` seconds."""
        await within(limit_s, self.ended.wait())

    def stop(self) -> None:
        if not self.ended.is_set():
            self.limit.reschedule(asyncio.get_running_loop().time())


class ContainerStopper:
    """Stops and removes containers and sandboxes. Calls raise CriError; what is already gone is no error."""

    def __init__(
        self,
        cri: CriClient,
        hooks: HookRunner,
        clock: Clock,
        recorder: Post[KubeEvent],
        stopped: Post[StopInProgress],
    ) -> None:
        self._cri = cri
        self._hooks = hooks
        self._clock = clock
        self._recorder = recorder
        self._stopped = stopped

    async def stop_container(
        self, target: StopTarget, grace_s: int, message: str = "", waits: Waits = UNRECORDED
    ) -> None:
        """Run the preStop hook, then send the stop signal, then SIGKILL, within the grace period. With 0 s, no hook is run."""
        await self._end(ContainerStop(target, grace_s, message), _NO_ORDER, waits)

    async def stop_containers(self, ends: Iterable[ContainerStop], waits: Waits = UNRECORDED) -> None:
        """Stop containers in parallel, each to its end; then raise the first error."""
        await _all(partial(self._end, end, _NO_ORDER, waits) for end in ends)

    async def _end(self, end: ContainerStop, order: TerminationOrder, waits: Waits) -> None:
        target, path = end.target, container_field_path(end.target.pod, end.target.name)
        text = end.message or f"Stopping container {target.name}"
        self._recorder.post(normal(EVENT_KILLING, text, target.ref, path))
        container = find_container(target.pod, target.name)
        lifecycle = container.lifecycle if container is not None else None
        if end.grace_s <= 0 or container is None or lifecycle is None or lifecycle.preStop is None:
            await self._signal(end, order, waits, end.grace_s)
            return
        hook = _RunningHook(lifecycle.preStop)
        hook_target = HookTarget(target.ref, container, target.container, target.pod_ip)
        both = (self._pre_stop(hook, hook_target, path), self._end_hooked(end, hook, order, waits))
        for result in await asyncio.gather(*both, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result

    async def _end_hooked(self, end: ContainerStop, hook: _RunningHook, order: TerminationOrder, waits: Waits) -> None:
        """Wait for the hook within the grace period, then stop the container, and cancel a hook that still runs."""
        words = hook_words(hook.handler)
        wait = self._wait(end.target, "preStop hook", words, "send the stop signal", end.grace_s)
        try:
            with waits.waiting(wait):
                left = end.grace_s - await self._seconds(hook.wait(end.grace_s))
            if not hook.ended.is_set():
                left = 0  # a timer may fire slightly early, so that less than the whole grace period was measured
                log.warning("preStop hook not completed in grace period", pod=end.target.ref, container=end.target.name)
            await self._signal(end, order, waits, left)
        finally:
            hook.stop()

    async def _signal(self, end: ContainerStop, order: TerminationOrder, waits: Waits, left: int) -> None:
        """Wait for the predecessors, then have the runtime stop the container. `left`: remaining seconds of the grace period."""
        target = end.target
        if left > 0:
            wait = self._wait(target, "wait to end", order.words(target.name), "send the stop signal", left)
            with waits.waiting(wait):
                left -= await self._seconds(order.wait_predecessors(target.name, left))
        left = max(MIN_STOP_S, left)
        detail = "StopContainer: the runtime sends the signal, and answers when the container has ended"
        wait = self._wait(target, "container to end", detail, "SIGKILL", left, Owner.CONTAINER_RUNTIME)
        with waits.waiting(wait), self._stopping(target.ref, target.container, target.for_good):
            await self._cri.stop_container(target.container, left)
        order.ended(target.name)

    def _wait(
        self, target: StopTarget, what: str, detail: str, step: str, within_s: int, owner: Owner = Owner.RUNTIME_MANAGER
    ) -> Wait:
        next_at = self._clock.wall() + within_s
        return Wait(what, owner, 0.0, target.name, detail=detail, next_step=step, next_at=next_at)

    async def _seconds(self, work: Awaitable[None]) -> int:
        """Await the work; return how many whole seconds it took."""
        began = self._clock.monotonic()
        await work
        return int(self._clock.monotonic() - began)

    async def _pre_stop(self, hook: _RunningHook, hook_target: HookTarget, path: str) -> None:
        """Run the hook until it ends, or at the latest until its container has ended."""
        try:
            async with hook.limit:
                problem = await self._hooks.run(hook.handler, hook_target)
        except TimeoutError:
            # a sleep only waits: nothing has failed
            problem = "" if hook.handler.sleep is not None else "its container ended before it"
        finally:
            hook.ended.set()
        if problem:
            # its output stays out of the Event: it may contain secrets
            error = words_for_log(problem)
            log.warning("preStop hook failed", pod=hook_target.ref, container=hook_target.container.name, error=error)
            self._recorder.post(warning(EVENT_FAILED_PRE_STOP_HOOK, "PreStopHook failed", hook_target.ref, path))

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
    ) -> PodLeftovers:
        """Stop the pod's containers within `grace_s`, then its sandboxes. Returns what is left to remove.

        Raises NotStopped; the sandboxes are stopped even if a container cannot be stopped. `known`: a view of the pod that was
        read after its last change; without one the runtime is queried. `for_good`: the pod is removed next, so its exit codes
        are not needed.
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
        is_last = for_good and len(alive) == 1  # with several containers, users see which ones are left
        targets = [StopTarget(pod, ref, _name(c), ContainerID(c.id), pod_ip, is_last) for c in alive]
        ends = [partial(self._end, ContainerStop(target, grace_s), order, waits) for target in targets]
        subjects = [f'"KillContainer" for "{target.name}" with {KILL_CONTAINER_ERROR}' for target in targets]
        failed = list(zip(subjects, await _each(ends), strict=True))
        with waits.waiting(_SANDBOX_WAIT):
            subjects = [f'"KillPodSandbox" for "{ref.uid}" with {KILL_POD_SANDBOX_ERROR}'] * len(sandboxes)
            failed += zip(subjects, await _each(partial(self._stop_sandbox, ref, s.id) for s in sandboxes), strict=True)
        _raise_what_failed(failed)
        ids = tuple(SandboxID(s.id) for s in sandboxes)
        strays = tuple(ContainerID(c.id) for c in containers if c.pod_sandbox_id not in ids)
        return PodLeftovers(ids, strays)

    async def remove_container(self, container: ContainerID, waits: Waits = UNRECORDED) -> None:
        """Remove one container from the runtime."""
        await remove_container(self._cri, container, waits)

    async def remove_unstarted(self, container: ContainerID, waits: Waits = UNRECORDED) -> bool:
        """Remove one that was created and not started. False: see `removal`."""
        return await remove_unstarted(self._cri, container, waits)

    async def remove_pod(self, ref: PodRef, remains: PodLeftovers | None = None, waits: Waits = UNRECORDED) -> None:
        """Remove the sandboxes with their containers, and strays. `remains` None: the runtime is queried."""
        if remains is None:
            containers, sandboxes = await asyncio.gather(
                self._cri.list_containers(uid=ref.uid), self._cri.list_pod_sandboxes(uid=ref.uid)
            )
            ids = tuple(SandboxID(s.id) for s in sandboxes)
            remains = PodLeftovers(ids, tuple(ContainerID(c.id) for c in containers if c.pod_sandbox_id not in ids))
        await _all(partial(remove_sandbox, self._cri, sandbox, waits) for sandbox in remains.sandboxes)
        await _all(partial(self.remove_container, stray, waits) for stray in remains.strays)

    async def _stop_sandbox(self, ref: PodRef, sandbox: str) -> None:
        with self._stopping(ref, sandbox):
            await self._cri.stop_pod_sandbox(sandbox)

    @contextmanager
    def _stopping(self, ref: PodRef, runtime_id: str, for_good: bool = False) -> Iterator[None]:
        """Wrap a call that stops a container or sandbox: report its begin and end. It is no error if it is already gone."""
        self._stopped.post(StopInProgress(ref, runtime_id))
        try:
            yield
        except CriError as error:
            if not error.is_not_found:
                raise
        finally:
            self._stopped.post(StopInProgress(ref, runtime_id, is_over=True, for_good=for_good))


def restart_grace(pod: Pod, probe: Probe | None = None) -> int:
    """The grace period in seconds of one container that is stopped while the pod continues; below 1, no hook is run.

    `probe`: the probe that failed; its own grace period overrides the pod's (KEP-2238).
    """
    if pod.metadata.deletionGracePeriodSeconds is not None:
        return pod.metadata.deletionGracePeriodSeconds
    own = pod.spec.terminationGracePeriodSeconds
    if own is None:
        return MIN_STOP_S
    of_probe = probe.terminationGracePeriodSeconds if probe is not None else None
    return own if of_probe is None else of_probe


class TerminationOrder:
    """The order in which containers end. A sidecar waits for all regular containers and for the next sidecar after it.
    Containers that do not run are left out."""

    def __init__(self, pod: Pod, alive: Iterable[str]) -> None:
        self._ended = {name: asyncio.Event() for name in alive}
        sidecars = [c.name for c in pod.spec.initContainers if is_sidecar(c)]
        regular = [c.name for c in pod.spec.containers]
        later = dict(pairwise(sidecars))
        self._before = {name: [*regular, *([later[name]] if name in later else [])] for name in sidecars}

    async def wait_predecessors(self, name: str, at_most_s: float) -> None:
        """Wait until the containers that end before `name` have ended, at most `at_most_s` seconds."""
        try:
            async with asyncio.timeout(at_most_s):
                for other in self._before.get(name, ()):
                    if (event := self._ended.get(other)) is not None:
                        await event.wait()
        except TimeoutError:
            return

    def words(self, name: str) -> str:
        """The containers that `name` waits for, for `explain`; empty when there are none."""
        left = [other for other in self._before.get(name, ()) if other in self._ended]
        return f"first end: {', '.join(left)}" if left else ""

    def ended(self, name: str) -> None:
        """Note that the container `name` has ended, and wake the steps that wait for it."""
        if (event := self._ended.get(name)) is not None:
            event.set()


_NO_ORDER = TerminationOrder(Pod(), ())


def _as_listed(view: PodView) -> tuple[list[pb.Container], list[pb.PodSandbox]]:
    """The view of a pod in the form of the runtime's lists, with the fields that stopping needs."""
    states = {ObservedState.RUNNING: pb.CONTAINER_RUNNING, ObservedState.UNKNOWN: pb.CONTAINER_UNKNOWN}
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
    """Raise the first unexpected exception; without one, NotStopped with all CriErrors, if there are any."""
    refused: list[tuple[str, CriError]] = []
    for what, error in outcomes:
        if isinstance(error, CriError):
            refused.append((what, error))
        elif error is not None:
            raise error
    if refused:
        raise NotStopped(refused)


async def _each(calls: Iterable[Callable[[], Awaitable[None]]]) -> list[BaseException | None]:
    """Make all calls in parallel, each to its end; return the error of each, or None."""
    return await gather_staggered(calls, BEGUN_AT_ONCE)


async def _all(calls: Iterable[Callable[[], Awaitable[None]]]) -> None:
    """Make all calls in parallel, each to its end; then raise the first error."""
    for error in await _each(calls):
        if error is not None:
            raise error
