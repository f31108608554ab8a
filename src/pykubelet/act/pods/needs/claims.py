"""The resource claims of a pod: prepared before its sandbox, unprepared after its containers have ended.

`provide/claims` prepares them; admission has reserved their devices.
"""

from __future__ import annotations

from pykubelet.act.pods.need import PodNeed, SyncRun
from pykubelet.act.pods.tools import PodTools
from pykubelet.act.pods.waitbook import WaitBook
from pykubelet.act.runtime.render.context import AnyContainer, ContainerContext
from pykubelet.base.kit.values import replace
from pykubelet.base.model.claims import Claims, PodClaims
from pykubelet.base.model.ids import PodRef
from pykubelet.base.model.waits import CLAIMS_PREPARED, CLAIMS_UNPREPARED, Owner, Wait
from pykubelet.provide.claims.decide import has_claims


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
