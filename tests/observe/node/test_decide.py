"""The node's addresses, size and labels."""

from __future__ import annotations

import pytest

from pykubelet.edges.host.proc.netlink import InterfaceAddress
from pykubelet.edges.host.proc.procfs import DefaultRoute
from pykubelet.observe.node.decide import Addresses, NodeFacts, choose_addresses, node_capacity, node_labels

INTERFACES = (
    InterfaceAddress("lo", "127.0.0.1", 8),
    InterfaceAddress("lo", "::1", 128),
    InterfaceAddress("eth0", "192.0.2.2", 24),
    InterfaceAddress("eth0", "fe80::1", 64),
    InterfaceAddress("eth0", "2001:db8::2", 64),
    InterfaceAddress("eth1", "198.51.100.2", 24),
)
ROUTES = (DefaultRoute("eth0", 0, False), DefaultRoute("eth0", 1024, True))


def choose(name: str = "node", given: tuple[str, ...] = (), resolved: tuple[str, ...] = ()) -> Addresses:
    return choose_addresses(NodeFacts(name, name, given), INTERFACES, ROUTES, resolved)


@pytest.mark.parametrize(
    ("name", "given", "resolved", "expected"),
    [
        ("node", (), (), ("192.0.2.2",)),
        ("node", ("::",), (), ("2001:db8::2",)),
        ("node", ("0.0.0.0",), (), ("192.0.2.2",)),
        ("node", (), ("198.51.100.2",), ("198.51.100.2",)),
        ("node", (), ("127.0.1.1", "2001:db8::2", "198.51.100.2"), ("198.51.100.2",)),
        ("node", ("::",), ("198.51.100.2", "2001:db8::2"), ("2001:db8::2",)),
        ("node", (), ("127.0.1.1", "203.0.113.9"), ("192.0.2.2",)),
        ("198.51.100.2", (), ("192.0.2.2",), ("198.51.100.2",)),
        ("node", ("198.51.100.2",), ("192.0.2.2",), ("198.51.100.2",)),
        ("node", ("2001:db8::2", "192.0.2.2"), (), ("2001:db8::2", "192.0.2.2")),
    ],
)
def test_the_first_rule_that_applies_gives_the_address(
    name: str, given: tuple[str, ...], resolved: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    found = choose(name, given, resolved)
    assert (found.ips, found.problem) == (expected, "")


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("127.0.0.1", "nodeIP can't be loopback address"),
        ("224.0.0.1", "nodeIP can't be a multicast address"),
        ("fe80::1", "nodeIP can't be a link-local unicast address"),
        ("203.0.113.9", 'node IP: "203.0.113.9" not found in the host\'s network interfaces'),
    ],
)
def test_a_given_address_that_cannot_be_the_nodes_gives_none(given: str, problem: str) -> None:
    assert choose(given=(given,)) == Addresses(problem=f"failed to validate nodeIP: {problem}")


def test_only_what_the_resolver_can_change_is_asked_of_it() -> None:
    assert choose().ask_resolver
    assert not choose(given=("192.0.2.2",)).ask_resolver
    assert not choose("198.51.100.2").ask_resolver


def test_a_machine_without_default_route_has_no_address_and_a_problem() -> None:
    found = choose_addresses(NodeFacts("node", "node"), INTERFACES, (), ())
    assert found.ips == ()
    assert "no default route" in found.problem


def test_an_address_that_is_not_usable_yet_is_passed_over() -> None:
    tentative = (InterfaceAddress("eth0", "192.0.2.2", 24, usable=False), *INTERFACES[4:])
    assert choose_addresses(NodeFacts("node", "node"), tentative, ROUTES, ()).ips == ("2001:db8::2",)


@pytest.mark.parametrize(("per_core", "pods"), [(0, 110), (10, 20), (100, 110)])
def test_pods_are_part_of_the_capacity(per_core: int, pods: int) -> None:
    assert node_capacity({"cpu": 2500, "memory": 7}, 110, per_core) == {"cpu": 2500, "memory": 7, "pods": pods}


def test_given_labels_win() -> None:
    labels = node_labels("host", "amd64", {"kubernetes.io/arch": "other", "zone": "a"})
    assert labels == {
        "beta.kubernetes.io/arch": "amd64",
        "beta.kubernetes.io/os": "linux",
        "kubernetes.io/arch": "other",
        "kubernetes.io/hostname": "host",
        "kubernetes.io/os": "linux",
        "zone": "a",
    }


def test_without_isolation_of_local_storage_the_node_has_none_to_request() -> None:
    machine = {"cpu": 2000, "memory": 1, "ephemeral-storage": 7}
    assert node_capacity(machine, 110, 0) == {**machine, "pods": 110}
    assert node_capacity(machine, 110, 0, local_storage=False) == {"cpu": 2000, "memory": 1, "pods": 110}
