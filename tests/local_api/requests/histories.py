"""Random writes of several kinds by a seed, between them reads at versions that were seen, and at the end watches of all that happened."""

from __future__ import annotations

import random
from collections.abc import Iterator
from urllib.parse import urlencode

from local_api.requests.reads import JSON_PATCH, MERGE, ONLY_METADATA, ONLY_METADATA_LIST, TABLE, pod
from local_api.requests.sides import Step

WRITES = 120
PATHS = {
    "configmaps": "/api/v1/namespaces/{ns}/configmaps",
    "secrets": "/api/v1/namespaces/{ns}/secrets",
    "pods": "/api/v1/namespaces/{ns}/pods",
    "leases": "/apis/coordination.k8s.io/v1/namespaces/{ns}/leases",
}
NAMES = ("a", "b", "c", "d")
LABELS = ("app in (x,y)", "app", "!tier,app", "app=x,tier!=z", "tier notin (1),app", "app>1,app", "app==1")
FIELDS = ("metadata.name=a", "metadata.name!=b,metadata.name!=kube-root-ca.crt", "metadata.namespace=none")


class History:
    """The steps of one seed. `seen`: the writes whose versions later steps name."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._number = 0
        self.seen: list[str] = []

    def steps(self) -> Iterator[Step]:
        """All of them."""
        yield Step("POST", "/api/v1/namespaces", {"metadata": {"name": "{ns}"}}, save="start")
        yield Step("POST", "/api/v1/namespaces/{ns}/serviceaccounts", {"metadata": {"name": "none"}})
        self.seen.append("start")
        for _ in range(WRITES):
            step = self._write()
            yield step
            if step.save:
                self.seen.append(step.save)
            if self._random.random() < 0.3:
                read = self._read()
                # version 0 is served from a cache, which a list of the newest version brings up to date
                if "resourceVersion=0" in read.path:
                    yield Step("GET", f"{read.path.partition('?')[0]}?labelSelector=none")
                yield read
        for kind in PATHS:
            for _ in range(6):
                yield self._watch(kind)

    def _path(self, kind: str) -> str:
        return f"{PATHS[kind]}/{self._random.choice(NAMES)}"

    def _labels(self) -> dict[str, str]:
        return {
            key: self._random.choice(values)
            for key, values in (("app", ("x", "y", "1", "2")), ("tier", ("z", "1")))
            if self._random.random() < 0.6
        }

    def _body(self, kind: str, name: str) -> dict[str, object]:
        metadata: dict[str, object] = {"name": name, "labels": self._labels()}
        if self._random.random() < 0.25 and kind != "pods":  # a controller ends pods that have finalizers
            metadata["finalizers"] = ["example.com/f"]
        if kind == "pods":
            return pod(name, **{key: value for key, value in metadata.items() if key != "name"})
        data = {"data": {"k": "dg=="}} if kind != "leases" else {"spec": {"holderIdentity": self._random.choice("pq")}}
        return {"metadata": metadata, **data}

    def _write(self) -> Step:
        self._number += 1
        save = f"w{self._number}"
        kind = self._random.choice(list(PATHS))
        path = self._path(kind)
        version = f"{{{self._random.choice(self.seen)}_rv}}"
        name = path.rpartition("/")[2]
        dry = "?dryRun=All" if self._random.random() < 0.1 else ""
        match self._random.choice(
            ("create", "create", "create", "labels", "labels", "put", "test", "free", "delete", "delete", "some")
        ):
            case "create":
                return Step("POST", PATHS[kind] + dry, self._body(kind, name), save=save)
            case "labels":
                labels = {"app": None, "tier": None, **self._labels()}
                stale = {"resourceVersion": version} if self._random.random() < 0.2 else {}
                return Step(
                    "PATCH", path + dry, {"metadata": {"labels": labels, **stale}}, content_type=MERGE, save=save
                )
            case "put" if kind != "pods":
                body = self._body(kind, name)
                if self._random.random() < 0.5 or kind == "leases":
                    body["metadata"]["resourceVersion"] = version  # type: ignore[index]
                return Step("PUT", path, body, save=save)
            case "test":
                operations = [
                    {"op": "test", "path": "/metadata/labels/app", "value": "x"},
                    {"op": "add", "path": "/metadata/labels/tier", "value": self._random.choice("z1")},
                ]
                return Step("PATCH", path + dry, operations, content_type=JSON_PATCH, save=save)
            case "free":
                return Step("PATCH", path + dry, {"metadata": {"finalizers": None}}, content_type=MERGE, save=save)
            case "some":
                query = urlencode({"labelSelector": self._random.choice(LABELS), **({"dryRun": "All"} if dry else {})})
                return Step("DELETE", f"{PATHS[kind]}?{query}")
        preconditions = {"preconditions": {"resourceVersion": version}} if self._random.random() < 0.3 else {}
        grace = {"gracePeriodSeconds": self._random.choice((0, 5))} if self._random.random() < 0.3 else {}
        is_dry = {"dryRun": ["All"]} if dry else {}
        return Step("DELETE", path, {**preconditions, **grace, **is_dry}, save=save)

    def _selectors(self) -> dict[str, str]:
        labels = {"labelSelector": self._random.choice(LABELS)}
        fields = {"fieldSelector": self._random.choice(FIELDS)}
        return self._random.choice(({**labels, **fields}, labels, labels))

    def _read(self) -> Step:
        kind = self._random.choice(list(PATHS))
        query = dict(self._random.choice(({}, self._selectors(), self._selectors())))
        if kind == "configmaps" and not query:
            query = {"labelSelector": "app"}  # control planes have config maps of their own
        match self._random.choice(("now", "cached", "exact", "newer", "page", "one")):
            case "cached":
                query["resourceVersion"] = "0"
            case "exact":
                query |= {"resourceVersion": "RV", "resourceVersionMatch": "Exact"}
            case "newer":
                query |= {"resourceVersion": "RV", "resourceVersionMatch": "NotOlderThan"}
            case "page":
                query["limit"] = "2"
            case "one":
                return Step("GET", self._path(kind), accept=self._random.choice(("application/json", TABLE)))
        accept = self._random.choice(("application/json", "application/json", TABLE, ONLY_METADATA_LIST))
        return Step("GET", f"{PATHS[kind]}?{self._query(query)}", accept=accept)

    def _watch(self, kind: str) -> Step:
        query = {**self._selectors(), "watch": "1", "timeoutSeconds": "1", "resourceVersion": "RV"}
        accept = self._random.choice(("application/json", "application/json", TABLE, ONLY_METADATA))
        return Step("GET", f"{PATHS[kind]}?{self._query(query)}", lines=True, accept=accept)

    def _query(self, query: dict[str, str]) -> str:
        return urlencode(query).replace("=RV", f"={{{self._random.choice(self.seen)}_rv}}")


def steps(seed: int = 0) -> Iterator[Step]:
    return History(seed).steps()
