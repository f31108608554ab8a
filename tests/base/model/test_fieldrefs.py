"""References of the downward API, shared by variables and files."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from pykubelet.base.api.core import Pod, ResourceFieldSelector
from pykubelet.base.api.fieldpaths import split_subscript
from pykubelet.base.model.fieldrefs import (
    FieldRefError,
    file_resource_text,
    metadata_text,
    needs_allocatable,
    variable_resource_text,
)

ALLOCATABLE = {"cpu": 4000, "memory": 1 << 30, "ephemeral-storage": 10 << 30}


def pod(limits: Any = None, requests: Any = None, **spec: Any) -> Pod:
    metadata = {
        "name": "web",
        "namespace": "shop",
        "uid": "u1",
        "labels": {"app": "w"},
        "annotations": {"Example.com/X": "x"},
    }
    main = {"name": "main", "resources": {"limits": limits or {}, "requests": requests or {}}}
    spec = {"containers": [main, {"name": "plain"}], **spec}
    return msgspec.convert({"metadata": metadata, "spec": spec}, Pod)


def select(resource: str, container: str = "main", divisor: str | None = None) -> ResourceFieldSelector:
    return ResourceFieldSelector(containerName=container, resource=resource, divisor=divisor)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("metadata.name", "web"),
        ("metadata.namespace", "shop"),
        ("metadata.uid", "u1"),
        ("metadata.labels['app']", "w"),
        ("metadata.labels['none']", ""),
        ("metadata.annotations['Example.com/X']", "x"),
        ("metadata.labels", None),
        ("metadata.labels[app]", None),
        ("spec.x['app']", None),
        ("status.podIP", None),
    ],
)
def test_metadata(path: str, text: str | None) -> None:
    assert metadata_text(pod(), path) == text


def test_keys_that_nothing_can_have() -> None:
    with pytest.raises(FieldRefError, match=r"^invalid key subscript in metadata.labels\['a b'\]: "):
        metadata_text(pod(), "metadata.labels['a b']")
    with pytest.raises(FieldRefError, match="invalid key subscript"):
        metadata_text(pod(), "metadata.labels['Example.com/x']")


def test_subscripts() -> None:
    assert split_subscript("a.b['c']") == ("a.b", "c")
    assert split_subscript("a.b['c['d']") == ("a.b", "c['d")
    assert [split_subscript(path) for path in ("a.b", "['c']", "a['c'", "a[c]")] == [None] * 4


@pytest.mark.parametrize(
    ("resource", "divisor", "text"),
    [
        ("limits.cpu", None, "2"),
        ("limits.cpu", "1m", "1500"),
        ("limits.cpu", "0", "2"),
        ("limits.memory", None, "100000000"),
        ("limits.memory", "1Mi", "96"),
        ("requests.cpu", "1m", "250"),
        ("requests.memory", None, "0"),
        ("limits.ephemeral-storage", "1Gi", "10"),
        ("requests.hugepages-2Mi", "1Mi", "4"),
    ],
)
def test_resources_are_rounded_up_and_fall_back_to_the_node(resource: str, divisor: str | None, text: str) -> None:
    asked = pod({"cpu": "1500m", "memory": "100M"}, {"cpu": "250m", "hugepages-2Mi": "4Mi"})
    selector = select(resource, divisor=divisor)
    assert file_resource_text(asked, selector, ALLOCATABLE) == text
    assert variable_resource_text(asked, asked.spec.containers[1], selector, ALLOCATABLE) == text


OF_POD = {"limits": {"cpu": "3", "memory": "64Mi", "hugepages-2Mi": "8Mi", "ephemeral-storage": "1Gi"}}


@pytest.mark.parametrize(
    ("resource", "in_file", "in_variable"),
    [
        ("limits.cpu", "4", "3"),
        ("limits.memory", str(1 << 30), str(64 << 20)),
        ("limits.ephemeral-storage", str(10 << 30), str(10 << 30)),
        ("limits.hugepages-2Mi", "0", "0"),
        ("requests.cpu", "0", "0"),
    ],
)
def test_the_limit_of_the_whole_pod_stands_in_for_variables_and_not_in_files(
    resource: str, in_file: str, in_variable: str
) -> None:
    asked = pod(resources=OF_POD)
    own, other = asked.spec.containers
    assert file_resource_text(asked, select(resource), ALLOCATABLE) == in_file
    assert variable_resource_text(asked, own, select(resource, ""), ALLOCATABLE) == in_variable
    assert variable_resource_text(asked, other, select(resource), ALLOCATABLE) == in_variable


def test_huge_pages_of_a_container_are_its_own() -> None:
    asked = pod({"hugepages-2Mi": "4Mi"}, resources=OF_POD)
    assert file_resource_text(asked, select("limits.hugepages-2Mi"), ALLOCATABLE) == str(4 << 20)


def test_a_limit_of_zero_is_none() -> None:
    asked = pod({"cpu": "0", "memory": "0"}, resources={"limits": {"cpu": "0", "memory": "1Mi"}})
    own = asked.spec.containers[0]
    assert file_resource_text(asked, select("limits.cpu"), ALLOCATABLE) == "4"
    assert variable_resource_text(asked, own, select("limits.cpu"), ALLOCATABLE) == "4"
    assert variable_resource_text(asked, own, select("limits.memory", divisor="1Mi"), ALLOCATABLE) == "1"


def test_nothing_stands_in_for_what_the_node_does_not_have() -> None:
    asked = pod(resources=OF_POD)
    assert file_resource_text(asked, select("limits.cpu"), {}) == "0"
    assert variable_resource_text(asked, asked.spec.containers[0], select("limits.cpu"), {}) == "0"


@pytest.mark.parametrize("of_pod", [{}, OF_POD])
def test_nothing_stands_in_for_an_init_container_that_a_variable_names(of_pod: Any) -> None:
    asked = pod(resources=of_pod, initContainers=[{"name": "first"}])
    own, first = asked.spec.containers[0], asked.spec.initContainers[0]
    assert variable_resource_text(asked, own, select("limits.cpu", "first"), ALLOCATABLE) == "0"
    assert variable_resource_text(asked, first, select("limits.cpu", ""), ALLOCATABLE) == ("3" if of_pod else "4")
    assert file_resource_text(asked, select("limits.cpu", "first"), ALLOCATABLE) == "4"


def test_the_container_itself_is_meant_when_none_is_named() -> None:
    asked = pod({"cpu": "3"})
    own = asked.spec.containers[0]
    assert variable_resource_text(asked, own, select("limits.cpu", ""), ALLOCATABLE) == "3"
    assert variable_resource_text(asked, own, select("limits.cpu", "plain"), ALLOCATABLE) == "4"


@pytest.mark.parametrize(
    ("selector", "message"),
    [
        (select("limits.cpu", "other"), "container other not found"),
        (select("limits.gpu"), "unsupported container resource : limits.gpu"),
        (select("cpu"), "unsupported container resource : cpu"),
        (select("limits.cpu", divisor="many"), "quantities must match"),
    ],
)
def test_references_that_lead_nowhere(selector: ResourceFieldSelector, message: str) -> None:
    with pytest.raises(FieldRefError, match=message):
        file_resource_text(pod(), selector, {})
    with pytest.raises(FieldRefError, match=message):
        variable_resource_text(pod(), pod().spec.containers[0], selector, {})


def test_what_depends_on_the_node() -> None:
    asked = pod({"cpu": "1"})
    assert not needs_allocatable(asked, select("limits.cpu"))
    assert needs_allocatable(asked, select("limits.memory"))
    assert not needs_allocatable(asked, select("requests.memory"))
