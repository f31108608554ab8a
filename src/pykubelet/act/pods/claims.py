"""Reads `Claims` for one pod: whether its resource claims are prepared or unprepared, and what its containers get of them."""

from __future__ import annotations

from pykubelet.act.claims.decide import has_claims
from pykubelet.act.pods.waitbook import Unless, WaitBook
from pykubelet.base.api.core import Pod
from pykubelet.base.kit.cells import Cell
from pykubelet.base.kit.values import replace
from pykubelet.base.model.claims import Claims, PodClaims
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.placement import Devices
from pykubelet.base.model.waits import CLAIMS_PREPARED, CLAIMS_UNPREPARED, Owner, Wait


class PodClaimsView:
    """The view of one pod on `Claims`. `extended`: the gate DRAExtendedResource."""

    def __init__(self, cell: Cell[Claims], uid: PodUID, *, extended: bool) -> None:
        self._cell = cell
        self._uid = uid
        self._extended = extended

    async def wait_prepared(self, pod: Pod, waits: WaitBook, unless: Unless) -> None:
        """Wait until all claims of the pod are prepared. A pod without claims does not wait."""
        if has_claims(pod, extended=self._extended):
            await waits.until(self._cell, self._unprepared, unless)

    async def wait_unprepared(self, waits: WaitBook) -> None:
        """Wait until nothing of the pod's claims is left on this node."""
        await waits.until(self._cell, self._left)

    def _unprepared(self, now: Claims) -> Wait | None:
        pod = now.pods.get(self._uid)
        return None if pod is not None and pod.ready else _why(pod, CLAIMS_PREPARED)

    def _left(self, now: Claims) -> Wait | None:
        pod = now.pods.get(self._uid)
        return None if pod is None else _why(pod, CLAIMS_UNPREPARED)

    def with_devices(self, container: str, devices: Devices) -> Devices:
        """The devices of a container with those of its claims."""
        pod = self._cell.get().pods.get(self._uid)
        claims = pod.containers.get(container, ()) if pod is not None else ()
        names = dict.fromkeys((*devices.cdi, *(name for claim in claims for name in claim.cdi)))
        return replace(devices, cdi=tuple(names)) if claims else devices


def _why(pod: PodClaims | None, what: str) -> Wait:
    """The last failure, or the call that is being waited for, if there is one."""
    waits = pod.waits if pod is not None else ()
    return next((wait for wait in waits if wait.reason or wait.detail), Wait(what, Owner.CLAIM_MANAGER, 0.0))
