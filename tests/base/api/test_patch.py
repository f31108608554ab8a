"""Patches: what is sent, and that the API server makes of it what was wanted (as the local API applies patches)."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pykubelet.base.api.patch import POD_STATUS_KEYS, PatchKeys, strategic_diff
from pykubelet_local_api.kinds.schema import schema_of
from pykubelet_local_api.patch.json_patch import merge_patch
from pykubelet_local_api.patch.strategic import strategic_patch

NODE_STATUS_KEYS: PatchKeys = {"conditions": "type", "addresses": "type"}
POD_KEYS: PatchKeys = {f"status.{path}": key for path, key in POD_STATUS_KEYS.items()}
POD_STATUS, NODE_STATUS = schema_of("io.k8s.api.core.v1.PodStatus"), schema_of("io.k8s.api.core.v1.NodeStatus")
READY = {"type": "Ready", "status": "True"}
SCHEDULED = {"type": "PodScheduled", "status": "True"}


def status(*conditions: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"conditions": list(conditions), **fields}


def test_equal_objects_need_no_patch() -> None:
    assert strategic_diff(status(READY, phase="Running"), status(READY, phase="Running"), POD_STATUS_KEYS) == {}


def test_only_what_changed_of_a_condition_is_sent_with_its_type() -> None:
    after = {"type": "Ready", "status": "False", "reason": "X"}
    patch = strategic_diff(status(SCHEDULED, READY), status(SCHEDULED, after), POD_STATUS_KEYS)
    assert patch == {"conditions": [{"type": "Ready", "status": "False", "reason": "X"}]}
    patch = strategic_diff(status(SCHEDULED, after), status(SCHEDULED, READY), POD_STATUS_KEYS)
    assert patch == {"conditions": [{"type": "Ready", "status": "True", "reason": None}]}


def test_a_condition_that_goes_is_deleted_by_its_type() -> None:
    patch = strategic_diff(status(SCHEDULED, READY), status(READY), POD_STATUS_KEYS)
    assert patch == {"conditions": [{"$patch": "delete", "type": "PodScheduled"}]}


def test_conditions_of_others_stay() -> None:
    foreign = {"type": "example.com/gate", "status": "True"}
    patch = strategic_diff(status(SCHEDULED), status(SCHEDULED, READY), POD_STATUS_KEYS)
    assert strategic_patch(status(SCHEDULED, foreign), patch, POD_STATUS) == status(SCHEDULED, READY, foreign)


def test_the_order_is_sent_when_elements_would_not_fall_into_it() -> None:
    patch = strategic_diff(status(SCHEDULED), status(SCHEDULED, READY), POD_STATUS_KEYS)
    assert patch["$setElementOrder/conditions"] == [{"type": "PodScheduled"}, {"type": "Ready"}]
    patch = strategic_diff(status(SCHEDULED), status(READY, SCHEDULED), POD_STATUS_KEYS)
    assert patch == {"conditions": [READY]}, "an API server puts new elements first"
    ips = strategic_diff({"podIPs": [{"ip": "a"}, {"ip": "b"}]}, {"podIPs": [{"ip": "b"}]}, POD_STATUS_KEYS)
    assert ips == {"podIPs": [{"$patch": "delete", "ip": "a"}]}


def test_lists_without_a_key_are_one_value() -> None:
    before = {"containerStatuses": [{"name": "a", "ready": False}, {"name": "b", "ready": True}]}
    after = {"containerStatuses": [{"name": "a", "ready": True}, {"name": "b", "ready": True}]}
    assert strategic_diff(before, after, POD_STATUS_KEYS) == after


def test_two_addresses_of_one_type_are_replaced_together() -> None:
    v4, v6 = {"type": "InternalIP", "address": "10.0.0.1"}, {"type": "InternalIP", "address": "fd00::1"}
    patch = strategic_diff({"addresses": [v4]}, {"addresses": [v4, v6]}, NODE_STATUS_KEYS)
    assert patch == {"addresses": [v4, v6, {"$patch": "replace"}]}
    assert strategic_patch({"addresses": [v4]}, patch, NODE_STATUS) == {"addresses": [v4, v6]}


def test_paths_reach_into_whole_objects() -> None:
    before = {"metadata": {"uid": "1"}, "status": status(READY)}
    after = {"metadata": {"uid": "1"}, "status": status(SCHEDULED, READY)}
    assert strategic_diff(before, after, POD_KEYS) == {"status": {"conditions": [SCHEDULED]}}


scalars = st.one_of(st.booleans(), st.integers(-3, 3), st.text("ab", max_size=2))
plain: st.SearchStrategy[Any] = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
elements = st.dictionaries(st.sampled_from(["status", "reason", "nested"]), plain, max_size=3)
keyed = st.lists(
    st.tuples(st.sampled_from("ABCDE"), elements).map(lambda pair: {"type": pair[0], **pair[1]}),
    max_size=5,
)
unique = st.lists(st.tuples(st.sampled_from("ABCDE"), elements), max_size=5, unique_by=lambda pair: pair[0]).map(
    lambda pairs: [{"type": name, **fields} for name, fields in pairs]
)
objects = st.fixed_dictionaries(
    {}, optional={"conditions": unique, "addresses": keyed, "phase": scalars, "x": plain, "y": plain}
)


@given(objects, objects)
def test_applying_the_difference_gives_what_was_wanted(before: dict[str, Any], after: dict[str, Any]) -> None:
    patch = strategic_diff(before, after, NODE_STATUS_KEYS)
    assert (patch == {}) == (before == after)
    found = strategic_patch(before, patch, NODE_STATUS)
    if "addresses" in after:  # an API server puts those of one type together
        types = [address["type"] for address in after["addresses"]]
        after["addresses"].sort(key=lambda address: types.index(address["type"]))
        found["addresses"].sort(key=lambda address: types.index(address["type"]))
    assert found == after


@given(objects, objects)
def test_merge_patches_give_what_was_wanted(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert merge_patch(before, strategic_diff(before, after, {})) == after
