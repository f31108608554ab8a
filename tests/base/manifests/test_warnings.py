"""Warnings about valid pods: fields that do something else than they seem to."""

from __future__ import annotations

from typing import Any

import pytest

from pykubelet.base.api import core
from pykubelet.base.api.codec import from_object
from pykubelet.base.api.core import Pod
from pykubelet.base.manifests.defaults import default_pod
from pykubelet.base.manifests.warnings import huge_numbers, pod_warnings, unknown_fields, without_unknown

SECCOMP = "has no effect: use the field securityContext.seccompProfile"


def warnings(
    spec: dict[str, Any] | None = None, annotations: dict[str, str] | None = None, **container: Any
) -> list[str]:
    pod = {
        "metadata": {"name": "p", "annotations": annotations or {}},
        "spec": {"containers": [{"name": "c", "image": "x:1", **container}], **(spec or {})},
    }
    return [f"{path}: {reason}" for path, reason in pod_warnings(default_pod(from_object(Pod, pod)))]


def test_an_ordinary_pod_has_none() -> None:
    ports = [{"name": "web", "containerPort": 80, "hostPort": 80, "hostIP": "127.0.0.1"}]
    env = [{"name": "A", "value": "1"}, {"name": "A", "value": "$(A)2"}, {"name": "B", "value": "x"}]
    resources = {"limits": {"memory": "1.5Gi", "cpu": "100m"}, "requests": {"memory": "0.5Ki"}}
    assert warnings(ports=ports, env=env, resources=resources) == []


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        ("400m", '"400m" is not a whole number of bytes: it counts as 1; did you mean 400M or 400Mi?'),
        ("1500m", '"1500m" is not a whole number of bytes: it counts as 2; did you mean 1500M or 1500Mi?'),
    ],
)
def test_a_fraction_of_a_byte(amount: str, text: str) -> None:
    at = "spec.containers[0].resources"
    assert warnings(resources={"limits": {"memory": amount}}) == [f"{at}.limits[memory]: {text}"]
    assert warnings(resources={"requests": {"ephemeral-storage": amount}}) == [
        f"{at}.requests[ephemeral-storage]: {text}"
    ]
    assert warnings({"overhead": {"memory": amount}}) == [f"spec.overhead[memory]: {text}"]
    volumes = [{"name": "v", "emptyDir": {"sizeLimit": amount}}]
    assert warnings({"volumes": volumes}) == [f"spec.volumes[0].emptyDir.sizeLimit: {text}"]
    own = warnings({"resources": {"limits": {"memory": amount}}})
    assert own == [f"spec.resources.limits[memory]: {text}"]


def test_a_variable_that_replaces_another() -> None:
    env = [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}, {"name": "A", "value": "$(A)"}]
    assert warnings(env=env) == [
        'spec.containers[0].env[1]: replaces an earlier value of "A"',
        'spec.containers[0].env[2]: replaces an earlier value of "A"',
    ]


def test_ports() -> None:
    other = {"name": "d", "image": "x:1", "ports": [{"name": "web", "containerPort": 81}]}
    spec = {
        "containers": [
            {"name": "c", "image": "x:1", "ports": [{"name": "web", "containerPort": 80, "hostIP": "::1"}]},
            other,
        ]
    }
    assert warnings(spec) == [
        "spec.containers[0].ports[0].hostIP: has no effect without hostPort",
        "spec.containers[1].ports[0].name: spec.containers[0].ports[0] has the same name, which counts for a Service",
    ]


def test_a_negative_grace_period() -> None:
    text = "spec.terminationGracePeriodSeconds: a negative time counts as 1"
    assert warnings({"terminationGracePeriodSeconds": -5}) == [text]


def test_annotations_that_lost_their_effect() -> None:
    pod, container = "seccomp.security.alpha.kubernetes.io/pod", "container.seccomp.security.alpha.kubernetes.io/c"
    assert warnings(annotations={pod: "x", container: "x", "other": "x"}) == [
        f"metadata.annotations[{container}]: {SECCOMP}",
        f"metadata.annotations[{pod}]: {SECCOMP}",
    ]
    profile = {"seccompProfile": {"type": "RuntimeDefault"}}
    assert warnings({"securityContext": profile}, {pod: "x"}) == []
    assert warnings(annotations={container: "x"}, securityContext=profile) == []
    critical = "scheduler.alpha.kubernetes.io/critical-pod"
    assert warnings(annotations={critical: ""}) == [
        f"metadata.annotations[{critical}]: has no effect: use the field priorityClassName"
    ]


def test_unknown_fields_are_named_with_their_paths() -> None:
    pod = {
        "metadata": {"managedFields": [{"anything": 1}], "labels": {"any": "key"}, "nam": "x"},
        "spec": {
            "containers": [{"name": "c"}, {"image": "x", "resources": {"limits": {"a/b": 1}, "limit": {}}}],
            "affinity": {"nodeAffinity": {"required": {}}},
            "volumes": "not a list",
        },
        "extra": None,
    }
    assert [(member.path, member.near) for member in unknown_fields(core.Pod, pod)] == [
        ("metadata.nam", "name"),
        ("spec.containers[1].resources.limit", "limits"),
        ("spec.affinity.nodeAffinity.required", None),
        ("extra", None),
    ]
    assert without_unknown(core.Pod, pod) == {
        "metadata": {"labels": {"any": "key"}},
        "spec": {
            "containers": [{"name": "c"}, {"image": "x", "resources": {"limits": {"a/b": 1}}}],
            "affinity": {"nodeAffinity": {}},
            "volumes": "not a list",
        },
    }


def test_names_that_python_keeps_for_itself_are_known() -> None:
    assert unknown_fields(core.ListMeta, {"continue": "x", "continue_": "y"})[0].path == "continue_"


def test_numbers_that_do_not_fit_are_found() -> None:
    assert huge_numbers({"a": [1, 1 << 63], "b": {"c": -(1 << 63)}, "d": 1e300, "e": True}) == ["a[1]"]
