"""Decides in which order pods end when the machine shuts down, and how long each may take. Pure.

Source: KEP-2000 (graceful node shutdown), KEP-2712 (by pod priority), and the Kubernetes documentation "Node Shutdowns".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pykubelet.base.api.core import Pod
from pykubelet.base.kit.values import Value
from pykubelet.base.model.evictions import PodEviction
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.lifecycle import Lifecycles, PodLifecycle, Stage
from pykubelet.base.model.roster import pod_ref
from pykubelet.config.settings import Settings

#: The lowest priority of pods that are critical to the cluster.
CRITICAL_PRIORITY = 2_000_000_000
TERMINATED = "Terminated"
MESSAGE = "Pod was terminated in response to imminent node shutdown."
#: The API server's default of `terminationGracePeriodSeconds`, for pods that do not set it.
DEFAULT_GRACE_S = 30


class ShutdownGroup(Value):
    """The pods of this priority and above, up to the next group. They share a grace period of `grace_s` seconds."""

    priority: int
    grace_s: int


class PodsOfGroup(Value):
    """A group, and the evictions of its pods."""

    group: ShutdownGroup
    pods: Mapping[PodUID, PodEviction]


def shutdown_groups(settings: Settings) -> tuple[ShutdownGroup, ...]:
    """The groups of the configuration, lowest priority first; none: graceful shutdown is off.

    Fractions of a second are dropped, because logind's setting has none.
    """
    config = settings.config
    if not settings.enabled("GracefulNodeShutdown"):
        return ()
    total, critical = int(config.shutdownGracePeriod.s), int(config.shutdownGracePeriodCriticalPods.s)
    if settings.enabled("GracefulNodeShutdownBasedOnPodPriority") and config.shutdownGracePeriodByPodPriority:
        groups = [
            ShutdownGroup(entry.priority, entry.shutdownGracePeriodSeconds)
            for entry in config.shutdownGracePeriodByPodPriority
        ]
    else:
        groups = [ShutdownGroup(0, total - critical), ShutdownGroup(CRITICAL_PRIORITY, critical)]
    if sum(group.grace_s for group in groups) <= 0:
        return ()
    return tuple(sorted(groups, key=lambda group: group.priority))


def delay_s(groups: Iterable[ShutdownGroup]) -> int:
    """How many seconds the shutdown must be delayed: the sum of all groups, which end one after the other."""
    return sum(group.grace_s for group in groups)


def pods_by_group(lifecycles: Lifecycles, groups: tuple[ShutdownGroup, ...]) -> tuple[PodsOfGroup, ...]:
    """The groups that have pods, in the order in which they end. Pods that have already ended are left out, and those in quarantine,
    which nothing ends."""
    members: dict[ShutdownGroup, dict[PodUID, PodEviction]] = {group: {} for group in groups}
    for uid, life in sorted(lifecycles.pods.items()):
        if is_there(life) and not life.quarantine:
            group = _group_of(life.pod, groups)
            members[group][uid] = _order(life.pod, group)
    return tuple(PodsOfGroup(group, pods) for group, pods in members.items() if pods)


def is_there(life: PodLifecycle | None) -> bool:
    """Whether the pod may still have processes or volumes on the machine."""
    return life is not None and life.stage is not Stage.FINISHED


def _group_of(pod: Pod, groups: tuple[ShutdownGroup, ...]) -> ShutdownGroup:
    """The group with the highest priority that is not above the pod's; the first group for a pod below all."""
    priority = pod.spec.priority or 0
    below = [group for group in groups if group.priority <= priority]
    return below[-1] if below else groups[0]


def _order(pod: Pod, group: ShutdownGroup) -> PodEviction:
    own = pod.spec.terminationGracePeriodSeconds
    grace_s = min(group.grace_s, DEFAULT_GRACE_S if own is None else own)
    return PodEviction(pod_ref(pod), TERMINATED, MESSAGE, grace_s, for_shutdown=True)
