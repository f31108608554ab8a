"""The publisher: patches the pods' statuses at the API server, and deletes finished pods there.

Owns: `PublishState` and the pods' `Diagnostics`. Reads: `ApiPods`, `Roster`, `Statuses`, `Lifecycles`, `ApiState`. Which requests
are sent when is decided in `decide_requests.py`; `merge.py` makes their content from the newest known copy of the pod, from
the watch or from the answer to the last patch. The loop waits, sends, and feeds the answers back.
"""

from __future__ import annotations

import asyncio
import random

import msgspec

from pykubelet.base.api.core import ObjectMeta, Pod, PodStatus
from pykubelet.base.kit.cells import Cell, LazyCellWriter, set_on_change, within
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.metrics import Histogram
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import Value, replace
from pykubelet.base.model.diagnostics import Diagnostics
from pykubelet.base.model.lifecycle import Lifecycles
from pykubelet.base.model.node import ApiState
from pykubelet.base.model.roster import ApiPods, Roster, pod_ref
from pykubelet.base.model.statuses import Statuses
from pykubelet.edges.kubeapi.client import ApiClient, PatchKind
from pykubelet.edges.kubeapi.errors import ApiError
from pykubelet.report.status.decide_requests import decide, diagnostics
from pykubelet.report.status.merge import final_delete, render_patch
from pykubelet.report.status.records import (
    Answer,
    Deleted,
    Patched,
    PublishPeriods,
    PublishState,
    Request,
    RequestFailed,
    SendDeletion,
    SendPatch,
    SnapshotsChanged,
)

log = Log("status")
#: The least pause of the loop, because timers may fire too early.
LEAST_PAUSE_S = 0.001
SYNC_DURATIONS = Histogram(
    "kubelet_pod_status_sync_duration_seconds",
    "Duration in seconds to sync a pod status update. Measures time from detection of a change to pod status until the"
    " API is successfully updated for that pod, even if multiple intevening changes to pod status occur.",
    (),
    (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0),
)


class PublishInputs(Value):
    """The cells that the publisher reads."""

    pods: Cell[ApiPods]
    roster: Cell[Roster]
    statuses: Cell[Statuses]
    lifecycles: Cell[Lifecycles]
    api: Cell[ApiState]


class _There(msgspec.Struct, frozen=True):
    """The parts of the answer to a status patch that may have changed."""

    metadata: ObjectMeta
    status: PodStatus


class StatusPublisher:
    """`run` never returns."""

    def __init__(
        self,
        client: ApiClient,
        inputs: PublishInputs,
        shown: LazyCellWriter[Diagnostics],
        clock: Clock,
        periods: PublishPeriods | None = None,
    ) -> None:
        self._client = client
        self._inputs = inputs
        self._clock = clock
        self._periods = periods or PublishPeriods()
        self._state = PublishState(inputs.api.get())
        self._answers: list[Answer] = []
        self._wakeup = asyncio.Event()
        self._supervisor = Supervisor("publisher")
        shown.answer_with(lambda: diagnostics(self._state))

    async def run(self) -> None:
        """Keep the API server's copies of pod statuses equal to those of this node. Never returns."""
        async with self._supervisor as supervisor:
            cells = self._inputs
            with set_on_change(self._wakeup, cells.pods, cells.roster, cells.statuses, cells.lifecycles, cells.api):
                supervisor.start_root("publisher-send", self._follow())
                raise await supervisor.wait_failed()

    async def _follow(self) -> None:
        while True:
            await self._wait()
            self._step()

    def _step(self) -> None:
        cells, answers, self._answers = self._inputs, self._answers, []
        news = SnapshotsChanged(
            cells.pods.get().pods,
            cells.roster.get(),
            cells.statuses.get(),
            cells.lifecycles.get().pods,
            cells.api.get(),
        )
        now = self._clock.monotonic()
        self._state, requests, notes = decide(self._state, (*answers, news), now, self._periods)
        for note in notes:
            log.note(note)
        for request in requests:
            self._supervisor.start_root(f"publish-{request.uid}", self._send(request))

    async def _wait(self) -> None:
        """Wait until something has happened, or something is due."""
        at = self._state.wake_at
        pause = max(LEAST_PAUSE_S, at - self._clock.monotonic()) if at is not None else None
        if await within(pause, self._wakeup.wait()):
            self._wakeup.clear()

    async def _send(self, request: Request) -> None:
        try:
            answer = await (self._patch(request) if isinstance(request, SendPatch) else self._delete(request))
        except ApiError as error:
            answer = RequestFailed(request, error, self._clock.wall(), random.random())
        self._answers.append(answer)
        self._wakeup.set()

    async def _patch(self, request: SendPatch) -> Answer:
        known = request.known
        body = render_patch(known, request.wanted)
        if body is None:  # only the order of conditions differs
            return Patched(request, None)
        there = await self._client.patch(f"{_path(known)}/status", body, PatchKind.STRATEGIC, _There)
        SYNC_DURATIONS.observe(self._clock.monotonic() - request.since)
        fields = ",".join(sorted(body["status"]))
        log.debug("status patched", pod=pod_ref(known), uid=request.uid, urgency=request.urgency.name, fields=fields)
        return Patched(request, replace(known, metadata=there.metadata, status=there.status))

    async def _delete(self, request: SendDeletion) -> Answer:
        try:
            await self._client.delete(_path(request.known), final_delete(request.known))
        except ApiError as error:
            if not error.is_not_found:  # if the name now belongs to another pod, the watch shows it
                raise
        log.info("pod deleted for good", pod=pod_ref(request.known), uid=request.uid)
        return Deleted(request, self._clock.wall())


def _path(pod: Pod) -> str:
    return f"/api/v1/namespaces/{pod.metadata.namespace}/pods/{pod.metadata.name}"
