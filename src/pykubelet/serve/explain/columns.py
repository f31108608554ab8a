"""The columns of a pod, as `kubectl get pods` shows them. Pure.

Source: the printed columns of kubectl (READY, STATUS, RESTARTS).
"""

from __future__ import annotations

from pykubelet.base.api import core
from pykubelet.base.kit.values import Value
from pykubelet.base.model.lifecycle import KillReason, PodLifecycle, Stage
from pykubelet.base.model.reasons import COMPLETED, POD_INITIALIZED, POD_INITIALIZING, POD_READY
from pykubelet.base.model.restart import has_succeeded, is_sidecar

LEAVING = frozenset({KillReason.REMOVED, KillReason.RENEWED, KillReason.DELETED, KillReason.ORPHANED})


class Columns(Value):
    ready: int
    total: int
    status: str
    restarts: int


def columns_of(pod: core.Pod, status: core.PodStatus, lifecycle: PodLifecycle | None) -> Columns:
    """The columns of one pod. `lifecycle` None: the pod has no pod worker yet."""
    sidecars = {c.name for c in pod.spec.initContainers if is_sidecar(c)}
    total = len(pod.spec.containers) + len(sidecars)
    init = _init_reason(status, sidecars, len(pod.spec.initContainers))
    ready = sum(1 for s in status.initContainerStatuses if s.name in sidecars and s.ready and s.started)
    word = status.reason or status.phase or "Pending"
    restarts = sum(s.restartCount for s in status.initContainerStatuses)
    if init:
        word = init
    if not init or _has(status, POD_INITIALIZED):
        restarts = sum(s.restartCount for s in status.initContainerStatuses if s.name in sidecars)
        restarts += sum(s.restartCount for s in status.containerStatuses)
        ready += sum(1 for s in status.containerStatuses if s.ready)
        word = _regular_reason(status, word)
    if _is_leaving(lifecycle) and status.phase not in ("Succeeded", "Failed"):
        word = "Terminating"
    return Columns(ready, total, word, restarts)


def _is_leaving(lifecycle: PodLifecycle | None) -> bool:
    return lifecycle is not None and lifecycle.stage is not Stage.SYNCING and lifecycle.kill_reason in LEAVING


def _has(status: core.PodStatus, kind: str) -> bool:
    return any(c.type == kind and c.status == "True" for c in status.conditions)


def _init_reason(status: core.PodStatus, sidecars: set[str], total: int) -> str:
    """The status while init containers are running or have failed; empty if they have completed."""
    for number, found in enumerate(status.initContainerStatuses):
        state = found.state or core.ContainerState()
        if state.terminated is not None and has_succeeded(state.terminated.exitCode, state.terminated.reason):
            continue
        if found.name in sidecars and found.started:
            continue
        if state.terminated is not None:
            return f"Init:{state.terminated.reason or f'ExitCode:{state.terminated.exitCode}'}"
        if state.waiting is not None and state.waiting.reason and state.waiting.reason != POD_INITIALIZING:
            return f"Init:{state.waiting.reason}"
        return f"Init:{number}/{total}"
    return ""


def _regular_reason(status: core.PodStatus, word: str) -> str:
    running = False
    for found in reversed(status.containerStatuses):
        state = found.state or core.ContainerState()
        if state.waiting is not None and state.waiting.reason:
            word = state.waiting.reason
        elif state.terminated is not None:
            word = state.terminated.reason or f"ExitCode:{state.terminated.exitCode}"
        elif state.running is not None and found.ready:
            running = True
    if word == COMPLETED and running:
        return "Running" if _has(status, POD_READY) else "NotReady"
    return word
