"""Strategic merge patches. Results and errors are those that a kube-apiserver 1.36 gave for the same patches."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykubelet_local_api.errors import StatusError
from pykubelet_local_api.kinds.decode import FieldValidation
from pykubelet_local_api.kinds.schema import schema_of
from pykubelet_local_api.objects import Json, copied
from pykubelet_local_api.patch.patched import decode_patched
from pykubelet_local_api.patch.strategic import go_text, strategic_patch

POD = schema_of("io.k8s.api.core.v1.Pod")
OLD: Json = {
    "metadata": {"finalizers": ["a/b"]},
    "spec": {
        "containers": [
            {"name": "a", "image": "x", "env": [{"name": "E", "value": "1"}], "command": ["ls"]},
            {"name": "b"},
        ],
        "volumes": [{"name": "v", "emptyDir": {}}],
    },
}


def patched(**container: Any) -> Json:
    """The first container after a patch of it."""
    found: Json = strategic_patch(OLD, {"spec": {"containers": [{"name": "a"} | container]}}, POD)["spec"][
        "containers"
    ][0]
    return found


def test_elements_are_merged_by_key_and_the_rest_stays() -> None:
    before = copied(OLD)
    found = strategic_patch(OLD, {"spec": {"containers": [{"name": "b", "image": "y"}, {"name": "c"}]}}, POD)
    assert found["spec"]["containers"] == [OLD["spec"]["containers"][0], {"name": "b", "image": "y"}, {"name": "c"}]
    assert before == OLD


def test_a_new_element_comes_first_as_the_server_does_it() -> None:
    assert patched(env=[{"name": "F", "value": "2"}])["env"] == [
        {"name": "F", "value": "2"},
        {"name": "E", "value": "1"},
    ]


def test_atomic_lists_are_replaced() -> None:
    assert patched(command=["x"])["command"] == ["x"]


def test_directives() -> None:
    assert patched(env=[{"name": "E", "$patch": "delete"}])["env"] == []
    assert patched(env=[{"$patch": "replace"}, {"name": "Q"}])["env"] == [{"name": "Q"}]
    assert patched(**{"$retainKeys": ["name", "image"], "image": "z"}) == {"name": "a", "image": "z"}
    order = [{"name": "E"}, {"name": "F"}]
    assert [item["name"] for item in patched(**{"$setElementOrder/env": order, "env": [{"name": "F"}]})["env"]] == [
        "E",
        "F",
    ]
    volumes = strategic_patch(
        OLD,
        {"spec": {"volumes": [{"name": "v", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/x"}}]}},
        POD,
    )
    assert volumes["spec"]["volumes"] == [{"name": "v", "hostPath": {"path": "/x"}}]
    gone = strategic_patch(OLD, {"metadata": {"$deleteFromPrimitiveList/finalizers": ["a/b"], "finalizers": None}}, POD)
    assert gone["metadata"].get("finalizers") in (None, [])
    assert strategic_patch(OLD, {"spec": {"$patch": "replace", "hostname": "h"}}, POD)["spec"] == {"hostname": "h"}
    assert strategic_patch(OLD, {"$patch": "delete"}, POD) == {}


def test_scalars_are_merged_without_duplicates() -> None:
    found = strategic_patch(OLD, {"metadata": {"finalizers": ["c/d", "a/b"]}}, POD)
    assert sorted(found["metadata"]["finalizers"]) == ["a/b", "c/d"]


@pytest.mark.parametrize(
    ("container", "text"),
    [
        ({"env": [{"value": "z"}]}, "map: map[value:z] does not contain declared merge key: name"),
        ({"env": [{"name": "E", "$patch": "merge"}]}, "merging lists cannot yet be specified in the patch"),
        ({"env": [{"name": "E", "$patch": "zap"}]}, "unknown patch type: zap in map: map[$patch:zap name:E]"),
        ({"env": ["x"]}, "list element types are not identical: [[map[name:E value:1]] [x]]"),
        (
            {"$setElementOrder/env": [{"name": "G"}], "env": [{"name": "F"}]},
            "The order in patch list:\n[map[name:F]]\n doesn't match $setElementOrder list:\n[map[name:G]]\n",
        ),
    ],
)
def test_a_patch_that_contradicts_the_schema_is_answered_as_by_the_api_server(container: Json, text: str) -> None:
    with pytest.raises(StatusError) as error:
        patched(**container)
    assert (error.value.code, error.value.message) == (500, text)
    assert "reason" not in error.value.status()


@pytest.mark.parametrize(
    ("patch", "text"),
    [
        ({"metadata": {"finalizers": "x"}}, "cannot restore slice from string"),
        ({"metadata": {"finalizers": [1]}}, "cannot convert int64 to string"),
        ({"metadata": {"labels": []}}, "cannot restore map from slice"),
        ({"spec": {"containers": [{"name": "b", "command": [["x"]]}]}}, "unrecognized type: string"),
        ({"zap": {"a": 1, "b": [None, True, 1.5]}}, 'strict decoding error: unknown field "zap"'),
    ],
)
def test_a_result_with_wrong_types_shows_the_patch(patch: Any, text: str) -> None:
    with pytest.raises(StatusError) as error:
        decode_patched(POD, strategic_patch({}, patch, POD), FieldValidation.STRICT, (), patch)
    assert error.value.code == 422
    assert error.value.message == f' "" is invalid: patch: Invalid value: "{go_text(patch)}": {text}'


names = st.lists(st.sampled_from("abcdef"), unique=True, max_size=6)


@given(names.filter(bool), names)
def test_the_order_of_a_patch_is_kept_and_nothing_is_lost(old: list[str], new: list[str]) -> None:
    def listed(found: list[str]) -> Json:
        return {"spec": {"containers": [{"name": name} for name in found]}}

    order = {"$setElementOrder/containers": [{"name": name} for name in new]}
    patch = {"spec": listed(new)["spec"] | order}
    found = [item["name"] for item in strategic_patch(listed(old), patch, POD)["spec"]["containers"]]
    assert [name for name in found if name in new] == new
    assert set(found) == {*old, *new}
    others = [name for name in old if name not in new]
    assert [name for name in found if name not in new] == others
