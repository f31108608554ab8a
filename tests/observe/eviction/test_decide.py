"""When a threshold is met, which conditions hold, and what is acted on."""

from __future__ import annotations

import pytest
from observe.eviction.samples import AT, GI, MI, make_pod, seen, threshold

from pykubelet.base.kit.values import replace
from pykubelet.base.model.evictions import EVICTION_SIGNALS, PressureCondition
from pykubelet.base.model.usage import FileSystemUse, MemoryUse, PsiData, PsiStats
from pykubelet.config.eviction import Threshold
from pykubelet.observe.eviction.decide import assess, eviction_grace_s, is_relieved, trend
from pykubelet.observe.eviction.decide_memory import crossings, headroom, look_after_s
from pykubelet.observe.eviction.model import EvictionState, FsLayout, NodeMeasures, Observation
from pykubelet.observe.eviction.signals import SIGNAL_RULES, observe
from pykubelet.observe.eviction.thresholds import limit_amount, node_thresholds

MEMORY, DISK, PID = PressureCondition
HARD = threshold("memory.available", "1Gi")
SOFT = threshold("memory.available", "2Gi", grace="30s")
FS = threshold("nodefs.available", "10%", reclaim="1Gi")
PIDS = threshold("pid.available", "5k")
TRANSITION_S = 300.0


class Node:
    """Passes one after another over what was observed."""

    def __init__(self, *thresholds: Threshold) -> None:
        self.thresholds = thresholds
        self.state = EvictionState()
        self.now = 0.0
        self.conditions: tuple[str, ...] = ()

    def held(self) -> tuple[str, ...]:
        """The conditions that hold."""
        return self.conditions

    def look(self, after_s: float, *, stale: bool = False, **available: int) -> list[Threshold]:
        """What is acted on. Signals are named with underscores."""
        self.now += after_s
        at = AT if stale else AT + self.now
        names = {"memory": "memory.available", "fs": "nodefs.available", "pids": "pid.available"}
        observed = {names[key]: Observation(number, 10 * GI, at) for key, number in available.items()}
        found = assess(self.state, self.thresholds, observed, self.now, TRANSITION_S)
        self.state, self.conditions = found.state, found.conditions
        return list(found.actionable)


def test_nothing_is_done_while_there_is_enough() -> None:
    node = Node(HARD, SOFT, FS)
    assert node.look(0, memory=2 * GI, fs=GI) == []
    assert node.held() == ()


def test_a_hard_threshold_is_acted_on_at_once() -> None:
    node = Node(FS, HARD)
    assert node.look(0, memory=GI - 1, fs=GI - 1) == [HARD, FS]
    assert node.held() == (MEMORY, DISK)


def test_a_soft_threshold_sets_its_condition_at_once_and_is_acted_on_after_its_grace_period() -> None:
    node = Node(SOFT)
    assert node.look(0, memory=GI) == []
    assert node.held() == (MEMORY,)
    assert node.look(29, memory=GI) == []
    assert node.look(1, memory=GI) == [SOFT]


def test_the_grace_period_begins_anew_after_a_moment_of_plenty() -> None:
    node = Node(SOFT)
    node.look(0, memory=GI)
    node.look(20, memory=3 * GI)
    assert node.look(20, memory=GI) == []
    assert node.look(30, memory=GI) == [SOFT]


def test_a_soft_threshold_without_grace_is_a_hard_one() -> None:
    assert not threshold("memory.available", "1Gi").is_soft
    assert Node(threshold("memory.available", "1Gi", grace="0s")).look(0, memory=0) != []


def test_a_condition_holds_until_it_was_not_seen_for_the_transition_period() -> None:
    node = Node(HARD, PIDS)
    node.look(0, memory=0, pids=1)
    node.look(10, memory=GI, pids=1)
    assert node.held() == (MEMORY, PID)
    node.look(TRANSITION_S - 11, memory=GI, pids=1)
    assert node.held() == (MEMORY, PID)
    node.look(1, memory=GI, pids=1)
    assert node.held() == (PID,)


def test_a_threshold_stays_met_until_its_minimum_reclaim_is_there() -> None:
    node = Node(FS)
    assert node.look(0, fs=GI - 1) == [FS]
    assert node.look(10, fs=GI + 1) == [FS]
    assert node.look(10, fs=2 * GI) == []
    assert node.look(10, fs=GI + 1) == []


def test_a_stale_observation_is_not_acted_on_twice() -> None:
    node = Node(HARD)
    assert node.look(0, stale=True, memory=0) == [HARD]
    assert node.look(10, stale=True, memory=0) == []
    assert node.held() == (MEMORY,)
    assert node.look(10, memory=0) == [HARD]


def test_a_signal_that_is_not_measured_is_left_out() -> None:
    node = Node(HARD, PIDS)
    assert node.look(0, pids=1) == [PIDS]


def test_pressure_is_relieved_when_no_threshold_with_its_reclaim_is_met() -> None:
    assert is_relieved([FS], {"nodefs.available": seen(2 * GI)})
    assert not is_relieved([FS], {"nodefs.available": seen(2 * GI - 1)})
    assert not is_relieved([FS, SOFT], {"nodefs.available": seen(2 * GI), "memory.available": seen(GI)})


@pytest.mark.parametrize(
    ("of", "own", "longest", "grace_s"), [(HARD, 60, 30, 1), (SOFT, 60, 30, 30), (SOFT, 5, 30, 5), (SOFT, None, 30, 30)]
)
def test_the_grace_period_of_the_victim(of: Threshold, own: int | None, longest: int, grace_s: int) -> None:
    pod = make_pod("pod", {"terminationGracePeriodSeconds": own} if own is not None else None)
    assert eviction_grace_s(of, pod, longest) == grace_s


@pytest.mark.parametrize(
    ("layout", "containerfs"),
    [(FsLayout.SHARED, "nodefs"), (FsLayout.SPLIT, "nodefs"), (FsLayout.DEDICATED, "imagefs")],
)
def test_thresholds_that_follow_from_others(layout: FsLayout, containerfs: str) -> None:
    configured = [
        HARD,
        SOFT,
        threshold("nodefs.available", "10%"),
        threshold("imagefs.available", "15%"),
        threshold("nodefs.inodesFree", "5%"),
        threshold("imagefs.inodesFree", "4%"),
        threshold("containerfs.available", "77%"),
    ]
    found = node_thresholds(configured, enforces_pods=True, layout=layout)
    assert [derived for derived in found if derived.signal.startswith("allocatable")] == [
        threshold("allocatableMemory.available", "1Gi")
    ]
    by_signal = {derived.signal: derived.limit for derived in found}
    assert by_signal["containerfs.available"] == by_signal[f"{containerfs}.available"]
    assert by_signal["containerfs.inodesFree"] == by_signal[f"{containerfs}.inodesFree"]


def test_without_enforced_allocatable_the_pods_have_no_threshold_of_their_own() -> None:
    found = node_thresholds([HARD], enforces_pods=False, layout=FsLayout.SHARED)
    assert found == (HARD,)


def test_a_percentage_is_of_the_capacity_and_prints_as_a_binary_quantity() -> None:
    assert str(limit_amount(threshold("nodefs.available", "10%").limit, 10 * GI)) == "1Gi"


FILES = FileSystemUse(AT, capacity=100, available=40, inodes=10, inodes_free=4)
MEASURES = NodeMeasures(
    at=AT,
    memory=MemoryUse(usage=7 * GI, working_set=6 * GI),
    memory_capacity=10 * GI,
    pods=MemoryUse(usage=3 * GI, working_set=2 * GI, limit=8 * GI),
    node_fs=FILES,
    image_fs=FILES,
    container_fs=FILES,
    max_pids=1000,
    running_pids=400,
    stalls={"memory": PsiStats(PsiData(0, 12.5, 0, 0), PsiData(0, 2.5, 0, 0))},
)


def test_memory_of_huge_pages_is_not_available() -> None:
    measures = replace(MEASURES, huge_pages=3 * GI)
    seen = observe(measures)
    assert (seen["memory.available"].available, seen["memory.available"].capacity) == (GI, 10 * GI)
    assert seen["allocatableMemory.available"].available == 6 * GI
    assert observe(replace(MEASURES, huge_pages=5 * GI))["memory.available"].available == 0
    hard = [threshold("memory.available", "1Gi")]
    crossed = [crossings(hard, which)["memory.available"] for which in (MEASURES, measures)]
    assert crossed[0] - crossed[1] == 3 * GI


@pytest.mark.parametrize(
    ("signal", "available", "capacity"),
    [
        ("memory.available", 4 * GI, 10 * GI),
        ("allocatableMemory.available", 6 * GI, 8 * GI),
        ("nodefs.available", 40, 100),
        ("nodefs.inodesFree", 4, 10),
        ("imagefs.available", 40, 100),
        ("containerfs.inodesFree", 4, 10),
        ("pid.available", 600, 1000),
        ("memory.stall.some", 8750, 10000),
        ("memory.stall.full", 9750, 10000),
    ],
)
def test_what_is_observed_of_each_signal(signal: str, available: int, capacity: int) -> None:
    assert observe(MEASURES)[signal] == Observation(available, capacity, AT)


def test_what_the_kernel_does_not_report_is_missing() -> None:
    assert observe(NodeMeasures(at=AT)) == {}
    bare = NodeMeasures(at=AT, pods=MemoryUse(), node_fs=FileSystemUse(AT, capacity=5, available=1, inodes=0))
    assert set(observe(bare)) == {"nodefs.available"}


def test_every_signal_of_the_table_has_its_rules() -> None:
    assert set(SIGNAL_RULES) == set(EVICTION_SIGNALS)


def test_looks_at_memory_come_the_sooner_the_less_is_left() -> None:
    observed = {"memory.available": seen(5 * GI)}
    assert headroom([HARD, SOFT], observed, "memory.available") == 3 * GI
    assert headroom([HARD, SOFT], {"memory.available": seen(GI + 5)}, "memory.available") == 5
    assert headroom([HARD], {"memory.available": seen(5)}, "memory.available") is None
    assert headroom([HARD], {}, "memory.available") is None
    waits = [look_after_s(spare, 0.1, 10.0) for spare in (None, 400 * GI, 8 * GI, 5 * MI)]
    assert waits == [10.0, 10.0, 2.0, 0.1]


def test_the_trend_of_a_signal_is_its_change_per_second() -> None:
    before = {"memory.available": seen(5 * GI, at=10.0)}
    assert trend(before, {"memory.available": seen(3 * GI, at=14.0)}) == {"memory.available": -GI / 2}
    assert trend({}, before) == {}
