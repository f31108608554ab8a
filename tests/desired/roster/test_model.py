"""What the pods of a node request together: what a pod costs when there are many others, and what is free when pods have left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from desired.roster.wants import Desk, facts, make_pod, observe, running
from hypothesis import given
from hypothesis import strategies as st
from support.cost import count_instructions

from pykubelet.base.api.core import Pod
from pykubelet.base.kit.values import VersionedMap
from pykubelet.base.model.lifecycle import Lifecycles
from pykubelet.base.model.roster import pod_ref
from pykubelet.desired.roster.model import Totals

ENTRIES = 100
PORT_80 = [{"containerPort": 1, "hostPort": 80}]


def with_ports(number: int) -> Pod:
    """Its ports have the numbers of all other pods, on an address of its own."""
    address = f"10.0.{number >> 8}.{number & 255}"
    ports = [{"containerPort": n, "hostPort": n, "hostIP": address} for n in range(1, ENTRIES + 1)]
    return make_pod(f"p{number}", ports=ports)


def with_resources(number: int) -> Pod:
    requests = {f"example.com/r{number}-{n}": 1 for n in range(ENTRIES)}
    resources = {"requests": requests, "limits": requests}
    return make_pod(f"p{number}", containers=[{"name": "app", "image": "busybox", "resources": resources}])


KINDS = pytest.mark.parametrize("make", [with_ports, with_resources])


@KINDS
def test_a_pod_costs_the_same_whatever_the_others_request(make: Callable[[int], Pod]) -> None:
    def admit_beside(count: int) -> int:
        pods, desk = [make(number) for number in range(count + 1)], Desk(("api",))
        at = facts(lifecycles=Lifecycles(VersionedMap()))  # which know that they have not changed
        desk.send(*pods[:-1], source="api", at=at)
        cost = count_instructions(lambda: desk.send(*pods, source="api", at=at))
        assert all(pod.rejection is None for pod in desk.roster.pods.values())
        return cost

    assert admit_beside(80) < 1.5 * admit_beside(40)


@KINDS
def test_many_pods_at_once_are_admitted_in_linear_time(make: Callable[[int], Pod]) -> None:
    def admit(count: int) -> int:
        pods, desk = [make(number) for number in range(count)], Desk(("api",))
        return count_instructions(lambda: desk.send(*pods, source="api"))

    assert admit(80) < 2.5 * admit(40)


def refused(desk: Desk, *pods: Pod, **circumstances: Any) -> list[str]:
    """The names of the pods that are rejected for their ports."""
    roster = desk.send(*pods, source="api", at=facts(**circumstances))
    return [
        uid for uid, pod in roster.pods.items() if pod.rejection is not None and pod.rejection.reason == "NodePorts"
    ]


def test_a_port_is_free_again_when_its_pod_has_left() -> None:
    desk, first, second, third = Desk(("api",)), *(make_pod(name, ports=PORT_80) for name in ("a", "b", "c"))
    assert refused(desk, first, second) == ["b-1"]
    assert refused(desk, second, third) == ["b-1"], "what was decided stays, and the port is free for another pod"


def test_a_port_of_two_running_pods_is_taken_until_both_have_left() -> None:
    desk, first, second, third = Desk(("api",)), *(make_pod(name, ports=PORT_80) for name in ("a", "b", "c"))
    here = observe(running(first), running(second))
    assert refused(desk, first, second, observed=here) == []
    assert refused(desk, second, third, observed=here) == ["c-1"]
    assert refused(desk, make_pod("d", ports=PORT_80), observed=here) == []


def test_a_deferred_resize_is_tried_again_without_a_look_at_the_ports_of_pods() -> None:
    def try_again(count: int) -> int:
        ports = [{"containerPort": n, "hostPort": n} for n in range(1, count + 1)]
        desk = Desk(("api",))
        desk.send(make_pod(cpu="500m", ports=ports), make_pod("other", cpu="500m"), source="api")
        larger = make_pod(cpu="600m", ports=ports, metadata={"generation": 2})
        roster = desk.send(larger, make_pod("other", cpu="500m"), source="api")
        assert roster.pods[pod_ref(larger).uid].pending is not None
        return count_instructions(desk.settle_again)

    assert try_again(1000) == try_again(10)


KEYS = "abc"
AMOUNTS = st.dictionaries(st.sampled_from(KEYS), st.integers(-2, 2))


def contents(totals: Totals[str]) -> dict[str, int]:
    return {key: totals[key] for key in KEYS if totals[key]}


@given(st.lists(st.tuples(st.integers(0), st.booleans(), AMOUNTS)), st.lists(st.integers(0)))
def test_each_version_keeps_its_amounts(steps: list[tuple[int, bool, dict[str, int]]], reads: list[int]) -> None:
    versions, expected = [Totals[str]()], [dict.fromkeys(KEYS, 0)]
    for start, is_more, amounts in steps:
        base = start % len(versions)
        versions.append(versions[base].plus(amounts) if is_more else versions[base].minus(amounts))
        sign = 1 if is_more else -1
        expected.append({key: expected[base][key] + sign * amounts.get(key, 0) for key in KEYS})
    for read in (*reads, *range(len(versions))):
        at = read % len(versions)
        assert list(versions[at].of_each(KEYS)) == list(expected[at].values())
        assert contents(versions[at]) == {key: amount for key, amount in expected[at].items() if amount}


def test_thousands_of_versions_may_lie_between_two() -> None:
    first = last = Totals[int]()
    for number in range(5000):
        last = last.plus({number: 1})
    assert (first[7], last[7], first[7]) == (0, 1, 0)


def test_a_sum_costs_as_much_as_what_is_added() -> None:
    def add_to(count: int) -> int:
        totals = Totals[int]().plus(dict.fromkeys(range(count), 1))
        return count_instructions(lambda: totals.plus({0: 1}).minus({1: 1}))

    assert add_to(10) == add_to(1000)
