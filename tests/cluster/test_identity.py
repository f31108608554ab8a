"""A node that joins with a bootstrap token, and gets its certificates from the cluster."""

from __future__ import annotations

import base64
import os
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path

from support.agent import NODE_NAME, Agent, Json
from support.cluster import Cluster
from support.pki import sign_request
from testbed import controlplane

MakeAgent = Callable[..., Agent]
REQUESTS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"


def test_a_node_joins_with_a_bootstrap_token(make_cluster_agent: MakeAgent, cluster: Cluster, tmp_path: Path) -> None:
    for request in cluster.list_objects(REQUESTS):  # agents of earlier tests have asked, too
        cluster.delete(f"{REQUESTS}/{request['metadata']['name']}")
    kubeconfig, pki = tmp_path / "kubelet.conf", tmp_path / "pki"
    flags = (
        *("--bootstrap-kubeconfig", str(controlplane.bootstrap_kubeconfig(cluster.plane))),
        *("--kubeconfig", str(kubeconfig), "--cert-dir", str(pki)),
    )
    agent = make_cluster_agent(flags, rotateCertificates=True, serverTLSBootstrap=True)
    agent.start()
    if signs_by_hand(cluster):
        issue(cluster, asked(cluster, "kube-apiserver-client-kubelet"), tmp_path)
    cluster.wait_node_ready(within=controlplane.CONTROLLERS_S)
    current = pki / "kubelet-client-current.pem"
    assert run("openssl", "x509", "-noout", "-subject", "-in", str(current)).replace(" ", "").strip() == (
        f"subject=O=system:nodes,CN=system:node:{NODE_NAME}"
    )
    cluster.wait("the kubeconfig", kubeconfig.exists)
    # with the file that was written, others are this node too
    kubectl = (cluster.plane.programs.kubectl, "--kubeconfig", str(kubeconfig))
    assert run(*kubectl, "get", "node", NODE_NAME, "-o", "name").strip() == f"node/{NODE_NAME}"
    serve(cluster, agent, pki / "kubelet-server-current.pem")
    agent.kill9()
    before = os.readlink(current)
    agent.start()
    cluster.wait("its certificates are known", lambda: len(certificates(agent)) == 2)
    assert all(certificates(agent).values()) and os.readlink(current) == before


def serve(cluster: Cluster, agent: Agent, current: Path) -> None:
    """The serving certificate comes when a user approves it, and is used at once."""
    request = asked(cluster, "kubelet-serving")
    name = request["metadata"]["name"]
    assert not current.exists()
    cluster.wait("the wait is reported", lambda: any(name in wait["detail"] for wait in node(agent)["waits"]))
    if signs_by_hand(cluster):
        issue(cluster, request, current.parent.parent)
    else:
        cluster.kubectl("certificate", "approve", name)
    cluster.wait("the serving certificate", current.exists, controlplane.CONTROLLERS_S)
    context = ssl.create_default_context(cafile=str(cluster.plane.authority))
    context.load_cert_chain(current)


def asked(cluster: Cluster, signer: str) -> Json:
    """The newest signing request for a signer that has no answer yet."""

    def is_open(request: Json) -> bool:
        is_signed = "certificate" in (request.get("status") or {})
        return str(request["spec"]["signerName"]).endswith(f"/{signer}") and not is_signed

    def found() -> Json | None:
        requests = [item for item in cluster.list_objects(REQUESTS) if is_open(item)]
        return max(requests, key=lambda item: int(item["metadata"]["resourceVersion"])) if requests else None

    return dict(cluster.wait(f"a request for {signer}", found))


def signs_by_hand(cluster: Cluster) -> bool:
    """Older signers want a usage that elliptic curve keys do not have."""
    return cluster.plane.programs.minor < 27


def issue(cluster: Cluster, request: Json, folder: Path) -> None:
    """What the cluster's signer would do."""
    source, made = folder / "request.pem", folder / "made.pem"
    source.write_bytes(base64.b64decode(request["spec"]["request"]))
    sign_request(cluster.plane.authority, cluster.plane.pki / "ca.key", source, made)
    status = {"certificate": base64.b64encode(made.read_bytes()).decode()}
    cluster.patch(f"{REQUESTS}/{request['metadata']['name']}/status", {"status": status})


def node(agent: Agent) -> Json:
    return dict(agent.ask_json("explain", "node"))


def certificates(agent: Agent) -> dict[str, float | None]:
    return {found["use"]: found["expires_at"] for found in node(agent)["certificates"]}


def run(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, timeout=30, check=True).stdout
