"""Rejected static pods are admitted when what they lacked is there; others stay rejected."""

from __future__ import annotations

from typing import Any

import pytest
from desired.roster.test_placing import NO_CPUS, placing
from desired.roster.wants import NODE, WALL, Desk, facts, make_guaranteed, make_pod

from pykubelet.base.api.core import Pod
from pykubelet.base.kit.values import replace
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.lifecycle import KillReason, Lifecycles, PodLifecycle, Stage
from pykubelet.base.model.mounts import AttachLimit
from pykubelet.base.model.node import RuntimeReady
from pykubelet.base.model.placement import DeviceResource, Placements, PodPlacement
from pykubelet.base.model.roster import pod_ref
from pykubelet.desired.roster.decide import reject_at_limit
from pykubelet.desired.roster.model import AdmissionFacts

PORT = [{"containerPort": 80, "hostPort": 80}]
LATER = WALL + 60


def static(name: str, **fields: Any) -> Pod:
    return make_pod(name, source="file", **fields)


def ended(*pods: Pod, at: Stage = Stage.FINISHED, reason: KillReason = KillReason.REJECTED) -> Lifecycles:
    """The lifecycles of pods that were rejected."""
    return Lifecycles({pod_ref(p).uid: PodLifecycle(pod_ref(p), p, at, WALL, WALL, kill_reason=reason) for p in pods})


def is_admitted(desk: Desk, uid: str) -> bool:
    item = desk.roster.pods[PodUID(uid)]
    return item.rejection is None and item.admission_wait is None


def rejected(pod: Pod, at: AdmissionFacts | None = None) -> Desk:
    """A desk with this pod, which the node rejects."""
    desk = Desk()
    desk.send(pod, at=at)
    assert desk.reason(pod.metadata.uid) is not None
    return desk


def test_a_pod_whose_port_has_become_free_starts_as_new() -> None:
    first, second = static("first", ports=PORT), static("second", ports=PORT)
    desk = Desk()
    desk.send(first)
    desk.send(first, second)
    assert desk.reason("second-1") == "NodePorts"
    desk.send(second, at=facts(lifecycles=ended(second)), wall=LATER)
    assert is_admitted(desk, "second-1")
    assert desk.roster.pods[PodUID("second-1")].seen_at == LATER
    assert [event[1] for event in desk.events] == ["NodePorts"]


def test_a_pod_is_not_admitted_before_its_worker_is_done_with_the_rejection() -> None:
    first, second = static("first", ports=PORT), static("second", ports=PORT)
    desk = Desk()
    desk.send(first)
    desk.send(first, second)
    for lifecycles in (Lifecycles(), ended(second, at=Stage.TERMINATED)):
        desk.send(second, at=facts(lifecycles=lifecycles))
        assert desk.reason("second-1") == "NodePorts"


def test_one_of_two_gets_what_has_become_free() -> None:
    first, second, third = (static(name, ports=PORT) for name in ("first", "second", "third"))
    desk = Desk()
    desk.send(first)
    desk.send(first, second, third)
    at = facts(lifecycles=ended(second, third))
    desk.send(second, third, at=at)
    assert (is_admitted(desk, "second-1"), desk.reason("third-1")) == (True, "NodePorts")
    desk.settle_again(at)  # the worker does not know it yet
    assert desk.reason("third-1") == "NodePorts"
    seen_at = desk.roster.pods[PodUID("second-1")].seen_at
    desk.send(second, third, at=at)  # the sources do not know of it
    assert desk.roster.pods[PodUID("second-1")].seen_at == seen_at


@pytest.mark.parametrize(
    ("fields", "before", "after"),
    [
        ({"cpu": "3"}, {}, {"node": replace(NODE, allocatable={**NODE.allocatable, "cpu": 4000})}),
        ({"memory": "2Gi"}, {}, {"node": replace(NODE, allocatable={**NODE.allocatable, "memory": 4 << 30})}),
        ({"nodeSelector": {"zone": "b"}}, {}, {"node": replace(NODE, labels={**NODE.labels, "zone": "b"})}),
        (
            {"securityContext": {"supplementalGroupsPolicy": "Strict"}},
            {},
            {"runtime": RuntimeReady(checked=True, supplemental_groups_policy=True)},
        ),
    ],
    ids=["cpu", "memory", "labels", "runtime"],
)
def test_a_pod_is_admitted_when_the_node_can_have_it(
    fields: dict[str, Any], before: dict[str, Any], after: dict[str, Any]
) -> None:
    pod = static("web", **fields)
    desk = rejected(pod, facts(**before))
    desk.settle_again(facts(lifecycles=ended(pod), **before))
    assert not is_admitted(desk, "web-1")
    desk.settle_again(facts(lifecycles=ended(pod), **after))
    assert is_admitted(desk, "web-1")


def test_a_pod_is_admitted_when_a_shutdown_was_called_off() -> None:
    pod = static("web")
    desk = rejected(pod, replace(facts(), shutting_down=True))
    assert desk.reason("web-1") == "NodeShutdown"
    desk.settle_again(facts(lifecycles=ended(pod)))
    assert is_admitted(desk, "web-1")


def test_a_pod_of_the_api_stays_rejected() -> None:
    first, second = static("first", ports=PORT), make_pod("second", ports=PORT)
    desk = Desk(("file", "api"))
    desk.send(first)
    desk.send(second, source="api")
    assert desk.reason("second-1") == "NodePorts"
    desk.send(at=facts(lifecycles=ended(second)))
    assert desk.reason("second-1") == "NodePorts"


def test_what_does_not_change_stays() -> None:
    pod = static("web", os={"name": "windows"})
    desk = rejected(pod)
    before = desk.roster
    desk.settle_again(facts(lifecycles=ended(pod)))
    assert desk.roster is before
    assert len(desk.events) == 1


def test_nothing_is_preempted_for_a_pod_that_was_rejected() -> None:
    pod = static("web", cpu="1")
    holder = static("holder", cpu="1")
    desk = Desk(("file", "api"))
    desk.send(holder)
    desk.send(holder, pod)
    assert desk.reason("web-1") == "UnexpectedAdmissionError"  # there was nothing to preempt
    desk.send(pod)
    desk.send(make_pod("ordinary", cpu="1"), source="api")
    desk.settle_again(facts(lifecycles=ended(pod)))
    assert (is_admitted(desk, "ordinary-1"), desk.reason("web-1")) == (True, "UnexpectedAdmissionError")


def test_a_pod_over_the_attach_limit_stays() -> None:
    pod = static("web")
    desk = Desk()
    desk.send(pod)
    desk.state, _ = reject_at_limit(desk.state, {PodUID("web-1"): AttachLimit("no more", ())})
    desk.settle_again(facts(lifecycles=ended(pod)))
    assert desk.reason("web-1") == "VolumeAttachmentLimitExceeded"


# Placement


def placements(seen_at: float, **others: PodPlacement) -> Placements:
    """The resource managers have rejected the pod `web` with this first-seen time."""
    pods = {PodUID(f"{name}-1"): placement for name, placement in others.items()}
    return Placements({PodUID("web-1"): PodPlacement(seen_at=seen_at, rejection=NO_CPUS), **pods}, devices=DEVICES)


DEVICES: dict[str, DeviceResource] = {}
OTHER = PodPlacement(seen_at=WALL)


def test_a_pod_is_placed_again_when_another_has_left_its_place() -> None:
    pod = make_guaranteed(source="file")
    desk = Desk()
    desk.send(pod, at=placing())
    full = placements(WALL, other=OTHER)
    for _ in range(3):
        desk.settle_again(placing(full, lifecycles=ended(pod)))
        assert desk.reason("web-1") == NO_CPUS.reason
    assert len(desk.events) == 1
    desk.settle_again(placing(placements(WALL), lifecycles=ended(pod)), now=1.0, wall=LATER)
    assert desk.roster.awaiting_placement == ("web-1",)
    desk.settle_again(placing(Placements({PodUID("web-1"): PodPlacement(seen_at=LATER)}), lifecycles=ended(pod)))
    assert is_admitted(desk, "web-1")


def test_placing_again_is_done_with_back_off() -> None:
    pod = make_guaranteed(source="file")
    desk = Desk()
    desk.send(pod, at=placing())
    now, wall, tries = 0.0, WALL, 0
    while now < 100:
        tries += bool(desk.roster.awaiting_placement)
        seen_at = desk.roster.pods[PodUID("web-1")].seen_at
        changing = replace(placements(seen_at), devices={"example.com/gpu": DeviceResource()})  # a new list each time
        desk.settle_again(placing(changing, lifecycles=ended(pod)), now=now, wall=wall)
        now, wall = now + 0.5, wall + 0.5
    assert tries == 5  # at first, at once, and after 10, 20 and 40 s


def test_a_pod_is_placed_again_when_there_are_other_devices() -> None:
    pod = make_guaranteed(source="file")
    desk = Desk()
    desk.send(pod, at=placing())
    desk.settle_again(placing(placements(WALL), lifecycles=ended(pod)))
    desk.settle_again(placing(placements(WALL), lifecycles=ended(pod)))
    assert desk.reason("web-1") == NO_CPUS.reason
    new = replace(placements(WALL), devices={"example.com/gpu": DeviceResource(frozenset({"a"}))})
    desk.settle_again(placing(new, lifecycles=ended(pod)), wall=LATER)
    assert desk.roster.awaiting_placement == ("web-1",)
