"""Which pods make room for a critical pod. Pure.

Rules, as in the reference: only pods of lower standing may go; the fewest possible; BestEffort rather than Burstable
rather than Guaranteed; of two that help as much, the one that requests less memory, then less CPU.
Source: the Kubernetes documentation "Guaranteed Scheduling For Critical Add-On Pods".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pykubelet.base.api.core import Pod
from pykubelet.base.kit.values import Value
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.qos import QOSClass, qos_class
from pykubelet.base.model.roster import is_mirror, is_static
from pykubelet.desired.roster.admission import Shortage
from pykubelet.desired.roster.model import Demand

SYSTEM_CRITICAL = 2_000_000_000
PREEMPTED = "Preempted in order to admit critical pod"


class Candidate(Value):
    """A pod that is here now."""

    uid: PodUID
    pod: Pod
    demand: Demand


class NoVictims(Exception):
    """There are no pods that may go and would make enough room; the message is the reference's."""


def is_critical(pod: Pod) -> bool:
    """Static pods are, whatever their priority."""
    return is_static(pod) or is_mirror(pod) or (pod.spec.priority or 0) >= SYSTEM_CRITICAL


def may_preempt(preemptor: Pod, other: Pod) -> bool:
    if is_critical(preemptor) and not is_critical(other):
        return True
    mine, theirs = preemptor.spec.priority, other.spec.priority
    return mine is not None and theirs is not None and mine > theirs


def choose_victims(preemptor: Pod, here: Iterable[Candidate], shortages: Sequence[Shortage]) -> tuple[PodUID, ...]:
    """The pods to end so that every shortage is made up; raises NoVictims."""
    needed = {shortage.resource: shortage.missing for shortage in shortages}
    by_class: dict[QOSClass, list[Candidate]] = {qos: [] for qos in QOSClass}
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


def _less(needed: Mapping[str, int], gone: Sequence[Candidate]) -> dict[str, int]:
    """What is still needed when these are gone."""
    left = {name: amount - sum(candidate.demand.of(name) for candidate in gone) for name, amount in needed.items()}
    return {name: amount for name, amount in left.items() if amount > 0}


def _nearest(candidates: Sequence[Candidate], needed: Mapping[str, int]) -> list[Candidate]:
    """One after the other the candidate that comes nearest to what is still needed."""
    left, chosen = list(candidates), []
    while needed:
        if not left:
            raise NoVictims(_unmet_text(needed))
        best = min(left, key=lambda candidate: (_distance(candidate, needed), *_size(candidate)))
        left.remove(best)
        chosen.append(best)
        needed = _less(needed, [best])
    return chosen


def _distance(candidate: Candidate, needed: Mapping[str, int]) -> float:
    rests = ((amount - candidate.demand.of(name)) / amount for name, amount in needed.items())
    return sum(rest * rest for rest in rests if rest > 0)


def _size(candidate: Candidate) -> tuple[int, int]:
    return candidate.demand.of("memory"), candidate.demand.of("cpu")


def _unmet_text(needed: Mapping[str, int]) -> str:
    listed = "".join(f"(res: {name}, q: {amount}), " for name, amount in needed.items())
    return f"no set of running pods found to reclaim resources: [{listed}]"
