"""`started` and `ready` of containers, from their probes. Pure.

A running container has started if its startup probe has succeeded or it has none. It is ready if it has started and its
readiness probe has succeeded or it has none. An init container is ready if it ended with 0. Probe kinds that the agent does
not run are ignored.
"""

from __future__ import annotations

from collections.abc import Sequence

from pykubelet.base.api import core
from pykubelet.base.kit.values import replace
from pykubelet.base.model.ids import ContainerID
from pykubelet.base.model.probes import ProbeKind, ProbeResult, ProbeResults
from pykubelet.base.model.restart import is_sidecar
from pykubelet.report.status.containers import Statuses


def with_readiness(statuses: Statuses, containers: Sequence[core.Container], probes: ProbeResults) -> Statuses:
    """The statuses of regular containers with `started` and `ready`."""
    specs = {container.name: container for container in containers}
    return tuple(_with_readiness(status, specs[status.name], probes) for status in statuses)


def with_init_readiness(statuses: Statuses, containers: Sequence[core.Container], probes: ProbeResults) -> Statuses:
    """The statuses of init containers with `started` and `ready`; those of sidecars depend on their probes (KEP-753)."""
    reported = []
    for status, container in zip(statuses, containers, strict=True):
        if is_sidecar(container):
            reported.append(_with_readiness(status, container, probes))
            continue
        ended = status.state.terminated if status.state is not None else None
        is_running = status.state is not None and status.state.running is not None
        reported.append(replace(status, started=is_running, ready=ended is not None and ended.exitCode == 0))
    return tuple(reported)


def starting_sidecars(statuses: Statuses, before: Statuses, containers: Sequence[core.Container]) -> frozenset[str]:
    """The sidecars that run and are not started in the statuses `before`."""
    started = {status.name for status in before if status.started}
    sidecars = {container.name for container in containers if is_sidecar(container)} - started
    return frozenset(
        s.name for s in statuses if s.name in sidecars and s.state is not None and s.state.running is not None
    )


def _with_readiness(
    status: core.ContainerStatus, container: core.Container, probes: ProbeResults
) -> core.ContainerStatus:
    if status.state is None or status.state.running is None:
        return replace(status, started=False, ready=False)
    instance = ContainerID(status.containerID.partition("://")[2])
    started = _passes(probes, instance, ProbeKind.STARTUP, container.startupProbe)
    ready = started and _passes(probes, instance, ProbeKind.READINESS, container.readinessProbe)
    return replace(status, started=started, ready=ready)


def _passes(probes: ProbeResults, instance: ContainerID, kind: ProbeKind, probe: core.Probe | None) -> bool:
    if probe is None or kind not in probes.watched:
        return True
    return probes.get(instance, kind) is ProbeResult.SUCCESS
