"""Objects go with their owners, in the background, in the foreground, or not at all."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from local_api.reconcile.world import World, kinds_of, thing

from pykubelet_local_api.objects import Json
from pykubelet_local_api.reconcile.garbage import garbage

GARBAGE = garbage()


def owner_of(found: Json, kind: str = "ConfigMap", **fields: Any) -> Json:
    return {
        "apiVersion": "v1",
        "kind": kind,
        "name": found["metadata"]["name"],
        "uid": found["metadata"]["uid"],
    } | fields


def owned(name: str, *owners: Json, namespace: str = "ns", **metadata: Any) -> Json:
    return thing("Secret", name, namespace, metadata={"ownerReferences": list(owners)} | metadata)


def test_an_object_goes_when_its_last_owner_is_gone() -> None:
    world = World()
    first, second = (world.add(thing("ConfigMap", name, "ns")) for name in ("first", "second"))
    world.add(owned("s", owner_of(first), owner_of(second)))
    assert world.settle(GARBAGE) == []
    world.remove("configmaps", "ns", "first")
    world.settle(GARBAGE)
    found = world.get("secrets", "ns", "s")
    assert found is not None
    assert [reference["name"] for reference in found["metadata"]["ownerReferences"]] == ["second"]
    world.remove("configmaps", "ns", "second")
    world.settle(GARBAGE)
    assert world.names("secrets") == []


def test_an_owner_with_another_uid_is_another_owner() -> None:
    world = World()
    first = world.add(thing("ConfigMap", "m", "ns"))
    world.add(owned("s", owner_of(first) | {"uid": "an older one"}))
    world.settle(GARBAGE)
    assert world.names("secrets") == []


def test_an_owner_in_another_namespace_counts_as_absent() -> None:
    world = World()
    first = world.add(thing("ConfigMap", "m", "other"))
    world.add(owned("s", owner_of(first)))
    world.settle(GARBAGE)
    assert world.names("secrets") == []


def test_an_owner_without_a_namespace_is_found() -> None:
    world = World()
    node = world.add(thing("Node", "n"))
    world.add(owned("s", owner_of(node, "Node")))
    assert world.settle(GARBAGE) == []


def test_owners_that_cannot_be_looked_for_keep_the_object() -> None:
    world = World(owned("s", {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "u"}))
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "u"}
    world.add(thing("PersistentVolume", "v", metadata={"ownerReferences": [reference]}))
    assert world.settle(GARBAGE) == []


def test_in_the_foreground_the_owner_waits_for_who_blocks_it() -> None:
    world = World()
    first = world.add(thing("ConfigMap", "m", "ns", metadata={"finalizers": ["foregroundDeletion"]}))
    middle = world.add(owned("middle", owner_of(first, blockOwnerDeletion=True)))
    world.add(owned("last", owner_of(middle, "Secret", blockOwnerDeletion=True), finalizers=["example.com/hold"]))
    world.delete("configmaps", "ns", "m")
    world.settle(GARBAGE)
    assert world.names("configmaps") == ["m"]
    assert world.names("secrets") == ["last", "middle"], "each waits for the one below it"
    world.remove("secrets", "ns", "last")
    world.settle(GARBAGE)
    assert world.names("configmaps") == []
    assert world.names("secrets") == []


def test_in_the_foreground_who_does_not_block_is_not_waited_for() -> None:
    world = World()
    first = world.add(thing("ConfigMap", "m", "ns", metadata={"finalizers": ["foregroundDeletion"]}))
    world.add(owned("s", owner_of(first), finalizers=["example.com/hold"]))
    world.delete("configmaps", "ns", "m")
    world.settle(GARBAGE)
    assert world.names("configmaps") == []


def test_orphans_stay() -> None:
    world = World()
    first = world.add(thing("ConfigMap", "m", "ns", metadata={"finalizers": ["orphan"]}))
    world.add(owned("s", owner_of(first)))
    world.delete("configmaps", "ns", "m")
    world.settle(GARBAGE)
    assert world.names("configmaps") == []
    assert world.names("secrets") == ["s"]


def test_an_event_stays_without_its_owner() -> None:
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "u"}
    world = World(thing("Event", "e", "ns", metadata={"ownerReferences": [reference]}))
    assert kinds_of(GARBAGE.reconcile(world)) == []


NAMES = st.sampled_from(["a", "b", "c", "d"])
STEPS = st.lists(
    st.tuples(st.sampled_from(["add", "own", "delete", "remove"]), NAMES, NAMES, st.booleans()), min_size=1, max_size=25
)


@given(STEPS)
@settings(max_examples=200)
def test_writes_that_do_not_concern_change_nothing(steps: list[tuple[str, str, str, bool]]) -> None:
    """What the loop skips: the definition gives nothing after such writes."""
    world = World()
    for action, name, other, flag in steps:
        world.written.clear()
        _write(world, action, name, other, flag)
        concerned = any(GARBAGE.concerns(world, *key) for key in world.written)
        if not concerned:
            assert GARBAGE.reconcile(world) == []
        world.settle(GARBAGE)


def _write(world: World, action: str, name: str, other: str, flag: bool) -> None:
    found, owner = world.get("configmaps", "ns", name), world.get("configmaps", "ns", other)
    if action == "add" and found is None:
        world.add(thing("ConfigMap", name, "ns", metadata={"finalizers": ["foregroundDeletion" if flag else "orphan"]}))
    elif action == "own" and found is None and owner is not None:
        reference = owner_of(owner, blockOwnerDeletion=flag)
        world.add(thing("ConfigMap", name, "ns", metadata={"ownerReferences": [reference]}))
    elif action == "delete" and found is not None:
        world.delete("configmaps", "ns", name)
    elif action == "remove" and found is not None:
        world.remove("configmaps", "ns", name)
