"""Label and field selectors, compared with what the documentation states."""

from __future__ import annotations

from typing import Any

import pytest

from pykubelet_local_api.errors import StatusError
from pykubelet_local_api.kinds.table import STORED
from pykubelet_local_api.rest.selectors import MAX_BYTES, read_selectors

PODS, EVENTS = STORED["pods"], STORED["events"]


def pod(labels: dict[str, str] | None = None, **fields: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "web", "namespace": "default", "labels": labels or {}},
        "spec": {},
        "status": {},
        **fields,
    }


@pytest.mark.parametrize(
    ("selector", "labels", "fits"),
    [
        ("", {}, True),
        ("app", {"app": ""}, True),
        ("app", {}, False),
        ("!app", {}, True),
        ("! app", {"app": "x"}, False),
        ("app=x", {"app": "x"}, True),
        ("app==x", {"app": "y"}, False),
        ("app!=x", {}, True),
        ("app!=x", {"app": "x"}, False),
        ("app=", {"app": ""}, True),
        ("app in (x, y)", {"app": "y"}, True),
        ("app in (x, y)", {}, False),
        ("app notin (x,y)", {}, True),
        ("app notin (x,y)", {"app": "x"}, False),
        ("app in ()", {"app": ""}, True),
        ("app in (x,y),tier!=front,!old", {"app": "x", "tier": "back"}, True),
        ("app in (x,y),tier!=front,!old", {"app": "x", "old": "1"}, False),
        ("example.com/app=x", {"example.com/app": "x"}, True),
        ("in in (in)", {"in": "in"}, True),
    ],
)
def test_a_label_selector_takes(selector: str, labels: dict[str, str], fits: bool) -> None:
    assert read_selectors(PODS, selector, "")(pod(labels)) is fits


@pytest.mark.parametrize(
    "selector", ["=x", "app in x", "app in (x", "app,", "app x", "a/b/c=d", "app=a b", "app>x", "app=" + "x" * 70]
)
def test_a_wrong_label_selector_is_refused(selector: str) -> None:
    with pytest.raises(StatusError, match=r"unable to parse requirement|expected:") as caught:
        read_selectors(PODS, selector, "")
    assert caught.value.code == 400


@pytest.mark.parametrize(
    ("selector", "fields", "fits"),
    [
        ("metadata.name=web", {}, True),
        ("metadata.name!=web", {}, False),
        ("metadata.namespace=default,metadata.name=web", {}, True),
        ("spec.nodeName=", {}, True),
        ("spec.nodeName=n", {"spec": {"nodeName": "n"}}, True),
        ("status.phase!=Succeeded,status.phase!=Failed", {"status": {"phase": "Running"}}, True),
        ("status.phase!=Succeeded,status.phase!=Failed", {"status": {"phase": "Failed"}}, False),
        ("spec.hostNetwork=false", {}, True),
    ],
)
def test_a_field_selector_takes(selector: str, fields: dict[str, Any], fits: bool) -> None:
    assert read_selectors(PODS, "", selector)(pod(**fields)) is fits


def test_the_source_of_an_event_is_its_component() -> None:
    event = {"metadata": {"name": "e"}, "source": {"component": "kubelet"}}
    assert read_selectors(EVENTS, "", "source=kubelet")(event)


def test_a_field_that_cannot_be_selected_is_refused() -> None:
    with pytest.raises(StatusError, match=r"field label not supported: spec\.containers"):
        read_selectors(PODS, "", "spec.containers=x")


def test_a_selector_has_a_bound() -> None:
    with pytest.raises(StatusError, match="bytes"):
        read_selectors(PODS, "a" * (MAX_BYTES + 1), "")
