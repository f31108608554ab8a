"""Pods whose CPUs, memory or devices provide/placement must find before they are admitted."""

from __future__ import annotations

from typing import Any

from desired.roster.wants import WALL, Desk, facts, make_guaranteed, make_pod, observe, running, stage

from pykubelet.base.api.core import Pod
from pykubelet.base.kit.values import replace
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.labels import CONFIG_SEEN
from pykubelet.base.model.lifecycle import Stage
from pykubelet.base.model.observed import ObservedState
from pykubelet.base.model.placement import DeviceResource, Placements, PodPlacement
from pykubelet.base.model.roster import Rejection
from pykubelet.base.model.waits import Owner, Wait
from pykubelet.desired.roster.model import AdmissionFacts

CRITICAL = 2_000_000_000
NO_CPUS = Rejection("UnexpectedAdmissionError", "Allocate failed due to not enough cpus, which is unexpected")
GPU = "example.com/gpu"


def placing(placements: Placements | None = None, **fields: Any) -> AdmissionFacts:
    return facts(placements=placements, places_guaranteed=True, **fields)


def placed(uid: str, rejection: Rejection | None = None, *, seen_at: float = WALL) -> Placements:
    return Placements({PodUID(uid): PodPlacement(seen_at=seen_at, rejection=rejection)})


def awaiting_placement(desk: Desk) -> list[str]:
    return [str(uid) for uid in desk.roster.awaiting_placement]


def is_held(desk: Desk, uid: str) -> bool:
    return desk.roster.pods[PodUID(uid)].admission_wait is not None


def test_an_admitted_pod_is_held_until_it_is_placed() -> None:
    desk = Desk()
    roster = desk.send(make_guaranteed("web"), at=placing())
    assert roster.awaiting_placement == ("web-1",)
    held = roster.pods[PodUID("web-1")].admission_wait
    assert held is not None
    assert (held.what, held.owner, held.since) == ("placement", Owner.TOPOLOGY_MANAGER, WALL)
    roster = desk.settle_again(placing(placed("web-1")))
    assert (roster.awaiting_placement, is_held(desk, "web-1"), desk.reason("web-1")) == ((), False, None)


def test_a_pod_that_cannot_be_placed_is_rejected_with_an_event() -> None:
    desk = Desk()
    desk.send(make_guaranteed("web"), at=placing())
    desk.settle_again(placing(placed("web-1", NO_CPUS)))
    assert desk.roster.pods[PodUID("web-1")].rejection == NO_CPUS
    assert not is_held(desk, "web-1")
    assert desk.events == [("web", NO_CPUS.reason, NO_CPUS.message)]


def test_the_wait_names_what_the_placement_waits_for() -> None:
    desk = Desk()
    desk.send(make_guaranteed("web"), at=placing())
    slow = Wait("device plugin", Owner.TOPOLOGY_MANAGER, 0.0, GPU, detail="Allocate")
    desk.settle_again(placing(Placements(waits={PodUID("web-1"): slow})), wall=WALL + 5)
    assert desk.roster.pods[PodUID("web-1")].admission_wait == replace(slow, since=WALL)


def test_without_policies_only_pods_that_request_devices_are_placed() -> None:
    offered = facts(placements=Placements(devices={GPU: DeviceResource()}))
    desk = Desk()
    gpu = make_pod("gpu")
    limits = {GPU: "1"}
    container = replace(gpu.spec.containers[0], resources=replace(_resources(gpu), requests=limits, limits=limits))
    gpu = replace(gpu, spec=replace(gpu.spec, containers=(container,)))
    roster = desk.send(make_pod("web"), gpu, at=offered)
    assert roster.awaiting_placement == ("gpu-1",)
    assert not is_held(desk, "web-1")


def test_with_a_policy_only_guaranteed_pods_are_placed() -> None:
    """No other pod gets CPUs or memory of its own."""
    desk = Desk()
    roster = desk.send(make_pod("web"), make_pod("burst", cpu="1"), make_guaranteed("own"), at=placing())
    assert roster.awaiting_placement == ("own-1",)
    assert not is_held(desk, "web-1") and not is_held(desk, "burst-1")


def test_every_pod_is_placed_while_it_is_not_known_what_containers_run_on() -> None:
    desk = Desk()
    assert desk.send(make_pod("web"), at=placing(Placements(places_all=True))).awaiting_placement == ("web-1",)


def test_devices_are_counted_by_their_placement_alone() -> None:
    """A node that knows no device yet, because the agent has just started, refuses no pod for that."""
    limits = {GPU: "3"}
    pod = make_pod("gpu")
    container = replace(pod.spec.containers[0], resources=replace(_resources(pod), requests=limits, limits=limits))
    pod = replace(pod, spec=replace(pod.spec, containers=(container,)))
    offered = facts(placements=Placements(devices={GPU: DeviceResource()}))
    offered = replace(offered, node=replace(offered.node, allocatable={**offered.node.allocatable, GPU: 0}))
    desk = Desk()
    assert desk.send(pod, at=offered).awaiting_placement == ("gpu-1",)
    # a resource whose plugin is gone for good is counted like any other
    desk = Desk()
    desk.send(pod, at=replace(offered, placements=Placements(removed_devices=frozenset({GPU}))))
    assert desk.reason("gpu-1") == f"OutOf{GPU}"


def _resources(pod: Pod) -> Any:
    return pod.spec.containers[0].resources


def test_after_a_restart_a_pod_keeps_devices_that_no_plugin_offers_any_more() -> None:
    """Their plugin ended long before the agent did, so the Node does not have the resource either."""
    limits = {GPU: "1"}
    pod = make_pod("gpu")
    container = replace(pod.spec.containers[0], resources=replace(_resources(pod), requests=limits, limits=limits))
    pod = replace(pod, spec=replace(pod.spec, containers=(container,)))
    held = Placements(devices_in_use=frozenset({GPU}))
    for view in (running(pod), running(pod, ObservedState.EXITED, exit_code=1)):
        desk = Desk()
        assert desk.send(pod, at=facts(placements=held, observed=observe(view))).awaiting_placement == ("gpu-1",)
        found = replace(placed("gpu-1"), devices_in_use=frozenset({GPU}))
        desk.settle_again(facts(placements=found, observed=observe(view)))
        assert (is_held(desk, "gpu-1"), desk.reason("gpu-1")) == (False, None)


def test_pods_are_listed_in_the_order_of_their_admission() -> None:
    runs, old = (
        make_guaranteed("runs"),
        make_guaranteed("old", metadata={"creationTimestamp": "2020-01-01T00:00:00Z"}),
    )
    desk = Desk()
    at = placing(observed=observe(running(runs)))
    desk.send(make_guaranteed("new"), old, runs, at=at)
    assert awaiting_placement(desk) == ["runs-1", "old-1", "new-1"]
    desk.send(make_guaranteed("new"), old, runs, make_guaranteed("a-later-one"), at=at)
    assert awaiting_placement(desk) == ["runs-1", "old-1", "new-1", "a-later-one-1"]


def test_a_pod_that_is_being_placed_counts() -> None:
    desk = Desk()
    desk.send(make_pod("a", cpu="600m"), at=placing())
    desk.send(make_pod("a", cpu="600m"), make_pod("b", cpu="600m"), at=placing())
    desk.settle_again(placing(Placements({PodUID(uid): PodPlacement(seen_at=WALL) for uid in ("a-1", "b-1")})))
    assert (desk.reason("a-1"), desk.reason("b-1")) == (None, "OutOfcpu")


def test_the_answer_of_the_resource_managers_precedes_the_lack_of_resources() -> None:
    """As in the reference, whose metrics count the failed allocation of a pod that does not fit anyway."""
    desk = Desk()
    desk.send(make_guaranteed("huge", cpu="600"), at=placing())
    assert awaiting_placement(desk) == ["huge-1"]
    roster = desk.send(make_guaranteed("huge", cpu="600"), make_guaranteed("small", cpu="600m"), at=placing())
    assert roster.awaiting_placement == ("huge-1", "small-1")
    assert roster.rejected_anyway == {"huge-1"}
    both = {
        PodUID("huge-1"): placed("huge-1", NO_CPUS).pods[PodUID("huge-1")],
        PodUID("small-1"): PodPlacement(seen_at=WALL),
    }
    desk.settle_again(placing(Placements(both)))
    assert (desk.reason("huge-1"), desk.reason("small-1")) == (NO_CPUS.reason, None)


def test_pods_that_have_ended_are_not_placed() -> None:
    over = make_pod("over", restartPolicy="Never")
    leaving = make_pod("leaving", metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})
    failed = make_pod("failed")
    failed = replace(failed, status=replace(failed.status, phase="Failed"))
    observed = observe(running(over, ObservedState.EXITED))
    desk = Desk(("api",))
    desk.send(over, leaving, failed, source="api", at=placing(observed=observed))
    assert awaiting_placement(desk) == []
    assert not any(is_held(desk, uid) for uid in ("over-1", "leaving-1", "failed-1"))


def test_a_pod_that_leaves_while_it_is_being_placed_is_not_held() -> None:
    """A plugin may take minutes to answer."""
    leaving, failed = make_guaranteed("leaving"), make_guaranteed("failed")
    desk = Desk(("api",))
    desk.send(leaving, failed, source="api", at=placing())
    assert awaiting_placement(desk) == ["leaving-1", "failed-1"]
    leaving = make_guaranteed("leaving", metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})
    failed = replace(failed, status=replace(failed.status, phase="Failed"))
    desk.send(leaving, failed, source="api", at=placing())
    assert awaiting_placement(desk) == []
    assert not any(is_held(desk, uid) or desk.reason(uid) for uid in ("leaving-1", "failed-1"))


def test_preemption_comes_before_placement() -> None:
    desk = Desk()
    small = make_guaranteed("small", cpu="800m")
    desk.send(small, source="api", at=facts())
    critical = make_guaranteed("critical", cpu="800m", priority=CRITICAL)
    desk.send(small, critical, source="api", at=placing())
    assert awaiting_placement(desk) == []
    ended = stage(small, Stage.TERMINATED)
    desk.settle_again(placing(lifecycles=ended))
    assert awaiting_placement(desk) == ["critical-1"]
    desk.settle_again(placing(placed("critical-1"), lifecycles=ended))
    assert (is_held(desk, "critical-1"), desk.reason("critical-1")) == (False, None)


def test_a_pod_that_is_being_placed_can_be_preempted() -> None:
    desk = Desk()
    small = make_pod("small", cpu="800m")
    desk.send(small, source="api", at=placing())
    desk.send(small, make_pod("critical", cpu="800m", priority=CRITICAL), source="api", at=placing())
    assert desk.reason("small-1") == "Preempting"
    assert awaiting_placement(desk) == []


def test_a_static_pod_that_came_back_is_placed_anew() -> None:
    """Its earlier rejection, which may still be published, does not count."""

    def seen(at: str) -> Pod:
        return make_guaranteed("web", source="file", metadata={"annotations": {CONFIG_SEEN: at}})

    first, again = seen("2026-01-01T00:00:00Z"), seen("2026-01-01T00:00:09Z")
    desk = Desk()
    desk.send(first, at=placing())
    seen_at = desk.roster.pods[PodUID("web-1")].seen_at
    earlier = placed("web-1", NO_CPUS, seen_at=seen_at)
    desk.settle_again(placing(earlier))
    assert desk.reason("web-1") == NO_CPUS.reason
    desk.send(again, at=placing(earlier))
    assert awaiting_placement(desk) == ["web-1"]
    desk.settle_again(placing(earlier))
    assert desk.reason("web-1") is None
    desk.settle_again(placing(placed("web-1", seen_at=seen_at + 9)))
    assert (is_held(desk, "web-1"), desk.reason("web-1")) == (False, None)


def test_a_pod_keeps_its_size_while_it_is_being_placed() -> None:
    desk = Desk()
    desk.send(make_guaranteed("web", cpu="100m"), source="api", at=placing())
    desk.send(make_guaranteed("web", cpu="200m", metadata={"generation": 2}), source="api", at=placing())
    assert _resources(desk.roster.pods[PodUID("web-1")].pod).requests["cpu"] == "100m"
