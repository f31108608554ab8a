"""Which pods of lower priority make way for a pod. Pure.

The most important pods stay: those with a higher priority, then those that started earlier.
Source: the Kubernetes documentation "Pod Priority and Preemption". There are no PodDisruptionBudgets.
"""

from __future__ import annotations

from collections.abc import Callable

from pykubelet.base.kit.values import Value
from pykubelet_local_api.objects import Json, is_deleting, uid_of
from pykubelet_local_api.reconcile.changes import (
    condition_of,
    deleted,
    event_about,
    reference_to,
    status_of,
    status_updated,
    with_pod_condition,
)
from pykubelet_local_api.reconcile.fit import NodeLoad, PodToPlace, Refusal
from pykubelet_local_api.reconcile.pods import priority_of
from pykubelet_local_api.view import ObjectChange, View

DISRUPTION = "DisruptionTarget"
PREEMPTED = "PreemptionByScheduler"


class Victims(Value):
    """The pods that make way; those that are deleted already are among them."""

    pods: tuple[Json, ...]


def is_preempted(pod: Json) -> bool:
    """Whether the pod ends because it makes way."""
    found = condition_of(pod, DISRUPTION)
    return is_deleting(pod) and found.get("status") == "True" and found.get("reason") == PREEMPTED


def select_victims(
    wanted: PodToPlace, load: NodeLoad, refuse: Callable[[NodeLoad], Refusal | None]
) -> Victims | Refusal:
    """The fewest pods of the node that have to go for `wanted`. `refuse`: the filters, of the node with fewer pods."""
    lower = [pod for pod in load.pods.values() if priority_of(pod) < priority_of(wanted.object)]
    if not lower:
        return Refusal(("No preemption victims found for incoming pod",), True)
    left = load.without(lower)
    refusal = refuse(left)
    if refusal is not None:
        return refusal
    victims = []
    for pod in sorted(lower, key=_importance):
        left.add(pod)
        if refuse(left) is not None:
            left.remove(pod)
            victims.append(pod)
    return Victims(tuple(victims))


def _importance(pod: Json) -> tuple[int, str]:
    return -priority_of(pod), str(status_of(pod).get("startTime") or "9")


def removal(view: View, victim: Json, pod: Json, node: str, scheduler: str) -> list[ObjectChange]:
    """The next change that removes a victim: its condition first, then its deletion."""
    if is_deleting(victim):
        return []
    message = f"{scheduler}: preempting to accommodate a higher priority pod"
    marked = with_pod_condition(victim, DISRUPTION, "True", PREEMPTED, message, view.now)
    if marked is not victim:
        return [status_updated("pods", marked)]
    words = f"Preempted by pod {uid_of(pod)} on node {node}"
    event = event_about(view, reference_to(victim, "Pod"), "Normal", "Preempted", words, scheduler)
    return [deleted("pods", victim), *event]
