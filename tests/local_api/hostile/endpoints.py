"""All endpoints of the local API, from the tables that serve them; and requests that no client should send, for each of them."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from local_api.hostile.large import base_of
from local_api.strategies.contract import path_of

from pykubelet.base.kit.values import Value
from pykubelet_local_api.kinds.kind import ResourceKind
from pykubelet_local_api.kinds.table import KINDS
from pykubelet_local_api.rest.other_paths import SERVED_PATHS

#: The object of each kind that is there.
NAME = "hostile"
JSON, YAML, PROTOBUF = "application/json", "application/yaml", "application/vnd.kubernetes.protobuf"
PATCHES = (
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
)
Header = tuple[str, str]


class Endpoint(Value):
    """A path. `kind`: None for a path that is no resource's. `is_watch`: whether a GET does not end."""

    path: str
    kind: ResourceKind | None = None
    subresource: str = ""
    is_named: bool = False
    is_watch: bool = False

    def __str__(self) -> str:
        return self.path


class Attack(Value):
    """A request, without the path of the endpoint. `suffix`: what follows that path."""

    name: str
    method: str
    suffix: str = ""
    headers: tuple[Header, ...] = ()
    body: bytes = b""


def endpoints_of(kind: ResourceKind) -> Iterator[Endpoint]:
    """All endpoints of a kind."""
    place = path_of(kind, "default")
    yield Endpoint(place, kind)
    if kind.is_review:
        return
    named = f"{place}/{NAME}"
    yield Endpoint(named, kind, is_named=True)
    for name in kind.subresources:
        yield Endpoint(f"{named}/{name}", kind, name, is_named=True)
    everywhere = [place.replace("/namespaces/default", "")] if kind.is_namespaced else []
    for path in everywhere:
        yield Endpoint(path, kind)
    for path in (place, named, *everywhere):
        yield Endpoint(path.replace(f"/{kind.version}/", f"/{kind.version}/watch/", 1), kind, is_watch=True)


def other_endpoints() -> Iterator[Endpoint]:
    """The endpoints that are no resource's."""
    yield from map(Endpoint, SERVED_PATHS)


def all_endpoints() -> list[Endpoint]:
    """All endpoints."""
    return [*other_endpoints(), *(endpoint for kind in KINDS for endpoint in endpoints_of(kind))]


def attacks_on(endpoint: Endpoint) -> list[Attack]:
    """All requests for an endpoint."""
    return [*_methods(), *_paths(), *_queries(), *_headers(), *_bodies(endpoint)]


def _methods() -> Iterator[Attack]:
    for method in (
        "GET",
        "HEAD",
        "POST",
        "PUT",
        "PATCH",
        "DELETE",
        "OPTIONS",
        "TRACE",
        "PROPFIND",
        "PURGE",
        "get",
        "X",
    ):
        yield Attack(f"method {method}", method, _dry(method))
    yield Attack("a body with a GET", "GET", "", (("Content-Type", JSON),), b"{}")
    yield Attack("a long method", "A" * 30_000)


def _dry(method: str) -> str:
    return "?dryRun=All" if method in ("POST", "PUT", "PATCH", "DELETE") else ""


def _paths() -> Iterator[Attack]:
    for name, suffix in {
        "a slash": "/",
        "slashes": "//" * 100,
        "an encoded slash": "%2Fa%2fb",
        "dots": "/../../../etc/passwd",
        "encoded dots": "/%2e%2e/%2E%2E/x",
        "NUL": "%00",
        "NUL below": "/%00/x",
        "no UTF-8": "%ff%fe%80",
        "half an escape": "%",
        "a wrong escape": "%zz%u0041",
        "an escape of an escape": "%252e%252e%252f",
        "line ends": "%0d%0aX-Y:%20z",
        "a very long name": "/" + "a" * 30_000,
        "a path that is too long": "/" + "a" * 70_000,
        "very many names": "/a" * 15_000,
        "parameters of the path": ";a=b;c",
        "a fragment": "#x",
        "a backslash": "\\..\\x",
        "letters of other alphabets": "/%E2%80%AE%F0%9F%92%A5",
    }.items():
        for method in ("GET", "DELETE"):
            yield Attack(f"{name}, {method}", method, suffix + _dry(method))


def _queries() -> Iterator[Attack]:
    digits = "9" * 4000
    for name, query in {
        "10,001 parameters": "&".join(["a"] * 10_001),
        "9,000 dry runs": "&".join(["dryRun=All"] * 9_000),
        "a long value": "pretty=" + "x" * 60_000,
        "no UTF-8": "fieldManager=%ff&labelSelector=%ff&fieldSelector=%80",
        "NUL": "fieldManager=%00&labelSelector=%00&fieldSelector=metadata.name=%00&resourceVersion=%00&continue=%00",
        "line ends": "fieldManager=a%0d%0ab&labelSelector=a%0d%0a",
        "huge numbers": f"limit={digits}&timeoutSeconds={digits}&gracePeriodSeconds={digits}&resourceVersion={digits}",
        "negative numbers": "limit=-1&timeoutSeconds=-9&gracePeriodSeconds=-1&resourceVersion=-1",
        "no numbers": "limit=x&timeoutSeconds=1e9&gracePeriodSeconds=%20&resourceVersion=0x1&tailLines=x&sinceSeconds=",
        "other digits": "limit=%D9%A1&gracePeriodSeconds=%D9%A1",
        "a token of garbage": "limit=1&continue=" + "A" * 40_000,
        "wrong words": "propagationPolicy=x&fieldValidation=x&resourceVersionMatch=x&watch=maybe&force=x&includeObject=x",
        "selectors": "labelSelector=a%20in%20(" + "x," * 9_000 + "y)&fieldSelector=" + "a.b!=c," * 900,
        "parentheses": "labelSelector=" + "(" * 30_000,
        "commands": "command=" + "x" * 20_000 + "&container=%2e%2e&stdin=x&tty=1&stdout=1&ports=99999999999,-1,x",
        "a path for a proxy": "path=/../..//%2e%2e/x",
        "a watch from the future": f"watch=1&resourceVersion={'9' * 18}",
        "separators": "&&&==&=&;;;&a=b=c",
    }.items():
        for method in ("GET", "DELETE", "PATCH"):
            body = b"{}" if method == "PATCH" else b""
            headers = (("Content-Type", PATCHES[1]),) if body else ()
            dry = "" if method == "GET" else "&dryRun=All"
            yield Attack(f"{name}, {method}", method, f"?{query}{dry}", headers, body)


def _headers() -> Iterator[Attack]:
    upgrade: tuple[Header, ...] = (("Connection", "Upgrade"), ("Sec-WebSocket-Version", "13"))
    sets: dict[str, tuple[Header, ...]] = {
        "a long Accept": (("Accept", "a/b," * 15_000),),
        "many Accepts": tuple(("Accept", f"a/{number};q=0.{number}") for number in range(150)),
        "parameters": (("Accept", "application/json" + ";a=b" * 10_000),),
        "a wrong form": (("Accept", "application/json;as=Table;v=v9;g=x, application/json;as=x;g=meta.k8s.io;v=v1"),),
        "no JSON": (("Accept", "text/html"),),
        "another agent": (("User-Agent", "x" * 60_000),),
        "no ASCII": (("User-Agent", "\xff\xfe"), ("Accept", "\xff/\x80")),
        "200 fields": tuple((f"X-{number}", "y") for number in range(190)),
        "300 fields": tuple((f"X-{number}", "y") for number in range(300)),
        "a wrong token": (("Authorization", "Bearer " + "x.y" * 10_000),),
        "a token of the shape": (("Authorization", "Bearer eyJhbGciOiJub25lIn0.e30."),),
        "another scheme": (("Authorization", "Basic \xff"),),
        "200 groups": (("Impersonate-User", "x"), *((("Impersonate-Group", f"g{n}")) for n in range(190))),
        "a long user": (("Impersonate-User", "system:serviceaccount:" + "x:" * 20_000),),
        "no user": (("Impersonate-Group", "system:masters"),),
        "wrong extras": (
            ("Impersonate-User", "x"),
            ("Impersonate-Extra-%zz%ff%00", "%00"),
            ("Impersonate-Uid", "\xff"),
        ),
        "compressed": (("Content-Encoding", "gzip"), ("Accept-Encoding", "x" * 10_000)),
        "a range": (("Range", "bytes=0-1,1-2,2-3" + ",4-5" * 5000), ("If-Match", '"x"'), ("If-Modified-Since", "x")),
        "a websocket": (*upgrade, ("Upgrade", "websocket"), ("Sec-WebSocket-Key", "x" * 1000)),
        "a websocket of garbage": (*upgrade, ("Upgrade", "websocket"), ("Sec-WebSocket-Protocol", "a," * 10_000)),
        "another protocol": (("Connection", "Upgrade"), ("Upgrade", "SPDY/3.1, h2c, x"), ("HTTP2-Settings", "x")),
        "a wrong length": (("Content-Length", "9" * 30),),
        "two lengths": (("Content-Length", "1"), ("Content-Length", "2")),
        "a length and chunks": (("Content-Length", "1"), ("Transfer-Encoding", "chunked")),
        "another coding": (("Transfer-Encoding", "gzip, chunked"),),
    }
    for name, headers in sets.items():
        for method in ("GET", "DELETE"):
            yield Attack(f"{name}, {method}", method, _dry(method), headers)


def _bodies(endpoint: Endpoint) -> Iterator[Attack]:
    """Bodies for all methods that take one, by all media types that could be taken."""
    bodies = dict(_broken_bodies()) | dict(_wrong_objects(endpoint.kind))
    for method in ("POST", "PUT", "DELETE"):
        for name, body in bodies.items():
            yield Attack(f"{name}, {method}", method, _dry(method), (("Content-Type", JSON),), body)
    for media_type in PATCHES:
        for name, body in bodies.items():
            headers = (("Content-Type", media_type),)
            yield Attack(f"{name}, {media_type}", "PATCH", "?dryRun=All&fieldManager=m&force=1", headers, body)
    for media_type in (
        YAML,
        PROTOBUF,
        "text/plain",
        "",
        "application/json; charset=x" + ";a" * 20_000,
        "\xff/\xff",
        "*/*",
    ):
        for name in ("nothing", "aliases", "deep lists", "protobuf"):
            for method in ("POST", "PUT"):
                headers = (("Content-Type", media_type),)
                yield Attack(f"{name}, {method} {media_type[:20]!r}", method, _dry(method), headers, bodies[name])


def _broken_bodies() -> Iterator[tuple[str, bytes]]:
    yield "nothing", b""
    yield "null", b"null"
    yield "a text", b'"x"'
    yield "a number", b"1"
    yield "a list", b"[]"
    yield "an empty object", b"{}"
    yield "deep lists", b"[" * 30_000
    yield "deep maps", b'{"a":' * 10_000
    yield "deep maps that end", b'{"metadata":' * 5_000 + b"1" + b"}" * 5_000
    yield "an infinite number", b'{"metadata":{"generation":1e999},"spec":{"x":-1e999}}'
    yield "a number of many digits", b'{"metadata":{"generation":' + b"9" * 30_000 + b"}}"
    yield "a fraction of many digits", b'{"metadata":{"generation":0.' + b"9" * 30_000 + b"}}"
    yield "keys again and again", b'{"metadata":{' + b",".join([b'"name":"hostile"'] * 2_500) + b"}}"
    yield "halves of pairs", b'{"metadata":{"name":"hostile","labels":{"\\ud800":"\\udfff"}},"\\udc00":1}'
    yield "no UTF-8", b'{"metadata":{"name":"\xff\xfe"}}'
    yield "NUL", b'{"metadata":{"name":"\\u0000","namespace":"\\u0000"}}'
    yield "rubbish", b"\x00\xff" * 20_000
    yield "protobuf", b"k8s\x00" + b"\x0a\xff" * 20_000
    yield "aliases", b"a: &a [x,x,x]\nb: &b [*a,*a,*a]\nc: &c [*b,*b]\nd: [*c,*c]\n" * 50
    yield "documents", b"---\n{}\n" * 5_000
    yield "too much", b"{" + b" " * 70_000 + b"}"


def _wrong_objects(kind: ResourceKind | None) -> Iterator[tuple[str, bytes]]:
    """Objects with values of other types, and operations of patches that do not fit."""
    base = {**base_of(kind), "metadata": {"name": NAME}} if kind is not None else {"metadata": {"name": NAME}}
    wrong: list[object] = [None, 5, "x", [], {}, [{}], [None], {"": None}, True, 1e308, -(2**63)]
    for field in ("metadata", "spec", "status", "data", "target", "apiVersion", "kind", *base):
        for number, value in enumerate(wrong):
            if (number + len(field)) % 3 == 0 or field in ("metadata", "spec"):
                yield f"{field} that is {value!r}", msgspec.json.encode({**base, field: value})
    for field in ("name", "namespace", "labels", "finalizers", "ownerReferences", "managedFields", "uid"):
        for value in (5, {}, [], [{}], "x" * 300, [None]):
            body = {**base, "metadata": {"name": NAME, field: value}}
            yield f"metadata.{field} that is {str(value)[:9]}", msgspec.json.encode(body)
    operations = [
        {"op": op, "path": path, "from": "/metadata"} for op in ("move", "test", "x") for path in ("", "/-", "/~2")
    ]
    yield "operations", msgspec.json.encode(operations)
    yield "directives", msgspec.json.encode({"$patch": "x", "metadata": {"$retainKeys": 1, "$setElementOrder/x": {}}})
