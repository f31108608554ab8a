"""Requests whose answers are the same on each API server: lists, pages, versions, watches, selectors, deletions, errors of HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

from local_api.requests.sides import Step

MAPS = "/api/v1/namespaces/{ns}/configmaps"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/{ns}/leases"
PODS = "/api/v1/namespaces/{ns}/pods"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
ONLY_METADATA = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
ONLY_METADATA_LIST = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
MERGE, JSON_PATCH = "application/merge-patch+json", "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"


def get(path: str, **rest: object) -> Step:
    return Step("GET", path, **rest)  # type: ignore[arg-type]


def post(path: str, body: object, **rest: object) -> Step:
    return Step("POST", path, body, **rest)  # type: ignore[arg-type]


def delete(path: str, body: object = None, **rest: object) -> Step:
    return Step("DELETE", path, body, **rest)  # type: ignore[arg-type]


def merge(path: str, body: object, **rest: object) -> Step:
    return Step("PATCH", path, body, content_type=MERGE, **rest)  # type: ignore[arg-type]


def config_map(name: str, labels: dict[str, str] | None = None, **data: str) -> dict[str, object]:
    return {"metadata": {"name": name, "labels": labels or {}}, "data": data}


def pod(name: str, **metadata: object) -> dict[str, object]:
    spec = {
        "schedulerName": "none",
        "serviceAccountName": "none",
        "automountServiceAccountToken": False,
        "containers": [{"name": "c", "image": "i"}],
    }
    return {"metadata": {"name": name, **metadata}, "spec": spec}


def steps() -> Iterator[Step]:
    yield from prepared()
    yield from pages()
    yield from versions()
    yield from watches()
    yield from selectors()
    yield from deletions()
    yield from collections()


def prepared() -> Iterator[Step]:
    yield post("/api/v1/namespaces", {"metadata": {"name": "{ns}"}}, save="namespace")
    yield post("/api/v1/namespaces/{ns}/serviceaccounts", {"metadata": {"name": "none"}})
    for number in range(7):
        labels = {"n": str(number), "even": str(number % 2 == 0).lower()}
        yield post(MAPS, config_map(f"m{number}", labels), save=f"m{number}")


def pages() -> Iterator[Step]:
    only = "labelSelector=n"
    yield get(f"{MAPS}?{only}&limit=3", save="p1")
    yield get(f"{MAPS}?{only}&limit=3&continue={{p1_token}}", save="p2")
    yield get(f"{MAPS}?{only}&limit=3&continue={{p2_token}}")
    for number in range(8):
        yield post(LEASES, {"metadata": {"name": f"l{number}"}, "spec": {}}, save=f"l{number}")
    yield get(f"{LEASES}?limit=3", save="q1")
    yield get(f"{LEASES}?limit=3&continue={{q1_token}}", save="q2")
    yield get(f"{LEASES}?limit=100&continue={{q2_token}}")
    yield get(f"{LEASES}?continue={{q1_token}}")
    yield get(f"{LEASES}?limit=3&continue={{q1_token}}&resourceVersion=0")
    yield get(f"{LEASES}?limit=3&continue={{q1_token}}&resourceVersion={{m1_rv}}")
    yield get(f"{LEASES}?limit=3&continue={{q1_token}}&resourceVersionMatch=Exact")
    yield get(f"{LEASES}?limit=3&continue={{q1_token}}&resourceVersionMatch=NotOlderThan&resourceVersion={{m1_rv}}")
    yield get(f"{PODS}?limit=3&continue={{q1_token}}")
    for garbage in ("x", "eyJ", "e30", "bnVsbA", quote("ü"), "====="):
        yield get(f"{MAPS}?limit=3&continue={garbage}")
    for limit in ("-1", "0", "x", "1.5", "99999999999999999999", ""):
        yield get(f"{LEASES}?limit={limit}")
    yield get(f"{MAPS}?limit=2&resourceVersion=0&labelSelector=n")
    yield get(f"{MAPS}?limit=2&resourceVersion={{m6_rv}}&resourceVersionMatch=Exact&labelSelector=n")
    yield get(f"{MAPS}?limit=2&resourceVersion={{m6_rv}}&labelSelector=n")
    yield get(f"{MAPS}?limit=2&resourceVersion={{m6_rv}}&resourceVersionMatch=NotOlderThan&labelSelector=n")
    yield get(f"{MAPS}?limit=2&labelSelector=n", accept=TABLE)
    yield get(f"{MAPS}?limit=2&labelSelector=n", accept=ONLY_METADATA_LIST)


def versions() -> Iterator[Step]:
    n = "&labelSelector=n"
    for version in (
        "0",
        "1",
        "{m3_rv}",
        "{m6_rv}",
        "9999999999",
        "x",
        "-1",
        "1.5",
        "+5",
        "99999999999999999999999",
        "",
    ):
        for match in ("", "&resourceVersionMatch=Exact", "&resourceVersionMatch=NotOlderThan"):
            if version == "9999999999":
                match += "&timeoutSeconds=1"
            if version == "1" and "Exact" in match:
                continue  # depends on compaction
            yield get(f"{MAPS}?resourceVersion={version}{match}{n}")
    yield get(f"{MAPS}?resourceVersion=0&resourceVersionMatch=Bogus")
    yield get(f"{MAPS}?resourceVersionMatch=Bogus")
    yield get(f"{MAPS}?sendInitialEvents=true")
    yield get(f"{MAPS}?sendInitialEvents=false")
    yield get(f"{MAPS}?sendInitialEvents=x")
    yield get(f"{MAPS}?sendInitialEvents=")
    for version in ("0", "1", "{m3_rv}", "9999999999"):
        yield get(f"{MAPS}/m1?resourceVersion={version}")
    yield get(f"{MAPS}/m1?resourceVersion=0&resourceVersionMatch=Exact")
    yield get(f"{MAPS}/m1?limit=x")
    yield get(f"{MAPS}/nope")
    yield get(f"{MAPS}/m1", accept=TABLE)
    yield get(f"{MAPS}/m1?includeObject=Object", accept=TABLE)
    yield get(f"{MAPS}/m1?includeObject=None", accept=TABLE)
    yield get(f"{MAPS}/m1?includeObject=x", accept=TABLE)
    yield get(f"{MAPS}/m1", accept=ONLY_METADATA)
    yield get(f"{MAPS}/m1", accept=ONLY_METADATA_LIST)
    yield get(f"{MAPS}?labelSelector=n%3D1", accept=ONLY_METADATA)
    yield get(f"{MAPS}?pretty=true&labelSelector=n%3D1")


def watches() -> Iterator[Step]:
    yield merge(f"{MAPS}/m0", {"data": {"a": "1"}})
    yield merge(f"{MAPS}/m0", {"metadata": {"labels": {"even": "false"}}}, save="m0b")
    yield merge(f"{MAPS}/m0", {"metadata": {"labels": {"even": "true"}}})
    yield delete(f"{MAPS}/m6", save="m6d")
    yield post(MAPS, config_map("m6", {"n": "6", "even": "true"}), save="m6b")
    yield delete(f"{MAPS}/m5")
    t = "watch=1&timeoutSeconds=1"
    for version in ("{m6_rv}", "{m0b_rv}", "{m6b_rv}"):
        for selector in (
            "labelSelector=n",
            "labelSelector=even%3Dtrue",
            "fieldSelector=metadata.name%3Dm0",
            "labelSelector=even%3Dfalse&fieldSelector=metadata.name!%3Dm1",
        ):
            yield get(f"{MAPS}?{t}&{selector}&resourceVersion={version}", lines=True)
    yield get(f"{MAPS}/m0?{t}&resourceVersion={{m6_rv}}", lines=True)
    yield get(f"{MAPS}?{t}&fieldSelector=metadata.name%3Dm0", lines=True)
    for accept in (TABLE, ONLY_METADATA):
        yield get(f"{MAPS}?{t}&labelSelector=even%3Dtrue&resourceVersion={{m6_rv}}", lines=True, accept=accept)
        yield get(f"{MAPS}?{t}&labelSelector=even%3Dtrue", lines=True, accept=accept)
    yield get(f"{MAPS}?{t}&labelSelector=n%3D0&includeObject=Object", lines=True, accept=TABLE)
    yield get(f"{MAPS}?{t}&labelSelector=n%3D0&includeObject=None", lines=True, accept=TABLE)
    yield get(f"{MAPS}?{t}&labelSelector=n&resourceVersion=0", lines=True)
    yield get(f"{MAPS}?{t}&labelSelector=n", lines=True)
    yield get(f"{MAPS}?{t}&labelSelector=n&limit=1", lines=True)
    yield get(f"{MAPS}?watch=0&{t[8:]}&labelSelector=n%3D1")
    for flag in ("true", "True", "yes", "false", "", "x"):
        yield get(f"{MAPS}?watch={flag}&timeoutSeconds=1&labelSelector=n%3D1", lines=True)
    yield get(f"{MAPS}?{t}&labelSelector=n&allowWatchBookmarks=true&resourceVersion=0", lines=True)
    yield get(f"{MAPS}?{t}&continue=x&labelSelector=n%3D1", lines=True)
    yield get(f"{MAPS}?{t}&resourceVersionMatch=NotOlderThan", lines=True)
    yield get(f"{MAPS}?{t}&resourceVersionMatch=Exact&resourceVersion=0", lines=True)
    for seconds in ("x",):
        yield get(f"{MAPS}?watch=1&timeoutSeconds={seconds}&labelSelector=n%3D1", lines=True)
    s = f"{t}&labelSelector=n&sendInitialEvents"
    yield get(f"{MAPS}?{s}=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true", lines=True)
    yield get(f"{MAPS}?{s}=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true", lines=True, accept=TABLE)
    yield get(
        f"{MAPS}?{s}=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true", lines=True, accept=ONLY_METADATA
    )
    yield get(f"{MAPS}?{s}=true&resourceVersionMatch=NotOlderThan", lines=True)
    yield get(f"{MAPS}?{s}=true&allowWatchBookmarks=true", lines=True)
    yield get(f"{MAPS}?{s}=true&resourceVersionMatch=Exact&allowWatchBookmarks=true", lines=True)
    yield get(
        f"{MAPS}?{s}=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&resourceVersion=0", lines=True
    )
    yield get(
        f"{MAPS}?{s}=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&resourceVersion={{m0b_rv}}",
        lines=True,
    )
    yield get(f"{MAPS}?{s}=false&resourceVersionMatch=NotOlderThan&resourceVersion={{m0b_rv}}", lines=True)
    yield get(f"{MAPS}?{s}=false&resourceVersionMatch=NotOlderThan", lines=True)
    yield get(f"{MAPS}?{s}=false&resourceVersionMatch=NotOlderThan&resourceVersion=0", lines=True)
    yield get(f"{MAPS}?{s}=x&resourceVersionMatch=NotOlderThan", lines=True)
    yield get("/api/v1/watch/namespaces/{ns}/configmaps?timeoutSeconds=1&labelSelector=n", lines=True)
    yield get("/api/v1/watch/namespaces/{ns}/configmaps/m1?timeoutSeconds=1", lines=True)
    yield get("/api/v1/watch/configmaps?timeoutSeconds=1&labelSelector=n%3D1,none", lines=True)
    yield get(f"{MAPS}?{t}&labelSelector=n%3D1&resourceVersion=0", lines=True, accept="application/json;stream=watch")


def selectors() -> Iterator[Step]:
    for text in (
        "n in (1,2)",
        "n notin (1,2),n",
        "n=1",
        "n==1",
        "n!=1,n",
        "!n,even",
        "n,!even",
        "n>3",
        "n<3",
        "n>x",
        "n in ()",
        "n in (",
        "n in",
        "n in (1",
        "in in (in)",
        "=1",
        "n=1,",
        ",",
        "n=1,,n",
        "n!1",
        "n=é",
        "é=1",
        "a/b/c=1",
        "n==",
        "n=",
        "n in (1,,2)",
        "n in (,)",
        "()",
        "n()",
        "n = 1",
        " n ",
        "n in(1)",
        "n notin(1),n",
        "x in (a)b",
        "n=1 2",
        "n 1",
        "n=!1",
        "N=1",
        "n=" + "a" * 64,
        "a" * 64 + "=1",
        "-a=1",
        "n=-a",
        "!!n",
        "!n=1",
        "n<",
        "n>=3",
        "n=>3",
        "notin=1",
        "n;1",
        "&",
        "n='1'",
        '"n"=1',
        "n\t=\n1",
    ):
        yield get(f"{MAPS}?labelSelector={quote(text)}", accept=ONLY_METADATA_LIST)
    for text in (
        "metadata.name=m1",
        "metadata.name==m1",
        "metadata.name!=m1",
        "metadata.namespace={ns}",
        "metadata.name=m1,metadata.namespace=x",
        "data=1",
        "metadata.name",
        "metadata.name=",
        "=m1",
        "metadata.name=m1,",
        ",",
        "metadata.name in (m1)",
        "metadata.name=a\\,b",
        "metadata.name=a\\b",
        "metadata.name=a=b",
        "metadata.uid=1",
        "!metadata.name",
        " metadata.name = m1",
        "metadata.name===m1",
        "metadata.labels.n=1",
        "metadata.name=a\\",
    ):
        yield get(
            f"{MAPS}?labelSelector=n&fieldSelector={quote(text)}".replace("%7Bns%7D", "{ns}"), accept=ONLY_METADATA_LIST
        )
    yield get(f"{MAPS}/m1?fieldSelector=metadata.name%3Dm2")
    yield get(f"{MAPS}/m1?labelSelector=%3D")
    yield get(f"{PODS}?fieldSelector=spec.nodeName%3D,status.phase!%3DFailed")
    yield get(f"{PODS}?fieldSelector=spec.bogus%3D1")
    yield get("/api/v1/nodes?fieldSelector=spec.bogus%3D1")
    yield get("/api/v1/nodes?fieldSelector=metadata.namespace%3D1")
    yield get("/apis/events.k8s.io/v1/namespaces/{ns}/events?fieldSelector=bogus%3D1")
    yield get("/apis/coordination.k8s.io/v1/namespaces/{ns}/leases?fieldSelector=bogus%3D1")


def deletions() -> Iterator[Step]:
    yield post(MAPS, config_map("d1"), save="d1")
    yield delete(f"{MAPS}/d1", {"preconditions": {"uid": "00000000-0000-0000-0000-000000000000"}})
    yield delete(f"{MAPS}/d1", {"preconditions": {"resourceVersion": "1"}})
    yield delete(f"{MAPS}/d1", {"preconditions": {"uid": "{d1_uid}", "resourceVersion": "1"}})
    yield delete(f"{MAPS}/d1", {"propagationPolicy": "Sideways"})
    yield delete(f"{MAPS}/d1", {"propagationPolicy": "Orphan", "orphanDependents": True})
    yield delete(f"{MAPS}/d1", {"gracePeriodSeconds": "x"})
    yield delete(f"{MAPS}/d1", {"gracePeriodSeconds": 1.5})
    yield delete(f"{MAPS}/d1", {"dryRun": ["x"]})
    yield delete(f"{MAPS}/d1", {"dryRun": ["All", "All"]})
    yield delete(f"{MAPS}/d1", {"dryRun": "All"})
    yield delete(f"{MAPS}/d1", {"bogus": 1, "dryRun": ["All"]})
    yield delete(f"{MAPS}/d1", {"kind": "Pod", "apiVersion": "v1"})
    yield delete(f"{MAPS}/d1", {"kind": "DeleteOptions", "apiVersion": "v1", "dryRun": ["All"]})
    yield delete(f"{MAPS}/d1", {"kind": "DeleteOptions", "apiVersion": "meta.k8s.io/v1", "dryRun": ["All"]})
    yield delete(f"{MAPS}/d1", {"kind": "DeleteOptions", "apiVersion": "bogus/v7", "dryRun": ["All"]})
    yield delete(f"{MAPS}/d1", {"preconditions": "x"})
    yield delete(f"{MAPS}/d1", [1])
    yield delete(f"{MAPS}/d1", b"{")
    yield delete(f"{MAPS}/d1", b"x", content_type="text/plain")
    yield delete(f"{MAPS}/d1?dryRun=All&propagationPolicy=Sideways")
    yield delete(f"{MAPS}/d1?dryRun=All&gracePeriodSeconds=x")
    yield delete(f"{MAPS}/d1?dryRun=All&orphanDependents=x")
    yield delete(f"{MAPS}/d1?dryRun=All&orphanDependents=true&propagationPolicy=Orphan")
    yield delete(f"{MAPS}/d1?dryRun=All")
    yield delete(f"{MAPS}/d1?dryRun=x")
    yield delete(f"{MAPS}/nope", {"preconditions": {"uid": "00000000-0000-0000-0000-000000000000"}})
    yield delete(f"{MAPS}/d1", {"preconditions": {"uid": "{d1_uid}", "resourceVersion": "{d1_rv}"}})
    finalized = {"metadata": {"name": "d2", "finalizers": ["example.com/a"]}}
    yield post(MAPS, finalized, save="d2")
    yield delete(f"{MAPS}/d2", save="d2d")
    yield delete(f"{MAPS}/d2")
    yield delete(f"{MAPS}/d2", {"gracePeriodSeconds": 5})
    yield merge(f"{MAPS}/d2", {"metadata": {"finalizers": ["example.com/a", "example.com/b"]}})
    yield merge(f"{MAPS}/d2", {"metadata": {"deletionTimestamp": None}})
    yield merge(f"{MAPS}/d2", {"metadata": {"deletionGracePeriodSeconds": 7}})
    yield merge(f"{MAPS}/d2", {"data": {"x": "y"}})
    yield merge(f"{MAPS}/d2", {"metadata": {"finalizers": ["bogus"]}})
    yield post(MAPS, finalized)
    yield merge(f"{MAPS}/d2", {"metadata": {"finalizers": []}})
    yield get(f"{MAPS}/d2")
    yield get(f"{MAPS}?watch=1&timeoutSeconds=1&resourceVersion={{d2_rv}}&fieldSelector=metadata.name%3Dd2", lines=True)
    yield post(PODS, pod("d3"), save="d3")
    yield delete(f"{PODS}/d3", {"gracePeriodSeconds": 30}, save="d3d")
    yield post(PODS, pod("d4", finalizers=["example.com/a"]), save="d4")
    yield delete(f"{PODS}/d4", {"gracePeriodSeconds": 30})
    yield delete(f"{PODS}/d4")
    yield merge(f"{PODS}/d4", {"metadata": {"finalizers": None}})
    yield get(f"{PODS}/d4")
    yield get(f"{PODS}?watch=1&timeoutSeconds=1&resourceVersion={{d3_rv}}&fieldSelector=metadata.name!%3Dx", lines=True)
    bound = pod("d9")
    bound["spec"]["nodeName"] = "{ns}-gone"  # type: ignore[index]
    yield post(PODS, bound, save="d9")
    yield delete(f"{PODS}/d9", {"gracePeriodSeconds": 30})
    yield delete(f"{PODS}/d9", {"gracePeriodSeconds": 40})
    yield delete(f"{PODS}/d9", {"gracePeriodSeconds": 20})
    yield delete(f"{PODS}/d9", {"gracePeriodSeconds": 20, "dryRun": ["All"]})
    yield delete(f"{PODS}/d9", {"gracePeriodSeconds": 0})
    yield get(f"{PODS}?watch=1&timeoutSeconds=1&resourceVersion={{d9_rv}}&fieldSelector=metadata.name%3Dd9", lines=True)
    yield post(PODS, pod("d5"), save="d5")
    yield delete(f"{PODS}/d5", {"gracePeriodSeconds": -1})
    yield post(PODS, pod("d6"))
    yield delete(f"{PODS}/d6?gracePeriodSeconds=0")
    yield post(MAPS, {"metadata": {"name": "d7", "finalizers": ["orphan"]}})
    yield post(MAPS, {"metadata": {"name": "d8", "finalizers": ["bogus"]}})
    yield post(MAPS, {"metadata": {"name": "d8", "finalizers": ["foregroundDeletion", "orphan"]}})
    # conflicts
    yield Step("PUT", f"{MAPS}/m1", {"metadata": {"name": "m1", "resourceVersion": "1"}})
    yield Step("PUT", f"{MAPS}/m1", {"metadata": {"name": "m1", "uid": "00000000-0000-0000-0000-000000000000"}})
    yield Step("PUT", f"{MAPS}/m1", {"metadata": {"name": "m2"}})
    yield Step("PUT", f"{MAPS}/m1", {"metadata": {"name": "m1", "namespace": "other"}})
    yield Step("PUT", f"{MAPS}/m1", {"metadata": {}})
    yield Step("PUT", f"{MAPS}/m1", {"metadata": {"name": "m1"}, "kind": "Pod", "apiVersion": "v1"})
    yield Step("PUT", f"{MAPS}/m1", {"metadata": {"name": "m1"}, "kind": "ConfigMap", "apiVersion": "v2"})
    yield Step("PUT", f"{MAPS}/nope", {"metadata": {"name": "nope"}})
    yield merge(f"{MAPS}/m1", {"metadata": {"resourceVersion": "1"}})
    yield merge(f"{MAPS}/m1", {"metadata": {"uid": "00000000-0000-0000-0000-000000000000"}})
    yield merge(f"{MAPS}/m1", {"metadata": {"name": "x"}})
    yield merge(f"{MAPS}/m1", {"metadata": {"namespace": "x"}})
    yield merge(f"{MAPS}/m1", {"kind": "Pod"})
    yield merge(f"{MAPS}/m1", {"apiVersion": "v2"})
    yield merge(f"{MAPS}/nope", {})
    yield merge(f"{MAPS}/m1", [])
    yield merge(f"{MAPS}/m1", b"{")
    yield Step(
        "PATCH",
        f"{MAPS}/m1",
        [{"op": "test", "path": "/metadata/resourceVersion", "value": "1"}],
        content_type=JSON_PATCH,
    )
    yield post(MAPS, {"metadata": {"name": "m1"}})
    yield post(MAPS, {"metadata": {"name": "v", "namespace": "other"}})
    yield post(MAPS, {"metadata": {}})
    yield post(MAPS, {})
    yield post(MAPS, {"metadata": {"generateName": "g-"}})
    yield post(MAPS, {"metadata": {"name": "UP"}})
    yield post(MAPS, {"metadata": {"name": "v"}, "kind": "Pod", "apiVersion": "v1"})
    yield post(MAPS, {"metadata": {"name": "v"}, "kind": "ConfigMap", "apiVersion": "v2"})
    yield post("/api/v1/namespaces/nope/configmaps", {"metadata": {"name": "v"}})
    yield post(MAPS + "?dryRun=x", {"metadata": {"name": "v"}})
    yield post(MAPS + "?fieldValidation=x", {"metadata": {"name": "v"}})
    yield post(MAPS + "?fieldManager=" + "m" * 129, {"metadata": {"name": "v"}})
    yield post("/api/v1/namespaces?dryRun=All", {"metadata": {"name": "{ns}-x", "namespace": "y"}})
    yield post(f"{MAPS}/m1", {"metadata": {"name": "m1"}})


def collections() -> Iterator[Step]:
    for number in range(4):
        yield post(MAPS, config_map(f"x{number}", {"x": str(number)}), save=f"x{number}")
    yield delete(f"{MAPS}?labelSelector=x%3D0&dryRun=All")
    yield delete(f"{MAPS}?labelSelector=x%3D0", accept=ONLY_METADATA_LIST)
    yield delete(f"{MAPS}?fieldSelector=metadata.name%3Dx1")
    yield delete(f"{MAPS}?labelSelector=x&limit=1")
    yield delete(f"{MAPS}?labelSelector=x&resourceVersion=x")
    yield delete(f"{MAPS}?labelSelector=%3D")
    yield delete(f"{MAPS}?labelSelector=x&watch=1")
    yield delete(f"{MAPS}?labelSelector=x", {"preconditions": {"uid": "00000000-0000-0000-0000-000000000000"}})
    yield delete(f"{MAPS}?labelSelector=x", {"propagationPolicy": "Sideways"})
    yield delete(f"{MAPS}?labelSelector=x")
    yield get(f"{MAPS}?watch=1&timeoutSeconds=1&resourceVersion={{x3_rv}}&labelSelector=x", lines=True)
    yield delete("/api/v1/namespaces")
    yield delete("/api/v1/configmaps")
    yield delete(MAPS.replace("{ns}", "nope"))
