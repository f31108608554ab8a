"""Reads `Claims` for one pod: whether its resource claims are prepared or unprepared, and what its containers get of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from pykubelet.act.claims.decide import has_claims
from pykubelet.act.pods.waitbook import WaitBook
from pykubelet.base.api.core import Pod
from pykubelet.base.kit.cells import Cell
from pykubelet.base.kit.values import replace
from pykubelet.base.model.claims import Claims
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.placement import Devices
from pykubelet.base.model.waits import CLAIMS_PREPARED, CLAIMS_UNPREPARED, Owner, Wait

#: Awaits a change of the cell while a wait is published.
WaitFor = Callable[[Awaitable[Claims], Wait, WaitBook], Awaitable[object]]


class PodClaimsView:
    """The view of one pod on `Claims`. `extended`: the gate DRAExtendedResource."""

    def __init__(self, cell: Cell[Claims], uid: PodUID, *, extended: bool) -> None:
        self._cell = cell
        self._uid = uid
        self._extended = extended

    async def wait_prepared(self, pod: Pod, wait_for: WaitFor, waits: WaitBook) -> None:
        """Wait until all claims of the pod are prepared. A pod without claims does not wait."""
        if has_claims(pod, extended=self._extended):
            await self._wait(self._is_prepared, Wait(CLAIMS_PREPARED, Owner.CLAIM_MANAGER, 0.0), wait_for, waits)

    async def wait_unprepared(self, waits: WaitBook) -> None:
        """Wait until nothing of the pod's claims is left on this node."""
        await self._wait(self._is_unprepared, Wait(CLAIMS_UNPREPARED, Owner.CLAIM_MANAGER, 0.0), _uninterrupted, waits)

    def with_devices(self, container: str, devices: Devices) -> Devices:
        """The devices of a container with those of its claims."""
        pod = self._cell.get().pods.get(self._uid)
        claims = pod.containers.get(container, ()) if pod is not None else ()
        names = dict.fromkeys((*devices.cdi, *(name for claim in claims for name in claim.cdi)))
        return replace(devices, cdi=tuple(names)) if claims else devices

    def _is_prepared(self, now: Claims) -> bool:
        pod = now.pods.get(self._uid)
        return pod is not None and pod.ready

    def _is_unprepared(self, now: Claims) -> bool:
        return self._uid not in now.pods

    def _why(self, now: Claims) -> Wait | None:
        """The last failure, or the call that is being waited for."""
        pod = now.pods.get(self._uid)
        return next((wait for wait in pod.waits if wait.reason or wait.detail), None) if pod is not None else None

    async def _wait(self, is_over: Callable[[Claims], bool], wait: Wait, wait_for: WaitFor, waits: WaitBook) -> None:
        """Wait until it `is_over`. The published wait has the reason."""
        shown: Wait | None = None
        while not is_over(now := self._cell.get()):
            shown = self._why(now)
            published = wait if shown is None else shown

            def has_changed(now: Claims, shown: Wait | None = shown) -> bool:
                return is_over(now) or self._why(now) != shown

            await wait_for(self._cell.wait_for(has_changed), published, waits)


async def _uninterrupted(work: Awaitable[Claims], wait: Wait, waits: WaitBook) -> None:
    with waits.waiting(wait):
        await work
