"""Namespaces are there from the start, and go when nothing is in them."""

from __future__ import annotations

from local_api.reconcile.world import World, kinds_of, thing

from pykubelet_local_api.reconcile.accounts import accounts
from pykubelet_local_api.reconcile.changes import condition_of
from pykubelet_local_api.reconcile.namespaces import ALWAYS, NAMESPACES, concerns

ACCOUNTS = accounts(lambda: "the certificates")


def namespace(name: str) -> dict[str, object]:
    return thing("Namespace", name, spec={"finalizers": ["kubernetes"]}, status={"phase": "Active"})


def test_the_first_start_makes_the_namespaces_and_what_pods_need_of_each() -> None:
    world = World()
    world.settle(NAMESPACES, ACCOUNTS)
    assert world.names("namespaces") == list(ALWAYS)
    for name in ALWAYS:
        assert world.names("serviceaccounts", name) == ["default"]
        found = world.get("configmaps", name, "kube-root-ca.crt")
        assert found is not None
        assert found["data"] == {"ca.crt": "the certificates"}


def test_another_ca_reaches_every_namespace() -> None:
    world = World(namespace("a"))
    world.settle(ACCOUNTS)
    world.settle(accounts(lambda: "other certificates"))
    found = world.get("configmaps", "a", "kube-root-ca.crt")
    assert found is not None
    assert found["data"] == {"ca.crt": "other certificates"}


def test_a_deleted_namespace_goes_with_its_contents_pods_first() -> None:
    world = World(*map(namespace, ALWAYS), namespace("a"))
    world.add(thing("ConfigMap", "c", "a"))
    world.add(thing("Lease", "l", "a", "coordination.k8s.io/v1"))
    world.add(thing("Pod", "p", "a", spec={"nodeName": "n"}))
    world.add(thing("ConfigMap", "c", "default"))
    world.delete("namespaces", "", "a")
    world.settle(NAMESPACES)
    found = world.get("namespaces", "", "a")
    assert found is not None
    assert condition_of(found, "NamespaceContentRemaining")["message"] == (
        "Some resources are remaining: pods. has 1 resource instances"
    )
    assert world.names("configmaps", "a") == ["c"], "what a pod uses stays while it runs"
    world.remove("pods", "a", "p")
    world.settle(NAMESPACES)
    assert world.get("namespaces", "", "a") is None
    assert world.names("configmaps") == ["c"]
    assert world.names("leases.coordination.k8s.io") == []


def test_finalizers_that_hold_a_namespace_are_named() -> None:
    world = World(*map(namespace, ALWAYS), namespace("a"))
    world.add(thing("ConfigMap", "c", "a", metadata={"finalizers": ["example.com/hold"]}))
    world.delete("namespaces", "", "a")
    world.settle(NAMESPACES)
    found = world.get("namespaces", "", "a")
    assert found is not None
    assert condition_of(found, "NamespaceFinalizersRemaining") == {
        "type": "NamespaceFinalizersRemaining",
        "status": "True",
        "reason": "SomeFinalizersRemain",
        "message": "Some content in the namespace has finalizers remaining: example.com/hold in 1 resource instances",
        "lastTransitionTime": "2027-01-15T08:00:00Z",
    }
    world.remove("configmaps", "a", "c")
    world.settle(NAMESPACES)
    assert world.get("namespaces", "", "a") is None


def test_nothing_is_made_in_a_namespace_that_ends() -> None:
    world = World(namespace("a"))
    world.delete("namespaces", "", "a")
    assert kinds_of(ACCOUNTS.reconcile(world)) == []


def test_writes_in_a_namespace_concern_only_while_it_ends() -> None:
    world = World(namespace("a"))
    world.add(thing("ConfigMap", "c", "a"))
    assert not concerns(world, "configmaps", "a", "c")
    world.delete("namespaces", "", "a")
    assert concerns(world, "configmaps", "a", "c")
