"""Pods of the API server in the roster: mirror pods apart, names no obstacle, ends final, what others write is news."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from desired.roster.wants import NODE, Desk, facts, make_pod
from hypothesis import given
from hypothesis import strategies as st
from support.cost import count_instructions

from pykubelet.base.api.core import Pod, PodCondition, PodStatus, Taint
from pykubelet.base.kit.values import VersionedMap, edited, follow_up, replace
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.labels import CONFIG_MIRROR
from pykubelet.base.model.lifecycle import Lifecycles
from pykubelet.base.model.roster import SourceChanged


def mirror(name: str = "web", uid: str = "m1", **metadata: Any) -> Pod:
    return make_pod(name, uid, source="file", metadata={"annotations": {CONFIG_MIRROR: "hash"}, **metadata})


def with_status(pod: Pod, **fields: Any) -> Pod:
    return replace(pod, status=PodStatus(**fields))


def test_mirror_pods_are_kept_apart() -> None:
    desk = Desk(("file", "api"))
    assert desk.send(make_pod("web", "s1", source="file")).mirrors is None
    roster = desk.send(mirror(), make_pod("job"), source="api")
    assert set(roster.pods) == {"s1", "job-1"}
    assert roster.mirrors is not None
    assert roster.mirrors["web_shop"].metadata.uid == "m1"
    assert desk.events == []


def test_a_mirror_pod_whose_status_was_reported_changes_nothing() -> None:
    desk = Desk(("api",))
    before = desk.send(mirror(resourceVersion="1"), source="api")
    assert desk.send(with_status(mirror(resourceVersion="2"), phase="Running"), source="api") is before
    assert desk.send(mirror(deletionTimestamp="2026-01-01T00:00:00Z"), source="api") is not before


def test_a_name_may_be_there_twice_when_the_api_server_has_it_twice() -> None:
    desk = Desk(("file", "api"))
    desk.send(make_pod("web", "s1"))
    desk.send(make_pod("web", "a1"), source="api")
    assert set(desk.roster.pods) == {"s1", "a1"}
    assert desk.events == []


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_has_ended_is_not_refused_and_takes_no_resources(phase: str) -> None:
    desk = Desk(("api",))
    ended = with_status(make_pod("old", cpu="1"), phase=phase)
    desk.send(ended, make_pod("new", cpu="1"), make_pod("more", cpu="1"), source="api")
    assert desk.reason("old-1") is None
    assert [desk.reason("new-1"), desk.reason("more-1")].count("OutOfcpu") == 1


def test_a_pod_that_is_being_deleted_is_not_refused() -> None:
    desk = Desk(("api",))
    dying = make_pod("web", cpu="5", metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})
    desk.send(dying, source="api")
    assert desk.reason("web-1") is None


def test_what_others_write_into_the_status_is_a_change_and_what_we_write_is_not() -> None:
    pod = make_pod("web")
    desk = Desk(("api",))
    before = desk.send(pod, source="api").pods[PodUID("web-1")]
    own = PodCondition(type="Ready", status="True")
    reported = with_status(pod, phase="Running", conditions=(own,))
    assert desk.send(reported, source="api").pods[PodUID("web-1")] is before
    gate = PodCondition(type="example.com/gate", status="True")
    after = desk.send(with_status(pod, conditions=(own, gate)), source="api").pods[PodUID("web-1")]
    assert after is not before
    ended = desk.send(with_status(pod, phase="Failed"), source="api").pods[PodUID("web-1")]
    assert ended.pod.status.phase == "Failed"
    assert ended.rejection is None


def test_a_new_generation_is_a_change() -> None:
    desk = Desk(("api",))
    desk.send(make_pod("web", metadata={"generation": 1}), source="api")
    after = desk.send(make_pod("web", metadata={"generation": 2}), source="api")
    assert after.pods[PodUID("web-1")].pod.metadata.generation == 2


@pytest.mark.parametrize(
    ("toleration", "reason"),
    [
        ({}, "TaintToleration"),
        ({"key": "gone", "operator": "Exists", "effect": "NoExecute"}, None),
        ({"key": "gone", "value": "yes", "effect": "NoExecute"}, None),
        ({"key": "gone", "value": "no", "effect": "NoExecute"}, "TaintToleration"),
        ({"operator": "Exists"}, None),
        ({"key": "gone", "operator": "Exists", "effect": "NoSchedule"}, "TaintToleration"),
    ],
)
def test_only_taints_that_end_pods_count(toleration: dict[str, str], reason: str | None) -> None:
    taints = (Taint(key="gone", value="yes", effect="NoExecute"), Taint(key="busy", effect="NoSchedule"))
    node = NODE.__class__(NODE.name, NODE.hostname, allocatable=NODE.allocatable, taints=taints)
    desk = Desk(("api",))
    desk.send(make_pod("web", tolerations=[toleration] if toleration else []), source="api", at=facts(node))
    assert desk.reason("web-1") == reason
    desk.send(make_pod("fixed", source="file"), source="file", at=facts(node))
    assert desk.reason("fixed-1") is None


@pytest.mark.parametrize(
    ("operator", "limit", "level", "tolerated"),
    [("Gt", "900", "950", True), ("Gt", "950", "950", False), ("Lt", "-1", "-5", True), ("Lt", "0", "high", False)],
)
def test_tolerations_compare_numbers_with_their_gate(operator: str, limit: str, level: str, tolerated: bool) -> None:
    node = replace(NODE, taints=(Taint(key="sla", value=level, effect="NoExecute"),))
    pod = make_pod("web", tolerations=[{"key": "sla", "operator": operator, "value": limit, "effect": "NoExecute"}])
    for compares in (True, False):
        desk = Desk(("api",))
        desk.send(pod, source="api", at=facts(node, compares_taints=compares))
        assert desk.reason("web-1") == (None if tolerated and compares else "TaintToleration")


HERE = replace(NODE, registered=True)


def stale(desk: Desk) -> Pod:
    """A pod for a node in zone b, which the node known is not; it was bound a moment ago."""
    pod = make_pod("web", nodeSelector={"zone": "b"})
    desk.send(pod, source="api", at=facts(HERE), now=10.0)
    held = desk.roster.pods[PodUID("web-1")].admission_wait
    assert held is not None and (held.what, held.reason) == ("node", "NodeAffinity")
    assert desk.state.node_asked_at == 10.0 and not desk.events
    return pod


def test_a_pod_bound_right_after_a_change_of_labels_waits_until_the_node_was_read_anew() -> None:
    desk = Desk(("api",))
    stale(desk)
    desk.settle_again(facts(replace(HERE, read_at=9.0)), now=11.0)
    assert desk.is_held("web-1")
    desk.settle_again(facts(replace(HERE, labels={**NODE.labels, "zone": "b"}, read_at=10.5)), now=12.0)
    assert not desk.is_held("web-1") and desk.reason("web-1") is None
    assert desk.state.node_asked_at is None


def test_what_speaks_against_a_pod_in_the_newest_node_too_refuses_it() -> None:
    desk = Desk(("api",))
    stale(desk)
    desk.settle_again(facts(replace(HERE, read_at=10.5)), now=12.0)
    assert desk.reason("web-1") == "NodeAffinity"


def test_a_node_that_the_api_server_does_not_show_refuses_the_pod_as_such() -> None:
    desk = Desk(("api",))
    stale(desk)
    desk.settle_again(facts(replace(HERE, read_at=10.5, read_error="nodes is forbidden")), now=12.0)
    assert (desk.reason("web-1"), desk.message("web-1")) == ("InvalidNodeInfo", "Kubelet cannot get node info.")


_SETS = st.lists(
    st.tuples(
        st.sampled_from(("api", "file")),
        st.dictionaries(
            st.sampled_from("abcd"), st.tuples(st.sampled_from(("100m", "200m")), st.booleans()), max_size=4
        ),
    ),
    max_size=8,
)


@given(_SETS)
def test_a_set_that_knows_what_has_changed_gives_the_same_pods(
    sets: list[tuple[str, dict[str, tuple[str, bool]]]],
) -> None:
    """Two desks get the same sets. Static pods use the same names and UIDs, and some pods are mirror pods."""
    whole, known, by_uid = Desk(("file", "api")), Desk(("file", "api")), VersionedMap[PodUID, Pod]()
    for source, names in sets:
        pods = {
            PodUID(f"{name}-1"): mirror(name, f"{name}-1") if is_mirror else make_pod(name, cpu=cpu, source=source)
            for name, (cpu, is_mirror) in names.items()
            if source == "api" or not is_mirror
        }
        if source == "api":
            pods = {uid: pod if by_uid.get(uid) != pod else by_uid[uid] for uid, pod in pods.items()}
            by_uid = follow_up(by_uid, pods)
        whole.send(*pods.values(), source=source)
        known.take(SourceChanged(source, tuple(pods.values()), by_uid=by_uid if source == "api" else None))
        assert known.state.entries == whole.state.entries
        assert list(known.roster.pods) == list(whole.roster.pods)
        assert (known.roster, known.events) == (whole.roster, whole.events)


def test_a_pod_costs_the_same_among_few_and_among_many() -> None:
    """Counted are instructions of Python. What runs in C for all pods, such as the copy of a mapping, counts once."""
    costs = set()
    for others in (25, 50, 100):
        desk, at = Desk(("api",)), facts(lifecycles=Lifecycles(VersionedMap()))
        first = VersionedMap((PodUID(f"p{n}-1"), make_pod(f"p{n}")) for n in range(others))
        pods = edited(first)
        sets = [first, pods]
        for uid, pod in (("new-1", make_pod("new")), ("new-1", None), ("p7-1", None)):  # one comes, and two go
            pods = edited(pods)
            if pod is not None:
                pods[PodUID(uid)] = pod
            else:
                del pods[PodUID(uid)]
            sets.append(pods)
        events = [SourceChanged("api", tuple(each.values()), by_uid=each) for each in sets]
        desk.take(events[0], at)
        desk.take(events[1], at)
        costs.add(sum(count_instructions(partial(desk.take, event, at)) for event in events[2:]))
        assert len(desk.roster.pods) == others - 1
    assert max(costs) < 1.02 * min(costs)
