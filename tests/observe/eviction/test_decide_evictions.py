"""Which pods are evicted, and when the next one may be."""

from __future__ import annotations

from typing import Any

from observe.eviction.samples import AT, GI, MI, make_pod, make_use, seen, threshold

from pykubelet.base.api.core import Pod
from pykubelet.base.kit.clock import Moment
from pykubelet.base.kit.values import replace
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.lifecycle import Lifecycles, PodLifecycle, Stage
from pykubelet.base.model.roster import Roster, RosterPod, pod_ref
from pykubelet.base.model.usage import MemoryUse, Usage
from pykubelet.observe.eviction.decide_evictions import (
    END_WAIT_S,
    SHOWN_DRY_RUNS,
    Decision,
    PodsSeen,
    evict_for,
    evict_over_limits,
    evictions_of,
    is_ending,
    without_gone,
)
from pykubelet.observe.eviction.decide_memory import crossings, pause_s
from pykubelet.observe.eviction.model import EvictionPeriods, EvictionSettings, EvictionState, NodeMeasures

HARD = threshold("memory.available", "1Gi")
FULL = threshold("nodefs.available", "10%")
OBSERVED = {"memory.available": seen(GI // 2), "nodefs.available": seen(GI // 2)}
SETTINGS = EvictionSettings((HARD, FULL))
NOW = Moment(100.0, 5000.0)
LIMITED = {"volumes": [{"name": "data", "emptyDir": {"sizeLimit": "10Mi"}}]}


def node(*pods: tuple[Pod, dict[str, Any]], stage: Stage = Stage.SYNCING) -> PodsSeen:
    """The pods of a node, and what each uses."""
    found = [(PodUID(pod.metadata.name), pod, used) for pod, used in pods]
    return PodsSeen(
        Roster({uid: RosterPod(pod, "api", AT) for uid, pod, _ in found}),
        Lifecycles({uid: PodLifecycle(pod_ref(pod), pod, stage, AT, AT) for uid, pod, _ in found}),
        Usage(AT, None, {uid: make_use(pod.metadata.name, **used) for uid, pod, used in found}),
    )


def names(decision: Decision) -> list[str]:
    return [order.eviction.ref.name for order in decision.orders]


def texts(decision: Decision) -> list[str]:
    return [note.text for note in decision.notes]


def test_the_first_in_the_order_of_the_threshold_is_evicted_and_no_other() -> None:
    pods = node((make_pod("small"), {"memory": MI}), (make_pod("large"), {"memory": GI}))
    decision = evict_for(EvictionState(), (HARD,), OBSERVED, pods, SETTINGS, NOW)
    assert names(decision) == ["large"] and decision.first == "large"
    assert list(evictions_of(decision.state).pods) == ["large"]
    [order] = decision.orders
    assert (order.signal, order.eviction.grace_s, order.eviction.disrupts) == ("memory.available", 1, True)
    assert texts(decision) == ["a pod is evicted"]
    again = evict_for(decision.state, (HARD,), OBSERVED, pods, SETTINGS, NOW)
    assert names(again) == ["small"], "a pod is evicted once"
    assert list(evictions_of(again.state).pods) == ["large", "small"]


def test_critical_pods_are_spared() -> None:
    system = make_pod("system", priority=2_000_001_000)
    decision = evict_for(EvictionState(), (HARD,), OBSERVED, node((system, {"memory": GI})), SETTINGS, NOW)
    assert (names(decision), decision.state) == ([], EvictionState())
    assert texts(decision) == ["a critical pod is not evicted", "no pod can be evicted"]


def test_every_pod_over_a_limit_is_evicted() -> None:
    pods = node(*((make_pod(name, LIMITED), {"volume": used * MI}) for name, used in (("a", 11), ("b", 9), ("c", 12))))
    decision = evict_over_limits(EvictionState(), pods, SETTINGS, NOW)
    assert names(decision) == ["a", "c"] == list(decision.state.evicted)
    assert not any(order.eviction.disrupts for order in decision.orders)
    assert names(evict_over_limits(decision.state, pods, SETTINGS, NOW)) == []


def test_a_dry_run_evicts_no_pod_and_notes_each_once() -> None:
    count = SHOWN_DRY_RUNS + 3
    pods = node(*((make_pod(f"p{n:02}", LIMITED), {"volume": 11 * MI}) for n in range(count)))
    dry = replace(SETTINGS, dry_run=True)
    decision = evict_over_limits(EvictionState(), pods, dry, NOW)
    assert (names(decision), decision.first, decision.state.evicted) == ([], None, {})
    assert [would.eviction.ref.name for would in decision.state.would_evict] == [f"p{n:02}" for n in range(3, count)]
    assert texts(decision) == ["dry run: a pod would be evicted"] * count
    for_memory = evict_for(decision.state, (HARD,), OBSERVED, pods, dry, NOW)
    assert len(for_memory.notes) == 1 and evict_for(for_memory.state, (HARD,), OBSERVED, pods, dry, NOW).notes == ()


def test_the_next_pod_waits_for_the_end_of_the_one_before_it_but_not_forever() -> None:
    pods = node((make_pod("pod"), {"memory": GI}))
    state = evict_for(EvictionState(), (HARD,), OBSERVED, pods, SETTINGS, NOW).state
    until = NOW.mono + 1 + END_WAIT_S
    assert is_ending(state, HARD, pods.lifecycles, until - 0.1)
    assert not is_ending(state, HARD, pods.lifecycles, until)
    finished = node((make_pod("pod"), {}), stage=Stage.FINISHED)
    assert not is_ending(state, HARD, finished.lifecycles, NOW.mono)
    assert not is_ending(state, HARD, Lifecycles(), NOW.mono)


def test_memory_does_not_wait_for_pods_over_a_limit() -> None:
    pods = node((make_pod("pod", LIMITED), {"volume": 11 * MI}))
    state = evict_over_limits(EvictionState(), pods, SETTINGS, NOW).state
    assert not is_ending(state, HARD, pods.lifecycles, NOW.mono)
    assert is_ending(state, FULL, pods.lifecycles, NOW.mono)


def test_evictions_are_forgotten_when_the_pod_has_left() -> None:
    pods = node((make_pod("a"), {"memory": GI}))
    state = evict_for(EvictionState(), (HARD,), OBSERVED, pods, SETTINGS, NOW).state
    assert without_gone(state, {PodUID("a"), PodUID("b")}) is state
    assert without_gone(state, {PodUID("b")}).evicted == {}


def test_the_kernel_notifies_where_the_first_threshold_is_crossed() -> None:
    """Usage is counted with caches, thresholds without."""
    both = [HARD, threshold("memory.available", "2Gi"), threshold("allocatableMemory.available", "1Gi")]
    measures = NodeMeasures(AT, MemoryUse(usage=5 * GI, working_set=4 * GI), 10 * GI, MemoryUse(usage=GI))
    assert crossings(both, measures) == {"memory.available": 9 * GI}, "the pods have no limit"
    limited = replace(measures, pods=MemoryUse(usage=GI, working_set=GI, limit=8 * GI))
    assert crossings(both, limited)["allocatableMemory.available"] == 7 * GI
    assert crossings(both, NodeMeasures(AT)) == {}


def test_memory_is_read_again_after_a_second_while_a_threshold_is_met() -> None:
    periods = EvictionPeriods(pass_s=10.0, memory_s=0.1)
    assert pause_s([HARD], {"memory.available": seen(0)}, periods, is_met=True) == 1.0
    assert pause_s([HARD], {"memory.available": seen(GI + 1)}, periods, is_met=False) == 0.1
    assert pause_s([HARD], {}, periods, is_met=False) == 10.0
