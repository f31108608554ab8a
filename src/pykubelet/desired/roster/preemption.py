"""Chooses the pods that are preempted for a critical pod. Pure.

Rules, as in the reference kubelet: only pods that are not critical or have lower priority may be preempted. Guaranteed pods
are chosen only if Burstable and BestEffort pods do not suffice, Burstable only if BestEffort do not. The pod that comes
nearest to the missing amounts is chosen first; of equal ones, the one that requests less memory, then less CPU.
Source: the Kubernetes documentation "Guaranteed Scheduling For Critical Add-On Pods".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pykubelet.base.api.core import Pod
from pykubelet.base.kit.values import Value
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.roster import is_critical
from pykubelet.base.model.sizing import QOSClass, qos_class
from pykubelet.desired.roster.admission import Shortage
from pykubelet.desired.roster.model import Demand

PREEMPTED = "Preempted in order to admit critical pod"


class PreemptionCandidate(Value):
    """An admitted pod that counts against the capacity now."""

    uid: PodUID
    pod: Pod
    demand: Demand


class NoVictims(Exception):
    """Preempting all candidates would not free enough; the message is that of the reference kubelet."""


def may_preempt(preemptor: Pod, other: Pod) -> bool:
    """Whether `other` may be ended for the critical pod `preemptor`: it is not critical, or has lower priority."""
    if is_critical(preemptor) and not is_critical(other):
        return True
    mine, theirs = preemptor.spec.priority, other.spec.priority
    return mine is not None and theirs is not None and mine > theirs


def choose_victims(
    preemptor: Pod, here: Iterable[PreemptionCandidate], shortages: Sequence[Shortage]
) -> tuple[PodUID, ...]:
    """The pods to end so that no shortage is left. Raises NoVictims."""
    needed = {shortage.resource: shortage.missing for shortage in shortages}
    by_class: dict[QOSClass, list[PreemptionCandidate]] = {qos: [] for qos in QOSClass}
    for candidate in here:
        if may_preempt(preemptor, candidate.pod):
            by_class[qos_class(candidate.pod)].append(candidate)
    best_effort, burstable = by_class[QOSClass.BEST_EFFORT], by_class[QOSClass.BURSTABLE]
    guaranteed = by_class[QOSClass.GUARANTEED]
    unmet = _less(needed, [*best_effort, *burstable, *guaranteed])
    if unmet:
        raise NoVictims(_unmet_text(unmet))
    first = _nearest(guaranteed, _less(needed, [*best_effort, *burstable]))
    second = _nearest(burstable, _less(needed, [*best_effort, *first]))
    third = _nearest(best_effort, _less(needed, [*first, *second]))
    return tuple(candidate.uid for candidate in (*third, *second, *first))


def _less(needed: Mapping[str, int], gone: Sequence[PreemptionCandidate]) -> dict[str, int]:
    """The amounts that are still needed when these pods are gone."""
    left = {name: amount - sum(candidate.demand.of(name) for candidate in gone) for name, amount in needed.items()}
    return {name: amount for name, amount in left.items() if amount > 0}


def _nearest(candidates: Sequence[PreemptionCandidate], needed: Mapping[str, int]) -> list[PreemptionCandidate]:
    """Choose, one after the other, the candidate that comes nearest to the amounts that are still needed. Raises NoVictims."""
    left, chosen = list(candidates), []
    while needed:
        if not left:
            raise NoVictims(_unmet_text(needed))
        best = min(left, key=lambda candidate: (_distance(candidate, needed), *_size(candidate)))
        left.remove(best)
        chosen.append(best)
        needed = _less(needed, [best])
    return chosen


def _distance(candidate: PreemptionCandidate, needed: Mapping[str, int]) -> float:
    rests = ((amount - candidate.demand.of(name)) / amount for name, amount in needed.items())
    return sum(rest * rest for rest in rests if rest > 0)


def _size(candidate: PreemptionCandidate) -> tuple[int, int]:
    return candidate.demand.of("memory"), candidate.demand.of("cpu")


def _unmet_text(needed: Mapping[str, int]) -> str:
    listed = "".join(f"(res: {name}, q: {amount}), " for name, amount in needed.items())
    return f"no set of running pods found to reclaim resources: [{listed}]"
