"""Tables: what `kubectl get` prints. The cells are those of an API server 1.36 (tests/cluster/test_local_api_strategies.py)."""

# ruff: noqa: E501  one case is one line
from __future__ import annotations

from typing import Any

import pytest
from local_api.strategies.stored import NOW, kind_of
from local_api.strategies.tables import PODS, pod_body

from pykubelet_local_api.kinds.ages import since
from pykubelet_local_api.kinds.cells import CELLS
from pykubelet_local_api.kinds.columns import COLUMNS, table
from pykubelet_local_api.objects import Json, timestamp

SHOWN = {
    "t-pending": ("0/1", "Pending", "0"),
    "t-running": ("1/1", "Running", "0"),
    "t-restarted": ("1/1", "Running", "3 (379d ago)"),
    "t-restarted-early": ("1/1", "Running", "3"),
    "t-crash": ("0/1", "CrashLoopBackOff", "3 (379d ago)"),
    "t-creating": ("0/1", "ContainerCreating", "0"),
    "t-completed": ("0/1", "Completed", "0"),
    "t-failed": ("0/1", "Error", "0"),
    "t-exit": ("0/1", "ExitCode:3", "0"),
    "t-signal": ("0/1", "Signal:9", "0"),
    "t-evicted": ("0/1", "Evicted", "0"),
    "t-half": ("1/2", "Running", "0"),
    "t-half-not": ("1/2", "NotReady", "0"),
    "t-init": ("0/2", "Init:0/2", "0"),
    "t-init-second": ("0/2", "Init:1/2", "0"),
    "t-init-failed": ("0/2", "Init:Error", "2 (379d ago)"),
    "t-init-exit": ("0/2", "Init:ExitCode:2", "0"),
    "t-init-crash": ("0/2", "Init:CrashLoopBackOff", "2"),
    "t-sidecar": ("2/2", "Running", "3 (379d ago)"),
    "t-gated": ("0/1", "SchedulingGated", "0"),
}


def pod(name: str) -> Json:
    body = pod_body(name)
    status = PODS[name][1]
    if name == "t-gated":
        status = {"phase": "Pending", "conditions": [{"type": "PodScheduled", "reason": "SchedulingGated"}]}
    meta = {"name": name, "creationTimestamp": timestamp(NOW - 90)}
    return {"metadata": meta, "spec": body["spec"], "status": status}


def row(plural: str, item: Json, include: str = "None") -> Json:
    found: Json = table(kind_of(plural), [item], NOW, include, {"resourceVersion": "1"})["rows"][0]
    return found


@pytest.mark.parametrize("name", PODS)
def test_pods_are_shown_in_a_word(name: str) -> None:
    cells = row("pods", pod(name))["cells"]
    assert tuple(cells[1:4]) == SHOWN[name]
    assert (cells[0], cells[4]) == (name, "90s")


def test_more_of_a_pod() -> None:
    assert row("pods", pod("t-running"))["cells"][5:] == ["1.2.3.4", "<none>", "n", "1/2"]
    going = pod("t-running")
    going["metadata"]["deletionTimestamp"] = timestamp(NOW)
    assert row("pods", going)["cells"][2] == "Terminating"
    assert row("pods", pod("t-failed"))["conditions"][0]["reason"] == "Failed"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (-5, "<invalid>"), (-1, "0s"), (0, "0s"), (119, "119s"), (120, "2m"), (125, "2m5s"), (599, "9m59s"), (600, "10m"), (10_799, "179m"),
        (10_800, "3h"), (10_860, "3h1m"), (28_800, "8h"), (172_799, "47h"), (172_800, "2d"), (180_000, "2d2h"), (691_200, "8d"),
        (63_072_000, "2y"), (63_158_400, "2y1d"), (252_288_000, "8y"),
    ],
)  # fmt: skip
def test_ages(seconds: float, shown: str) -> None:
    assert since(seconds) == shown


@pytest.mark.parametrize(
    ("plural", "fields", "cells"),
    [
        ("nodes", {"status": {"conditions": [{"type": "Ready", "status": "True"}], "nodeInfo": {"kubeletVersion": "v1.37.0"}, "addresses": [{"type": "InternalIP", "address": "1.1.1.1"}]},
                   "spec": {"unschedulable": True}}, ["Ready,SchedulingDisabled", "<none>", "90s", "v1.37.0", "1.1.1.1", "<none>", "<unknown>", "<unknown>", "<unknown>"]),
        ("secrets", {"type": "Opaque", "data": {"a": "YQ=="}}, ["Opaque", 1, "90s"]),
        ("services", {"spec": {"type": "LoadBalancer", "clusterIPs": ["10.96.0.9"], "ports": [{"port": 80, "nodePort": 30080, "protocol": "TCP"}], "selector": {"b": "c", "a": "b"}}},
         ["LoadBalancer", "10.96.0.9", "<pending>", "80:30080/TCP", "90s", "a=b,b=c"]),
        ("endpoints", {"subsets": [{"addresses": [{"ip": f"1.1.1.{i}"} for i in range(5)], "ports": [{"port": 80}]}]}, ["1.1.1.0:80,1.1.1.1:80,1.1.1.2:80 + 2 more...", "90s"]),
        ("persistentvolumeclaims", {"spec": {"volumeName": "v", "storageClassName": "sc", "volumeMode": "Block"}, "status": {"phase": "Bound", "accessModes": ["ReadWriteMany", "ReadWriteOnce"], "capacity": {"storage": "1Gi"}}},
         ["Bound", "v", "1Gi", "RWO,RWX", "sc", "<unset>", "90s", "Block"]),
        ("resourceclaims.resource.k8s.io", {"status": {"allocation": {"devices": {}}, "reservedFor": [{}]}}, ["allocated,reserved", "90s"]),
        ("certificatesigningrequests.certificates.k8s.io", {"spec": {"signerName": "a/b", "username": "u", "expirationSeconds": 86400}, "status": {"conditions": [{"type": "Approved"}], "certificate": "x"}},
         ["90s", "a/b", "u", "24h", "Approved,Issued"]),
        ("roles.rbac.authorization.k8s.io", {}, ["2027-01-15T07:58:30Z"]),
    ],
)  # fmt: skip
def test_other_kinds(plural: str, fields: dict[str, Any], cells: list[Any]) -> None:
    item = {"metadata": {"name": "a", "creationTimestamp": timestamp(NOW - 90)}, **fields}
    assert row(plural, item)["cells"] == ["a", *cells]


def test_rows_have_as_many_cells_as_columns() -> None:
    assert CELLS.keys() == COLUMNS.keys()
    for resource, columns in COLUMNS.items():
        item: Json = {"metadata": {"name": "a"}, "spec": {}}
        assert len(row(resource, item)["cells"]) == len(columns), resource


def test_what_a_row_has_of_its_object() -> None:
    item = pod("t-failed")
    assert row("pods", item, "Object")["object"] == item
    assert row("pods", item, "Metadata")["object"] == {
        "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": item["metadata"],
    }  # fmt: skip
    assert row("pods", item)["object"] is None
