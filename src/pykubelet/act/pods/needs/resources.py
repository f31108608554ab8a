"""What a pod has of the node's resources: its cgroup, the CPUs, memory and devices that admission has placed, and its resource claims.

The cgroup is made before the sandbox, while the pod's volumes are being mounted; it is removed after them, as it is charged for their
memory. Claims are prepared before the sandbox by `provide/claims`, and unprepared after the containers have ended; admission has
reserved their devices.
"""

from __future__ import annotations

from pykubelet.act.pods.need import PodNeed, SyncRun
from pykubelet.act.pods.resize import pod_before
from pykubelet.act.pods.tools import PodTools
from pykubelet.act.pods.waitbook import WaitBook
from pykubelet.act.runtime.render.context import AnyContainer, ContainerContext
from pykubelet.act.runtime.start_error import ContainerStartError
from pykubelet.base.kit.values import replace
from pykubelet.base.model.claims import Claims, PodClaims
from pykubelet.base.model.ids import PodRef
from pykubelet.base.model.kube_events import warning
from pykubelet.base.model.reasons import EVENT_FAILED_CREATE_POD_CONTAINER
from pykubelet.base.model.waits import CLAIMS_PREPARED, CLAIMS_UNPREPARED, Owner, Wait
from pykubelet.provide.claims.decide import has_claims


class CgroupNeed(PodNeed):
    """The cgroup of one pod."""

    def __init__(self, tools: PodTools, ref: PodRef) -> None:
        self._cgroups = tools.cgroups
        self._placements = tools.cells.placements
        self._recorder = tools.recorder
        self._ref = ref

    async def before_sandbox(self, run: SyncRun) -> None:
        """Make the cgroup, with the limits that the pod's containers have now."""
        size_now = pod_before(run.command) if run.command.plan.resize_pod else run.pod
        exclusive = not self._placements.get().has_quota(self._ref.uid)
        error = await self._cgroups.ensure_pod(size_now, exclusive_cpus=exclusive)
        if error is not None:
            message = f"unable to ensure pod container exists: {error.message}"
            self._recorder.post(warning(EVENT_FAILED_CREATE_POD_CONTAINER, message, self._ref))
            raise ContainerStartError(message, EVENT_FAILED_CREATE_POD_CONTAINER)

    async def release(self, waits: WaitBook) -> str:
        """Remove the cgroup."""
        return "" if await self._cgroups.remove_pod(self._ref.uid) else "the pod's cgroup is still in use"


class DevicesNeed(PodNeed):
    """The placement of one pod's containers, as `Placements` has it. Device plugins may demand a call before each start."""

    def __init__(self, tools: PodTools, ref: PodRef) -> None:
        self._cell = tools.cells.placements
        self._plugins = tools.devices
        self._uid = ref.uid

    async def before_container(self, run: SyncRun, container: AnyContainer, ctx: ContainerContext) -> ContainerContext:
        """Have the device plugins prepare the container's devices, and add them."""
        placed = self._cell.get().container(self._uid, container.name)
        if placed.devices and self._plugins is not None:
            resources = ", ".join(assigned.resource for assigned in placed.devices)
            detail, step = f"PreStartContainer of {resources}", "create the container"
            with run.waits.waiting(
                Wait("device plugin", Owner.POD_WORKER, 0.0, container.name, detail=detail, next_step=step)
            ):
                problem = await self._plugins.pre_start(placed.devices)
            if problem:
                raise ContainerStartError(problem)
        cpuset = self._cell.get().cpuset(self._uid, container.name)
        return replace(ctx, devices=placed.options, cpuset=cpuset)


class ClaimsNeed(PodNeed):
    """The claims of one pod, as `Claims` has them."""

    def __init__(self, tools: PodTools, ref: PodRef) -> None:
        self._cell = tools.cells.claims
        self._uid = ref.uid
        self._extended = tools.extended_claims

    async def before_sandbox(self, run: SyncRun) -> None:
        """Wait until all claims of the pod are prepared. A pod without claims does not wait."""
        if has_claims(run.pod, extended=self._extended):
            await run.until(self._cell, self._unprepared)

    async def before_container(self, run: SyncRun, container: AnyContainer, ctx: ContainerContext) -> ContainerContext:
        """Add the devices of the container's claims."""
        pod = self._cell.get().pods.get(self._uid)
        claims = pod.containers.get(container.name, ()) if pod is not None else ()
        if not claims:
            return ctx
        names = dict.fromkeys((*ctx.devices.cdi, *(name for claim in claims for name in claim.cdi)))
        return replace(ctx, devices=replace(ctx.devices, cdi=tuple(names)))

    async def after_stop(self, waits: WaitBook) -> None:
        """Wait until nothing of the pod's claims is left on this node."""
        await waits.until(self._cell, self._left)

    def _unprepared(self, now: Claims) -> Wait | None:
        pod = now.pods.get(self._uid)
        return None if pod is not None and pod.ready else _why(pod, CLAIMS_PREPARED)

    def _left(self, now: Claims) -> Wait | None:
        pod = now.pods.get(self._uid)
        return None if pod is None else _why(pod, CLAIMS_UNPREPARED)


def _why(pod: PodClaims | None, what: str) -> Wait:
    """The last failure, or the call that is being waited for, if there is one."""
    waits = pod.waits if pod is not None else ()
    return next((wait for wait in waits if wait.reason or wait.detail), Wait(what, Owner.CLAIM_MANAGER, 0.0))
