"""Requests that are wrong as HTTP: paths, methods, media types and bodies that no API server takes."""

from __future__ import annotations

from collections.abc import Iterator

from local_api.requests.reads import JSON_PATCH, MAPS, MERGE, PODS, STRATEGIC, delete, get, post
from local_api.requests.sides import Step


def http_errors() -> Iterator[Step]:
    for path in (
        "/nope",
        "/api/v2",
        "/api/v1/nopes",
        "/api/v1/nopes/a",
        "/apis/nope",
        "/apis/nope/v1",
        "/apis/coordination.k8s.io/v9",
        "/apis/coordination.k8s.io/v1/nopes",
        f"{MAPS}/m1/status",
        f"{MAPS}/m1/nope",
        f"{MAPS}/m1/status/x",
        "/api/v1/namespaces/{ns}/nodes",
        "/api/v1/namespaces/{ns}/nopes",
        "/api/v1/namespaces/nope/configmaps",
        "/api/v1/namespaces/nope",
        "/api/v1/namespaces/{ns}/leases/",
        "/api/v1/configmaps/m1",
        "/api/v1//configmaps",
        "/api/v1/namespaces/{ns}/pods/nope/log",
        "/api/v1/namespaces/{ns}/pods/nope/status",
        "/api/v1/namespaces/{ns}/pods/nope/binding",
        "/api/v1/namespaces/{ns}/pods/nope/eviction",
        "/api/v1/namespaces/{ns}/serviceaccounts/default/token",
        "/api/v1/namespaces/{ns}/bindings",
        "/apis/authentication.k8s.io/v1/tokenreviews",
        "/apis/authorization.k8s.io/v1/subjectaccessreviews/x",
        "/openapi/nope",
        "/healthz/nope",
        "/livez/ping",
        "/version/x",
        "/api/v1/namespaces/{ns}/finalize",
        "/api/v1/nodes/nope",
        "/api/v1/nodes/nope/status",
        "/apis/certificates.k8s.io/v1/certificatesigningrequests/nope/approval",
    ):
        yield get(path)
    for method, path in (
        ("PUT", MAPS),
        ("PATCH", MAPS),
        ("POST", f"{MAPS}/m1"),
        ("POST", "/api/v1/configmaps"),
        ("PUT", "/api/v1"),
        ("DELETE", "/api/v1"),
        ("POST", "/version"),
        ("POST", "/nope"),
        ("OPTIONS", MAPS),
        ("TRACE", MAPS),
        ("DELETE", "/api/v1/nodes/nope/status"),
        ("POST", "/api/v1/nodes/nope/status"),
        ("DELETE", f"{PODS}/nope/status"),
        ("PUT", f"{PODS}/nope/binding"),
        ("GET", f"{PODS}/nope/binding"),
        ("PUT", "/apis/authentication.k8s.io/v1/tokenreviews"),
        ("DELETE", "/apis/authentication.k8s.io/v1/tokenreviews"),
        ("GET", "/apis/authentication.k8s.io/v1/tokenreviews/x"),
        ("HEAD", f"{MAPS}/m1"),
        ("HEAD", MAPS),
        ("PATCH", "/api/v1/namespaces/{ns}/finalize"),
        ("PUT", "/api/v1/namespaces/nope/finalize"),
        ("PATCH", "/api/v1/namespaces/{ns}/serviceaccounts/default/token"),
        ("PUT", "/api/v1/namespaces/{ns}/pods/x/eviction"),
        ("DELETE", "/api/v1/namespaces/{ns}/pods/x/log"),
    ):
        yield Step(method, path, {} if method in ("PUT", "PATCH", "POST") else None)
    for accept in (
        "text/plain",
        "application/xml",
        "application/json;as=Nope;v=v1;g=meta.k8s.io",
        "application/json;as=Table;v=v2;g=meta.k8s.io",
        "application/json;as=Table;v=v1;g=nope",
        "*/*",
        "text/html, */*",
        "text/html,application/json;q=0.5",
        "",
        "nonsense",
        "application/json;as=Table;v=v1;g=meta.k8s.io,application/json",
        "application/json; charset=utf-8",
        "application/json;as=Table",
    ):
        yield get(f"{MAPS}/m1", accept=accept)
        yield get(f"{MAPS}?labelSelector=n%3D1", accept=accept)
    for accept in ("text/plain", "application/json;as=Nope;v=v1;g=meta.k8s.io"):
        yield get(f"{MAPS}?watch=1&timeoutSeconds=1", accept=accept)
        yield post(MAPS, {"metadata": {"name": "y"}}, accept=accept)
        yield delete(f"{MAPS}/nope", accept=accept)
        yield get(f"{MAPS}/nope", accept=accept)
        yield get("/nope", accept=accept)
    for content_type in (
        "text/plain",
        "application/xml",
        "application/json; charset=utf-8",
        "",
        "nonsense",
        "application/merge-patch+json",
        "application/x-www-form-urlencoded",
        "application/cbor",
    ):
        yield post(MAPS + "?dryRun=All", {"metadata": {"name": "z"}}, content_type=content_type)
        yield Step("PUT", f"{MAPS}/m1?dryRun=All", {"metadata": {"name": "m1"}}, content_type=content_type)
        yield Step("PATCH", f"{MAPS}/m1?dryRun=All", {"data": {}}, content_type=content_type)
    for body in BODIES:
        yield Step("POST", MAPS + "?dryRun=All", body)
        yield Step("PUT", f"{MAPS}/m1?dryRun=All", body)
        for patch in (MERGE, JSON_PATCH, STRATEGIC):
            if b"kind" not in body:
                yield Step("PATCH", f"{MAPS}/m1?dryRun=All", body, content_type=patch)
        if (
            body.startswith(b'{"metadata') and b"kind" not in body
        ):  # errors in YAML are stated in the words of its reader
            yield Step(
                "PATCH", f"{MAPS}/m1?dryRun=All&fieldManager=x", body, content_type="application/apply-patch+yaml"
            )


BODIES = (
    *(
        b"",
        b"{",
        b"[]",
        b"null",
        b"1",
        b'"x"',
        b"{}x",
        b'{"metadata":1}',
        b'{"metadata":{"name":1}}',
        b'{"data":{"a":1}}',
    ),
    *(
        b"\xff",
        b"a: b",
        b'{"kind":1}',
        b'{"metadata":{"name":"q","labels":[]}}',
        b'{"metadata":null}',
        b'{"a" 1}',
        b'{"a":1,}',
    ),
    *(
        b'{"metadata":{"name":"q","labels":{"a":null}}}',
        b'{"a":[1 2]}',
        b'{"a":{"b":1 "c"}}',
        b'{"a":"\\x"}',
        b'{"a":"\n"}',
        b"{1:2}",
    ),
)


def reviews() -> Iterator[Step]:
    """What a client learns about itself."""
    path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
    review = {"kind": "SelfSubjectReview", "apiVersion": "authentication.k8s.io/v1"}
    for headers in (
        (("Impersonate-User", "jane"),),
        (("Impersonate-User", "jane"), ("Impersonate-Group", "z")),
        (("Impersonate-User", "jane"), ("Impersonate-Group", "z,y, x")),
        (("Impersonate-User", "jane"), ("Impersonate-Group", "")),
        (("Impersonate-User", "a, b"), ("Impersonate-Extra-Scopes", "c,d")),
        (("Impersonate-Group", "z,y"),),
        (("Impersonate-User", "jane"), ("Impersonate-Group", "system:authenticated")),
        (("Impersonate-User", "system:anonymous"),),
        (("Impersonate-User", "system:serviceaccount:default:x"), ("Impersonate-Extra-Scopes", "b")),
        (("Impersonate-Group", "a"),),
    ):
        yield post(path, review, headers=headers)
