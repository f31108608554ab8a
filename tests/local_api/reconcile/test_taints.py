"""Pods that do not tolerate a NoExecute taint go, at once or when their time is over."""

from __future__ import annotations

from local_api.reconcile.world import World, thing

from pykubelet.base.kit.clock import ManualClock
from pykubelet_local_api.objects import Json
from pykubelet_local_api.reconcile.changes import condition_of
from pykubelet_local_api.reconcile.taints import taint_evictions

TAINT = {"key": "maintenance", "value": "now", "effect": "NoExecute"}
TOLERATION = {"key": "maintenance", "operator": "Exists"}


def node(*taints: Json) -> Json:
    return thing("Node", "n", spec={"taints": list(taints)})


def pod(name: str, *tolerations: Json, phase: str = "Running") -> Json:
    return thing("Pod", name, "ns", spec={"nodeName": "n", "tolerations": list(tolerations)}, status={"phase": phase})


def left(world: World) -> list[str]:
    """The names of the pods that are not being deleted."""
    return [p["metadata"]["name"] for p in world.list("pods") if not p["metadata"].get("deletionTimestamp")]


def test_pods_without_a_toleration_go_at_once_and_others_stay() -> None:
    evictions = taint_evictions(ManualClock().monotonic)
    world = World(
        node(),
        pod("plain"),
        pod("other", {"key": "other", "operator": "Exists"}),
        pod("tolerant", TOLERATION),
        pod("everything", {"operator": "Exists"}),
        pod("ended", phase="Succeeded"),
    )
    world.settle(evictions)
    assert len(left(world)) == 5
    world.add(node(TAINT | {"effect": "NoSchedule"}))
    world.settle(evictions)
    assert len(left(world)) == 5, "NoSchedule is about new pods"
    world.add(node(TAINT))
    for change in evictions.reconcile(world):
        world.make(change)
    marked = world.get("pods", "ns", "plain")
    assert marked is not None
    assert condition_of(marked, "DisruptionTarget")["reason"] == "DeletionByTaintManager"
    assert sorted((e["reason"], e["message"]) for e in world.list("events")) == [
        ("TaintManagerEviction", "Marking for deletion Pod ns/other"),
        ("TaintManagerEviction", "Marking for deletion Pod ns/plain"),
    ]
    world.settle(evictions)
    assert left(world) == ["ended", "everything", "tolerant"]


def test_the_fewest_seconds_of_the_tolerations_count_from_the_taint() -> None:
    clock = ManualClock()
    evictions = taint_evictions(clock.monotonic)
    more = {"key": "more", "effect": "NoExecute"}
    world = World(
        node(TAINT, more),
        pod("short", TOLERATION | {"tolerationSeconds": 60}, {"key": "more", "operator": "Exists", "tolerationSeconds": 30}),
        pod("long", TOLERATION | {"tolerationSeconds": 60}, {"key": "more", "operator": "Exists"}),
        pod("none", TOLERATION | {"tolerationSeconds": -1}, {"key": "more", "operator": "Exists"}),
    )  # fmt: skip
    world.settle(evictions)
    assert left(world) == ["long", "short"]
    assert evictions.wakes_at(world) == world.now + 30
    clock.advance(29)
    world.settle(evictions)
    assert left(world) == ["long", "short"]
    clock.advance(1)
    world.settle(evictions)
    assert left(world) == ["long"]
    assert evictions.wakes_at(world) == world.now + 30
    clock.advance(29)
    world.add(node())
    world.settle(evictions)
    assert evictions.wakes_at(world) is None
    world.add(node(TAINT, more))
    clock.advance(59)
    world.settle(evictions)
    assert left(world) == ["long"], "the time begins anew with a new taint"
    clock.advance(60)
    world.settle(evictions)
    assert left(world) == []
