"""Every endpoint with what is as large, as deep or as many as a client can send: other clients are answered, and nothing fails.

Bounds: no iteration of the event loop takes more CPU time than `is_short` allows (50 ms, more on a slow machine), no answer is a 5xx
or much larger than the request, and small reads and writes of another client go on.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from local_api.hostile.large import LargeField, base_of, body_with, fields_of, path_is_name
from local_api.hostile.measured import MeasuredApi, SmallClient, measured_api, shown
from local_api.strategies.contract import path_of
from support.cost import is_short

from pykubelet_local_api.kinds.kind import ResourceKind
from pykubelet_local_api.kinds.table import KINDS

#: The longest that a small read or write of another client may take, on a machine that does other things too.
READ_S, WRITE_S = 3.0, 5.0
#: Bytes beside those of the request and its managed fields.
BESIDE = 1 << 20
SMALL, LARGE = 60_000, 1_300_000
MAPS, PODS = "/api/v1/namespaces/default/configmaps", "/api/v1/namespaces/default/pods"
JSON_PATCH, MERGE = "application/json-patch+json", "application/merge-patch+json"
STRATEGIC, APPLY = "application/strategic-merge-patch+json", "application/apply-patch+yaml"
Send = tuple[str, str, Any, str]
#: So many fields of a kind are one test of the sweep.
FIELDS_AT_ONCE = 60
STORED_KINDS = [kind for kind in KINDS if not kind.is_review]


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeasuredApi]:
    from pykubelet_local_api.kinds.schema import load_schemas

    load_schemas()
    with measured_api(tmp_path_factory.mktemp("api") / "data") as made:
        yield made


def check(api: MeasuredApi, method: str, path: str, body: Any = None, media_type: str = "application/json") -> int:
    """Send a request, and check what it has cost. Returns the status of the answer."""
    data = body if body is None or isinstance(body, bytes) else msgspec.json.encode(body)
    api.loop.reset()
    status, found = api.ask(method, path, data, media_type)
    held_s = api.loop.longest_s
    assert status < 500, found[:300]
    assert is_short(held_s), f"{held_s * 1000:.0f} ms: {method} {path[:100]} {status} {shown({'answer': found[:100]})}"
    return status


def check_field(api: MeasuredApi, kind: ResourceKind, field: LargeField, size: int) -> None:
    """Create an object with one large field, read it in a list and delete it."""
    path = path_of(kind, "default")
    if check(api, "POST", path, body_with(kind, field, size)) == 201:
        check(api, "GET", f"{path}?fieldSelector=metadata.name%3Dlarge")
        check(api, "DELETE", f"{path}/large?gracePeriodSeconds=0")
        check(api, "PATCH", f"{path}/large", {"metadata": {"finalizers": None}}, MERGE)


@pytest.mark.parametrize("kind", STORED_KINDS, ids=lambda kind: f"{kind.group}/{kind.name}")
def test_large_lists_and_maps_of_each_kind(api: MeasuredApi, kind: ResourceKind) -> None:
    """Two of each kind at a smaller size; `test_every_field_at_its_largest` has all."""
    own = [field for field in fields_of(kind) if not field.is_text and not field.path.startswith("metadata.")]
    for field in [*own[:2], *(field for field in fields_of(kind) if field.path == "metadata.ownerReferences")]:
        check_field(api, kind, field, SMALL)


def in_parts() -> Iterator[Any]:
    """The fields of all kinds, so many in a test that it takes a minute or two. A Pod has some 860."""
    for kind in STORED_KINDS:
        fields = [field for field in fields_of(kind) if not path_is_name(field)]
        for start in range(0, len(fields), FIELDS_AT_ONCE):
            part = fields[start : start + FIELDS_AT_ONCE]
            yield pytest.param(kind, part, id=f"{kind.group}/{kind.name}-{start // FIELDS_AT_ONCE}")


@pytest.mark.crash
@pytest.mark.parametrize(("kind", "fields"), [*in_parts()])
def test_every_field_at_its_largest(api: MeasuredApi, kind: ResourceKind, fields: list[LargeField]) -> None:
    client = SmallClient(api)
    with client.working():
        for field in fields:
            check_field(api, kind, field, LARGE)
    assert max(client.reads) < READ_S
    assert max(client.writes) < WRITE_S


def nested(depth: int) -> bytes:
    """A map in a map, and so on."""
    return b'{"a":' * depth + b"1" + b"}" * depth


def patches() -> dict[str, Send]:
    """Patches of the config map `patched`."""
    path = f"{MAPS}/patched"
    copies = [{"op": "add", "path": "/data/a", "value": "x" * 1000}]
    copies += [{"op": "copy", "from": "/data", "path": f"/data/c{number}"} for number in range(30)]
    moves = [{"op": "move", "from": "/data", "path": "/data"} for _ in range(9_000)]
    adds = [{"op": "add", "path": "/metadata/finalizers/0", "value": f"a/{number}"} for number in range(9_000)]
    labels = {f"k{number}": "" for number in range(40_000)}
    order = [f"a/{number}" for number in range(40_000)]
    return {
        "10,001 operations": ("PATCH", path, [{"op": "test", "path": "/kind", "value": ""}] * 10_001, JSON_PATCH),
        "a bomb of copies": ("PATCH", path, copies, JSON_PATCH),
        "a map that moves into itself": ("PATCH", path, moves, JSON_PATCH),
        "elements at the beginning of a list": ("PATCH", path, adds, JSON_PATCH),
        "a pointer of 100,000 parts": ("PATCH", path, [{"op": "add", "path": "/a" * 100_000, "value": 1}], JSON_PATCH),
        "a deep merge patch": ("PATCH", path, nested(90), MERGE),
        "a merge patch that is too deep": ("PATCH", path, nested(100_000), MERGE),
        "40,000 labels": ("PATCH", path, {"metadata": {"labels": labels}}, MERGE),
        "a strategic list of 40,000": ("PATCH", path, {"metadata": {"finalizers": order}}, STRATEGIC),
        "an order of 40,000": ("PATCH", path, {"metadata": {"$setElementOrder/finalizers": order}}, STRATEGIC),
        "deletions from a list": (
            "PATCH",
            path,
            {"metadata": {"$deleteFromPrimitiveList/finalizers": order}},
            STRATEGIC,
        ),
        "an apply of 40,000 labels": (
            "PATCH",
            f"{path}?fieldManager=m",
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "patched", "labels": labels}},
            APPLY,
        ),
        "an apply of aliases": (
            "PATCH",
            f"{path}?fieldManager=m",
            b"a: &a [x,x,x]\nb: &b [*a,*a,*a]\nc: [*b,*b]\n" * 50,
            APPLY,
        ),
        "an apply that is too deep": ("PATCH", f"{path}?fieldManager=m", b"- " * 50_000, APPLY),
        "a strict patch of unknown fields": (
            "PATCH",
            f"{path}?fieldValidation=Strict",
            {f"u{n}": n for n in range(50_000)},
            MERGE,
        ),
    }


def requests() -> dict[str, Send]:
    """Requests for 500 config maps, and for paths that are nothing."""
    json = "application/json"
    token = (
        base64.urlsafe_b64encode(b'{"v":"meta.k8s.io/v1","rv":1,"start":"' + b"x" * 30_000 + b'"}').decode().rstrip("=")
    )
    many = ",".join(f"!a{number}" for number in range(1000))
    return {
        "1,000 requirements": ("GET", f"{MAPS}?labelSelector={many}", None, json),
        "a watch with 1,000 requirements": ("GET", f"{MAPS}?watch=1&timeoutSeconds=1&labelSelector={many}", None, json),
        "5,000 requirements": ("GET", f"{MAPS}?labelSelector={'a,' * 5000}a", None, json),
        "a set of 10,000 values": ("GET", f"{MAPS}?labelSelector=a%20in%20({'x,' * 10_000}y)", None, json),
        "parentheses": ("GET", f"{MAPS}?labelSelector={'(' * 20_000}", None, json),
        "field requirements": ("GET", f"{MAPS}?fieldSelector={'metadata.name!=a,' * 900}", None, json),
        "backslashes": ("GET", f"{MAPS}?fieldSelector=metadata.name={'%5C' * 10_000}", None, json),
        "a token of garbage": ("GET", f"{MAPS}?continue={'A' * 40_000}", None, json),
        "a token with a long start": ("GET", f"{MAPS}?limit=1&continue={token}", None, json),
        "a list": ("GET", MAPS, None, json),
        "a list at an old version": ("GET", f"{MAPS}?resourceVersion=1&resourceVersionMatch=Exact", None, json),
        "a long path": ("GET", "/api/v1/" + "a/" * 15_000, None, json),
        "a long name": ("GET", f"{MAPS}/{'a' * 30_000}", None, json),
        "a number of 4,000 digits": ("GET", f"{MAPS}?limit={'9' * 4000}", None, json),
        "nesting": ("POST", MAPS, b"[" * 1_000_000, json),
        "nesting of maps": ("POST", MAPS, nested(200_000), json),
        "a million keys": (
            "POST",
            MAPS,
            b'{"data":{' + b",".join(b'"%d":""' % n for n in range(250_000)) + b"}}",
            json,
        ),
        "one key, again and again": ("POST", MAPS, b'{"data":{' + b",".join([b'"a":"b"'] * 250_000) + b"}}", json),
        "escapes": ("POST", MAPS, b'{"data":{"a":"' + b"\\ud800" * 300_000 + b'"}}', json),
        "rubbish": ("POST", MAPS, b"\x00\xff" * 1_000_000, json),
        "rubbish in protobuf": (
            "POST",
            MAPS,
            b"k8s\x00" + b"\x0a\xff" * 1_000_000,
            "application/vnd.kubernetes.protobuf",
        ),
        "YAML of a million lines": ("POST", MAPS, b"a:\n" * 800_000, "application/yaml"),
        "a review of 60 KiB": (
            "POST",
            "/apis/authorization.k8s.io/v1/subjectaccessreviews",
            {"spec": {"user": "u", "groups": [f"g{n}" for n in range(5_000)], "resourceAttributes": {"verb": "get"}}},
            json,
        ),
        "a token of 60 KiB": (
            "POST",
            "/apis/authentication.k8s.io/v1/tokenreviews",
            {"spec": {"token": "a." * 30_000}},
            json,
        ),
    }


@pytest.mark.parametrize("name", patches())
def test_patches(api: MeasuredApi, name: str) -> None:
    api.ask("POST", MAPS, {"metadata": {"name": "patched"}, "data": {"a": "b"}})
    check(api, *patches()[name])
    check(api, "DELETE", f"{MAPS}/patched")
    check(api, "PATCH", f"{MAPS}/patched", {"metadata": {"finalizers": None}}, MERGE)


@pytest.fixture(scope="module")
def many(api: MeasuredApi) -> Iterator[None]:
    """500 config maps."""
    for number in range(500):
        api.ask("POST", MAPS, {"metadata": {"name": f"many-{number}", "labels": {"a": "x"}}, "data": {"k": "v" * 100}})
    yield
    api.ask("DELETE", f"{MAPS}?labelSelector=a")


@pytest.mark.usefixtures("many")
@pytest.mark.parametrize("name", requests())
def test_requests(api: MeasuredApi, name: str) -> None:
    check(api, *requests()[name])


@pytest.mark.usefixtures("many")
@pytest.mark.parametrize(
    "form", ["", ";as=Table;v=v1;g=meta.k8s.io", ";as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"]
)
def test_long_lists_come_in_parts_in_each_form(api: MeasuredApi, form: str) -> None:
    api.loop.reset()
    status, data = api.ask("GET", f"{MAPS}?labelSelector=a", Accept=f"application/json{form}")
    found = msgspec.json.decode(data)
    assert (status, len(found.get("rows") or found.get("items"))) == (200, 500)
    assert is_short(api.loop.longest_s)


LARGE_MAPS = 20


@pytest.fixture(scope="module")
def large_maps(api: MeasuredApi) -> Iterator[str]:
    """Config maps of 400 KB with many keys, until the test that deletes them. Returns their path."""
    data = {f"k{number}": "x" for number in range(30_000)}
    for number in range(LARGE_MAPS):
        body = {"metadata": {"name": f"large-{number}", "labels": {"large": "x"}}, "data": data}
        assert api.ask("POST", MAPS, body)[0] == 201
    yield MAPS
    api.ask("DELETE", f"{MAPS}?labelSelector=large")


@pytest.mark.parametrize(
    "form", ["", ";as=Table;v=v1;g=meta.k8s.io", ";as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"]
)
def test_lists_of_large_objects_hold_nothing_up(api: MeasuredApi, large_maps: str, form: str) -> None:
    api.loop.reset()
    status, data = api.ask(
        "GET", f"{large_maps}?labelSelector=large&includeObject=Object", Accept=f"application/json{form}"
    )
    found = msgspec.json.decode(data)
    assert (status, len(found.get("rows") or found.get("items"))) == (200, LARGE_MAPS)
    assert is_short(api.loop.longest_s), f"{api.loop.longest_s * 1000:.0f} ms"


def test_lists_of_former_large_objects_hold_nothing_up(api: MeasuredApi, large_maps: str) -> None:
    version = msgspec.json.decode(api.ask("GET", f"{large_maps}?limit=1")[1])["metadata"]["resourceVersion"]
    for number in range(LARGE_MAPS):
        api.ask("PATCH", f"{large_maps}/large-{number}", {"data": {"k1": "y"}}, MERGE)
    api.loop.reset()
    status, _ = api.ask("GET", f"{large_maps}?labelSelector=large&resourceVersion={version}&resourceVersionMatch=Exact")
    assert status in (200, 410)
    assert is_short(api.loop.longest_s), f"{api.loop.longest_s * 1000:.0f} ms"


def test_watches_of_large_objects_hold_nothing_up(api: MeasuredApi, large_maps: str) -> None:
    """All objects at first, and then changes that come while the client does not read."""
    connection = api.connect()
    api.loop.reset()
    connection.request("GET", f"{large_maps}?watch=1&timeoutSeconds=60&labelSelector=large")
    answer = connection.getresponse()
    for _ in range(LARGE_MAPS):
        assert msgspec.json.decode(answer.readline())["type"] == "ADDED"
    for number in range(LARGE_MAPS):
        api.ask("PATCH", f"{large_maps}/large-{number}", {"data": {"k1": "z"}}, MERGE)
    for _ in range(LARGE_MAPS):
        assert msgspec.json.decode(answer.readline())["type"] == "MODIFIED"
    assert is_short(api.loop.longest_s), f"{api.loop.longest_s * 1000:.0f} ms"
    connection.close()


def test_a_deletion_of_many_large_objects_holds_nothing_up(api: MeasuredApi, large_maps: str) -> None:
    api.loop.reset()
    status, data = api.ask("DELETE", f"{large_maps}?labelSelector=large")
    assert (status, len(msgspec.json.decode(data)["items"])) == (200, LARGE_MAPS)
    assert is_short(api.loop.longest_s), f"{api.loop.longest_s * 1000:.0f} ms"


@pytest.mark.usefixtures("many")
def test_readers_that_do_not_read_hold_nothing_up(api: MeasuredApi) -> None:
    slow = [api.connect() for _ in range(20)]
    for connection in slow:
        connection.request("GET", f"{MAPS}?watch=1&labelSelector=a")
    try:
        for number in range(100):
            check(api, "PATCH", f"{MAPS}/many-{number}", {"data": {"k": f"{number}" * 100}}, MERGE)
    finally:
        for connection in slow:
            connection.close()


def test_an_object_has_a_bound(api: MeasuredApi) -> None:
    labels = {f"k{number}": "x" * 60 for number in range(41_000)}
    check(api, "POST", MAPS, {"metadata": {"name": "huge", "labels": labels}})
    more = {f"m{number}": "x" * 60 for number in range(20_000)}
    assert check(api, "PATCH", f"{MAPS}/huge", {"metadata": {"labels": more}}, MERGE) == 413
    check(api, "DELETE", f"{MAPS}/huge")


def test_errors_of_a_large_object_are_small(api: MeasuredApi) -> None:
    names = [f"x{number}" for number in range(50_000)]
    status, data = api.ask("POST", MAPS, {"metadata": {"name": "wrong", "finalizers": names}})
    found = msgspec.json.decode(data)
    assert status == 422
    assert len(data) < BESIDE
    assert len(found["details"]["causes"]) == 100
    assert found["message"].endswith("and 49900 more]")


@pytest.mark.parametrize("kind", ["Node", "Pod", "PersistentVolume", "Service", "ConfigMap"])
def test_the_control_plane_looks_at_large_objects_beside_the_loop(api: MeasuredApi, kind: str) -> None:
    """What follows a write: the decisions of all reconcilers that read the object."""
    found = next(item for item in STORED_KINDS if item.name == kind)
    path, finalizers = path_of(found, "default"), [f"example.com/{number}" for number in range(40_000)]
    body = {**base_of(found), "metadata": {"name": "large", "finalizers": finalizers}}
    if kind == "Node":
        body["status"] = {"volumesInUse": [f"example.com/volume-{number}" for number in range(45_000)]}
    assert check(api, "POST", path, body) == 201
    for method, where, change in (
        ("DELETE", f"{path}/large?gracePeriodSeconds=0", None),
        ("PATCH", f"{path}/large", {"metadata": {"finalizers": None}}),
    ):
        assert check(api, method, where, change, MERGE) < 300
        until = time.monotonic() + 30
        while not api.api.loop.is_idle() and time.monotonic() < until:
            api.ask("GET", "/livez")
        assert is_short(api.loop.longest_s), f"{api.loop.longest_s * 1000:.0f} ms after {method}"


def test_managers_of_one_object(api: MeasuredApi) -> None:
    for number in range(60):
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "managed"}, "data": {f"k{number}": "v"}}
        assert check(api, "PATCH", f"{MAPS}/managed?fieldManager=m{number}", body, APPLY) in (200, 201)


def test_the_objects_of_the_sweep_are_admitted_before_they_get_large(api: MeasuredApi) -> None:
    """So that it measures what it shall."""
    wrong: list[str] = []
    for kind in STORED_KINDS:
        if kind.name != "CertificateSigningRequest":  # needs a real request
            body = {"metadata": {"name": "base"}, **base_of(kind)}
            status, data = api.ask("POST", f"{path_of(kind, 'default')}?dryRun=All", body)
            if status != 201:
                wrong.append(f"{kind.name}: {data[:300]!r}")
    assert not wrong, "\n".join(wrong)
