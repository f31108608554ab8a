"""Certificates that last for seconds, from a real API server: renewed, refused, expired, and had again."""

from __future__ import annotations

import base64
import os
import ssl
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from support.agent import Agent, Json, make_pod
from support.cluster import Cluster, look
from support.signer import REQUESTS, SERVING, Signer, is_denied
from testbed import certificates, controlplane

MakeAgent = Callable[..., Agent]
RENEWED_S = 120.0
NEWER_TOKEN = "fedcba.fedcba9876543210"
SECRETS = "/api/v1/namespaces/kube-system/secrets"


@pytest.fixture
def signer(cluster: Cluster) -> Iterator[Signer]:
    with Signer(cluster) as found:
        yield found


@pytest.fixture
def joining(make_cluster_agent: MakeAgent, cluster: Cluster, signer: Signer, tmp_path: Path) -> Agent:
    """An agent with nothing but a bootstrap token, started."""
    bootstrap = tmp_path / "bootstrap.kubeconfig"
    bootstrap.write_text(controlplane.bootstrap_kubeconfig(cluster.plane).read_text())
    flags = (
        *("--bootstrap-kubeconfig", str(bootstrap), "--kubeconfig", str(tmp_path / "kubelet.conf")),
        *("--cert-dir", str(tmp_path / "pki")),
    )
    agent = make_cluster_agent(flags, rotateCertificates=True, serverTLSBootstrap=True).start()
    cluster.wait_node_ready(within=controlplane.CONTROLLERS_S)
    return agent


def is_other_link(path: Path, before: str) -> bool:
    return os.readlink(path) != before


def test_certificates_are_renewed_without_a_restart_or_a_lost_watch(
    joining: Agent, cluster: Cluster, signer: Signer, tmp_path: Path
) -> None:
    reported = cluster.wait("the refusal is reported", lambda: wait_refused(joining, cluster), RENEWED_S)
    assert reported["next_step"] == "ask for one again" and reported["next_at"]
    signer.approve(open_request(cluster, RENEWED_S))
    serving, client = (tmp_path / "pki" / f"kubelet-{use}-current.pem" for use in ("server", "client"))
    cluster.wait("it serves with its certificate", lambda: served(joining) == first_of(serving), RENEWED_S)
    cluster.run(make_pod("before"))
    cluster.wait_ready("before")

    pid, links, had = joining.process, {path: os.readlink(path) for path in (serving, client)}, expiry(joining)
    watches = joining.connections(cluster.plane.ports.api)
    signer.approve(open_request(cluster, RENEWED_S))
    for path, before in links.items():
        cluster.wait(f"another {path.name}", partial(is_other_link, path, before), RENEWED_S)
    cluster.wait("the new one is served", lambda: served(joining) == first_of(serving))
    cluster.wait("the first ones have expired", lambda: time.time() > max(had.values()), RENEWED_S)
    cluster.run(make_pod("after"))
    cluster.wait_ready("before", "after")
    assert joining.process is pid and joining.alive
    assert watches & joining.connections(cluster.plane.ports.api), "a connection from before goes on"
    assert "a watch is silent" not in joining.log_text()


def test_an_expired_certificate_is_reported_and_a_new_bootstrap_token_helps(
    joining: Agent, cluster: Cluster, signer: Signer, tmp_path: Path
) -> None:
    cluster.run(make_pod("stays"))
    cluster.wait_ready("stays")
    running = look(joining).running_ids()
    signer.rest()
    cluster.delete(f"{SECRETS}/bootstrap-token-{controlplane.TOKEN.partition('.')[0]}")
    try:
        reported = cluster.wait(
            "it has expired", lambda: wait_of(joining, "client certificate", "Unauthorized"), RENEWED_S
        )
        assert reported["reason"].startswith("expired at ") and reported["next_step"] == "ask for one again"
        assert look(joining).running_ids() == running

        cluster.create(SECRETS, bootstrap_secret(NEWER_TOKEN))
        plane = cluster.plane
        certificates.write_kubeconfig(
            tmp_path / "bootstrap.kubeconfig", plane.server, plane.authority, {"token": NEWER_TOKEN}
        )
        signer.work()
        cluster.wait("it has a certificate", lambda: expiry(joining)["client"] > time.time(), RENEWED_S)
        cluster.run(make_pod("later"))
        cluster.wait_ready("stays", "later")
        assert running.items() <= look(joining).running_ids().items()
    finally:
        cluster.delete(f"{SECRETS}/bootstrap-token-{NEWER_TOKEN.partition('.')[0]}")
        cluster.create(SECRETS, bootstrap_secret(controlplane.TOKEN))


def open_request(cluster: Cluster, within: float = 30.0) -> str:
    """The name of the request for a serving certificate that has no answer yet."""

    def found() -> str:
        for request in cluster.list_objects(REQUESTS):
            is_answered = (request.get("status") or {}).get("certificate") or is_denied(request)
            if request["spec"]["signerName"] == SERVING and not is_answered:
                return str(request["metadata"]["name"])
        return ""

    return str(cluster.wait("a request for a serving certificate", found, within))


def wait_refused(agent: Agent, cluster: Cluster) -> Json | None:
    """The wait right after a request was denied: soon there is another one, which is denied when it is asked again."""
    denied = open_request(cluster, RENEWED_S)
    cluster.kubectl("certificate", "deny", denied)
    deadline = time.monotonic() + 2
    while time.monotonic() < deadline:
        if (reported := wait_of(agent, "serving certificate", "was denied")) and denied in reported["detail"]:
            return reported
    return None


def wait_of(agent: Agent, what: str, message: str) -> Json | None:
    """What `explain node` reports."""
    waits = agent.ask_json("explain", "node")["waits"]
    return next((wait for wait in waits if wait["what"] == what and message in wait["detail"]), None)


def expiry(agent: Agent) -> dict[str, float]:
    """By use, wall seconds."""
    found = agent.ask_json("explain", "node")["certificates"]
    return {certificate["use"]: certificate["expires_at"] or 0.0 for certificate in found}


def served(agent: Agent) -> str:
    try:
        return ssl.get_server_certificate(("127.0.0.1", agent.port), timeout=5)
    except OSError:
        return ""


def first_of(path: Path) -> str:
    end = "-----END CERTIFICATE-----\n"
    return path.read_text().partition(end)[0] + end if path.exists() else "none"


def bootstrap_secret(token: str) -> Json:
    identity, _, secret = token.partition(".")
    data = {"token-id": identity, "token-secret": secret, "usage-bootstrap-authentication": "true"}
    encoded = {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}
    return {
        "metadata": {"name": f"bootstrap-token-{identity}"},
        "type": "bootstrap.kubernetes.io/token",
        "data": encoded,
    }
