from __future__ import annotations

from typing import Any

import pytest

from pykubelet.base.api import codec, core
from pykubelet.base.kit.values import replace
from pykubelet.base.manifests.defaults import default_pod, default_pull_policy


def defaulted(**spec: Any) -> dict[str, Any]:
    """The spec of a pod with these fields, defaulted, as plain objects."""
    pod = codec.from_object(core.Pod, {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}], **spec}})
    return dict(codec.to_object(default_pod(pod))["spec"])


def test_smallest_pod() -> None:
    pod = codec.from_object(
        core.Pod, {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "a"}]}}
    )
    assert codec.to_object(default_pod(pod)) == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p"},
        "spec": {
            "containers": [
                {
                    "image": "a",
                    "imagePullPolicy": "Always",
                    "name": "c",
                    "terminationMessagePath": "/dev/termination-log",
                    "terminationMessagePolicy": "File",
                }
            ],
            "dnsPolicy": "ClusterFirst",
            "enableServiceLinks": True,
            "restartPolicy": "Always",
            "schedulerName": "default-scheduler",
            "securityContext": {},
            "terminationGracePeriodSeconds": 30,
        },
        "status": {},
    }


def test_what_is_given_stays() -> None:
    spec = defaulted(terminationGracePeriodSeconds=0, enableServiceLinks=False, restartPolicy="Never")
    assert (spec["terminationGracePeriodSeconds"], spec["enableServiceLinks"], spec["restartPolicy"]) == (
        0,
        False,
        "Never",
    )


@pytest.mark.parametrize(
    ("image", "policy"),
    [
        ("busybox", "Always"),
        ("busybox:latest", "Always"),
        ("busybox:1.36", "IfNotPresent"),
        ("localhost:5000/busybox", "Always"),
        ("localhost:5000/a/b:v1", "IfNotPresent"),
        ("busybox@sha256:" + "0" * 64, "IfNotPresent"),
        ("busybox:latest@sha256:" + "0" * 64, "Always"),
        ("Not An Image", "IfNotPresent"),
    ],
)
def test_pull_policy_follows_the_tag(image: str, policy: str) -> None:
    assert default_pull_policy(image) == policy


def test_probes_and_hooks() -> None:
    container = {
        "name": "c",
        "livenessProbe": {"httpGet": {"port": 80}},
        "readinessProbe": {"exec": {"command": ["a"]}, "periodSeconds": 3},
        "lifecycle": {"preStop": {"httpGet": {"port": "web", "path": "/bye"}}},
    }
    result = defaulted(containers=[container])["containers"][0]
    timing = {"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3}
    assert result["livenessProbe"] == {"httpGet": {"port": 80, "path": "/", "scheme": "HTTP"}, **timing}
    assert result["readinessProbe"]["periodSeconds"] == 3
    assert result["lifecycle"]["preStop"]["httpGet"] == {"port": "web", "path": "/bye", "scheme": "HTTP"}


def test_requests_come_from_limits_and_amounts_are_canonical() -> None:
    resources = {"limits": {"cpu": 0.5, "memory": "1024Mi"}, "requests": {"cpu": "100u"}}
    result = defaulted(containers=[{"name": "c", "resources": resources}])["containers"][0]["resources"]
    assert result == {"limits": {"cpu": "500m", "memory": "1Gi"}, "requests": {"cpu": "1m", "memory": "1Gi"}}


def test_host_network_takes_container_ports() -> None:
    spec = defaulted(hostNetwork=True, containers=[{"name": "c", "ports": [{"containerPort": 80}]}])
    assert spec["containers"][0]["ports"] == [{"containerPort": 80, "hostPort": 80, "protocol": "TCP"}]
    spec = defaulted(containers=[{"name": "c", "ports": [{"containerPort": 80}]}])
    assert spec["containers"][0]["ports"] == [{"containerPort": 80, "protocol": "TCP"}]


def test_volumes() -> None:
    spec = defaulted(
        volumes=[
            {"name": "none"},
            {"name": "s", "secret": {"secretName": "x"}},
            {"name": "d", "downwardAPI": {"items": [{"path": "a", "fieldRef": {"fieldPath": "metadata.name"}}]}},
            {"name": "p", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}},
            {"name": "i", "image": {"reference": "a:1"}},
            {"name": "e", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}},
            {"name": "r", "rbd": {"image": "i", "monitors": ["m"]}},
        ]
    )
    by_name = {volume.pop("name"): volume for volume in spec["volumes"]}
    assert by_name["none"] == {"emptyDir": {}}
    assert by_name["s"]["secret"]["defaultMode"] == 0o644
    assert by_name["d"]["downwardAPI"] == {
        "defaultMode": 0o644,
        "items": [{"path": "a", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}}],
    }
    assert by_name["p"]["projected"]["sources"][0]["serviceAccountToken"]["expirationSeconds"] == 3600
    assert by_name["i"]["image"]["pullPolicy"] == "IfNotPresent"
    assert by_name["e"]["ephemeral"]["volumeClaimTemplate"]["spec"]["volumeMode"] == "Filesystem"
    assert by_name["r"]["rbd"]["pool"] == "rbd"


def test_env_references_get_a_version() -> None:
    env = [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]
    result = defaulted(containers=[{"name": "c", "env": env}])["containers"][0]["env"][0]
    assert result["valueFrom"]["fieldRef"] == {"apiVersion": "v1", "fieldPath": "status.podIP"}


def test_pod_level_requests_come_from_containers_then_limits() -> None:
    containers = [{"name": "c", "resources": {"requests": {"cpu": "200m"}}}, {"name": "d"}]
    spec = defaulted(containers=containers, resources={"limits": {"cpu": 1, "memory": "1Gi"}})
    assert spec["resources"]["requests"] == {"cpu": "200m", "memory": "1Gi"}


def test_pod_level_limits_come_from_containers_that_all_have_one() -> None:
    limited = {"limits": {"cpu": "1", "memory": "1Gi"}}
    containers = [{"name": "c", "resources": limited}, {"name": "d", "resources": {"limits": {"cpu": "500m"}}}]
    spec = defaulted(containers=containers, resources={"requests": {"cpu": "2"}})
    assert spec["resources"] == {"limits": {"cpu": "1500m"}, "requests": {"cpu": "2"}}


def test_unreadable_amounts_are_left_for_validation() -> None:
    resources = {"limits": {"cpu": "lots"}}
    result = defaulted(containers=[{"name": "c", "resources": resources}], resources={"limits": {"cpu": "1"}})
    assert result["containers"][0]["resources"]["limits"] == {"cpu": "lots"}


def test_the_old_name_of_the_service_account_counts() -> None:
    assert defaulted(serviceAccount="robot")["serviceAccountName"] == "robot"


def test_defaulting_twice_changes_nothing() -> None:
    pod = codec.from_object(
        core.Pod,
        {
            "metadata": {"name": "p"},
            "spec": {
                "hostNetwork": True,
                "resources": {"limits": {"cpu": "2"}},
                "volumes": [{"name": "v"}, {"name": "c", "configMap": {"name": "m"}}],
                "initContainers": [{"name": "i", "image": "x:1", "restartPolicy": "Always"}],
                "containers": [{"name": "c", "ports": [{"containerPort": 1}], "resources": {"limits": {"cpu": "1"}}}],
            },
        },
    )
    once = default_pod(pod)
    assert default_pod(once) == once
    assert once != replace(pod, apiVersion="v1", kind="Pod")
