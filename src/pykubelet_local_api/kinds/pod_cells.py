"""The cells of a pod: what its status comes down to in a word. Pure. Source: the Kubernetes documentation "Pod Lifecycle"."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pykubelet_local_api.kinds.ages import age, age_of
from pykubelet_local_api.objects import Json

NONE = "<none>"
_ENDED = ("Failed", "Succeeded")


def pod_cells(item: Json, now: float) -> list[Any]:
    """Name, ready containers, status, restarts, age; IP, node, nominated node, readiness gates."""
    spec, status = item.get("spec") or {}, item.get("status") or {}
    sidecars = {
        found.get("name") for found in spec.get("initContainers") or () if found.get("restartPolicy") == "Always"
    }
    total = len(spec.get("containers") or ()) + len(sidecars)
    seen = _Seen(status)
    is_starting = seen.init(status.get("initContainerStatuses") or (), sidecars, len(spec.get("initContainers") or ()))
    if not is_starting or _condition(status, "Initialized") == "True":
        seen.containers(status)
    reason = seen.reason
    if item["metadata"].get("deletionTimestamp"):
        if status.get("reason") == "NodeLost":
            reason = "Unknown"
        elif status.get("phase") not in _ENDED:
            reason = "Terminating"
    restarts = str(seen.restarts)
    if seen.restarts and seen.last:
        restarts = f"{seen.restarts} ({age_of(seen.last, now)} ago)"
    address = next((found.get("ip") for found in status.get("podIPs") or ()), None) or status.get("podIP") or NONE
    return [
        *(item["metadata"].get("name", ""), f"{seen.ready}/{total}", reason, restarts, age(item, now)),
        *(address, spec.get("nodeName") or NONE, status.get("nominatedNodeName") or NONE, _gates(spec, status)),
    ]


class _Seen:
    """What the statuses of a pod's containers come down to, while they are read."""

    def __init__(self, status: Json) -> None:
        self.reason = str(status.get("reason") or status.get("phase") or "")
        if any(found.get("reason") == "SchedulingGated" for found in _conditions(status, "PodScheduled")):
            self.reason = "SchedulingGated"
        self.ready = 0
        self.restarts = 0
        self.last = ""
        self._sidecars = (0, "")

    def init(self, statuses: Iterable[Json], sidecars: set[Any], total: int) -> bool:
        """Read the init containers; returns whether the pod still waits for one."""
        for i, found in enumerate(statuses):
            is_sidecar = found.get("name") in sidecars
            self.restarts, self.last = self._with(found, self.restarts, self.last)
            if is_sidecar:
                self._sidecars = self._with(found, *self._sidecars)
            state = found.get("state") or {}
            ended, waiting = state.get("terminated"), state.get("waiting")
            if ended is not None and not ended.get("exitCode"):
                continue
            if is_sidecar and found.get("started"):
                self.ready += bool(found.get("ready"))
                continue
            if ended is not None:
                self.reason = "Init:" + (ended.get("reason") or _exit(ended))
            elif waiting is not None and waiting.get("reason") not in (None, "", "PodInitializing"):
                self.reason = "Init:" + waiting["reason"]
            else:
                self.reason = f"Init:{i}/{total}"
            return True
        return False

    def containers(self, status: Json) -> None:
        """Read the containers, the first of which counts most."""
        self.restarts, self.last = self._sidecars
        is_running = False
        for found in reversed(status.get("containerStatuses") or ()):
            self.restarts, self.last = self._with(found, self.restarts, self.last)
            state = found.get("state") or {}
            ended, waiting = state.get("terminated"), state.get("waiting")
            if waiting is not None and waiting.get("reason"):
                self.reason = waiting["reason"]
            elif ended is not None:
                self.reason = ended.get("reason") or _exit(ended)
            elif found.get("ready") and state.get("running") is not None:
                is_running = True
                self.ready += 1
        if self.reason == "Completed" and is_running:
            self.reason = "Running" if _condition(status, "Ready") == "True" else "NotReady"

    @staticmethod
    def _with(found: Json, restarts: int, last: str) -> tuple[int, str]:
        ended = (found.get("lastState") or {}).get("terminated") or {}
        return restarts + int(found.get("restartCount") or 0), max(last, str(ended.get("finishedAt") or ""))


def _exit(ended: Json) -> str:
    return f"Signal:{ended['signal']}" if ended.get("signal") else f"ExitCode:{ended.get('exitCode') or 0}"


def _conditions(status: Json, kind: str) -> Iterable[Json]:
    return (found for found in status.get("conditions") or () if found.get("type") == kind)


def _condition(status: Json, kind: str) -> str:
    return next((str(found.get("status")) for found in _conditions(status, kind)), "")


def _gates(spec: Json, status: Json) -> str:
    gates = [gate.get("conditionType") for gate in spec.get("readinessGates") or ()]
    if not gates:
        return NONE
    passed = sum(_condition(status, str(gate)) == "True" for gate in gates)
    return f"{passed}/{len(gates)}"


def condition_rows(item: Json) -> list[Json]:
    """The conditions of a row, by which clients hide pods that have ended."""
    match (item.get("status") or {}).get("phase"):
        case "Succeeded":
            reason, message = "Succeeded", "The pod has completed successfully."
        case "Failed":
            reason, message = "Failed", "The pod failed."
        case _:
            return []
    return [{"type": "Completed", "status": "True", "reason": reason, "message": message}]
