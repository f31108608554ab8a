"""`--runonce`: start the pods of the manifests once, report the result of each, and exit.

A pod succeeds if its phase is Succeeded, or Running with all containers started. It fails if its phase is Failed, if the
node rejects it, if a container exits with an error or waits for a permanent reason, or if it is not up before the time-out.
While a pod has a container exit that its status does not show yet, it is undecided.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from pykubelet.base.api.core import ContainerStatus, Pod, PodStatus
from pykubelet.base.kit.cells import Cell
from pykubelet.base.kit.values import Value
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.observed import Observed
from pykubelet.base.model.phase import Phase
from pykubelet.base.model.reasons import CREATE_CONTAINER_CONFIG_ERROR, ERR_IMAGE_NEVER_PULL, INVALID_IMAGE_NAME
from pykubelet.base.model.remarks import place_of
from pykubelet.base.model.restart import has_succeeded
from pykubelet.base.model.roster import Roster, pod_ref
from pykubelet.base.model.statuses import Statuses

TIMEOUT_S = 300.0
#: Seconds after which the exit of a container that ends right after its start is visible.
SETTLE_S = 1.0
#: Waiting reasons that do not go away by themselves.
HOPELESS = frozenset({ERR_IMAGE_NEVER_PULL, INVALID_IMAGE_NAME, CREATE_CONTAINER_CONFIG_ERROR})


class OnceCells(Value):
    roster: Cell[Roster]
    observed: Cell[Observed]
    statuses: Cell[Statuses]


class PodResult(Value):
    """The result of one pod, manifest or source. `ok` None: undecided."""

    name: str
    ok: bool | None
    detail: str


def judge(pod: Pod, status: PodStatus | None) -> PodResult:
    """The result of a pod. Pure."""
    name = f"{pod.metadata.namespace}/{pod.metadata.name}"
    if status is None:
        return PodResult(name, None, "not started")
    if status.phase == Phase.FAILED:
        return PodResult(name, False, f"{status.reason or 'Failed'}: {status.message or _failures(status)}")
    if status.phase == Phase.SUCCEEDED:
        return PodResult(name, True, "Succeeded")
    if failure := _failures(status):
        return PodResult(name, False, failure)
    up = {s.name for s in status.containerStatuses if s.state and (s.state.running or s.state.terminated)}
    if status.phase == Phase.RUNNING and up >= {c.name for c in pod.spec.containers}:
        return PodResult(name, True, "Running")
    waiting = {s.name: s.state.waiting.reason for s in _all(status) if s.state and s.state.waiting}
    reasons = ", ".join(f"{container}: {reason}" for container, reason in waiting.items())
    return PodResult(name, False if HOPELESS & set(waiting.values()) else None, reasons or status.phase)


def _all(status: PodStatus) -> tuple[ContainerStatus, ...]:
    return (*status.initContainerStatuses, *status.containerStatuses)


def _failures(status: PodStatus) -> str:
    """The containers that exited with an error, as text."""
    ended = []
    for container in _all(status):
        for state in (container.state, container.lastState):
            end = state.terminated if state is not None else None
            if end is not None and not has_succeeded(end.exitCode, end.reason):
                ended.append(f"{container.name}: exit code {end.exitCode} ({end.reason})")
    return ", ".join(dict.fromkeys(ended))


def results(roster: Roster, statuses: Mapping[PodUID, PodStatus]) -> list[PodResult]:
    """The results of all pods, and of manifests and sources that cannot be used."""
    bad = [
        PodResult(place_of(p.origin, p.document), False, f"{p.field_path}: {p.reason}".removeprefix(": "))
        for p in roster.problems
    ]
    if roster.silent is None:
        bad.append(PodResult("pod sources", None, "nothing is known of them"))
    bad += [PodResult(f"source {name}", None, "has not delivered its pods") for name in roster.silent or ()]
    return bad + [judge(e.pod, statuses.get(pod_ref(e.pod).uid)) for e in roster.pods.values()]


async def run_once(cells: OnceCells, timeout_s: float = TIMEOUT_S) -> int:
    """Wait until every pod is decided and stays so, and print each result. Returns 0 only if all succeeded, else 1.

    A source that cannot deliver its pods counts as failed, like a bad manifest, and is not waited for.
    """

    def decided(statuses: Statuses) -> bool:
        return all(result.ok is not None for result in results(cells.roster.get(), statuses.pods))

    def exits_are_published() -> bool:
        views = cells.observed.get().pods
        return not any(uid in views and views[uid].pending_exits for uid in cells.roster.get().pods)

    try:
        async with asyncio.timeout(timeout_s):
            await cells.roster.wait_for(lambda now: now.silent == ())
            while True:
                await cells.statuses.wait_for(decided)
                await asyncio.sleep(SETTLE_S)
                if exits_are_published() and decided(cells.statuses.get()):
                    break
    except TimeoutError:
        pass
    roster = cells.roster.get()
    final = results(roster, cells.statuses.get().pods)
    for result in final:
        word = "ok" if result.ok else "failed" if result.ok is not None else "timed out"
        print(f"{result.name}\t{word}\t{result.detail}", flush=True)
    return 0 if all(result.ok for result in final) else 1
