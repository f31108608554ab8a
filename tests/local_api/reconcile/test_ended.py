"""Pods, Events and requests that are over go by themselves."""

from __future__ import annotations

from local_api.reconcile.world import World, thing

from pykubelet.base.kit.clock import ManualClock
from pykubelet_local_api.objects import Json, timestamp
from pykubelet_local_api.reconcile.changes import condition_of
from pykubelet_local_api.reconcile.ended import MAX_ENDED, QUARANTINE_S, ended_pods
from pykubelet_local_api.reconcile.expiry import OLD_EVENTS, OLD_REQUESTS


def pod(name: str, phase: str = "Running", node: str = "n", **status: object) -> Json:
    return thing("Pod", name, "ns", spec={"nodeName": node}, status={"phase": phase} | status)


def test_the_newest_ended_pods_stay() -> None:
    world = World(thing("Node", "n"), pod("runs"))
    for number in range(MAX_ENDED + 2):
        created = {"creationTimestamp": timestamp(world.now + number)}
        world.add(
            pod(f"e{number:04}", "Succeeded") | {"metadata": {"name": f"e{number:04}", "namespace": "ns"} | created}
        )
    world.add(pod("evicted", "Failed", reason="Evicted"))
    world.settle(ended_pods(ManualClock().monotonic))
    names = world.names("pods")
    assert len(names) == MAX_ENDED + 1
    assert {"runs", f"e{MAX_ENDED + 1:04}"} <= set(names)
    assert not {"evicted", "e0000", "e0001"} & set(names)


def test_pods_of_a_node_that_does_not_exist_go_after_a_while() -> None:
    clock = ManualClock()
    ended = ended_pods(clock.monotonic)
    lost = pod("p", node="away")
    lost["metadata"]["generation"] = 3
    world = World(lost)
    world.settle(ended)
    assert world.names("pods") == ["p"]
    assert ended.wakes_at(world) == world.now + QUARANTINE_S
    clock.advance(QUARANTINE_S)
    first, second = world.settle(ended)
    assert first.object["status"]["phase"] == "Failed"
    assert first.object["status"]["observedGeneration"] == 3
    condition = condition_of(first.object, "DisruptionTarget")
    assert (condition["message"], condition["observedGeneration"]) == ("PodGC: node no longer exists", 3)
    assert second.grace_s == 0
    assert world.names("pods") == []


def test_a_node_that_comes_back_in_time_keeps_its_pods() -> None:
    clock = ManualClock()
    ended = ended_pods(clock.monotonic)
    world = World(pod("p", node="n"))
    world.settle(ended)
    clock.advance(QUARANTINE_S - 1)
    world.add(thing("Node", "n"))
    world.settle(ended)
    world.remove("nodes", "", "n")
    clock.advance(2)
    world.settle(ended)
    assert world.names("pods") == ["p"]


def test_events_go_after_an_hour_without_another() -> None:
    world = World(thing("Event", "old", "ns"), thing("Event", "again", "ns"))
    world.add(thing("Event", "again", "ns", lastTimestamp=timestamp(world.now + 3000)))
    world.now += 3601
    world.add(thing("Event", "new", "ns"))
    world.settle(OLD_EVENTS)
    assert world.names("events") == ["again", "new"]
    assert OLD_EVENTS.wakes_at(world) == world.now + 60


def test_requests_go_by_what_was_decided() -> None:
    def request(name: str, *conditions: str) -> Json:
        listed = [{"type": kind, "lastUpdateTime": timestamp(World().now)} for kind in conditions]
        version = "certificates.k8s.io/v1"
        return thing("CertificateSigningRequest", name, "", version, status={"conditions": listed})

    world = World(request("approved", "Approved"), request("denied", "Denied"), request("pending"))
    world.now += 3601
    world.settle(OLD_REQUESTS)
    assert world.names("certificatesigningrequests.certificates.k8s.io") == ["pending"]
    world.now += 24 * 3600
    world.settle(OLD_REQUESTS)
    assert world.names("certificatesigningrequests.certificates.k8s.io") == []


def test_what_was_dated_by_a_clock_that_was_ahead_does_not_stay_for_ever() -> None:
    world = World()
    future = timestamp(world.now + 30 * 365 * 86400)
    ahead = {"name": "ahead", "namespace": "ns", "creationTimestamp": future}
    world.add({"apiVersion": "v1", "kind": "Event", "metadata": ahead, "lastTimestamp": future})
    made_up = {"name": "made-up", "namespace": "ns", "creationTimestamp": timestamp(world.now)}
    world.add({"apiVersion": "v1", "kind": "Event", "metadata": made_up, "lastTimestamp": future})
    world.add(
        thing(
            "CertificateSigningRequest", "ahead", "", "certificates.k8s.io/v1", metadata={"creationTimestamp": future}
        )
    )
    world.settle(OLD_EVENTS)
    world.settle(OLD_REQUESTS)
    assert world.names("events") == ["made-up"]
    assert world.names("certificatesigningrequests.certificates.k8s.io") == []
    world.now += 3700
    world.settle(OLD_EVENTS)
    assert world.names("events") == []
