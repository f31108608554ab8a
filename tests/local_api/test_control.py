"""The control plane of a served local API: its decisions pass its own registry and come to an end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from local_api.reconcile.world import resource_of, thing
from local_api.server import serving

from pykubelet.base.kit.clock import ManualClock
from pykubelet_local_api.objects import Json
from pykubelet_local_api.reconcile.changes import condition_of, created, deleted, status_updated
from pykubelet_local_api.wiring import LocalApi


class Cluster:
    """A served API with a node that is ready."""

    def __init__(self, api: LocalApi) -> None:
        self.api = api

    async def make(self, found: Json) -> Json:
        """Create an object, and give it its status."""
        resource = resource_of(found)
        await self.api.writer.apply(created(resource, found))
        place = (resource, found["metadata"].get("namespace", ""), found["metadata"]["name"])
        if "status" in found:
            stored = self.get(*place)
            await self.api.writer.apply(status_updated(resource, {**stored, "status": found["status"]}))
        return self.get(*place)

    async def delete(self, resource: str, namespace: str, name: str) -> None:
        await self.api.writer.apply(deleted(resource, self.get(resource, namespace, name)))

    def get(self, resource: str, namespace: str, name: str) -> Json:
        found = self.api.store.get(resource, namespace, name)
        assert found is not None, (resource, namespace, name)
        return found

    async def until(self, holds: Callable[[], object]) -> None:
        """Wait until the objects are so."""
        wakeup = asyncio.Event()
        self.api.store.watch("", wakeup)
        async with asyncio.timeout(20):
            while not holds():
                await wakeup.wait()
                wakeup.clear()
        self.api.store.unwatch("", wakeup)

    def has(self, resource: str, namespace: str, name: str) -> bool:
        return self.api.store.get(resource, namespace, name) is not None


NODE_STATUS = {
    "allocatable": {"cpu": "2", "memory": "4Gi", "pods": "10"},
    "capacity": {"cpu": "2", "memory": "4Gi", "pods": "10"},
    "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
}


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with serving(tmp_path) as api:
        found = Cluster(api)
        await found.until(lambda: found.has("serviceaccounts", "default", "default"))
        await found.make(thing("Node", "n", status=NODE_STATUS))
        yield found


def pod(name: str, **spec: Any) -> Json:
    containers = [{"name": "c", "image": "example.com/x", "resources": {"requests": spec.pop("requests", {})}}]
    return thing("Pod", name, "default", spec={"containers": containers} | spec)


async def test_a_pod_is_bound_to_the_node_that_is_ready(cluster: Cluster) -> None:
    await cluster.make(pod("p"))
    await cluster.until(lambda: cluster.get("pods", "default", "p")["spec"].get("nodeName") == "n")
    found = cluster.get("pods", "default", "p")
    assert condition_of(found, "PodScheduled")["status"] == "True"
    await cluster.until(lambda: any(event["reason"] == "Scheduled" for event in cluster.api.store.list("events")))


async def test_a_pod_that_does_not_fit_reports_why(cluster: Cluster) -> None:
    await cluster.make(pod("p", requests={"cpu": "8"}))
    await cluster.until(lambda: condition_of(cluster.get("pods", "default", "p"), "PodScheduled"))
    message = condition_of(cluster.get("pods", "default", "p"), "PodScheduled")["message"]
    assert message.startswith("0/1 nodes are available: 1 Insufficient cpu. ")


async def test_a_namespace_goes_with_its_contents(cluster: Cluster) -> None:
    await cluster.make(thing("Namespace", "mine"))
    await cluster.until(lambda: cluster.has("configmaps", "mine", "kube-root-ca.crt"))
    await cluster.make(thing("Secret", "s", "mine"))
    await cluster.delete("namespaces", "", "mine")
    await cluster.until(lambda: not cluster.has("namespaces", "", "mine"))
    assert not cluster.has("secrets", "mine", "s")


async def test_claims_and_volumes_are_bound_and_protected(cluster: Cluster) -> None:
    size = {"storage": "1Gi"}
    spec = {"capacity": size, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/x"}, "storageClassName": ""}
    await cluster.make(thing("PersistentVolume", "v", spec=spec))
    spec = {"resources": {"requests": size}, "accessModes": ["ReadWriteOnce"], "storageClassName": ""}
    await cluster.make(thing("PersistentVolumeClaim", "c", "default", spec=spec))
    await cluster.make(pod("p", volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]))
    await cluster.until(lambda: cluster.get("pods", "default", "p")["spec"].get("nodeName") == "n")
    await cluster.until(lambda: cluster.get("persistentvolumeclaims", "default", "c")["status"]["phase"] == "Bound")
    await cluster.delete("persistentvolumeclaims", "default", "c")
    ended = cluster.get("pods", "default", "p")
    await cluster.api.writer.apply(deleted("pods", ended, 0))
    await cluster.until(lambda: not cluster.has("persistentvolumeclaims", "default", "c"))
    await cluster.until(lambda: cluster.get("persistentvolumes", "", "v")["status"]["phase"] == "Released")


async def test_an_owner_takes_its_objects_with_it(cluster: Cluster) -> None:
    owner = await cluster.make(thing("ConfigMap", "owner", "default"))
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"]}
    await cluster.make(thing("Secret", "owned", "default", metadata={"ownerReferences": [reference]}))
    await cluster.delete("configmaps", "default", "owner")
    await cluster.until(lambda: not cluster.has("secrets", "default", "owned"))


async def test_a_service_has_its_endpoints(cluster: Cluster) -> None:
    ports = [{"port": 80, "targetPort": 8080}]
    await cluster.make(thing("Service", "web", "default", spec={"selector": {"app": "web"}, "ports": ports}))
    found = pod("p") | {"metadata": {"name": "p", "namespace": "default", "labels": {"app": "web"}}}
    await cluster.make(found)
    await cluster.until(lambda: cluster.get("pods", "default", "p")["spec"].get("nodeName") == "n")
    status = {
        "phase": "Running",
        "podIP": "10.0.0.1",
        "podIPs": [{"ip": "10.0.0.1"}],
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    await cluster.api.writer.apply(status_updated("pods", cluster.get("pods", "default", "p") | {"status": status}))
    await cluster.until(lambda: (_endpoints(cluster) or [{}])[0].get("addresses") == ["10.0.0.1"])
    await cluster.until(lambda: cluster.get("endpoints", "default", "web").get("subsets"))


def _endpoints(cluster: Cluster) -> list[Json]:
    slices = cluster.api.store.list("endpointslices.discovery.k8s.io", "default")
    return [
        endpoint
        for found in slices
        if (found["metadata"].get("labels") or {}).get("kubernetes.io/service-name") == "web"
        for endpoint in found.get("endpoints") or ()
    ]


async def test_the_control_plane_comes_to_rest(cluster: Cluster) -> None:
    """No reconciler writes the same again and again, whatever strategies add to its objects."""
    await test_a_service_has_its_endpoints(cluster)
    wakeup = asyncio.Event()
    cluster.api.store.watch("", wakeup)
    for _ in range(400):  # the roles of a new cluster are being made
        before = cluster.api.store.version
        wakeup.clear()
        try:
            async with asyncio.timeout(0.3):
                await wakeup.wait()
        except TimeoutError:
            assert cluster.api.store.version == before
            return
    newest = cluster.api.store.history.all_after(cluster.api.store.version - 5)
    raise AssertionError([(change.key, change.type) for change in newest])


async def test_writes_that_the_history_has_forgotten_are_looked_at(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large objects that are written together push the others of their commit out of the history."""
    monkeypatch.setattr("pykubelet_local_api.store.history.MAX_CHANGES", 10)
    async with asyncio.timeout(20):
        while not cluster.api.loop.is_idle():  # noqa: ASYNC110 - the loop has no event for it
            await asyncio.sleep(0)
    fill = [thing("ConfigMap", f"c{number}", "default") for number in range(30)]
    await asyncio.gather(
        *(
            cluster.api.writer.apply(created(resource_of(found), found))
            for found in [thing("Namespace", "early"), *fill]
        )
    )
    await cluster.until(lambda: cluster.has("serviceaccounts", "early", "default"))


async def test_pods_trust_the_authority_that_was_renewed_when_the_clock_was_set(tmp_path: Path) -> None:
    """A machine without a clock of its own starts in 1970; its first certificates end long before the time that it then gets."""
    clock = ManualClock(wall=1000.0)
    async with serving(tmp_path, clock) as api:
        found = Cluster(api)
        await found.until(lambda: found.has("configmaps", "default", "kube-root-ca.crt"))
        first = (tmp_path / "ca.crt").read_text()
        clock.jump_wall(time.time())
        await api.upkeep.renew()
        renewed = (tmp_path / "ca.crt").read_text()
        assert renewed != first
        await found.until(lambda: found.get("configmaps", "default", "kube-root-ca.crt")["data"]["ca.crt"] == renewed)
        assert api.authority.get().pem.decode() == renewed
