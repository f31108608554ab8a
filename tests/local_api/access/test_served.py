"""Access as clients of a running API meet it: certificates, tokens, anonymous requests, roles, signing."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from local_api.access.objects import bound, rbac, rule
from local_api.server import NODE, serving

from pykubelet_local_api.access.certificates import KeyPair, subject_of
from pykubelet_local_api.access.kubeconfig import parse_kubeconfig
from pykubelet_local_api.access.token_requests import SECRET_TYPE
from pykubelet_local_api.objects import Json

RBAC = "/apis/rbac.authorization.k8s.io/v1"
REQUESTS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
WITHIN_S = 20.0


class Caller:
    """A client of the API. `pair`: its certificate; `token`: its bearer token."""

    def __init__(self, folder: Path, url: str, session: aiohttp.ClientSession) -> None:
        self.folder = folder
        self.url = url
        self._session = session
        self._contexts: dict[str, ssl.SSLContext] = {}

    def context(self, who: str | KeyPair) -> ssl.SSLContext:
        _, authority, pair = parse_kubeconfig((self.folder / "admin.kubeconfig").read_bytes())
        if isinstance(who, KeyPair):
            pair = who
        elif who in ("admin", "kubelet"):
            pair = parse_kubeconfig((self.folder / f"{who}.kubeconfig").read_bytes())[2]
        context = ssl.create_default_context(cadata=authority.decode())
        if who:
            pem = self.folder / "client.pem"
            pem.write_bytes(pair.certificate + pair.key)
            context.load_cert_chain(pem)
        return context

    async def __call__(
        self, who: str | KeyPair, method: str, path: str, body: Json | None = None, token: str = "", **headers: str
    ) -> tuple[int, Any]:
        """Status and body of an answer. `who`: the kubeconfig of one, or "" without a certificate."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if token:
            sent["Authorization"] = f"Bearer {token}"
        asked = self._session.request(method, f"{self.url}{path}", json=body, headers=sent, ssl=self.context(who))
        async with asked as answer:
            is_json = "json" in answer.headers.get("Content-Type", "")
            return answer.status, await answer.json() if is_json else await answer.text()

    async def until(self, path: str, is_done: Callable[[Json], object]) -> Json:
        """The object as soon as it is as the control plane makes it."""
        collection, _, name = path.rpartition("/")
        url = f"{self.url}{collection}?watch=true&fieldSelector=metadata.name%3D{name}"
        async with asyncio.timeout(WITHIN_S), self._session.get(url, ssl=self.context("admin")) as answer:
            async for line in answer.content:
                found: Json = json.loads(line)["object"]
                if is_done(found):
                    return found
        raise AssertionError(f"the watch of {path} has ended")


@pytest.fixture
async def call(tmp_path: Path) -> AsyncIterator[Caller]:
    async with (
        serving(tmp_path) as api,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session,
    ):
        caller = Caller(tmp_path, api.url, session)
        await caller.until("/api/v1/namespaces/default/serviceaccounts/default", bool)
        yield caller


async def test_anonymous_clients_see_health_and_version_alone(call: Caller) -> None:
    for path in ("/healthz", "/livez", "/readyz", "/version"):
        assert (await call("", "GET", path))[0] == 200, path
    for path in ("/api", "/apis", "/api/v1/nodes", "/metrics", "/openapi/v3", "/openid/v1/jwks", "/"):
        assert (await call("", "GET", path))[0] == 403, path
    assert (await call("", "GET", "/healthz", token="x"))[0] == 401


async def test_a_pods_token_does_what_roles_allow(call: Caller) -> None:
    path = "/api/v1/namespaces/default/serviceaccounts/default/token"
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    status, answer = await call("admin", "POST", path, body)
    assert status == 201, answer
    token = answer["status"]["token"]
    status, found = await call("", "GET", "/api/v1/namespaces/default/configmaps", token=token)
    assert (status, found["message"]) == (
        403,
        'configmaps is forbidden: User "system:serviceaccount:default:default" cannot list resource "configmaps" in API group "" '
        'in the namespace "default"',
    )
    binding = bound(rbac("ClusterRole", "view"), "ServiceAccount:default/default", namespace="default")
    assert (await call("admin", "POST", f"{RBAC}/namespaces/default/rolebindings", without_uid(binding)))[0] == 201
    assert (await call("", "GET", "/api/v1/namespaces/default/configmaps", token=token))[0] == 200
    assert (await call("", "GET", "/api/v1/namespaces/kube-system/configmaps", token=token))[0] == 403
    assert (await call("", "GET", "/openid/v1/jwks", token=token))[1]["keys"][0]["kty"] == "EC"
    assert (await call("admin", "DELETE", "/api/v1/namespaces/default/serviceaccounts/default"))[0] == 200
    assert (await call("", "GET", "/api/v1/namespaces/default/configmaps", token=token))[0] == 401


def without_uid(found: Json) -> Json:
    return found | {"metadata": {key: value for key, value in found["metadata"].items() if key != "uid"}}


async def test_a_secret_for_a_token_is_filled(call: Caller) -> None:
    marks = {"kubernetes.io/service-account.name": "default"}
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": SECRET_TYPE,
        "metadata": {"name": "s", "annotations": marks},
    }
    assert (await call("admin", "POST", "/api/v1/namespaces/default/secrets", secret))[0] == 201
    filled = await call.until(
        "/api/v1/namespaces/default/secrets/s", lambda found: (found.get("data") or {}).get("token")
    )
    token = base64.b64decode(filled["data"]["token"]).decode()
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    status, found = await call("", "POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", review, token=token)
    assert status == 201
    assert found["status"]["userInfo"]["username"] == "system:serviceaccount:default:default"


async def test_a_node_does_its_own_work_and_no_more(call: Caller) -> None:
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}
    assert (await call("kubelet", "POST", "/api/v1/nodes", node))[0] == 201
    assert (await call("kubelet", "GET", f"/api/v1/nodes/{NODE}"))[0] == 200
    assert (await call("kubelet", "GET", f"/api/v1/pods?fieldSelector=spec.nodeName%3D{NODE}"))[0] == 200
    for path in (
        "/api/v1/pods",
        "/api/v1/nodes",
        "/api/v1/secrets",
        "/api/v1/namespaces/default/secrets/x",
        f"{RBAC}/clusterroles",
    ):
        assert (await call("kubelet", "GET", path))[0] == 403, path


async def test_roles_give_no_more_than_their_writer_has(call: Caller) -> None:
    writer = rbac(
        "ClusterRole", "writer", rules=[rule("create", "roles", "rbac.authorization.k8s.io"), rule("get", "pods")]
    )
    assert (await call("admin", "POST", f"{RBAC}/clusterroles", without_uid(writer)))[0] == 201
    assert (await call("admin", "POST", f"{RBAC}/clusterrolebindings", without_uid(bound(writer, "User:jane"))))[
        0
    ] == 201
    jane = {"Impersonate_User": "jane"}
    for resources, status in (("pods", 201), ("secrets", 403)):
        role = without_uid(rbac("Role", resources, "default", rules=[rule("get", resources)]))
        found = await call("admin", "POST", f"{RBAC}/namespaces/default/roles", role, **jane)
        assert found[0] == status, found


async def test_an_approved_request_is_signed_and_lets_its_user_in(call: Caller) -> None:
    key = rsa.generate_private_key(65537, 2048)
    signed = (
        x509.CertificateSigningRequestBuilder().subject_name(subject_of("jane", ("devs",))).sign(key, hashes.SHA256())
    )
    text = base64.b64encode(signed.public_bytes(serialization.Encoding.PEM)).decode()
    spec = {
        "request": text,
        "signerName": "kubernetes.io/kube-apiserver-client",
        "usages": ["client auth"],
        "expirationSeconds": 3600,
    }
    request = {
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"name": "jane"},
        "spec": spec,
    }
    assert (await call("admin", "POST", REQUESTS, request))[0] == 201
    _, stored = await call("admin", "GET", f"{REQUESTS}/jane")
    stored["status"] = {"conditions": [{"type": "Approved", "status": "True", "reason": "me", "message": "yes"}]}
    status, answer = await call("admin", "PUT", f"{REQUESTS}/jane/approval", stored)
    assert status == 200, answer
    done = await call.until(f"{REQUESTS}/jane", lambda found: found["status"].get("certificate"))
    form, plain = serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    pem = key.private_bytes(serialization.Encoding.PEM, form, plain)
    jane = KeyPair(base64.b64decode(done["status"]["certificate"]), pem)
    status, found = await call(jane, "GET", "/api/v1/nodes")
    assert status == 403
    assert 'User "jane" cannot list resource "nodes"' in found["message"]


async def test_the_nodes_client_certificate_is_renewed_without_an_administrator(call: Caller) -> None:
    name = f"system:node:{NODE}"
    key = rsa.generate_private_key(65537, 2048)
    signed = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(subject_of(name, ("system:nodes",)))
        .sign(key, hashes.SHA256())
    )
    text = base64.b64encode(signed.public_bytes(serialization.Encoding.PEM)).decode()
    signer, usages = "kubernetes.io/kube-apiserver-client-kubelet", ["digital signature", "client auth"]
    spec = {"request": text, "signerName": signer, "usages": usages}
    request = {
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"name": "n"},
        "spec": spec,
    }
    assert (await call("kubelet", "POST", REQUESTS, request))[0] == 201
    done = await call.until(f"{REQUESTS}/n", lambda found: (found.get("status") or {}).get("certificate"))
    assert done["status"]["conditions"][0]["reason"] == "AutoApproved"


async def test_an_update_or_an_apply_of_a_new_object_needs_the_verb_create(call: Caller) -> None:
    leases = "coordination.k8s.io"
    rules = [rule("patch update", "configmaps"), rule("patch update", "leases", leases)]
    role = rbac("ClusterRole", "patcher", rules=rules)
    assert (await call("admin", "POST", f"{RBAC}/clusterroles", without_uid(role)))[0] == 201
    assert (await call("admin", "POST", f"{RBAC}/clusterrolebindings", without_uid(bound(role, "User:jane"))))[0] == 201
    path = "/api/v1/namespaces/default/configmaps/new"
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "new"}, "data": {"a": "b"}}
    jane = {"Impersonate_User": "jane", "Content_Type": "application/apply-patch+yaml"}
    status, answer = await call("admin", "PATCH", f"{path}?fieldManager=x", body, **jane)
    assert status == 403
    assert answer["message"] == (
        'configmaps "new" is forbidden: User "jane" cannot create resource "configmaps" in API group "" in the namespace "default"'
    )
    lease = {"apiVersion": f"{leases}/v1", "kind": "Lease", "metadata": {"name": "new"}, "spec": {}}
    where = f"/apis/{leases}/v1/namespaces/default/leases/new"
    assert (await call("admin", "PUT", where, lease, Impersonate_User="jane"))[0] == 403
    assert (await call("admin", "PUT", where, lease))[0] == 201
    assert (await call("admin", "PATCH", f"{path}?fieldManager=x", body, Content_Type=jane["Content_Type"]))[0] == 201
    changed = body | {"data": {"a": "c"}}
    assert (await call("admin", "PATCH", f"{path}?fieldManager=x", changed, **jane))[0] == 200
    lease["metadata"] = {
        "name": "new",
        "resourceVersion": (await call("admin", "GET", where))[1]["metadata"]["resourceVersion"],
    }
    assert (await call("admin", "PUT", where, lease, Impersonate_User="jane"))[0] == 200


async def test_the_api_is_no_administrator_where_a_node_leads_back_to_it(call: Caller) -> None:
    """Who may use the proxy of nodes, and gets a Node to name the API's own address, has no more rights than before."""
    port = int(call.url.rpartition(":")[2])
    status = {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
    }
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}, "status": status}
    assert (await call("kubelet", "POST", "/api/v1/nodes", node))[0] == 201
    proxy = f"/api/v1/nodes/{NODE}/proxy"
    code, answer = await call("admin", "GET", f"{proxy}/api/v1/namespaces/kube-system/secrets")
    assert code == 403
    assert 'User "kube-apiserver-kubelet-client" cannot list resource "secrets"' in answer["message"]
    code, answer = await call("admin", "GET", f"{proxy}{proxy}{proxy}/healthz")
    assert (code, answer["message"]) == (403, "this API is no agent: the Node names an address that leads to it")


async def test_only_administrators_use_the_field_manager_of_files(call: Caller) -> None:
    """What it has applied is deleted when it leaves the folder, so that the right to patch would be one to delete."""
    role = rbac("ClusterRole", "patcher", rules=[rule("create get patch update", "configmaps")])
    assert (await call("admin", "POST", f"{RBAC}/clusterroles", without_uid(role)))[0] == 201
    assert (await call("admin", "POST", f"{RBAC}/clusterrolebindings", without_uid(bound(role, "User:jane"))))[0] == 201
    path = "/api/v1/namespaces/default/configmaps"
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"a": "b"}}
    assert (await call("admin", "POST", path, body))[0] == 201
    apply: dict[str, str] = {"Content_Type": "application/apply-patch+yaml"}
    fields = f"{path}/c?fieldManager=pykubelet-directory&force=true"
    status, answer = await call("admin", "PATCH", fields, body, Impersonate_User="jane", **apply)
    assert (status, answer["message"]) == (
        403,
        'configmaps "c" is forbidden: the field manager "pykubelet-directory" is that of the files which administrators apply',
    )
    _, stored = await call("admin", "GET", f"{path}/c")
    stored["metadata"]["managedFields"][0] |= {"manager": "pykubelet-directory", "operation": "Apply"}
    assert (await call("admin", "PUT", f"{path}/c", stored, Impersonate_User="jane"))[0] == 403
    assert (await call("admin", "PATCH", fields, body, **apply))[0] == 200
    body["data"] = {"a": "c"}
    assert (
        await call("admin", "PATCH", f"{path}/c?fieldManager=x&force=true", body, Impersonate_User="jane", **apply)
    )[0] == 200


async def test_a_client_sees_its_groups_in_order_and_its_credential(call: Caller) -> None:
    review: Json = {"kind": "SelfSubjectReview", "apiVersion": "authentication.k8s.io/v1"}
    path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
    status, found = await call("admin", "POST", path, review)
    assert status == 201
    user = found["status"]["userInfo"]
    assert user["groups"] == ["system:masters", "system:authenticated"]
    pair = parse_kubeconfig((call.folder / "admin.kubeconfig").read_bytes())[2]
    digest = x509.load_pem_x509_certificate(pair.certificate).fingerprint(hashes.SHA256()).hex()
    assert user["extra"] == {"authentication.kubernetes.io/credential-id": [f"X509SHA256={digest}"]}
