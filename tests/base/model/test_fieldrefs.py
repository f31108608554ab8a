"""References of the downward API, shared by variables and files."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from pykubelet.base.api.core import Pod, ResourceFieldSelector
from pykubelet.base.model.fieldrefs import (
    FieldRefError,
    metadata_text,
    needs_allocatable,
    resource_text,
    split_subscript,
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
    assert resource_text(asked, select(resource, divisor=divisor), ALLOCATABLE) == text


def test_the_pods_own_limit_stands_in_before_the_node() -> None:
    asked = pod(resources={"limits": {"memory": "64Mi"}})
    assert resource_text(asked, select("limits.memory", divisor="1Mi"), ALLOCATABLE) == "64"
    assert resource_text(asked, select("limits.cpu"), ALLOCATABLE) == "4"
    assert resource_text(asked, select("limits.cpu"), {}) == "0"


def test_the_container_itself_is_meant_when_none_is_named() -> None:
    asked = pod({"cpu": "3"})
    own = asked.spec.containers[0]
    assert resource_text(asked, select("limits.cpu", ""), ALLOCATABLE, own) == "3"
    assert resource_text(asked, select("limits.cpu", "plain"), ALLOCATABLE, own) == "4"


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
        resource_text(pod(), selector, {})


def test_what_depends_on_the_node() -> None:
    asked = pod({"cpu": "1"})
    assert not needs_allocatable(asked, select("limits.cpu"))
    assert needs_allocatable(asked, select("limits.memory"))
    assert not needs_allocatable(asked, select("requests.memory"))
