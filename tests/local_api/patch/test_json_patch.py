"""JSON and merge patches. Results are those that a kube-apiserver 1.36 gave for the same patches."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykubelet_local_api.errors import StatusError
from pykubelet_local_api.objects import Json, copied
from pykubelet_local_api.patch.json_patch import (
    MAX_COPIED,
    MAX_OPERATIONS,
    check_operations,
    json_patch,
    merge_patch,
    unknown_members,
)

OLD = {"data": {"a": "1", "b": "2"}, "list": ["x", "y"], "n": 1}


def op(name: str, path: str, value: Any = None, **more: Any) -> dict[str, Any]:
    """An operation."""
    return {"op": name, "path": path, "value": value} | more


@pytest.mark.parametrize(
    ("operations", "changed"),
    [
        ([op("add", "/data/c", "3")], {"data": {"a": "1", "b": "2", "c": "3"}}),
        ([op("add", "/list/-", "z"), op("add", "/list/0", "w")], {"list": ["w", "x", "y", "z"]}),
        ([op("add", "/list/-1", "w")], {"list": ["x", "y", "w"]}),
        ([op("remove", "/list/-1")], {"list": ["x"]}),
        ([op("remove", "/data/a")], {"data": {"b": "2"}}),
        ([op("replace", "/data/zz", "1")], {"data": {"a": "1", "b": "2", "zz": "1"}}),
        ([op("replace", "/list/1", "q")], {"list": ["x", "q"]}),
        ([op("move", "/data/q", **{"from": "/data/a"})], {"data": {"b": "2", "q": "1"}}),
        ([op("copy", "/data/q", **{"from": "/list"})], {"data": {"a": "1", "b": "2", "q": ["x", "y"]}}),
        ([op("copy", "/data/q", **{"from": "/data/zz"})], {"data": {"a": "1", "b": "2", "q": None}}),
        ([op("test", "/data/a", "1"), op("test", "/data/zz"), op("test", "", OLD)], {}),
        ([op("add", "/data/a~1b~0c", "1")], {"data": {"a": "1", "b": "2", "a/b~c": "1"}}),
        ([op("add", "x/top", "1")], {"top": "1"}),
    ],
)
def test_operations(operations: Any, changed: Json) -> None:
    before = copied(OLD)
    assert json_patch(OLD, operations) == OLD | changed
    assert before == OLD


@pytest.mark.parametrize(
    "operation",
    [
        op("add", "/x/y/z", 1), op("add", "/list/3", 1), op("add", "/list/x", 1), op("add", "/list/-4", 1),
        op("add", "/n/x", 1), op("add", "", {}), op("remove", ""), op("remove", "/data/zz"), op("remove", "/list/2"),
        op("replace", "/zz/a", 1), op("replace", "/list/-", 1), op("replace", "", 1), op("replace", "", []),
        op("move", "/data/q", **{"from": "/data/zz"}), op("move", "/data/a/x", **{"from": "/data/a"}), op("copy", "/data/q"),
        op("test", "/data/a", "2"), op("test", "/n", True), op("test", "/n", 1.0), op("zap", "/data/a"),
        {"path": "/data/a"}, {"op": "add", "value": 1},
    ],
)  # fmt: skip
def test_an_operation_that_cannot_be_done_is_refused(operation: Json) -> None:
    with pytest.raises(StatusError) as error:
        json_patch(OLD, [operation])
    assert (error.value.code, error.value.message) == (
        422, "the server rejected our request due to an error in our request",
    )  # fmt: skip


def test_the_body_must_be_a_list_of_operations() -> None:
    start = "error decoding patch: json: cannot unmarshal"
    for body, text in (
        ({}, "object into Go value of type []handlers.jsonPatchOp"),
        (["x"], "string into Go value of type handlers.jsonPatchOp"),
        ([{"op": 1}], "number into Go struct field jsonPatchOp.op of type string"),
    ):
        with pytest.raises(StatusError) as error:
            check_operations(body)
        assert (error.value.code, error.value.message) == (400, f"{start} {text}")
    assert list(unknown_members([{"op": "add", "foo": 1}])) == ['json patch unknown field "[0].foo"']


def test_operations_copies_and_moved_elements_are_bounded() -> None:
    with pytest.raises(StatusError) as error:
        json_patch(OLD, [op("test", "/n", 1)] * (MAX_OPERATIONS + 1))
    assert error.value.code == 413
    large = {"a": {"x": "y" * (MAX_COPIED // 16)}}
    doubling = [op("copy", f"/a/{i}", **{"from": "/a"}) for i in range(20)]
    with pytest.raises(StatusError):
        json_patch(large, doubling)
    with pytest.raises(StatusError):
        json_patch({"a": [""] * 500_000}, [op("add", "/a/0", "")] * 100)


@pytest.mark.parametrize(
    ("patch", "changed"),
    [
        ({"data": {"a": None, "c": "3"}}, {"data": {"b": "2", "c": "3"}}),
        ({"list": ["z", {"a": None, "b": 1}]}, {"list": ["z", {"b": 1}]}),
        ({"n": {"a": None, "b": {"c": None}}}, {"n": {"b": {}}}),
        ({"data": None, "gone": None}, {"data": None}),
    ],
)
def test_merge_patches(patch: Any, changed: Json) -> None:
    before = copied(OLD)
    assert merge_patch(OLD, patch) == {key: value for key, value in (OLD | changed).items() if value is not None}
    assert before == OLD


@pytest.mark.parametrize(
    ("patch", "text"), [(None, "Invalid JSON Patch"), ([], "cannot unmarshal array"), ("x", "string")]
)
def test_a_merge_patch_must_be_an_object(patch: Any, text: str) -> None:
    with pytest.raises(StatusError, match=text):
        merge_patch(OLD, patch)


values = st.recursive(
    st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
documents = st.dictionaries(st.sampled_from("abcd"), values, max_size=4)


def difference(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """The merge patch that makes one document of another."""
    found: dict[str, Any] = dict.fromkeys(old.keys() - new.keys())
    for key, value in new.items():
        if isinstance(value, dict) and isinstance(old.get(key), dict):
            found[key] = difference(old[key], value)
        elif key not in old or type(old[key]) is not type(value) or old[key] != value:
            found[key] = value
    return found


@given(documents, documents)
def test_a_merge_patch_makes_any_document_of_any_other(old: Json, new: Json) -> None:
    assert merge_patch(old, difference(old, new)) == new


@given(documents, documents)
def test_a_json_patch_makes_any_document_of_any_other(old: Json, new: Json) -> None:
    operations = [op("remove", f"/{key}") for key in old] + [op("add", f"/{key}", value) for key, value in new.items()]
    assert json_patch(old, operations) == new
