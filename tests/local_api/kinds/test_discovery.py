"""Discovery: both forms have the same resources, and lines are those that a kube-apiserver 1.36 gives."""

from __future__ import annotations

from pykubelet_local_api.kinds.discovery import (
    AGGREGATED,
    aggregated_core,
    aggregated_groups,
    api_group,
    core_versions,
    discovery,
    group_list,
    resource_list,
)
from pykubelet_local_api.kinds.table import KINDS
from pykubelet_local_api.objects import Json


def lines(group: str, version: str) -> dict[str, Json]:
    """The resources of a group version by their names."""
    found = resource_list(group, version)
    assert found is not None
    return {line["name"]: line for line in found["resources"]}


def test_lines_of_resources_and_subresources() -> None:
    core = lines("", "v1")
    assert core["pods"] == {
        "name": "pods",
        "singularName": "pod",
        "namespaced": True,
        "kind": "Pod",
        "verbs": ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"],
        "shortNames": ["po"],
        "categories": ["all"],
    }
    assert core["pods/eviction"] == {
        "name": "pods/eviction",
        "singularName": "",
        "namespaced": True,
        "group": "policy",
        "version": "v1",
        "kind": "Eviction",
        "verbs": ["create"],
    }
    assert core["pods/status"]["verbs"] == ["get", "patch", "update"]
    assert core["endpoints"]["singularName"] == "endpoints"
    assert "deletecollection" not in core["namespaces"]["verbs"]
    assert lines("authentication.k8s.io", "v1")["tokenreviews"]["verbs"] == ["create"]


def test_groups() -> None:
    groups = {group["name"]: group for group in group_list()["groups"]}
    assert groups.keys() == {kind.group for kind in KINDS if kind.group}
    for name, group in groups.items():
        assert api_group(name) == {"kind": "APIGroup", "apiVersion": "v1"} | group
    assert api_group("apps") is None
    assert resource_list("apps", "v1") is None
    assert resource_list("", "v2") is None
    assert core_versions()["versions"] == ["v1"]


def test_the_aggregated_form_has_the_same() -> None:
    found = dict[tuple[str, str], set[str]]()
    for item in (*aggregated_core()["items"], *aggregated_groups()["items"]):
        for version in item["versions"]:
            names = found.setdefault((item["metadata"].get("name", ""), version["version"]), set())
            for resource in version["resources"]:
                names.add(resource["resource"])
                names |= {f"{resource['resource']}/{sub['subresource']}" for sub in resource.get("subresources", ())}
    assert found.keys() == {(kind.group, kind.version) for kind in KINDS}
    for (group, version), names in found.items():
        assert names == set(lines(group, version))


def test_the_form_is_the_one_that_the_client_takes() -> None:
    for path in ("/api", "/apis"):
        found = discovery(path, f"{AGGREGATED},application/json")
        assert found is not None
        assert found.content_type == AGGREGATED
        plain = discovery(
            path, "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json"
        )
        assert plain is not None
        assert plain.content_type == "application/json"
    assert discovery("/api/v1", "") is not None
    assert discovery("/apis/storage.k8s.io", "") is not None
    assert discovery("/apis/storage.k8s.io/v1", "") is not None
    assert discovery("/apis/apps", "") is None
    assert discovery("/apis/storage.k8s.io/v1/x", "") is None
    assert discovery("/version", "") is None
