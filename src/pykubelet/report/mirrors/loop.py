"""The mirrors' loop: makes and removes mirror pods, in the background; no static pod ever waits for it.

Owns: what is under way and when what failed is tried again. Reads: `Roster`, `Lifecycles`, `NodeView`. One request at a time
for a full name; after it has succeeded nothing more is done for that name until the API server's set of mirror pods has
changed, or `ECHO_S` have passed.
"""

from __future__ import annotations

import asyncio

from pykubelet.base.api.core import Pod
from pykubelet.base.kit.cells import Cell, ringing
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.retries import Retries
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import Value
from pykubelet.base.model.lifecycle import Lifecycles
from pykubelet.base.model.node import NodeView
from pykubelet.base.model.roster import Roster, pod_ref
from pykubelet.edges.kubeapi.client import ApiClient
from pykubelet.edges.kubeapi.errors import ApiError
from pykubelet.report.mirrors.decide import Errand, MakeMirror, RemoveMirror, has_mirrors, mirror_of, plan_mirrors

log = Log("mirrors")
AT_ONCE = 4
RETRY_S = 0.2
RETRY_MAX_S = 20.0
ECHO_S = 5.0


class MirrorInputs(Value):
    """The cells this room reads."""

    roster: Cell[Roster]
    lifecycles: Cell[Lifecycles]
    node: Cell[NodeView]


class _Done(Value):
    """What was answered with success: the mirror pod that was there then, and until when its echo is awaited."""

    there: Pod | None
    until: float


class MirrorsLoop:
    """`run` never returns."""

    def __init__(self, client: ApiClient, inputs: MirrorInputs, clock: Clock, echo_s: float = ECHO_S) -> None:
        self._client = client
        self._inputs = inputs
        self._clock = clock
        self._echo_s = echo_s
        self._roster: Roster | None = None
        self._is_concerned = False
        self._busy: set[str] = set()
        self._done: dict[str, _Done] = {}
        self._retries = Retries[str](RETRY_S, RETRY_MAX_S)
        self._bell = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._supervisor = Supervisor("mirrors")

    async def run(self) -> None:
        async with self._supervisor as supervisor:
            with ringing(self._bell, self._inputs.roster, self._inputs.lifecycles, self._inputs.node):
                supervisor.start_root("mirrors-send", self._follow())
                raise await supervisor.wait_failed()

    async def _follow(self) -> None:
        while True:
            await self._bell.wait()
            self._bell.clear()
            self._look()

    def _look(self) -> None:
        roster, now = self._inputs.roster.get(), self._clock.monotonic()
        if roster is not self._roster:
            self._roster, self._is_concerned = roster, has_mirrors(roster)
        elif not self._is_concerned:
            return  # what happens to the API server's own pods
        errands = plan_mirrors(roster, self._inputs.lifecycles.get(), self._inputs.node.get())
        for name, done in list(self._done.items()):
            there = roster.mirrors.get(name) if roster.mirrors is not None else None
            if there is not done.there or now >= done.until or name not in errands:
                del self._done[name]
        self._retries.keep_only(errands)
        waits: list[float] = []
        for name, errand in errands.items():
            free_at = max(self._retries.free_at(name), self._done[name].until if name in self._done else 0.0)
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
        self._timer = None if delay is None else asyncio.get_running_loop().call_later(delay - now, self._bell.set)

    async def _run_errand(self, name: str, errand: Errand, there: Pod | None) -> None:
        try:
            await self._carry_out(errand)
        except ApiError as error:
            now = self._clock.monotonic()
            if self._retries.failed(name, now, error.retry_after_s or 0.0) == 1:
                log.warning("a static pod cannot be mirrored", pod=name, error=error.message)
        else:
            self._retries.succeeded(name)
            self._done[name] = _Done(there, self._clock.monotonic() + self._echo_s)
        finally:
            self._busy.discard(name)
            self._bell.set()

    async def _carry_out(self, errand: Errand) -> None:
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
