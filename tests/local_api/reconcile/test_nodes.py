"""A node that stops reporting is marked, and taints follow its conditions."""

from __future__ import annotations

from local_api.reconcile.world import World, thing

from pykubelet.base.kit.clock import ManualClock
from pykubelet_local_api.objects import Json
from pykubelet_local_api.reconcile.changes import condition_of
from pykubelet_local_api.reconcile.nodes import GRACE_S, node_lifecycle


def condition(kind: str, status: str) -> Json:
    return {"type": kind, "status": status, "lastHeartbeatTime": "2027-01-15T08:00:00Z"}


def node(*conditions: Json, **spec: object) -> Json:
    return thing("Node", "n", spec=spec, status={"conditions": list(conditions)})


READY = node(condition("Ready", "True"))


def lease(renewed: str) -> Json:
    return thing("Lease", "n", "kube-node-lease", "coordination.k8s.io/v1", spec={"renewTime": renewed})


def found_in(world: World) -> Json:
    found = world.get("nodes", "", "n")
    assert found is not None
    return found


def taints(world: World) -> list[tuple[str, str]]:
    return [
        (taint["key"].removeprefix("node.kubernetes.io/"), taint["effect"])
        for taint in found_in(world)["spec"].get("taints", ())
    ]


def test_taints_follow_the_conditions() -> None:
    lifecycle = node_lifecycle(ManualClock().monotonic)
    mine = {"key": "mine", "effect": "NoSchedule"}
    world = World(node(taints=[mine]))
    world.settle(lifecycle)
    assert taints(world) == [("mine", "NoSchedule"), ("not-ready", "NoSchedule")]
    world.add(
        found_in(world) | {"status": node(condition("Ready", "True"), condition("DiskPressure", "True"))["status"]}
    )
    world.settle(lifecycle)
    assert taints(world) == [("mine", "NoSchedule"), ("disk-pressure", "NoSchedule")]
    world.add(node(condition("Ready", "True"), unschedulable=True))
    world.settle(lifecycle)
    assert taints(world) == [("unschedulable", "NoSchedule")]
    world.add(node(condition("Ready", "True"), taints=found_in(world)["spec"]["taints"]))
    world.settle(lifecycle)
    assert taints(world) == []


def test_a_node_that_stops_reporting_becomes_unknown_and_comes_back() -> None:
    clock = ManualClock()
    lifecycle = node_lifecycle(clock.monotonic)
    pod = thing("Pod", "p", "ns", spec={"nodeName": "n"}, status={"conditions": [{"type": "Ready", "status": "True"}]})
    world = World(READY, lease("a"), pod)
    world.settle(lifecycle)
    assert taints(world) == []
    clock.advance(GRACE_S - 1)
    world.add(lease("b"))
    world.settle(lifecycle)
    clock.advance(GRACE_S - 1)
    world.settle(lifecycle)
    assert taints(world) == [], "the Lease was renewed"
    clock.advance(2)
    world.settle(lifecycle)
    ready = condition_of(found_in(world), "Ready")
    assert (ready["status"], ready["reason"], ready["message"]) == (
        "Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status.",
    )  # fmt: skip
    assert condition_of(found_in(world), "DiskPressure")["message"] == "Kubelet never posted node status."
    assert taints(world) == [("unreachable", "NoSchedule")]
    found = world.get("pods", "ns", "p")
    assert found is not None
    assert condition_of(found, "Ready")["status"] == "False"
    world.add(found_in(world) | {"status": READY["status"]})
    world.add(lease("c"))
    world.settle(lifecycle)
    assert taints(world) == []


def test_a_restart_and_a_clock_that_jumps_begin_the_time_anew() -> None:
    clock = ManualClock()
    world = World(READY, lease("long ago"))
    lifecycle = node_lifecycle(clock.monotonic)
    world.settle(lifecycle)
    world.now += 100_000
    world.settle(lifecycle)
    assert taints(world) == []
    wakes = lifecycle.wakes_at(world)
    assert wakes == world.now + GRACE_S


def test_a_new_node_is_reported_once() -> None:
    lifecycle = node_lifecycle(ManualClock().monotonic)
    world = World(READY)
    world.settle(lifecycle)
    assert [event["message"] for event in world.list("events")] == ["Node n event: Registered Node n in Controller"]
