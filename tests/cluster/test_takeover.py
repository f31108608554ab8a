"""The reference kubelet and our agent run a node of a cluster in alternation: users of the cluster see no disturbance.

Needs a kubelet 1.36 and a control plane of 1.33 or later:
`REFERENCE_KUBELET=/usr/bin/kubelet KUBEBUILDER_ASSETS=/usr/local/kubernetes/bin pytest tests/cluster/test_takeover.py`.
`PYKUBELET_TAKEOVERS` is the number of changes from one to the other; `PYKUBELET_SEED` chooses their moments.
"""

from __future__ import annotations

import base64
import json
import os
import random
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from cluster.conftest import MakeEitherAgent
from support.agent import NODE_NAME, Json, condition, make_container, make_pod
from support.cluster import Cluster
from support.device_plugins import device_plugin, healthy
from support.reference import REFERENCE, SETTLED_S, WHY_SKIPPED, EitherAgent, instances, newest_start
from support.sizes import IN_PROGRESS, MIB, PENDING, instance_of, kernel_limits, reported
from support.watched import Watched, faults
from testbed import host
from testbed.controlplane import CONTROLLERS_S

from pykubelet.base.api.times import parse_time

pytestmark = [pytest.mark.integration, pytest.mark.scheduler, pytest.mark.skipif(not REFERENCE, reason=WHY_SKIPPED)]

TAKEOVERS = int(os.environ.get("PYKUBELET_TAKEOVERS", "4"))
SEED = int(os.environ.get("PYKUBELET_SEED", "1"))
FIRST_WITH_RESIZE = 33
DEVICE = "example.com/device"
SETTINGS: dict[str, object] = {
    "cpuManagerPolicy": "static",
    "reservedSystemCPUs": "0",
    "cpuManagerReconcilePeriod": "1s",
    "syncFrequency": "2s",
}
REPLICAS = 4
USED_MIB = 40


@dataclass
class Site:
    """The cluster, the node's agent, and what the test does to them. `steady`: the pods that stay for the whole test."""

    cluster: Cluster
    agent: EitherAgent
    gates: Path
    steady: list[str] = field(default_factory=list)
    large_mib: int = 0  # more than half of the node's memory

    @property
    def deployment(self) -> str:
        return f"/apis/apps/v1/namespaces/{self.cluster.namespace}/deployments/web"

    def path(self, plural: str) -> str:
        return f"/api/v1/namespaces/{self.cluster.namespace}/{plural}"

    def run(self, *pods: Json) -> None:
        names = [pod["metadata"]["name"] for pod in pods]
        self.cluster.run(*pods)
        self.cluster.wait_ready(*names)

    def resize(self, pod: str, amounts: Json) -> None:
        """Another request and limit for the pod's container."""
        resources = {"requests": amounts, "limits": amounts}
        change = {"spec": {"containers": [{"name": "main", "resources": resources}]}}
        self.cluster.kubectl("patch", "pod", pod, "--subresource", "resize", "--patch", json.dumps(change))

    def wait_size(self, name: str, mib: int) -> None:
        """Until it is reported, and in force."""

        def has_size(pod: Json) -> bool:
            pending = reported(pod, PENDING) or reported(pod, IN_PROGRESS)
            (status,) = pod["status"]["containerStatuses"]
            sizes = (status.get("allocatedResources"), *status.get("resources", {}).values())
            return not pending and all(size and size["memory"] in (f"{mib}Mi", f"{mib >> 10}Gi") for size in sizes)

        pod = self.cluster.wait_pod(name, f"{mib}Mi of memory", has_size)
        for instance in ("", instance_of(pod)):
            assert kernel_limits(self.agent, pod, instance)[1] == mib * MIB, f"{name} {instance}"

    def wait_reported(self, name: str, kind: str, reason: str) -> None:
        self.cluster.wait_pod(name, reason, lambda pod: reported(pod, kind).get("reason") == reason)

    def roll_out(self, revision: int) -> None:
        """Change the template. The new pods become ready when the revision's gate is open."""
        self.cluster.patch(self.deployment, {"spec": {"template": template(self.gates, revision)}})

    def wait_rolled_out(self) -> None:
        def is_complete() -> bool:
            found = self.cluster.get(self.deployment)
            assert found is not None
            status = found["status"]
            is_seen = status.get("observedGeneration") == found["metadata"]["generation"]
            counts = [status.get(name) for name in ("replicas", "updatedReplicas", "availableReplicas")]
            return is_seen and counts == [REPLICAS] * 3

        self.cluster.wait("the rollout is complete", is_complete, CONTROLLERS_S)

    def volume(self, pod: str, *parts: str) -> Path:
        """A file in a volume of a pod."""
        found = self.cluster.pod(pod)
        assert found is not None
        return self.agent.root.joinpath("pods", found["metadata"]["uid"], "volumes", *parts)


@pytest.fixture
async def site(make_either_agent: MakeEitherAgent, cluster: Cluster) -> AsyncIterator[Site]:
    """A node whose agent is the reference, with a device plugin."""
    agent = make_either_agent(FIRST_WITH_RESIZE, **SETTINGS)
    gates = agent.folder / "gates"
    gates.mkdir()
    added = {"envs": {"IDS": "{ids}"}}
    async with device_plugin(agent.root, DEVICE, healthy("a", "b", "c"), response=added):
        node = cluster.wait_node_ready()
        wait_devices(cluster)
        large = int(node["status"]["allocatable"]["memory"].removesuffix("Ki")) * 6 // 10 >> 10
        yield Site(cluster, agent, gates, large_mib=large)


def wait_devices(cluster: Cluster) -> None:
    def are_known() -> bool:
        node = cluster.node()
        return node is not None and node["status"]["allocatable"].get(DEVICE) == "3"

    cluster.wait("the node has the plugin's devices", are_known)


async def test_users_of_the_cluster_do_not_see_who_runs_the_pods(site: Site) -> None:
    chance = random.Random(SEED)
    start_pods(site)
    watched = Watched(site.cluster, "content")
    try:
        for number in range(TAKEOVERS):
            await take_over(site, number, chance, watched)
    finally:
        watched.stop()


def start_pods(site: Site) -> None:
    cluster = site.cluster
    data = {"key": "first"}
    cluster.create(site.path("configmaps"), {"metadata": {"name": "content"}, "data": data})
    encoded = {"key": base64.b64encode(b"hidden").decode()}
    cluster.create(site.path("secrets"), {"metadata": {"name": "content"}, "data": encoded})
    sizes = [make_pod(name, sized(64)) for name in ("growing", "deferred")]
    shrinking = make_pod("shrinking", using_memory())
    pods = [content_pod(), probed_pod(), exclusive_pod(), device_pod(), *sizes, shrinking]
    site.run(*pods)
    static = make_pod("static", sized(32))
    static["metadata"]["namespace"] = cluster.namespace
    site.agent.put(static)
    cluster.wait_ready(f"static-{NODE_NAME}")
    site.steady = [*(pod["metadata"]["name"] for pod in pods), f"static-{NODE_NAME}"]
    (site.gates / "0").touch()
    cluster.create(site.deployment.removesuffix("/web"), deployment(site.gates))
    site.wait_rolled_out()


async def take_over(site: Site, number: int, chance: random.Random, watched: Watched) -> None:
    cluster, agent = site.cluster, site.agent
    what = f"change {number}, from {agent.who} (PYKUBELET_SEED={SEED})"
    holder, size = f"holder-{number}", chance.choice([48, 96, 128])
    site.run(make_pod(holder, sized(site.large_mib)))
    is_early, is_begun = chance.random() < 0.5, chance.random() < 0.5
    site.resize("shrinking", memory(USED_MIB // 2))
    site.wait_reported("shrinking", IN_PROGRESS, "Error")
    site.resize("deferred", memory(site.large_mib))
    site.resize("exclusive", {"cpu": "500m"})  # which is not changed in place where CPUs are exclusive
    if is_early:
        site.wait_reported("deferred", PENDING, "Deferred")
        site.wait_reported("exclusive", PENDING, "Infeasible")
    site.roll_out(number + 1)
    if is_begun:
        cluster.wait("old pods go and new ones run", lambda: is_mid_rollout(site))
    before = await state_of(site)
    assert f"{before['exclusive']}\n" in before["cpuset"] and len(before["devices"]) == 2, before
    if is_early:
        site.resize("growing", memory(size))
    stopped_at = time.time()
    agent.stop()
    if not is_early:
        site.resize("growing", memory(size))
    cluster.patch(f"{site.path('configmaps')}/content", {"data": {"key": f"value {number}"}})
    agent.is_reference = not agent.is_reference
    agent.start()

    site.wait_size("growing", size)
    cluster.wait_node_ready()
    wait_devices(cluster)
    site.wait_reported("shrinking", IN_PROGRESS, "Error")
    site.wait_reported("deferred", PENDING, "Deferred")
    site.wait_reported("exclusive", PENDING, "Infeasible")
    value = site.volume("content", "kubernetes.io~configmap", "config", "key")
    cluster.wait("the changed content", lambda: value.read_text() == f"value {number}", CONTROLLERS_S)
    watched.sync()
    forgiven = unsettled(watched.pods(), stopped_at) if agent.is_reference else frozenset()
    early = [pod["metadata"]["name"] for pod in watched.pods() if is_of(pod, number + 1) and is_called_ready(pod)]
    assert agent.is_reference or not early, f"{what}: {early} count as ready before they are"
    (site.gates / str(number + 1)).touch()
    site.wait_rolled_out()
    assert await state_of(site) == before, what

    cluster.delete_pod(holder)
    site.wait_size("deferred", site.large_mib)
    site.resize("exclusive", {"cpu": "1"})
    cluster.wait_pod("exclusive", "the old size", lambda pod: not reported(pod, PENDING))
    for name in ("deferred", "shrinking"):
        site.resize(name, memory(64))
    for name in ("deferred", "shrinking"):
        site.wait_size(name, 64)
    cluster.wait_gone(holder)
    watched.sync()
    assert not (found := faults(watched, forgiven)), f"{what}: {found}"
    watched.keep_newest()


def unsettled(pods: Iterable[Json], at: float) -> frozenset[str]:
    """The UIDs of pods that are not ready at `at`, or whose containers are young then.

    When the reference starts, it reports the former as ready until their probes fail, and the latter as not ready until they succeed.
    """
    newest = {pod["metadata"]["uid"]: pod for pod in pods if last_change(pod) < at}
    starts = {uid: newest_start(pod["status"]) for uid, pod in newest.items()}
    return frozenset(
        uid
        for uid, pod in newest.items()
        if not is_called_ready(pod) or not starts[uid] or at - parse_time(starts[uid]) < SETTLED_S
    )


def last_change(pod: Json) -> float:
    """When the pod was last changed, in seconds."""
    return max(parse_time(entry["time"]) for entry in pod["metadata"]["managedFields"])


def is_called_ready(pod: Json) -> bool:
    return condition(pod, "Ready") == "True"


def is_of(pod: Json, revision: int) -> bool:
    """Whether it is a pod of this revision of the Deployment."""
    probe = pod["spec"]["containers"][0].get("readinessProbe", {"exec": {}})
    return f"/gates/{revision}" in probe["exec"].get("command", [])


def is_mid_rollout(site: Site) -> bool:
    pods = site.cluster.list_objects(f"{site.path('pods')}?labelSelector=app%3Dweb")
    new = [pod for pod in pods if condition(pod, "Ready") == "False" and pod["status"]["phase"] == "Running"]
    return len(new) == 2 and len(pods) == REPLICAS + 1


async def state_of(site: Site) -> Json:
    """Of the pods that stay: what runs, on which CPUs, with which devices, and what is mounted."""
    running = instances(await site.agent.look())
    uids = {}
    for name in site.steady:
        pod = site.cluster.pod(name)
        assert pod is not None
        uids[name] = pod["metadata"].get("annotations", {}).get("kubernetes.io/config.hash") or pod["metadata"]["uid"]
    mounts = host.mounts_below(site.agent.root / "pods")
    cpus = json.loads((site.agent.root / "cpu_manager_state").read_text())
    token = site.volume("content", "kubernetes.io~projected", "token", "token").read_text()
    return {
        "running": {name: running[name] for name in site.steady},
        "mounts": sorted(mount for mount in mounts if any(uid in mount for uid in uids.values())),
        "cpus": (cpus["defaultCpuSet"], cpus["entries"]),
        "exclusive": cpus["entries"][uids["exclusive"]]["main"],
        "cpuset": cpusets(site.agent, uids["exclusive"]),
        "devices": site.agent.devices()[uids["device"], "main"],
        "token": token.count("."),
        "secret": site.volume("content", "kubernetes.io~secret", "secret", "key").read_text(),
    }


def cpusets(agent: EitherAgent, uid: str) -> list[str]:
    """The CPUs of the containers of a pod, as the kernel has them."""
    folders = [folder for folder in agent.pod_cgroups() if uid in folder.name]
    return [path.read_text() for folder in folders for path in sorted(folder.glob("*/cpuset.cpus"))]


# The pods


def memory(mib: int) -> Json:
    return {"memory": f"{mib}Mi"}


def sized(mib: int) -> Json:
    return make_container(resources={"requests": memory(mib), "limits": memory(mib)})


def using_memory() -> Json:
    script = f"dd if=/dev/zero of=/dev/shm/held bs=1M count={USED_MIB}; touch /tmp/there; while :; do sleep 1; done"
    return sized(64) | make_container(script=script, readinessProbe=every_second("test", "-e", "/tmp/there"))


def every_second(*command: str) -> Json:
    return {"exec": {"command": list(command)}, "periodSeconds": 1, "timeoutSeconds": 10}


def content_pod() -> Json:
    """Ready as long as it can read what it got from the API server."""
    volumes: list[Json] = [
        {"name": "config", "configMap": {"name": "content"}},
        {"name": "secret", "secret": {"secretName": "content"}},
        {
            "name": "token",
            "projected": {
                "sources": [
                    {"serviceAccountToken": {"path": "token", "expirationSeconds": 3600}},
                    {"configMap": {"name": "kube-root-ca.crt"}},
                    {"downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
                ]
            },
        },
    ]
    mounts = [{"name": volume["name"], "mountPath": f"/{volume['name']}"} for volume in volumes]
    mounts.append({"name": "secret", "mountPath": "/below/key", "subPath": "key"})
    reads = "set -e; for f in /config/key /secret/key /token/token /token/ca.crt /token/name /below/key; do test -s $f; done"
    env = [{"name": "KEY", "valueFrom": {"configMapKeyRef": {"name": "content", "key": "key"}}}]
    probe = every_second("sh", "-c", reads)
    return make_pod("content", make_container(volumeMounts=mounts, env=env, readinessProbe=probe), volumes=volumes)


def probed_pod() -> Json:
    probes: Json = dict.fromkeys(("startupProbe", "readinessProbe", "livenessProbe"), every_second("true"))
    side = make_container("side", restartPolicy="Always", **probes)
    first = make_container("first", "echo first > /dev/termination-log")
    return make_pod("probed", make_container(**probes), make_container("plain"), initContainers=[first, side])


def exclusive_pod() -> Json:
    amounts = {"cpu": "1", "memory": "32Mi"}  # the only CPU that is not reserved
    return make_pod("exclusive", make_container(resources={"requests": amounts, "limits": amounts}))


def device_pod() -> Json:
    amounts = {DEVICE: "2"}
    probe = every_second("sh", "-c", "test ${#IDS} = 3")
    return make_pod("device", make_container(resources={"requests": amounts, "limits": amounts}, readinessProbe=probe))


def template(gates: Path, revision: int) -> Json:
    gate = {"name": "gates", "hostPath": {"path": str(gates)}}
    probe = every_second("test", "-e", f"/gates/{revision}")
    container = make_container(readinessProbe=probe, volumeMounts=[{"name": "gates", "mountPath": "/gates"}])
    return {
        "metadata": {"labels": {"app": "web"}},
        "spec": make_pod("web", container, volumes=[gate])["spec"],
    }


def deployment(gates: Path) -> Json:
    rolling: dict[str, Any] = {"maxUnavailable": 1, "maxSurge": 1}
    return {
        "metadata": {"name": "web"},
        "spec": {
            "replicas": REPLICAS,
            "strategy": {"rollingUpdate": rolling},
            "selector": {"matchLabels": {"app": "web"}},
            "template": template(gates, 0),
        },
    }
