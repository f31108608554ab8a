"""Sets of fields: the algebra, and their form in `fieldsV1`."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykubelet_local_api.kinds.schema import schema_of
from pykubelet_local_api.patch.fields import (
    Fields,
    decode,
    difference,
    encode,
    insert,
    intersection,
    only,
    paths,
    show,
    union,
    with_named,
    without,
)

elements = st.sampled_from(["f:a", "f:b", "f:c", 'k:{"name":"x"}', 'v:"y"'])
ways = st.lists(st.lists(elements, min_size=1, max_size=4).map(tuple), max_size=8).map(set)


def made(found: set[tuple[str, ...]]) -> Fields:
    """The set of these paths."""
    fields: Fields = {}
    for way in found:
        insert(fields, way)
    return fields


def listed(fields: Fields) -> set[tuple[str, ...]]:
    """The paths of a set."""
    return {way for way, _ in paths(fields)}


@given(ways, ways)
def test_the_algebra_is_that_of_sets_of_paths(left: set[tuple[str, ...]], right: set[tuple[str, ...]]) -> None:
    assert listed(made(left)) == left
    for operation, expected in ((union, left | right), (intersection, left & right), (difference, left - right)):
        found = operation(made(left), made(right))
        assert listed(found) == expected
        assert found == made(expected), "no node is left empty"


@given(ways)
def test_sets_survive_their_written_form(found: set[tuple[str, ...]]) -> None:
    fields = made(found)
    assert decode(encode(fields)) == fields


@given(ways, st.lists(elements, min_size=1, max_size=3).map(tuple))
def test_what_is_at_and_below_a_path_can_be_left_out(found: set[tuple[str, ...]], path: tuple[str, ...]) -> None:
    assert listed(without(made(found), [path])) == {way for way in found if way[: len(path)] != path}


def test_the_written_form_is_that_of_managed_fields() -> None:
    fields = made(
        {("f:spec", "f:containers", 'k:{"name":"a"}'), ("f:spec", "f:containers", 'k:{"name":"a"}', "f:image")}
    )
    assert encode(fields) == {"f:spec": {"f:containers": {'k:{"name":"a"}': {".": {}, "f:image": {}}}}}


def test_field_sets_are_written_in_the_order_of_an_api_server() -> None:
    fields: dict[str, Any] = {
        "f:b": {".": {}},
        "f:a": {'k:{"name":"z"}': {".": {}}, 'k:{"name":"a"}': {"f:image": {".": {}}, ".": {}}},
    }
    assert json.dumps(encode(fields), separators=(",", ":")) == (
        r"""{"f:a":{"k:{\"name\":\"a\"}":{".":{},"f:image":{}},"k:{\"name\":\"z\"}":{}},"f:b":{}}"""
    )


def test_only_some_fields_are_kept() -> None:
    fields = made(
        {("f:spec", "f:containers", 'k:{"name":"a"}', "f:resources", "f:limits"), ("f:spec", "f:x"), ("f:y",)}
    )
    kept = only(fields, [("f:spec", "f:containers", "*", "f:resources")])
    assert listed(kept) == {("f:spec", "f:containers", 'k:{"name":"a"}', "f:resources", "f:limits")}


def test_named_fields_on_the_way_are_added_but_no_keys_of_maps() -> None:
    pod = schema_of("io.k8s.api.core.v1.Pod")
    fields = made({("f:metadata", "f:labels", "f:a"), ("f:spec", "f:containers", 'k:{"name":"a"}', "f:image")})
    added = listed(with_named(fields, pod)) - listed(fields)
    assert added == {("f:metadata",), ("f:metadata", "f:labels"), ("f:spec",), ("f:spec", "f:containers")}


@pytest.mark.parametrize(
    ("element", "text"),
    [
        ("f:a.b/c", ".a.b/c"),
        ('k:{"containerPort":80,"protocol":"TCP"}', '[containerPort=80,protocol="TCP"]'),
        ('v:"a/b"', '[="a/b"]'),
        ("i:3", "[3]"),
    ],
)
def test_elements_as_messages_show_them(element: str, text: str) -> None:
    assert show(element) == text


@pytest.mark.parametrize("fields", [[], "x", {"f": {}}, {"k:{": {}}, {"f:a": 1}, {"f:a": {"zap": {}}}])
def test_what_is_no_set_of_fields_is_refused(fields: Any) -> None:
    with pytest.raises(ValueError, match="not a"):
        decode(fields)


def test_unknown_kinds_of_elements_are_left_out() -> None:
    assert decode({"q:new": {}, "f:a": {}}) == {"f:a": {".": {}}}
