"""The loop of the mirror pods: creates and deletes them in the background. No static pod waits for it.

Owns: the running requests and the retries. Reads: `Roster`, `Lifecycles`, `NodeView`, `ApiState`, `ApiPods`, `Statuses`. There is one
request at a time for each full name. After a success, nothing more is done for the name until the watch shows a change of its mirror
pod, or `echo_s` have passed.

While the server cannot be reached at all, all requests pause together, until `ApiState` reports that it is back, or at most
`away_max_s`. A request that the server refuses (too many requests, its store does not answer) pauses with back-off for its
name, whatever the answers to others are.
"""

from __future__ import annotations

import asyncio

from pykubelet.base.api.core import Pod
from pykubelet.base.kit.backoff import Retries
from pykubelet.base.kit.cells import Cell, set_on_change
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import Value
from pykubelet.base.model.lifecycle import Lifecycles
from pykubelet.base.model.node import ApiState, NodeView
from pykubelet.base.model.roster import ApiPods, Roster, pod_ref
from pykubelet.base.model.statuses import Statuses
from pykubelet.edges.kubeapi.client import ApiClient
from pykubelet.edges.kubeapi.errors import ApiError
from pykubelet.report.mirrors.decide import MakeMirror, MirrorAction, RemoveMirror, has_mirrors, mirror_of, plan_mirrors

log = Log("mirrors")
AT_ONCE = 4
_ALL = "all"


class MirrorPeriods(Value):
    """Seconds. `echo_s`: how long to wait for the watch after a success. `retry_s`: the first pause after a failure, doubling to
    `retry_max_s`, and to `away_max_s` while the server cannot be reached."""

    echo_s: float = 5.0
    retry_s: float = 0.2
    retry_max_s: float = 20.0
    away_max_s: float = 5.0


class MirrorInputs(Value):
    """The cells that report/mirrors reads."""

    roster: Cell[Roster]
    lifecycles: Cell[Lifecycles]
    node: Cell[NodeView]
    api: Cell[ApiState]
    pods: Cell[ApiPods]
    statuses: Cell[Statuses]


class _Done(Value):
    """A successful request: the mirror pod that existed before it, and until when the watch is awaited (monotonic seconds)."""

    there: Pod | None
    until: float


class MirrorsLoop:
    """`run` never returns."""

    def __init__(
        self, client: ApiClient, inputs: MirrorInputs, clock: Clock, periods: MirrorPeriods | None = None
    ) -> None:
        self._client = client
        self._inputs = inputs
        self._clock = clock
        self._periods = periods or MirrorPeriods()
        self._api = inputs.api.get()
        self._roster: Roster | None = None
        self._is_concerned = False
        self._busy: set[str] = set()
        self._done: dict[str, _Done] = {}
        self._retries = Retries[str](self._periods.retry_s, self._periods.retry_max_s)
        self._away = Retries[str](self._periods.retry_s, self._periods.away_max_s)
        self._wakeup = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._supervisor = Supervisor("mirrors")

    async def run(self) -> None:
        """Keep the API server's mirror pods equal to the static pods. Never returns."""
        async with self._supervisor as supervisor:
            cells = self._inputs
            states = (cells.roster, cells.lifecycles, cells.node, cells.api, cells.pods, cells.statuses)
            with set_on_change(self._wakeup, *states):
                supervisor.start_root("mirrors-send", self._follow())
                raise await supervisor.wait_failed()

    async def _follow(self) -> None:
        while True:
            await self._wakeup.wait()
            self._wakeup.clear()
            self._hear_of_server()
            self._look()

    def _hear_of_server(self) -> None:
        before, self._api = self._api, self._inputs.api.get()
        if self._api.is_back_since(before):
            self._away.succeeded(_ALL)

    def _look(self) -> None:
        roster, now = self._inputs.roster.get(), self._clock.monotonic()
        if roster is not self._roster:
            self._roster, self._is_concerned = roster, has_mirrors(roster)
        elif not self._is_concerned:
            return  # the change is only about other pods
        cells = self._inputs
        errands = plan_mirrors(roster, cells.lifecycles.get(), cells.node.get(), cells.pods.get(), cells.statuses.get())
        for name, done in list(self._done.items()):
            there = roster.mirrors.get(name) if roster.mirrors is not None else None
            if there is not done.there or now >= done.until or name not in errands:
                del self._done[name]
        self._retries.keep_only(errands)
        waits: list[float] = []
        for name, errand in errands.items():
            echo_at = self._done[name].until if name in self._done else 0.0
            free_at = max(self._retries.free_at(name), self._away.free_at(_ALL), echo_at)
            if name in self._busy or len(self._busy) >= AT_ONCE:
                continue
            if free_at > now:
                waits.append(free_at)
                continue
            self._busy.add(name)
            there = roster.mirrors.get(name) if roster.mirrors is not None else None
            self._supervisor.start_root(f"mirror-{name}", self._run_errand(name, errand, there))
        if self._timer is not None:
            self._timer.cancel()
        delay = min(waits, default=None)
        self._timer = None if delay is None else asyncio.get_running_loop().call_later(delay - now, self._wakeup.set)

    async def _run_errand(self, name: str, errand: MirrorAction, there: Pod | None) -> None:
        try:
            await self._carry_out(errand)
        except ApiError as error:
            if self._failed(name, error) == 1:
                log.warning("a static pod cannot be mirrored", pod=name, error=error.message)
        else:
            self._away.succeeded(_ALL)
            self._retries.succeeded(name)
            self._done[name] = _Done(there, self._clock.monotonic() + self._periods.echo_s)
        finally:
            self._busy.discard(name)
            self._wakeup.set()

    def _failed(self, name: str, error: ApiError) -> int:
        """Note a failure. Returns the failures in a row: of this name, or, without an answer, of all requests together."""
        now = self._clock.monotonic()
        if error.status > 0:
            if not error.is_transient:
                self._away.succeeded(_ALL)
            return self._retries.failed(name, now, error.retry_after_s or 0.0)
        if now < self._away.free_at(_ALL):
            return 0  # another request has logged it
        return self._away.failed(_ALL, now)

    async def _carry_out(self, errand: MirrorAction) -> None:
        match errand:
            case MakeMirror(static):
                meta = static.metadata
                path = f"/api/v1/namespaces/{meta.namespace}/pods"
                made = await self._client.create(path, mirror_of(static, self._inputs.node.get()), Pod)
                log.info("mirror pod made", pod=pod_ref(made), uid=made.metadata.uid)
            case RemoveMirror(mirror, cause):
                meta = mirror.metadata
                options = {
                    "apiVersion": "v1",
                    "kind": "DeleteOptions",
                    "gracePeriodSeconds": 0,
                    "preconditions": {"uid": meta.uid},
                }
                try:
                    await self._client.delete(f"/api/v1/namespaces/{meta.namespace}/pods/{meta.name}", options)
                except ApiError as error:
                    if not error.is_not_found and error.status != 409:
                        raise
                log.info("mirror pod removed", pod=pod_ref(mirror), uid=meta.uid, cause=cause)
