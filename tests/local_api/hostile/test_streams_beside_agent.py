"""Clients with as many streams and connections as they may have: the agent's own requests go on, and little is kept."""

from __future__ import annotations

import contextlib
import http.client
import socket
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from urllib.parse import urlsplit

import msgspec
import pytest
from local_api.hostile.measured import MeasuredApi, measured_api
from local_api.hostile.test_pod_token import CORE, RBAC, PodClient
from local_api.hostile.test_slow_readers import CONNECTION_BYTES, KEPT_BYTES, settled
from local_api.requests.sides import tls_of
from local_api.server import NODE
from support.cost import bytes_in_use, is_short

from pykubelet_local_api.kinds.schema import load_schemas
from pykubelet_local_api.rest.fairness import MAX_LONG

MERGE = "application/merge-patch+json"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
OWN_PODS = f"/api/v1/pods?fieldSelector=spec.nodeName%3D{NODE}"
#: What a pod with the rights may open, and what of it waits for the agent.
STREAMS = [
    ("GET", f"{CORE}/pods/p/log?follow=true"),
    ("GET", f"{CORE}/pods/p/exec?command=x&stdout=1"),
    ("GET", f"{CORE}/pods/p/attach?stdout=1"),
    ("GET", f"{CORE}/pods/p/portforward"),
    ("GET", f"/api/v1/nodes/{NODE}/proxy/pods"),
    ("GET", f"{CORE}/pods?watch=1"),
]
UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "eHh4eHh4eHh4eHh4eHh4eA==",
    "Sec-WebSocket-Protocol": "v5.channel.k8s.io",
}
ROUNDS = 20
UNAUTHENTICATED = 200


@pytest.fixture
def api(tmp_path: Path) -> Iterator[MeasuredApi]:
    load_schemas()
    with measured_api(tmp_path / "data") as made:
        yield made


class AgentClient:
    """A client with the agent's own credential."""

    def __init__(self, api: MeasuredApi) -> None:
        self._place = urlsplit(api.api.url)
        self._tls = tls_of(Path(api.api.kubeconfig).parent / "kubelet.kubeconfig")
        self._connection = self.connect()

    def connect(self) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection(
            self._place.hostname or "", self._place.port, context=self._tls, timeout=60.0
        )

    def ask(self, method: str, path: str, body: object = None, media_type: str = "application/json") -> int:
        data = None if body is None else msgspec.json.encode(body)
        self._connection.request(method, path, data, {"Content-Type": media_type})
        answer = self._connection.getresponse()
        answer.read()
        return answer.status

    def close(self) -> None:
        self._connection.close()


def node_with(port: int) -> dict[str, object]:
    """A Node whose agent listens at the port."""
    return {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
    }


def may_open_streams(api: MeasuredApi) -> None:
    """Rights for the pod's service account."""
    resources = ["pods", "pods/log", "pods/exec", "pods/attach", "pods/portforward", "pods/proxy", "nodes/proxy"]
    rules = [{"apiGroups": [""], "resources": resources, "verbs": ["get", "create", "list", "watch"]}]
    cluster = RBAC.replace("/namespaces/default", "")
    assert api.ask("POST", f"{cluster}/clusterroles", {"metadata": {"name": "streams"}, "rules": rules})[0] == 201
    subjects = [{"kind": "ServiceAccount", "name": "default", "namespace": "default"}]
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "streams"}
    body = {"metadata": {"name": "streams"}, "roleRef": role, "subjects": subjects}
    assert api.ask("POST", f"{cluster}/clusterrolebindings", body)[0] == 201


def test_the_agent_goes_on_beside_a_pod_with_all_streams_that_it_may_have(api: MeasuredApi) -> None:
    """The agent does not answer the streams, so that all of them are open at once."""
    agent, pod = AgentClient(api), PodClient(api)
    with socket.create_server(("127.0.0.1", 0), backlog=MAX_LONG) as listening, contextlib.ExitStack() as opened:
        assert agent.ask("POST", "/api/v1/nodes", {"metadata": {"name": NODE}}) in (201, 409)
        status = node_with(listening.getsockname()[1])
        assert agent.ask("PATCH", f"/api/v1/nodes/{NODE}/status", {"status": status}, MERGE) == 200
        spec = {"nodeName": NODE, "containers": [{"name": "c", "image": "i"}]}
        assert api.ask("POST", f"{CORE}/pods", {"metadata": {"name": "p"}, "spec": spec})[0] == 201
        lease = {"metadata": {"name": NODE}, "spec": {"holderIdentity": NODE}}
        assert agent.ask("POST", LEASES, lease) in (201, 409)
        may_open_streams(api)
        watch = agent.connect()
        watch.request("GET", f"{OWN_PODS}&watch=1")
        events = watch.getresponse()
        assert msgspec.json.decode(events.readline())["type"] == "ADDED"
        for number in range(MAX_LONG):
            connection = pod.connect()
            opened.callback(connection.close)
            method, path = STREAMS[number % len(STREAMS)]
            more = UPGRADE if path.partition("?")[0].endswith(("exec", "attach", "portforward")) else {}
            connection.request(method, path, headers=pod.headers | more)
        while pod.ask("GET", f"{CORE}/pods?watch=1&timeoutSeconds=1") != 429:
            pass  # until all of them count
        api.loop.reset()
        for number in range(ROUNDS):
            assert agent.ask("GET", OWN_PODS) == 200
            body = {"status": {"phase": "Running", "message": f"{number}"}}
            assert agent.ask("PATCH", f"{CORE}/pods/p/status", body, MERGE) == 200
            assert agent.ask("PATCH", f"{LEASES}/{NODE}", {"spec": {"leaseTransitions": number + 1}}, MERGE) == 200
            event = msgspec.json.decode(events.readline())
            assert event["object"]["status"]["message"] == f"{number}"  # no change late, and none is left out
        assert is_short(api.loop.longest_s), f"{api.loop.longest_s * 1000:.0f} ms"
        assert pod.ask("GET", f"{CORE}/pods?watch=1&timeoutSeconds=1") == 429  # all are still open
        watch.close()
    agent.close()


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /api HTTP/1.1\r\nHost: x\r\nX: ",
        b"POST /api/v1/namespaces HTTP/1.1\r\nHost: x\r\nContent-Length: 3000000\r\n\r\n{",
        b"POST /api/v1/namespaces HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n",
        b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n" * 500,
        b"GET /api/v1/pods?watch=1 HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
    ids=["nothing", "half a head", "a slow body", "slow chunks", "requests without reading", "watches"],
)
def test_little_is_kept_for_many_unauthenticated_clients(api: MeasuredApi, sent: bytes) -> None:
    """The administrator is answered meanwhile, and nothing stays afterwards."""
    settled(api)
    before = bytes_in_use()
    api.loop.reset()
    with contextlib.ExitStack() as opened:
        count = 0
        for _ in range(UNAUTHENTICATED):
            connection = api.connect(has_certificate=False)
            opened.callback(connection.close)
            with contextlib.suppress(OSError):  # the server may refuse so many
                connection.connect()
                connection.sock.setblocking(False)
                connection.sock.send(sent)
                count += 1
        assert is_short(api.loop.longest_s), f"{api.loop.longest_s * 1000:.0f} ms"
        assert api.ask("GET", f"{CORE}/pods")[0] == 200
        settled(api)
        kept = bytes_in_use() - before
        assert kept <= KEPT_BYTES + count * CONNECTION_BYTES, f"{kept >> 10} KiB for {count} connections"
    for _ in range(50):
        if bytes_in_use() - before <= KEPT_BYTES:
            break
        Event().wait(0.1)
    assert bytes_in_use() - before <= KEPT_BYTES, f"{(bytes_in_use() - before) >> 10} KiB afterwards"
