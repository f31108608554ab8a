"""`started` and `ready` of containers, from their probes. Pure.

A running container has started if its startup probe has succeeded or it has none. It is ready if it has started and its
readiness probe has succeeded or it has none. An init container is ready if it has succeeded. Probe kinds that the agent does
not run are ignored. While a container has no result after a restart of the agent, what was reported before holds.
"""

from __future__ import annotations

from collections.abc import Sequence

from pykubelet.base.api import core
from pykubelet.base.kit.values import replace
from pykubelet.base.model.ids import ContainerID
from pykubelet.base.model.probes import ProbeKind, ProbeResult, ProbeResults
from pykubelet.base.model.restart import is_sidecar
from pykubelet.report.status.containers import Statuses, by_name, instance_of, is_success


def with_readiness(
    statuses: Statuses, containers: Sequence[core.Container], probes: ProbeResults, before: Statuses = ()
) -> Statuses:
    """The statuses of regular containers with `started` and `ready`. `before`: the previous statuses."""
    specs, known = {container.name: container for container in containers}, by_name(before)
    return tuple(_with_readiness(s, specs[s.name], probes, known.get(s.name)) for s in statuses)


def with_init_readiness(
    statuses: Statuses, containers: Sequence[core.Container], probes: ProbeResults, before: Statuses = ()
) -> Statuses:
    """The statuses of init containers with `started` and `ready`; those of sidecars depend on their probes (KEP-753)."""
    reported, known = [], by_name(before)
    for status, container in zip(statuses, containers, strict=True):
        if is_sidecar(container):
            reported.append(_with_readiness(status, container, probes, known.get(status.name)))
            continue
        ended = status.state.terminated if status.state is not None else None
        is_running = status.state is not None and status.state.running is not None
        reported.append(replace(status, started=is_running, ready=is_success(ended)))
    return tuple(reported)


def starting_sidecars(statuses: Statuses, before: Statuses, containers: Sequence[core.Container]) -> frozenset[str]:
    """The sidecars that run and are not started in the statuses `before`."""
    started = {status.name for status in before if status.started}
    sidecars = {container.name for container in containers if is_sidecar(container)} - started
    return frozenset(
        s.name for s in statuses if s.name in sidecars and s.state is not None and s.state.running is not None
    )


def _with_readiness(
    status: core.ContainerStatus, container: core.Container, probes: ProbeResults, before: core.ContainerStatus | None
) -> core.ContainerStatus:
    if status.state is None or status.state.running is None:
        return replace(status, started=False, ready=False)
    if before is None or before.containerID != status.containerID or not probes.keeps:
        before = None
    instance = instance_of(status)
    had_started, was_ready = (before.started, before.ready) if before is not None else (None, None)
    started = _passes(probes, instance, ProbeKind.STARTUP, container.startupProbe, had_started)
    ready = started and _passes(probes, instance, ProbeKind.READINESS, container.readinessProbe, was_ready)
    return replace(status, started=started, ready=ready)


def _passes(
    probes: ProbeResults, instance: ContainerID, kind: ProbeKind, probe: core.Probe | None, before: bool | None
) -> bool:
    if probe is None or kind not in probes.watched:
        return True
    if before is not None and not probes.is_known(instance, kind):
        return before
    return probes.get(instance, kind) is ProbeResult.SUCCESS
