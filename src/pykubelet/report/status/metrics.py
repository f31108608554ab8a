"""Metrics of ended containers. Source: the reference kubelet's `kubelet_terminated_containers_total`."""

from __future__ import annotations

from collections.abc import Sequence

from pykubelet.base.api.core import ContainerStateTerminated, ContainerStatus, PodStatus
from pykubelet.base.kit.metrics import Counter

TERMINATED = Counter(
    "kubelet_terminated_containers_total",
    "Cumulative number of container terminations.",
    ("container_type", "exit_code", "reason"),
)


def count_ends(before: PodStatus | None, now: PodStatus) -> None:
    """Count each container that is terminated in the status `now` and was not in `before` (None: there was no status)."""
    old = before if before is not None else PodStatus()
    _count("init_container", old.initContainerStatuses, now.initContainerStatuses)
    _count("container", old.containerStatuses, now.containerStatuses)
    _count("ephemeral_container", old.ephemeralContainerStatuses, now.ephemeralContainerStatuses)


def _count(kind: str, before: Sequence[ContainerStatus], now: Sequence[ContainerStatus]) -> None:
    ended = {status.name for status in before if _end(status) is not None}
    for status in now:
        if (end := _end(status)) is not None and status.name not in ended:
            TERMINATED.inc(kind, str(end.exitCode), end.reason)


def _end(status: ContainerStatus) -> ContainerStateTerminated | None:
    return status.state.terminated if status.state is not None else None
