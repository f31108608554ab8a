"""What containers had when the agent stopped: a state file, so that a restart changes nobody's readiness.

Owns: the file `probe_results` with, for every container that is probed, which of startup and readiness had succeeded.
Written at most once a second and only on change; read once, at the start. Without the file, and for containers that it
does not know, rule 7 of `decide` holds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from functools import partial

import msgspec

from pykubelet.base.api.core import PodStatus
from pykubelet.base.kit.cells import Cell
from pykubelet.base.kit.flight import Failed, Flight, Uncertain
from pykubelet.base.kit.log import Log
from pykubelet.base.model.ids import ContainerID
from pykubelet.base.model.probes import ProbeKind, ProbeResult, ProbeResults
from pykubelet.edges.host.checkpoint import Checkpoint
from pykubelet.observe.probes.decide import Kept

WRITE_PAUSE_S = 1.0
WRITE_DEADLINE_S = 30.0
_KINDS = (ProbeKind.STARTUP, ProbeKind.READINESS)
log = Log("probes")


class ProbeMemory:
    """`load` before the loop is made; `run` for ever after."""

    def __init__(self, path: str, flight: Flight) -> None:
        self._file = Checkpoint(path)
        self._flight = flight

    def load(self, told: Iterable[PodStatus] = ()) -> dict[ContainerID, Kept]:
        """Empty when there is nothing usable. `told`: statuses from before the agent's start, which are kept at once: what
        was told ready has succeeded, though it may not have been written down here any more."""
        payload = self._file.load()
        return with_told({} if payload is None else decode(payload), told)

    async def run(self, results: Cell[ProbeResults]) -> None:
        """Follow the results. A disk that refuses or does not answer is told once, and tried again on the next change."""
        written, troubled = b"", False
        async for snapshot in results.changes():
            payload = encode(snapshot)
            if payload == written:
                continue
            outcome = await self._flight.run("probe-results", partial(self._file.save, payload), WRITE_DEADLINE_S)
            if isinstance(outcome, Failed | Uncertain):
                if not troubled:
                    reason = outcome.error if isinstance(outcome, Failed) else "the disk does not answer"
                    log.warning("the probe results cannot be written down", error=reason)
                troubled = True
            else:
                written, troubled = payload, False
            await asyncio.sleep(WRITE_PAUSE_S)


def encode(snapshot: ProbeResults) -> bytes:
    """`{container id: [kinds that have succeeded]}`."""
    succeeded: dict[str, list[str]] = {}
    for (container, kind), result in snapshot.results.items():
        kinds = succeeded.setdefault(container, [])
        if kind in _KINDS and result is ProbeResult.SUCCESS:
            kinds.append(kind)
    return msgspec.json.encode({container: sorted(kinds) for container, kinds in sorted(succeeded.items())})


def with_told(kept: Mapping[ContainerID, Kept], told: Iterable[PodStatus]) -> dict[ContainerID, Kept]:
    """What had succeeded, as it was written down or as the statuses of running containers tell."""
    found = dict(kept)
    for status in told:
        for one in (*status.initContainerStatuses, *status.containerStatuses):
            if one.state is None or one.state.running is None or not one.started:
                continue
            container = ContainerID(one.containerID.partition("://")[2])
            before = found.get(container, Kept())
            readiness = ProbeResult.SUCCESS if one.ready else before.readiness
            found[container] = Kept(ProbeResult.SUCCESS, readiness)
    return found


def decode(payload: bytes) -> dict[ContainerID, Kept]:
    try:
        found: Mapping[str, list[str]] = msgspec.json.decode(payload, type=dict[str, list[str]])
    except msgspec.MsgspecError as error:
        log.warning("the probe results written down before cannot be read", error=error)
        return {}
    return {ContainerID(container): _kept(kinds) for container, kinds in found.items()}


def _kept(kinds: list[str]) -> Kept:
    startup = ProbeResult.SUCCESS if ProbeKind.STARTUP in kinds else None
    return Kept(startup, ProbeResult.SUCCESS if ProbeKind.READINESS in kinds else None)
