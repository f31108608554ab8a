"""Pods as protobuf. `full_pod.json` has every field of a pod, and `full_pod.pb` the same pod, encoded with Kubernetes' own definitions."""

from __future__ import annotations

import asyncio
import json
import types
import typing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.cost import check_cost, count_instructions

from pykubelet.base.api import core
from pykubelet.base.api.codec import decode, to_object
from pykubelet.base.api.core import Pod
from pykubelet.base.api.protobuf import ProtobufError, encode_now, encode_pod, table, varint

HERE = Path(__file__).parent


def pod_of(**fields: Any) -> Pod:
    return decode(Pod, json.dumps(fields))


def in_container(**fields: Any) -> Pod:
    return pod_of(spec={"containers": [{"name": "", **fields}]})


def structs_of(cls: type[msgspec.Struct]) -> dict[str, type[msgspec.Struct]]:
    """The struct and all that it contains, by name."""
    found = {cls.__name__: cls}
    for hint in typing.get_type_hints(cls).values():
        for inner in inner_types(hint):
            if issubclass(inner, msgspec.Struct) and inner.__name__ not in found:
                found |= structs_of(inner)
    return found


def inner_types(hint: Any) -> list[Any]:
    if typing.get_origin(hint) in (tuple, dict, typing.Union, types.UnionType):
        return [inner for arg in typing.get_args(hint) if arg is not Ellipsis for inner in inner_types(arg)]
    return [hint]


def numbered(message: str) -> set[str]:
    """The JSON names that the table has for a message."""
    return {name for row in table(message) for name in (numbered(row.type) if row.form == "inline" else {row.name})}


def test_a_pod_with_every_field_is_encoded_as_with_the_definitions_of_kubernetes() -> None:
    pod = decode(Pod, (HERE / "full_pod.json").read_bytes())
    assert encode_now(pod) == (HERE / "full_pod.pb").read_bytes()


def test_the_pod_of_the_test_has_every_list_and_message() -> None:
    """A release that adds fields needs a new sample: `tools/gen_protobuf_fields.py` states where the numbers are from."""
    text = (HERE / "full_pod.json").read_text()
    missing = [
        f"{name}.{field}"
        for name, cls in structs_of(Pod).items()
        for field in cls.__struct_fields__
        if f'"{field}":' not in text
    ]
    assert missing == []


def test_every_field_of_a_pod_has_a_number() -> None:
    without = {
        f"{name}.{field}"
        for name, cls in structs_of(Pod).items()
        for field in cls.__struct_fields__
        if field not in numbered(name)
    }
    assert without == {"Pod.apiVersion", "Pod.kind"}, "run tools/gen_protobuf_fields.py with the new release"


@pytest.mark.parametrize(
    ("pod", "bytes_"),
    [
        (pod_of(metadata={"name": "web"}), b"\x0a\x05\x0a\x03web\x12\x00\x1a\x00"),
        (pod_of(metadata={"labels": {"b": "", "a": "é"}}), b"\x0a\x10\x5a\x07\x0a\x01a\x12\x02\xc3\xa9" + b"\x5a\x05\x0a\x01b\x12\x00"),
        (pod_of(metadata={"generation": 300, "creationTimestamp": "1970-01-01T00:00:01Z"}), b"\x0a\x07\x38\xac\x02\x42\x02\x08\x01"),
        (pod_of(metadata={"deletionGracePeriodSeconds": 0}), b"\x0a\x02\x50\x00"),
        (pod_of(metadata={"deletionGracePeriodSeconds": -1}), b"\x0a\x0b\x50" + b"\xff" * 9 + b"\x01"),
    ],
    ids=["text", "a map in the order of its keys", "number and time", "a zero that is set", "a negative number"],
)  # fmt: skip
def test_small_parts(pod: Pod, bytes_: bytes) -> None:
    assert encode_now(pod).startswith(bytes_)


def test_fields_that_json_has_inline_are_messages_of_their_own() -> None:
    env = in_container(env=[{"name": "a", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k", "optional": False}}}])
    assert b"\x22\x0a\x0a\x03\x0a\x01s\x12\x01k\x18\x00" in encode_now(env)
    volume = pod_of(spec={"volumes": [{"name": "v", "emptyDir": {}}]})
    assert b"\x0a\x07\x0a\x01v\x12\x02\x12\x00" in encode_now(volume)


def test_ports_and_quantities() -> None:
    probe = in_container(livenessProbe={"tcpSocket": {"port": "http"}}, readinessProbe={"tcpSocket": {"port": 80}})
    assert b"\x0a\x08\x08\x01\x1a\x04http" in encode_now(probe)
    assert b"\x0a\x02\x10\x50" in encode_now(probe)
    # as an API server stores it, however it is written
    sized = in_container(resources={"limits": {"cpu": "1000m", "memory": 1024}})
    assert b"\x0a\x0a\x0a\x03cpu\x12\x03\x0a\x011" in encode_now(sized)
    assert b"\x0a\x10\x0a\x06memory\x12\x06\x0a\x041024" in encode_now(sized)


def test_what_cannot_be_encoded() -> None:
    with pytest.raises(ProtobufError, match="quantities"):
        encode_now(in_container(resources={"limits": {"cpu": "much"}}))
    with pytest.raises(ProtobufError, match="not an RFC 3339 time"):
        encode_now(pod_of(metadata={"creationTimestamp": "yesterday"}))


def test_half_a_surrogate_from_yaml_does_no_harm() -> None:
    pod = Pod(metadata=core.ObjectMeta(name="a\ud800b"))
    assert encode_now(pod) == b"\x0a\x05\x0a\x03a?b\x12\x00\x1a\x00"


@pytest.mark.parametrize(
    ("number", "bytes_"), [(0, b"\0"), (127, b"\x7f"), (128, b"\x80\x01"), (1 << 63, b"\x80" * 9 + b"\x01")]
)
def test_varints(number: int, bytes_: bytes) -> None:
    assert varint(number) == bytes_


#: A third of the entries that fit into the 1.5 MB that an API server takes: a step does not grow with the pod.
LARGE: dict[str, dict[str, Any]] = {
    "environment variables": {"spec": {"containers": [{"name": "c", "env": [{"name": "a"}] * 30_000}]}},
    "arguments": {"spec": {"containers": [{"name": "c", "args": ["a"] * 370_000}]}},
    "containers": {"spec": {"containers": [{"name": "c"}] * 30_000}},
    "probes": {"spec": {"containers": [{"name": "", "livenessProbe": {"httpGet": {"httpHeaders": [{}, {}], "port": 1}}}] * 5_000}},
    "labels": {"metadata": {"labels": {f"{number:x}": "" for number in range(60_000)}}},
    "quantities": {"spec": {"containers": [{"name": "", "resources": {"limits": {f"{n:x}": f"{n}" for n in range(20_000)}}}]}},
    "tolerations": {"spec": {"tolerations": [{}] * 150_000}},
    "a text": {"metadata": {"annotations": {"a": "b" * 1_450_000}}},
}  # fmt: skip


@pytest.mark.parametrize("what", LARGE)
def test_large_pods_hold_nothing_up(what: str) -> None:
    pod = pod_of(**LARGE[what])

    async def encode() -> None:
        for _ in encode_pod(pod):
            await asyncio.sleep(0)

    check_cost(what, encode)


def test_the_work_grows_with_the_pod_and_not_faster() -> None:
    def spent(times: int) -> int:
        pod = decode(Pod, (HERE / "full_pod.json").read_bytes())
        many = to_object(pod)
        for name in ("containers", "initContainers", "ephemeralContainers", "volumes", "tolerations"):
            many["spec"][name] *= times
        for name in ("conditions", "containerStatuses"):
            many["status"][name] *= times
        grown = pod_of(**many)
        encode_now(grown)  # compiles the tables
        return count_instructions(lambda: encode_now(grown))

    few, twice, more = spent(5), spent(10), spent(20)
    assert more - twice < 2.2 * (twice - few)
