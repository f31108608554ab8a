"""Pods as protobuf: what the agent encodes has the fields that a real API server writes."""

from __future__ import annotations

from support.agent import make_container
from support.cluster import Cluster, make_bound_pod
from support.pod_messages import read_pod, without_defaults

from pykubelet.base.api.codec import decode
from pykubelet.base.api.core import Pod
from pykubelet.base.api.protobuf import encode_now

PROTOBUF = "application/vnd.kubernetes.protobuf"
#: In front of each object, whose kind and bytes follow in a message of their own: its field 2 has the bytes.
MAGIC = b"k8s\0"
PROBE = {"httpGet": {"path": "/", "port": "http", "httpHeaders": [{"name": "a", "value": "b"}]}, "periodSeconds": 7}


def test_an_encoded_pod_equals_that_of_the_api_server(cluster: Cluster) -> None:
    container = make_container(
        env=[
            {"name": "a", "value": "b"},
            {"name": "c", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k", "optional": True}}},
            {"name": "d", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}}},
        ],
        envFrom=[{"prefix": "p", "configMapRef": {"name": "m", "optional": True}}],
        ports=[{"name": "http", "containerPort": 80}],
        resources={"requests": {"cpu": "0.5", "memory": "1024Mi"}, "limits": {"cpu": "1500m", "memory": "2Gi"}},
        livenessProbe=PROBE,
        readinessProbe={"tcpSocket": {"port": 80}},
        lifecycle={"preStop": {"exec": {"command": ["true"]}}},
        securityContext={"runAsUser": 0, "privileged": False, "capabilities": {"drop": ["ALL"]}},
        volumeMounts=[{"name": "tmp", "mountPath": "/tmp"}],
    )
    volumes = [
        {"name": "tmp", "emptyDir": {"sizeLimit": "1.5Gi"}},
        {"name": "all", "projected": {"sources": [{"configMap": {"name": "m", "optional": True, "items": [{"key": "k", "path": "p"}]}}]}},
        {"name": "me", "downwardAPI": {"items": [{"path": "n", "fieldRef": {"fieldPath": "metadata.name"}}]}},
    ]  # fmt: skip
    pod = make_bound_pod("encoded", container, node="none", volumes=volumes, terminationGracePeriodSeconds=0)
    pod["metadata"] |= {"labels": {"b": "1", "a": "2"}, "annotations": {"text": "ä" * 200}}
    made = cluster.create(cluster.pods_path, pod)
    path = f"{cluster.pods_path}/encoded"
    status = {
        "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-02T03:04:05Z"}],
        "phase": "Running",
    }
    found = cluster.patch(f"{path}/status", {"status": status})
    assert found["metadata"]["uid"] == made["metadata"]["uid"]
    theirs = read_pod(raw_object(cluster.read(path, PROTOBUF).removeprefix(MAGIC)))
    ours = read_pod(encode_now(decode(Pod, cluster.read(path))))
    assert without_defaults(ours) == without_defaults(theirs)


def raw_object(unknown: bytes) -> bytes:
    """The bytes of the object in Kubernetes' message `Unknown`, whose fields all have a length."""
    position = 0
    while position < len(unknown):
        number, position = unknown[position] >> 3, position + 1
        size, shift = 0, 0
        while True:
            byte, position = unknown[position], position + 1
            size |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        if number == 2:
            return unknown[position : position + size]
        position += size
    raise AssertionError("no object")
