"""Which pod goes first, by signal."""

from __future__ import annotations

import pytest
from observe.eviction.samples import GI, MI, candidate, make_pod

from pykubelet.base.kit.values import replace
from pykubelet.observe.eviction.model import Candidate, FsLayout
from pykubelet.observe.eviction.rank import requested
from pykubelet.observe.eviction.signals import SIGNAL_RULES

SHARED, DEDICATED, SPLIT = FsLayout
NO_STATS = Candidate(make_pod("unmeasured", priority=100))
DATA = {"volumes": [{"name": "data", "emptyDir": {}}]}
IN_MEMORY = {"volumes": [{"name": "data", "emptyDir": {"medium": "Memory"}}]}
SECRET = {"volumes": [{"name": "data", "secret": {"secretName": "x"}}]}
HOST = {"volumes": [{"name": "data", "hostPath": {"path": "/x"}}]}

BY_MEMORY = [
    candidate(make_pod("within", memory="1Gi"), memory=GI),
    candidate(make_pod("above-important", priority=10), memory=100 * MI),
    candidate(make_pod("above-little", memory="100Mi"), memory=200 * MI),
    NO_STATS,
    candidate(make_pod("above-much", memory="100Mi"), memory=300 * MI),
    candidate(make_pod("within-important", memory="2Gi", priority=10), memory=GI),
]
MEMORY_ORDER = ["unmeasured", "above-much", "above-little", "above-important", "within", "within-important"]
BY_PIDS = [
    candidate(make_pod("few"), processes=3),
    candidate(make_pod("many-important", priority=5), processes=500),
    candidate(make_pod("many"), processes=50),
    NO_STATS,
]
BY_DISK = [
    candidate(make_pod("layer"), rootfs=50 * MI),
    candidate(make_pod("volume", DATA), volume=40 * MI),
    candidate(make_pod("logs"), logs=30 * MI),
    candidate(make_pod("requested", storage="1Gi"), rootfs=500 * MI),
    candidate(make_pod("in-memory", IN_MEMORY), volume=900 * MI),
    candidate(make_pod("secret", SECRET), volume=800 * MI),
    candidate(make_pod("host", HOST), volume=35 * MI, inodes=3),
]


@pytest.mark.parametrize(
    ("signal", "layout", "candidates", "order"),
    [
        ("memory.available", SHARED, BY_MEMORY, MEMORY_ORDER),
        ("allocatableMemory.available", SHARED, BY_MEMORY, MEMORY_ORDER),
        ("pid.available", SHARED, BY_PIDS, ["many", "few", "many-important", "unmeasured"]),
        ("nodefs.available", SHARED, BY_DISK, ["layer", "volume", "host", "logs"]),
        ("imagefs.available", SHARED, BY_DISK, ["layer", "volume", "host", "logs"]),
        ("containerfs.available", SHARED, BY_DISK, ["layer", "volume", "host", "logs"]),
        ("nodefs.available", DEDICATED, BY_DISK, ["volume", "host", "logs", "layer"]),
        ("imagefs.available", DEDICATED, BY_DISK, ["layer", "volume"]),
        ("containerfs.available", DEDICATED, BY_DISK, ["layer", "volume"]),
        ("nodefs.available", SPLIT, BY_DISK, ["layer", "volume", "host", "logs"]),
        ("imagefs.available", SPLIT, BY_DISK, ["layer", "volume", "logs", "in-memory", "secret", "host", "requested"]),
        ("nodefs.inodesFree", SHARED, BY_DISK, ["host", "layer"]),
    ],
)
def test_pods_are_ranked_by_signal(
    signal: str, layout: FsLayout, candidates: list[Candidate], order: list[str]
) -> None:
    rules = SIGNAL_RULES[signal]
    ranked = sorted(candidates, key=lambda c: rules.rank(c, layout))
    assert [c.pod.metadata.name for c in ranked][: len(order)] == order


def test_a_stalled_pod_goes_before_others_of_its_priority() -> None:
    calm = candidate(make_pod("calm"), memory=GI, stalled=1.0)
    stalled = candidate(make_pod("stalled"), memory=MI, stalled=60.0)
    important = candidate(make_pod("important", priority=3), memory=GI, stalled=90.0)
    ranked = sorted((important, calm, stalled), key=lambda c: SIGNAL_RULES["memory.stall.some"].rank(c, SHARED))
    assert [c.pod.metadata.name for c in ranked] == ["stalled", "calm", "important"]


@pytest.mark.parametrize(
    ("spec", "memory"),
    [
        ({}, 100 * MI),
        ({"overhead": {"memory": "5Mi"}}, 105 * MI),
        ({"initContainers": [{"name": "init", "resources": {"requests": {"memory": "300Mi"}}}]}, 300 * MI),
        ({"resources": {"requests": {"memory": "7Mi"}}}, 7 * MI),
        ({"resources": {"limits": {"cpu": "1"}}, "overhead": {"memory": "5Mi"}}, 0),
    ],
)
def test_the_request_of_a_pod(spec: dict[str, object], memory: int) -> None:
    assert requested(make_pod("pod", spec, memory="100Mi"), "memory") == memory


def test_a_pod_that_was_not_measured_in_part_is_ranked_all_the_same() -> None:
    whole = candidate(make_pod("pod"), memory=GI)
    assert whole.use is not None
    bare = replace(whole, use=replace(whole.use, group=None, containers=()))
    for rules in SIGNAL_RULES.values():
        assert sorted((whole, bare), key=lambda c, rules=rules: rules.rank(c, SHARED))  # type: ignore[misc]
        rules.used(bare, SHARED)
