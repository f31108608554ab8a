"""The control plane of the test bed is a real one, which restricts nodes to what a node may do."""

from __future__ import annotations

import base64
import os
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client, config
from support.agent import Json, make_pod
from support.cluster import Cluster, make_namespace, up_or_anew
from testbed import controlplane
from testbed.controlplane import APISERVER, CONTROLLERS, CONTROLLERS_S, ETCD, ControlPlane
from testbed.host import TestbedError

NODES = "/api/v1/nodes"


def node_named(name: str) -> Any:
    """A Node's JSON, which the client takes as well as its own class."""
    return {"metadata": {"name": name}}


def as_node(plane: ControlPlane, name: str) -> client.CoreV1Api:
    return client.CoreV1Api(config.new_client_from_config(str(controlplane.node_kubeconfig(plane, name))))


def make_node(cluster: Cluster, name: str) -> None:
    """A Node object with the condition Ready, without an agent."""
    amounts = {"cpu": "2", "memory": "1Gi", "pods": "10"}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
    body = {"metadata": {"name": name}, "status": {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}}
    cluster.create(NODES, body)


def test_kubectl_and_the_official_client_see_the_same(cluster: Cluster) -> None:
    cluster.kubectl("create", "configmap", "seen", "--from-literal=by=kubectl")
    seen = cluster.core.read_namespaced_config_map("seen", cluster.namespace)
    assert seen.data == {"by": "kubectl"}


def test_a_node_may_do_what_its_own_name_allows_and_no_more(cluster: Cluster) -> None:
    node = as_node(cluster.plane, "mine")
    node.create_node(node_named("mine"))
    try:
        with pytest.raises(client.ApiException, match=r"is not allowed to modify node|[Ff]orbidden"):
            node.create_node(node_named("other"))
        for secret in ("used", "unused"):
            cluster.create(f"/api/v1/namespaces/{cluster.namespace}/secrets", {"metadata": {"name": secret}})
        volume = {"name": "v", "secret": {"secretName": "used"}}
        cluster.run(make_pod("user", volumes=[volume]), node="mine")
        cluster.wait("the secret of its pod", lambda: may_read(node, cluster, "used"))
        assert not may_read(node, cluster, "unused")
    finally:
        cluster.delete(f"{NODES}/mine")


def may_read(node: client.CoreV1Api, cluster: Cluster, secret: str) -> bool:
    try:
        node.read_namespaced_secret(secret, cluster.namespace)
    except client.ApiException as error:
        assert error.status == 403
        return False
    return True


def test_a_pod_is_given_a_projected_token_and_the_authority(cluster: Cluster) -> None:
    (pod,) = cluster.run(make_pod("plain"))
    (volume,) = (v for v in pod["spec"]["volumes"] if "projected" in v)
    sources = {kind for source in volume["projected"]["sources"] for kind in source}
    assert sources == {"serviceAccountToken", "configMap", "downwardAPI"}


def certificate_of(api: client.CertificatesV1Api, name: str) -> bytes | str | None:
    status = api.read_certificate_signing_request(name).status
    return None if status is None else status.certificate


def test_a_bootstrap_token_gets_a_node_its_certificate(cluster: Cluster, tmp_path: Path) -> None:
    path = controlplane.bootstrap_kubeconfig(cluster.plane)
    api = client.CertificatesV1Api(config.new_client_from_config(str(path)))
    subject = "/O=system:nodes/CN=system:node:fresh"
    argv = ["openssl", "req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    argv += ["-subj", subject, "-keyout", str(tmp_path / "key")]
    request = subprocess.run(argv, capture_output=True, check=True).stdout
    spec = {
        "request": base64.b64encode(request).decode(),
        "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
        "usages": ["digital signature", "key encipherment", "client auth"],
    }
    body: Any = {"metadata": {"name": "fresh"}, "spec": spec}
    api.create_certificate_signing_request(body)
    try:
        issued = cluster.wait("certificate", lambda: certificate_of(api, "fresh"), CONTROLLERS_S)
        assert b"BEGIN CERTIFICATE" in issued if isinstance(issued, bytes) else base64.b64decode(issued)
    finally:
        cluster.delete("/apis/certificates.k8s.io/v1/certificatesigningrequests/fresh")


@pytest.mark.scheduler
def test_a_deployments_pods_are_scheduled(cluster: Cluster) -> None:
    make_node(cluster, "absent")
    try:
        cluster.kubectl("create", "deployment", "web", "--image=none", "--replicas=2")
        cluster.wait(
            "two pods bound",
            lambda: (
                [p["spec"].get("nodeName") for p in cluster.list_objects(cluster.pods_path)] == ["absent", "absent"]
            ),
            CONTROLLERS_S,
        )
        cluster.kubectl("delete", "deployment", "web")
    finally:
        cluster.delete(f"{NODES}/absent")


@pytest.mark.parametrize("program", [APISERVER, ETCD, CONTROLLERS])
def test_a_killed_part_comes_back_with_everything(cluster: Cluster, program: str) -> None:
    plane = cluster.plane
    cluster.create(cluster.pods_path, make_pod("kept", schedulerName="missing"))
    uid = cluster.pod("kept")["metadata"]["uid"]  # type: ignore[index]
    controlplane.kill(plane, program)
    assert plane.pid(program) is None
    controlplane.start(plane, program)
    controlplane.wait_ready(plane, APISERVER)

    def kept() -> Json | None:
        try:
            return cluster.pod("kept")
        except client.ApiException as error:  # each of the server's own clients of etcd tries again in its own time
            assert error.status >= 500
            return None

    assert cluster.wait("it answers", kept)["metadata"]["uid"] == uid
    other = make_namespace(cluster, f"{cluster.namespace}-after-{program}")
    other.clear()


def test_up_finds_what_runs(control_plane: ControlPlane) -> None:
    before = control_plane.pid(APISERVER)
    again = controlplane.up(Path(control_plane.folder))
    assert (again, again.pid(APISERVER)) == (control_plane, before)


def test_a_control_plane_that_cannot_start_gives_the_reason_and_is_replaced(control_plane: ControlPlane) -> None:
    """One test that breaks the control plane does not fail those after it."""
    folder = Path(control_plane.folder)
    controlplane.kill(control_plane, ETCD)
    with (
        socket.create_server(("127.0.0.1", control_plane.ports.etcd)),
        pytest.raises(TestbedError, match=rf"port {control_plane.ports.etcd} of etcd is taken by .*pid={os.getpid()}"),
    ):
        controlplane.up(folder)
    shutil.rmtree(control_plane.root / "etcd" / "member")
    (control_plane.root / "etcd" / "member").write_text("not a folder")
    anew = up_or_anew(folder)
    assert anew.client().get("/api/v1/namespaces/default") is not None
