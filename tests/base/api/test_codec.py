from __future__ import annotations

import json

import pytest

from pykubelet.base.api import codec, core


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
