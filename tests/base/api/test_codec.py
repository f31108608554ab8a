"""API structs from JSON and back, and text in them that nothing on a host can use."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykubelet.base.api import codec, core
from pykubelet.base.api.codec import NUL, SURROGATE, from_object, unusable_text


def test_times_without_a_value_are_absent_and_texts_about_them_are_not_touched() -> None:
    text = '{"lastProbeTime":null,"creationTimestamp":null,"x":1}'
    pod = {
        "metadata": {"name": "x", "creationTimestamp": None, "annotations": {"last": text, '"': '"startedAt":null,'}},
        "status": {"conditions": [{"type": "Ready", "status": "True", "lastProbeTime": None, "reason": text}]},
    }
    for separators in ((",", ":"), (", ", ": ")):
        found = codec.decode(core.Pod, json.dumps(pod, separators=separators))
        assert found.metadata.annotations == {"last": text, '"': '"startedAt":null,'}
        assert found.status.conditions[0].reason == text
        assert not found.status.conditions[0].lastProbeTime


def test_nulls_mean_absent() -> None:
    text = b'{"metadata":{"name":"x","labels":null,"creationTimestamp":null},"spec":null,"status":null}'
    assert codec.decode(core.Pod, text) == core.Pod(metadata=core.ObjectMeta(name="x"))


def test_plain_objects_decode_too() -> None:
    pod = codec.from_object(core.Pod, {"metadata": {"name": "x"}, "spec": {"nodeName": None, "priority": 3}})
    assert (pod.metadata.name, pod.spec.nodeName, pod.spec.priority) == ("x", "", 3)
    assert codec.to_object(pod)["spec"] == {"containers": [], "priority": 3}
    assert codec.decode(core.Pod, codec.encode(pod)) == pod


@pytest.mark.parametrize(
    ("text", "path", "reason"),
    [
        (
            b'{"spec":{"containers":[{"name":5}]}}',
            "spec.containers[0].name",
            "expected string, got integer: text that looks so needs quotes",
        ),
        (b'{"spec":{"containers":{}}}', "spec.containers", "expected list, got object"),
        (b'{"spec":{"hostPID":"yes"}}', "spec.hostPID", "expected boolean, got string"),
        (b'{"spec":{"priority":1.5}}', "spec.priority", "expected integer, got number"),
        (b'{"spec":{"containers":[null]}}', "spec.containers[0]", "expected object, got null"),
        (b"[]", "", "expected object, got list"),
        (b"{", "", "Input data was truncated"),
    ],
)
def test_errors_name_the_field(text: bytes, path: str, reason: str) -> None:
    with pytest.raises(codec.DecodeError) as caught:
        codec.decode(core.Pod, text)
    assert (caught.value.path, caught.value.reason) == (path, reason)


@pytest.mark.parametrize(
    ("pod", "path", "reason"),
    [
        ({"metadata": {"labels": {"a": "b", "version": 1.1, "c": "d"}}}, "metadata.labels[version]", "got number"),
        ({"metadata": {"annotations": {"a/b.c": True, "n": None}}}, "metadata.annotations[a/b.c]", "got boolean"),
        ({"spec": {"nodeSelector": {"a": "b", "c": 1}}}, "spec.nodeSelector[c]", "got integer"),
        (
            {"spec": {"containers": [{"name": "a"}, {"resources": {"limits": {"cpu": 1, "memory": {}}}}]}},
            "spec.containers[1].resources.limits[memory]",
            "got object",
        ),
    ],
)
def test_errors_of_plain_objects_name_the_key_of_a_map(pod: dict[str, object], path: str, reason: str) -> None:
    with pytest.raises(codec.DecodeError) as caught:
        codec.from_object(core.Pod, pod)
    assert caught.value.path == path
    assert reason in caught.value.reason


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ({"a": ["x", {"b": "y\0"}]}, ("a[1].b", NUL)),
        ({"a": ["x", {"b": "\ud800"}]}, ("a[1].b", SURROGATE)),
        ({"a\0": 1}, ("a?", NUL)),
        ({"\udc80": 1}, ("?", SURROGATE)),
        ({"a": "\\u0000", "b": ["\\", 1, None, 2.5, True]}, None),
        ({"a": "\U0001f600"}, None),
        ("", None),
    ],
)
def test_the_first_text_is_named_with_its_path(value: object, found: tuple[str, str] | None) -> None:
    assert unusable_text(value) == found


def test_fields_have_their_names_in_the_api() -> None:
    volumes = [{"name": "a", "hostPath": {"path": "/x"}}, {"name": "b", "nfs": {"server": "s", "path": "/x\0y"}}]
    spec = from_object(core.PodSpec, {"containers": [], "volumes": volumes})
    assert unusable_text(spec) == ("volumes[1].nfs.path", NUL)
    mounts = [{"name": "a", "mountPath": "/a", "subPathExpr": "\0"}]
    spec = from_object(core.PodSpec, {"containers": [{"name": "c", "volumeMounts": mounts}]})
    assert unusable_text(spec) == ("containers[0].volumeMounts[0].subPathExpr", NUL)


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(st.characters(codec=None), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)


@given(values)
def test_what_passes_can_be_encoded_and_has_no_nul(value: Any) -> None:
    if unusable_text(value) is None:
        assert b"\0" not in "".join(_texts_of(value)).encode()


def _texts_of(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for item in (*value, *value.values()) for text in _texts_of(item)]
    return [text for item in value for text in _texts_of(item)] if isinstance(value, list) else []
