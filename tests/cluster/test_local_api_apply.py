"""The local API's server-side apply and managed fields: random writes of several managers have the results of a real API server."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import msgspec
import pytest
from support.cluster import Cluster

from pykubelet_local_api.errors import StatusError
from pykubelet_local_api.kinds.decode import decode
from pykubelet_local_api.kinds.kind import ResourceKind
from pykubelet_local_api.kinds.schema import schema_of
from pykubelet_local_api.kinds.table import BY_TYPE
from pykubelet_local_api.objects import Json
from pykubelet_local_api.patch.managed import apply, record_update

WRITES = 40
#: What the server sets, which the functions under test do not.
OF_SERVER = ("uid", "resourceVersion", "creationTimestamp", "generation", "namespace")
APPLY, MERGE = "application/apply-patch+yaml", "application/merge-patch+json"


class Writer:
    """One object of a kind, with random bodies."""

    def __init__(self, kind: ResourceKind, seed: int) -> None:
        self.kind = kind
        self.random = random.Random(seed)
        self.name = f"apply-{seed}"

    def some(self, values: Json) -> Json:
        """About half of these members."""
        return {name: value for name, value in values.items() if self.random.random() < 0.5}

    def sample(self, letters: str) -> list[str]:
        """Some letters, in any order."""
        return self.random.sample(letters, self.random.randint(0, len(letters)))

    def body(self) -> Json:
        """The next body."""
        metadata = self.some(
            {
                "labels": self.some({"a": self.random.choice("xyz"), "b": ""}),
                "annotations": self.some({"q": self.random.choice("xyz")}),
                "finalizers": [f"k/{letter}" for letter in self.sample("abc")],
            }
        )
        return {"apiVersion": "v1", "kind": self.kind.name, "metadata": metadata | {"name": self.name}} | self.content()

    def content(self) -> Json:
        """What the kind has besides metadata: maps, atomic lists, and lists with keys."""
        match self.kind.name:
            case "ConfigMap":
                data = self.some({key: self.random.choice("12") for key in "abcd"})
                return self.some({"data": self.random.choice([data, data, None]), "binaryData": {"x": "eA=="}})
            case "ServiceAccount":
                names = [{"name": name} for name in self.sample("abcd")]
                secrets = [{"name": name} for name in self.sample("abcd")]
                return self.some({"imagePullSecrets": names, "secrets": secrets, "automountServiceAccountToken": True})
        ports = [{"port": self.random.randint(1, 3), "protocol": "TCP"}]
        return self.some({"subsets": [{"addresses": [{"ip": f"10.0.0.{self.random.randint(1, 3)}"}], "ports": ports}]})


def send(cluster: Cluster, method: str, path: str, body: Json, media_type: str) -> Json:
    """Send a request as the administrator; returns the object of the answer."""
    pool: Any = cluster.client.rest_client.pool_manager
    headers = {"Content-Type": media_type, "Accept": "application/json"}
    url = cluster.client.configuration.host + path
    answer = pool.request(method, url, body=msgspec.json.encode(body), headers=headers)
    found: Json = msgspec.json.decode(answer.data)
    return found


def shown(found: Json) -> Json:
    """What must be equal. Of times of managed fields, only whether there is one."""
    if found.get("kind") == "Status":
        lines = sorted(found["message"].split("\n"))
        causes = sorted((found.get("details") or {}).get("causes", ()), key=str)
        return {"code": found["code"], "lines": lines, "causes": causes}
    metadata = {name: value for name, value in found["metadata"].items() if name not in OF_SERVER}
    entries = [entry | {"time": "time" in entry} for entry in metadata.pop("managedFields", ())]
    return found | {
        "metadata": metadata,
        "managedFields": sorted(entries, key=lambda entry: (entry["manager"], entry["operation"])),
    }


def written(writer: Writer, old: Json | None, real: Json, manager: str, sent: Json | None, force: bool) -> Json:
    """What the local API makes of a write. `sent`: the body of an apply; of other writes, the managed fields are compared."""
    if sent is None:
        metadata = {name: value for name, value in real["metadata"].items() if name != "managedFields"}
        listed = record_update(writer.kind, old, real | {"metadata": metadata}, manager, time.time())
        return real | {"metadata": metadata | ({"managedFields": listed} if listed is not None else {})}
    try:
        found = apply(writer.kind, old, sent, manager, time.time(), force)
    except StatusError as error:
        return error.status()
    return decode(schema_of(writer.kind.definition), found).object


def differences(cluster: Cluster, writer: Writer) -> Iterator[str]:
    """A text for each write whose result differs."""
    collection = f"/api/v1/namespaces/{cluster.namespace}/{writer.kind.plural}"
    path, old = f"{collection}/{writer.name}", None
    for number in range(WRITES):
        manager, force = writer.random.choice(["m1", "m2", "m3", "kubectl"]), writer.random.random() < 0.4
        how = writer.random.choice(["apply", "apply", "apply", "merge", "put"] if old is not None else ["apply"])
        body = writer.body()
        query = urlencode({"fieldManager": manager} | ({"force": str(force).lower()} if how == "apply" else {}))
        method = "PUT" if how == "put" else "PATCH"
        media_type = {"apply": APPLY, "merge": MERGE, "put": "application/json"}[how]
        real = send(cluster, method, f"{path}?{query}", body, media_type)
        if real.get("code") == 422 or (how != "apply" and real.get("kind") == "Status"):
            continue  # validation is no matter of patches
        own = written(writer, old, real, manager, body if how == "apply" else None, force)
        if shown(real) != shown(own):
            yield f"{number} {how} {manager} {body}\nwas {old}\nreal {shown(real)}\nown  {shown(own)}"
        if real.get("kind") != "Status":
            old = real


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["ConfigMap", "Endpoints", "ServiceAccount"])
def test_apply_and_managed_fields_are_those_of_the_api_server(newest_cluster: Cluster, name: str, seed: int) -> None:
    found = list(differences(newest_cluster, Writer(BY_TYPE["v1", name], seed)))
    assert not found, "\n".join(found[:3])
