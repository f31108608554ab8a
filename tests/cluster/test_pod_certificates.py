"""Certificates and trust bundles of pods from a real API server, with the rights of a node."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.agent import Agent, Json, make_container, make_pod
from support.cluster import Cluster, certificates_version
from support.pod_signer import PodSigner, is_open, pair_of, refusal

MakeAgent = Callable[..., Agent]
SIGNER = "example.com/mesh"
GATES = ("ClusterTrustBundle", "ClusterTrustBundleProjection", "PodCertificateRequest")


def started(make_agent: MakeAgent, cluster: Cluster) -> Agent:
    """An agent of the release of the API server, with all gates on."""
    release = ("--emulated-version", "1.36") if cluster.plane.programs.minor == 36 else ()
    agent = make_agent(release, featureGates=dict.fromkeys(GATES, True)).start()
    cluster.wait_node_ready()
    return agent


def certified_pod(name: str) -> Json:
    sources: list[Json] = [
        {"podCertificate": {"signerName": SIGNER, "keyType": "ED25519", "credentialBundlePath": "bundle.pem"}},
        {"clusterTrustBundle": {"signerName": SIGNER, "labelSelector": {}, "path": "roots.pem"}},
    ]
    mount = {"name": "certs", "mountPath": "/certs", "readOnly": True}
    container = make_container("main", "test -s /certs/bundle.pem && exec sleep 3600", volumeMounts=[mount])
    return make_pod(name, container, volumes=[{"name": "certs", "projected": {"sources": sources}}])


class Requests:
    """The requests of a namespace."""

    def __init__(self, cluster: Cluster, version: str) -> None:
        self._cluster = cluster
        self._path = f"/apis/certificates.k8s.io/{version}/namespaces/{cluster.namespace}/podcertificaterequests"

    def next(self) -> Json:
        def found() -> Json | None:
            return next((item for item in self._cluster.list_objects(self._path) if is_open(item)), None)

        return dict(self._cluster.wait("a request", found))

    def respond(self, request: Json, status: Json) -> None:
        self._cluster.patch(f"{self._path}/{request['metadata']['name']}/status", {"status": status})


def folder_of(agent: Agent) -> Path:
    (folder,) = agent.root.glob("pods/*/volumes/kubernetes.io~projected/certs")
    return folder


def has_event(cluster: Cluster, reason: str, text: str) -> Any:
    events = cluster.list_objects(f"/api/v1/namespaces/{cluster.namespace}/events")
    return any(event["reason"] == reason and text in event["message"] for event in events)


def test_a_pod_gets_its_certificate_and_the_roots_of_its_signer(
    make_cluster_agent: MakeAgent, cluster: Cluster
) -> None:
    version = certificates_version(cluster.plane)
    signer, requests = PodSigner(SIGNER), Requests(cluster, version)
    bundles = f"/apis/certificates.k8s.io/{version}/clustertrustbundles"
    roots = {"signerName": SIGNER, "trustBundle": signer.root}
    cluster.create(bundles, {"metadata": {"name": "example.com:mesh:roots"}, "spec": roots})
    try:
        agent = started(make_cluster_agent, cluster)
        cluster.run(certified_pod("web"))
        request = requests.next()
        assert request["metadata"]["name"].startswith("req-")
        cluster.wait("its Event", lambda: has_event(cluster, "FailedMount", "credential bundle is not issued yet"))
        requests.respond(request, signer.status(request))
        cluster.wait_ready("web")
        folder = folder_of(agent)
        own, certified = pair_of((folder / "bundle.pem").read_bytes())
        assert certified[0] == own
        assert (folder / "roots.pem").read_text() == signer.root
    finally:
        cluster.delete(f"{bundles}/example.com:mesh:roots")


def test_a_denied_pod_states_why(make_cluster_agent: MakeAgent, cluster: Cluster) -> None:
    version = certificates_version(cluster.plane)
    requests = Requests(cluster, version)
    started(make_cluster_agent, cluster)
    pod = certified_pod("web")
    pod["spec"]["volumes"][0]["projected"]["sources"].pop()
    cluster.run(pod)
    requests.respond(requests.next(), refusal("Denied", "NotAllowed", "not here"))
    text = 'PodCertificateRequest was permanently denied: reason="NotAllowed" message="not here"'
    cluster.wait("its Event", lambda: has_event(cluster, "FailedMount", text))
    cluster.wait("the other Event", lambda: has_event(cluster, "Denied", "NotAllowed: PodCertificateRequest "))
