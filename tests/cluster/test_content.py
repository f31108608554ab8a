"""What pods need from the API: ConfigMaps, Secrets and tokens reach the container, and changes follow by themselves."""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path

from support.agent import Agent, Json, condition, make_container, make_pod, waiting_reason
from support.cluster import Cluster, look

# nothing is re-read on a timer shorter than this, so whoever is that fast heard of it; how fast is for the benchmark
HEARD_S = 30.0


def put_config_map(cluster: Cluster, name: str, **data: str) -> None:
    path = f"/api/v1/namespaces/{cluster.namespace}/configmaps"
    if cluster.get(f"{path}/{name}") is None:
        cluster.create(path, {"metadata": {"name": name}, "data": data})
    else:
        cluster.patch(f"{path}/{name}", {"data": data})


def put_secret(cluster: Cluster, name: str, **data: str) -> None:
    path = f"/api/v1/namespaces/{cluster.namespace}/secrets"
    encoded = {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}
    cluster.create(path, {"metadata": {"name": name}, "data": encoded})


def volume_dir(agent: Agent, pod: Json, kind: str, volume: str) -> Path:
    return agent.root / "pods" / str(pod["metadata"]["uid"]) / "volumes" / f"kubernetes.io~{kind}" / volume


def test_a_changed_config_map_is_heard_of_and_put_into_the_volume(cluster: Cluster, cluster_agent: Agent) -> None:
    put_config_map(cluster, "page", text="first")
    container = make_container(volumeMounts=[{"name": "page", "mountPath": "/page"}])
    volumes = [{"name": "page", "configMap": {"name": "page"}}]
    cluster.run(make_pod("reader", container, volumes=volumes))
    (pod,) = cluster.wait_ready("reader")
    text = volume_dir(cluster_agent, pod, "configmap", "page") / "text"
    assert text.read_text() == "first"
    for value in ("second", "third"):
        put_config_map(cluster, "page", text=value)
        began = time.monotonic()
        cluster.wait(f"{value} in the volume", lambda value=value: text.read_text() == value, HEARD_S)  # type: ignore[misc]
        print(f"{value} was in the volume after {time.monotonic() - began:.3f} s")


def test_environment_from_config_maps_and_secrets(cluster: Cluster, cluster_agent: Agent) -> None:
    put_config_map(cluster, "plain", one="1", two="2")
    put_secret(cluster, "hidden", word="xyzzy")
    container = make_container(
        script="env > /dev/termination-log",
        envFrom=[
            {"prefix": "P_", "configMapRef": {"name": "plain"}},
            {"secretRef": {"name": "absent", "optional": True}},
        ],
        env=[{"name": "WORD", "valueFrom": {"secretKeyRef": {"name": "hidden", "key": "word"}}}],
    )
    cluster.run(make_pod("env", container, restartPolicy="Never"))
    pod = cluster.wait_pod("env", "done", lambda pod: pod["status"]["phase"] == "Succeeded")
    output = pod["status"]["containerStatuses"][0]["state"]["terminated"]["message"].splitlines()
    assert {"P_one=1", "P_two=2", "WORD=xyzzy"} <= set(output)
    assert any(line.startswith("KUBERNETES_SERVICE_HOST=") for line in output)


def test_what_is_missing_is_waited_for(cluster: Cluster, cluster_agent: Agent) -> None:
    volumes = [{"name": "late", "configMap": {"name": "late"}}]
    mounts = make_container(volumeMounts=[{"name": "late", "mountPath": "/late"}])
    needs = make_container(env=[{"name": "K", "valueFrom": {"configMapKeyRef": {"name": "late", "key": "text"}}}])
    cluster.run(make_pod("volume", mounts, volumes=volumes), make_pod("env", needs))
    cluster.wait_pod("env", "refused for now", lambda pod: waiting_reason(pod) == "CreateContainerConfigError")
    cluster.wait("a named wait", lambda: "late" in cluster_agent.ask("explain", "volume").stdout)
    assert not look(cluster_agent).of("volume").containers
    put_config_map(cluster, "late", text="now")
    began = time.monotonic()
    cluster.wait_ready("volume", "env")
    assert time.monotonic() - began < HEARD_S


def test_a_service_account_token_is_the_pods_own(cluster: Cluster, cluster_agent: Agent) -> None:
    where = "/var/run/secrets/kubernetes.io/serviceaccount"
    script = f"cat {where}/namespace {where}/token > /dev/termination-log; test -s {where}/ca.crt"
    cluster.run(make_pod("token", make_container(script=script), restartPolicy="Never"))
    pod = cluster.wait_pod("token", "done", lambda pod: pod["status"]["phase"] in ("Succeeded", "Failed"))
    assert pod["status"]["phase"] == "Succeeded"
    output = pod["status"]["containerStatuses"][0]["state"]["terminated"]["message"]
    assert output.startswith(cluster.namespace)
    claims = output.removeprefix(cluster.namespace).split(".")[1]
    bound = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))["kubernetes.io"]
    assert bound["pod"] == {"name": "token", "uid": pod["metadata"]["uid"]}
    assert condition(pod, "Ready") == "False"
