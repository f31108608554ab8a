"""The cost of request bodies, filters of watches and finalizers grows at most as fast as what a client sends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest
from local_api.access.objects import Objects, thing
from local_api.hostile.test_doubling import MAPS, NOW, PODS, Work, check_growth, config_map, pod

from pykubelet.base.kit.clock import SystemClock
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.net.http.wire import Request
from pykubelet_local_api.kinds.decode import FieldValidation, decode_body
from pykubelet_local_api.kinds.kind import ResourceKind
from pykubelet_local_api.objects import Json
from pykubelet_local_api.patch.json_patch import json_patch, merge_patch
from pykubelet_local_api.patch.managed import apply
from pykubelet_local_api.reconcile.garbage import garbage
from pykubelet_local_api.reconcile.namespaces import reconcile as namespaces
from pykubelet_local_api.reconcile.protection import reconcile as protection
from pykubelet_local_api.registry import ObjectRegistry
from pykubelet_local_api.rest.formats import APPLY_YAML, JSON, OBJECTS, PROTOBUF, YAML, Accepted, read_body
from pykubelet_local_api.rest.options import read_list_options
from pykubelet_local_api.rest.parts import AnswerParts, PartsOfUsers
from pykubelet_local_api.rest.selectors import read_selectors
from pykubelet_local_api.rest.shared_lines import SharedLines
from pykubelet_local_api.rest.watches import WatchRequest, WatchStream
from pykubelet_local_api.store.database import StoredKey
from pykubelet_local_api.store.store import NoFile, ObjectStore
from pykubelet_local_api.view import CONTROL
from pykubelet_local_api.write_options import WriteOptions

DELETED = {"deletionTimestamp": "2026-01-01T00:00:00Z"}


def body(media_type: str, text: Callable[[int], bytes], kind: ResourceKind = MAPS) -> Callable[[int], Work]:
    """Reading a body, and the object in it."""

    def of(number: int) -> Work:
        data = text(number)
        request = Request("POST", "/", headers={"content-type": media_type})

        def work() -> object:
            read = read_body(request, data, kind.definition, (*OBJECTS, APPLY_YAML))
            return decode_body(kind, read.value, FieldValidation.WARN, read.duplicates, read.yaml_remarks)

        return work

    return of


def keys(number: int) -> bytes:
    return msgspec.json.encode(config_map(number))


def same_keys(number: int) -> bytes:
    return b'{"kind":"ConfigMap","apiVersion":"v1","data":{' + b",".join([b'"a":"b"'] * number) + b"}}"


def pairs_of_keys(number: int) -> bytes:
    listed = [b'"k%d":"a"' % index for index in range(number)] * 2
    return b'{"kind":"ConfigMap","apiVersion":"v1","data":{' + b",".join(listed) + b"}}"


def unknown_fields(number: int) -> bytes:
    return b'{"metadata":{' + b",".join(b'"u%d":{}' % index for index in range(number)) + b"}}"


def deep(opened: bytes, closed: bytes = b"") -> Callable[[int], bytes]:
    return lambda number: opened * number + b"1" + closed * number


def numbers(number: int) -> bytes:
    return b'{"metadata":{"generation":' + b"9" * number * 10 + b"}}"


def many_numbers(number: int) -> bytes:
    return b'{"spec":{"x":[' + b",".join([b"9" * 90 + b"." + b"9" * 90] * number) + b"]}}"


def escapes(number: int) -> bytes:
    return b'{"data":{"a":"' + b"\\ud800" * number * 4 + b'"}}'


def yaml_keys(number: int) -> bytes:
    return b"data:\n" + b"".join(b"  k%d: x\n" % index for index in range(number))


def yaml_same_keys(number: int) -> bytes:
    return b"data:\n" + b"  k: x\n" * number


def yaml_aliases(number: int) -> bytes:
    return b"a: &a x\ndata:\n" + b"".join(b"  k%d: *a\n" % index for index in range(number))


def yaml_anchors(number: int) -> bytes:
    return b"data:\n" + b"".join(b"  k%d: &a%d x\n" % (index, index) for index in range(number))


def yaml_merges(number: int) -> bytes:
    return b"a: &a {k: x}\ndata:\n  <<: [" + b",".join([b"*a"] * number) + b"]\n"


def yaml_comments(number: int) -> bytes:
    return b"# x\n\n" * number + b"data: {}\n"


def varint(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes((*found, number))


def field_of(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def in_protobuf(message: bytes) -> bytes:
    return b"k8s\x00" + field_of(1, field_of(1, b"v1") + field_of(2, b"ConfigMap")) + field_of(2, message)


def protobuf_data(number: int) -> bytes:
    entries = (field_of(1, b"k%d" % index) + field_of(2, b"x") for index in range(number))
    return in_protobuf(b"".join(field_of(2, entry) for entry in entries))


def protobuf_metadata(number: int) -> bytes:
    """The same message again and again, of which the last one counts."""
    return in_protobuf(field_of(1, field_of(1, b"m")) * number)


def protobuf_unknown(number: int) -> bytes:
    return in_protobuf(field_of(99, b"x") * number)


def patch_of_keys(number: int) -> Work:
    patch = msgspec.json.decode(pairs_of_keys(number))
    return lambda: merge_patch(config_map(0), patch)


def long_pointers(number: int) -> Work:
    listed = [{"op": "test", "path": "/data" + "/a" * (number // 10), "value": 1} for _ in range(10)]
    return lambda: json_patch(config_map(1), listed)


def escaped_pointers(number: int) -> Work:
    listed = [{"op": "add", "path": "/data/" + "~1~0" * (number // 10), "value": "x"} for _ in range(10)]
    return lambda: json_patch(config_map(1), listed)


def applied_finalizers(number: int) -> Work:
    wanted = {**config_map(0), "metadata": {"name": "m", "finalizers": [f"a/{index}" for index in range(number)]}}

    def work() -> object:
        first = apply(MAPS, None, wanted, "a", NOW, False)
        return apply(MAPS, first, wanted, "b", NOW, True)

    return work


def stored(write: Callable[[ObjectStore, ObjectRegistry, int], Awaitable[None]]) -> Callable[[int], Work]:
    """Work on a store of its own."""

    def of(number: int) -> Work:
        async def run() -> None:
            store = ObjectStore(NoFile(), SystemClock())
            async with Supervisor("test") as tasks:
                tasks.start_root("writer", store.keep_writing())
                await write(store, ObjectRegistry(store), number)

        return lambda: asyncio.run(run())

    return of


async def finalizers_one_by_one(store: ObjectStore, registry: ObjectRegistry, number: int) -> None:
    """An object with many finalizers, of which ten are taken away while it waits for them."""
    names = [f"example.com/{index}" for index in range(number)]
    meta = {"name": "m", "namespace": "n", "uid": "u", "creationTimestamp": "", "finalizers": names, **DELETED}
    found: Json = {"kind": "ConfigMap", "apiVersion": "v1", "metadata": meta}
    await store.write(lambda at: at.put(StoredKey("configmaps", "n", "m"), found))
    for index in range(10):

        def edit(old: Json | None, left: int = index + 1) -> Json:
            assert old is not None
            return {**old, "metadata": {**old["metadata"], "finalizers": names[left:]}}

        await registry.update(MAPS, "n", "m", edit, WriteOptions(CONTROL, "m"))


def watched(labels: str, fields: str, objects: int = 20, size: int = 1) -> Callable[[int], Work]:
    """Many watches with this selector, and changes of some objects, every second one of which it takes."""

    async def work(store: ObjectStore, _: ObjectRegistry, number: int) -> None:
        async def put(index: int, color: str) -> None:
            more = {f"k{label}": "x" for label in range(size)}
            meta = {"name": f"m{index}", "namespace": "n", "labels": {"color": color} | more}
            found = {"kind": "ConfigMap", "apiVersion": "v1", "metadata": meta}
            await store.write(lambda at: at.put(StoredKey("configmaps", "n", f"m{index}"), found))

        await put(0, "red")
        shared, users = SharedLines(), PartsOfUsers()
        options = read_list_options(Request("GET", "/", f"watch=1&resourceVersion={store.version}"), is_watch=True)
        request = WatchRequest(MAPS, "n", "", read_selectors(MAPS, labels, fields), options, Accepted())
        watches = [
            WatchStream(store, request, AnswerParts(users, "u", lambda: None), shared) for _ in range(number // 20)
        ]
        for watch in watches:
            assert await anext(watch) == b""
        for index in range(objects):
            await put(index, "blue" if index % 2 else "red")
        for watch in watches:
            seen = 0
            while seen < objects // 2:
                seen += (await anext(watch)).count(b"\n")
            await watch.aclose()

    return stored(work)


def a_watch_of_many_labels(number: int) -> Work:
    return watched("color=blue", "", 4, number)(40)


def waiting_in_namespaces(number: int) -> Work:
    """Namespaces that are deleted, each with an object that waits."""
    found = []
    for index in range(number // 2):
        place = thing("v1", "Namespace", f"n{index}", metadata=DELETED, spec={"finalizers": ["kubernetes"]})
        waits = thing("v1", "ConfigMap", "m", f"n{index}", metadata={**DELETED, "finalizers": ["a/b"]})
        found += [place, waits]
    view = Objects(*found)
    return lambda: namespaces(view)


def waiting_claims(number: int) -> Work:
    names = ["kubernetes.io/pvc-protection", *(f"a/{index}" for index in range(20))]
    found = [
        thing("v1", "PersistentVolumeClaim", f"c{index}", "n", metadata={**DELETED, "finalizers": names}, spec={})
        for index in range(number)
    ]
    view = Objects(*found)
    return lambda: protection(view)


def waiting_for_orphans(number: int) -> Work:
    """Many that are deleted and shall leave what they own, and own nothing."""
    names = [*(f"a/{index}" for index in range(20)), "orphan"]
    found = [
        thing("v1", "ConfigMap", f"m{index}", "n", metadata={**DELETED, "finalizers": names}) for index in range(number)
    ]
    view = Objects(*found)
    return lambda: garbage().reconcile(view)


WORK: dict[str, Callable[[int], Work]] = {
    "keys of a JSON body": body(JSON, keys),
    "one key of a JSON body again and again": body(JSON, same_keys),
    "each key of a JSON body twice": body(JSON, pairs_of_keys),
    "unknown fields": body(JSON, unknown_fields),
    "lists in lists": body(JSON, deep(b"[", b"]")),
    "lists in lists that do not end": body(JSON, deep(b"[")),
    "maps in maps": body(JSON, deep(b'{"a":', b"}")),
    "digits of a number": body(JSON, numbers),
    "long numbers": body(JSON, many_numbers),
    "halves of characters": body(JSON, escapes),
    "keys of a YAML body": body(YAML, yaml_keys),
    "one key of a YAML body again and again": body(YAML, yaml_same_keys),
    "aliases": body(YAML, yaml_aliases),
    "anchors": body(YAML, yaml_anchors),
    "merge keys": body(YAML, yaml_merges),
    "comments": body(YAML, yaml_comments),
    "lists in lists of YAML": body(YAML, deep(b"- ")),
    "flow lists in lists of YAML": body(YAML, deep(b" [")),
    "a Pod as an apply": body(APPLY_YAML, lambda number: msgspec.json.encode(pod(number)), PODS),
    "entries of a protobuf body": body(PROTOBUF, protobuf_data),
    "one message of a protobuf body again and again": body(PROTOBUF, protobuf_metadata),
    "unknown fields of a protobuf body": body(PROTOBUF, protobuf_unknown),
    "keys of a merge patch": patch_of_keys,
    "long pointers": long_pointers,
    "pointers with escapes": escaped_pointers,
    "an apply of finalizers": applied_finalizers,
    "finalizers that are taken away": stored(finalizers_one_by_one),
    "watches with a label selector": watched("color=blue", ""),
    "watches with a field selector": watched("", "metadata.name!=m0,metadata.name!=m2"),
    "watches of an object with many labels": a_watch_of_many_labels,
    "namespaces that wait for an object each": waiting_in_namespaces,
    "claims that wait": waiting_claims,
    "objects that wait for orphans": waiting_for_orphans,
}


@pytest.mark.parametrize("name", WORK)
def test_the_cost_grows_no_faster_than_the_input(name: str) -> None:
    check_growth(WORK[name])
