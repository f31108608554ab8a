"""Hollow nodes: several whole agents in one process at one API server, and the figures about them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from hollow.credentials import Authority, write_kubeconfigs
from hollow.figures import lease_ages, requests_of, unready
from hollow.node import POD_ADDRESSES, HollowNode, Shape, command_line, configuration, pod_network
from hollow.nodes import split
from support.agent import condition, make_container, make_pod
from support.api_server import FakeApiServer
from support.world import kubeconfig
from testbed.certificates import make_authority

from pykubelet.app.wiring import Agent
from pykubelet.base.api.codec import from_object, to_object
from pykubelet.base.api.core import Pod
from pykubelet.base.manifests.defaults import default_pod
from pykubelet_local_api.objects import Json

PODS = "/api/v1/namespaces/default/pods"
WITHIN_S = 60.0


async def wait(what: str, condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while True:
            if condition():
                return
            await asyncio.sleep(0.02)


def objects(server: FakeApiServer, plural: str) -> dict[str, Json]:
    return {place.name: item for place, item in server.store.objects.items() if place.plural == plural}


def run(server: FakeApiServer, name: str, node: str) -> None:
    pod = make_pod(name, make_container() | {"imagePullPolicy": "IfNotPresent"}, nodeName=node)
    server.create(PODS, to_object(default_pod(from_object(Pod, pod))))


@pytest.mark.integration
async def test_nodes_of_one_process_are_nodes_of_their_own(tmp_path: Path) -> None:
    """Needs root, as every agent does."""
    async with FakeApiServer() as server, contextlib.AsyncExitStack() as stack:
        shape = Shape(tmp_path, cpu_milli=3000, flags=("--kubeconfig", str(kubeconfig(server, tmp_path / "k"))))
        nodes = [HollowNode(shape, number) for number in range(3)]
        for node in nodes:
            agent: Agent = await stack.enter_async_context(node.make())
            await agent.start()
        names = [node.name for node in nodes]
        await wait(
            "all nodes Ready",
            lambda: (
                {n for n, item in objects(server, "nodes").items() if condition(item, "Ready") == "True"} == set(names)
            ),
        )
        found = objects(server, "nodes")
        assert {item["status"]["capacity"]["cpu"] for item in found.values()} == {"3"}
        assert len({item["status"]["nodeInfo"]["systemUUID"] for item in found.values()}) == 3
        await wait("a Lease of each", lambda: set(names) <= set(objects(server, "leases")))
        for name in names:
            run(server, f"on-{name}", name)
        await wait(
            "a pod on each", lambda: all(condition(p, "Ready") == "True" for p in objects(server, "pods").values())
        )
        running = [[c.sandbox.config.metadata.name for c in node.runtime.state.containers.values()] for node in nodes]
        assert running == [[f"on-{name}"] for name in names]
        assert len({item["status"]["podIP"] for item in objects(server, "pods").values()}) == 3
        server.delete(f"{PODS}/on-{names[0]}", {"gracePeriodSeconds": 1})
        await wait("only that pod gone", lambda: len(objects(server, "pods")) == 2)
        assert [len(node.runtime.state.sandboxes) for node in nodes[1:]] == [1, 1]


@pytest.mark.integration
async def test_extensions_decide_on_each_node(tmp_path: Path) -> None:
    path = tmp_path / "odd.py"
    path.write_text(
        "from pykubelet.extension import Extension, Reject\n\n\nclass Odd(Extension):\n    name, api = 'odd', '1.0'\n\n"
        "    def admit(self, pod, node):\n        return Reject('Odd', node.name) if node.name.endswith('1') else None\n"
    )
    async with FakeApiServer() as server, contextlib.AsyncExitStack() as stack:
        flags = ("--kubeconfig", str(kubeconfig(server, tmp_path / "k")), "--extension", str(path))
        nodes = [HollowNode(Shape(tmp_path, flags=flags), number) for number in range(2)]
        for node in nodes:
            agent: Agent = await stack.enter_async_context(node.make())
            await agent.start()
            run(server, f"on-{node.name}", node.name)
        refused, ran = f"on-{nodes[1].name}", f"on-{nodes[0].name}"
        await wait("a refusal", lambda: objects(server, "pods")[refused]["status"].get("reason") == "Odd")
        await wait("the other runs", lambda: condition(objects(server, "pods")[ran], "Ready") == "True")


def test_nodes_are_shared_evenly_by_processes() -> None:
    assert split(0, 1000, 3) == [(0, 334), (334, 333), (667, 333)]
    assert split(5, 2, 4) == [(5, 1), (6, 1)]


def test_each_node_has_an_own_name_folder_port_and_pod_network(tmp_path: Path) -> None:
    shape = Shape(tmp_path, port_base=20000, config={"maxPods": 7}, flags=("--kubeconfig", "/k/{node}"))
    config = configuration(shape, tmp_path / "n", 12)
    assert (config["port"], config["maxPods"], config["healthzPort"]) == (20012, 7, 0)
    assert command_line(shape, tmp_path / "n", 12)[-2:] == ["--kubeconfig", "/k/hollow-0012"]
    networks = [pod_network(number) for number in (0, 1, 999)]
    assert all(network.subnet_of(POD_ADDRESSES) for network in networks)
    assert not any(a.overlaps(b) for a in networks for b in networks if a is not b)


def test_kubeconfigs_are_of_nodes_and_kept(tmp_path: Path) -> None:
    certificate = make_authority(tmp_path / "pki")
    authority = Authority(certificate, tmp_path / "pki" / "ca.key")
    names = ["a", "b"]
    assert write_kubeconfigs(authority, "https://127.0.0.1:1", names, tmp_path / "out") == 2
    assert write_kubeconfigs(authority, "https://127.0.0.1:1", [*names, "c"], tmp_path / "out") == 1
    pem, _ = authority.sign("a", datetime.now(UTC))
    made = x509.load_pem_x509_certificate(pem)
    assert made.subject.rfc4514_string() == "CN=system:node:a,O=system:nodes"
    made.verify_directly_issued_by(x509.load_pem_x509_certificate(certificate.read_bytes()))


def test_requests_are_counted_by_verb_and_resource() -> None:
    text = (
        "# TYPE apiserver_request_total counter\n"
        'apiserver_request_total{code="200",resource="nodes",subresource="status",verb="PATCH"} 3\n'
        'apiserver_request_total{code="409",resource="nodes",subresource="status",verb="PATCH"} 1\n'
        'apiserver_request_total{code="200",resource="leases",subresource="",verb="PUT"} 5e+02\n'
        'apiserver_request_total{code="200",resource="",subresource="/healthz",verb="GET"} 2\n'
    )
    assert requests_of(text) == {("PATCH", "nodes/status"): 4, ("PUT", "leases"): 500, ("GET", "none//healthz"): 2}


def test_late_leases_and_nodes_that_are_not_ready_are_found() -> None:
    now = datetime(2026, 1, 1, 0, 0, 20, tzinfo=UTC).timestamp()
    leases = {"items": [{"spec": {"renewTime": f"2026-01-01T00:00:{second}.500000Z"}} for second in ("05", "12")]}
    assert lease_ages({"items": [*leases["items"], {"spec": {}}]}, now) == [14.5, 7.5]

    def node(name: str, *conditions: Json) -> Json:
        return {"metadata": {"name": name}, "status": {"conditions": list(conditions)}}

    ready, unknown = {"type": "Ready", "status": "True"}, {"type": "Ready", "status": "Unknown"}
    items = [node("a", ready), node("b", unknown), node("c", {"type": "MemoryPressure", "status": "True"})]
    assert unready({"items": items}) == ["b", "c"]
