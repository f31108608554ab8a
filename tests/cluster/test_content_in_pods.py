"""What pods take from the API server, with a real one and its node authorizer."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.agent import Agent, Json, container_status, make_container, make_pod, waiting_reason
from support.cluster import Cluster, look
from testbed import controlplane
from testbed.controlplane import APISERVER

#: The promise: a change is in the running pod, and a pod that waits for an object starts, so many seconds after it.
# nothing is re-read on a timer shorter than this, so whoever is that fast heard of it
AT_ONCE_S = 30.0
SHOW = 'while :; do [ "$(cat /v/key)" = "$last" ] || { last=$(cat /v/key); echo "now $last"; }; sleep 0.02; done'


def path_of(cluster: Cluster, plural: str) -> str:
    return f"/api/v1/namespaces/{cluster.namespace}/{plural}"


def put_config_map(cluster: Cluster, name: str, **data: str) -> None:
    cluster.create(path_of(cluster, "configmaps"), {"metadata": {"name": name}, "data": data})


def put_secret(cluster: Cluster, name: str, **data: str) -> None:
    encoded = {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}
    cluster.create(path_of(cluster, "secrets"), {"metadata": {"name": name}, "data": encoded})


def mounting(name: str, source: Json, script: str = "") -> Json:
    container = make_container(script=script, volumeMounts=[{"name": "v", "mountPath": "/v"}])
    return make_pod(name, container, volumes=[{"name": "v", **source}], automountServiceAccountToken=False)


def seconds(act: Callable[[], Any], until: Callable[[], Any]) -> float:
    """How long it takes from the end of `act` until `until` holds."""
    act()
    began = time.monotonic()
    while not until():
        assert time.monotonic() - began < AT_ONCE_S, until
        time.sleep(0.01)
    return time.monotonic() - began


def output(agent: Agent, cluster: Cluster, pod: str) -> str:
    found = list(Path(agent.logs).glob(f"{cluster.namespace}_{pod}_*/main/*.log"))
    return "".join(path.read_text() for path in sorted(found))


def wait_reported(agent: Agent, cluster: Cluster, pod: str, words: str) -> None:
    """Until what is known of a pod on the node has the words: its waits and its timeline with Events."""
    quoted = json.dumps(words)[1:-1]
    cluster.wait(f"it is reported: {words}", lambda: quoted in agent.ask("explain", pod, "-o", "json").stdout)


def waits(agent: Agent, pod: str) -> list[tuple[str, str, str]]:
    """What the pod waits for: what, which one, and the detail."""
    found = agent.ask_json("explain", pod)["waits"]
    return [(wait["what"], wait["subject"], wait["detail"]) for wait in found]


def test_a_changed_config_map_is_in_the_running_pod_at_once(cluster: Cluster, cluster_agent: Agent) -> None:
    put_config_map(cluster, "settings", key="one")
    cluster.run(mounting("reader", {"configMap": {"name": "settings"}}, SHOW))
    cluster.wait_ready("reader")
    cluster.wait("the first value", lambda: "now one" in output(cluster_agent, cluster, "reader"))
    took = seconds(
        lambda: cluster.patch(f"{path_of(cluster, 'configmaps')}/settings", {"data": {"key": "two"}}),
        lambda: "now two" in output(cluster_agent, cluster, "reader"),
    )
    print(f"a change was in the pod after {took:.3f} s")
    assert took <= AT_ONCE_S


def test_a_pod_waits_for_its_secret_and_starts_as_soon_as_it_is_there(cluster: Cluster, cluster_agent: Agent) -> None:
    cluster.run(mounting("waiter", {"secret": {"secretName": "late"}}, "echo $(cat /v/word); sleep 1000"))
    cluster.wait_pod("waiter", "it waits", lambda pod: waiting_reason(pod) == "ContainerCreating")
    missing = 'secret "late" not found'
    cluster.wait("the wait", lambda: ("volume", "v", missing) in waits(cluster_agent, "waiter"))
    wait_reported(cluster_agent, cluster, "waiter", f'MountVolume.SetUp failed for volume "v" : {missing}')
    begins_at_once(cluster_agent, cluster, "waiter", lambda: put_secret(cluster, "late", word="hidden"))
    cluster.wait("its word", lambda: "hidden" in output(cluster_agent, cluster, "waiter"))


def begins_at_once(agent: Agent, cluster: Cluster, pod: str, act: Callable[[], Any]) -> None:
    """After `act` the pod becomes ready, and the last thing that was made for it was begun at once."""
    act()
    done = time.time()
    cluster.wait_ready(pod)
    view = look(agent).of(pod)
    took = max((box.created_at for box in view.sandboxes), default=0) / 1e9 - done
    if took < 0:  # the sandbox was there before
        took = max(container.created_at for container in view.containers) / 1e9 - done
    print(f"{pod}: begun {took:.3f} s afterwards")
    assert took <= AT_ONCE_S


def test_a_container_waits_for_its_environment_with_the_references_words(
    cluster: Cluster, cluster_agent: Agent
) -> None:
    reference = {"name": "WORD", "valueFrom": {"configMapKeyRef": {"name": "words", "key": "first"}}}
    cluster.run(make_pod("speaker", make_container(script="echo $WORD; sleep 1000", env=[reference])))
    refused = cluster.wait_pod(
        "speaker",
        "it is refused",  # an API server that takes its time is reported before
        lambda pod: container_status(pod)["state"].get("waiting", {}).get("message") == 'configmap "words" not found',
    )
    assert waiting_reason(refused) == "CreateContainerConfigError"
    put_config_map(cluster, "words", other="x")
    wanted = f"couldn't find key first in ConfigMap {cluster.namespace}/words"
    cluster.wait_pod(
        "speaker",
        "it misses the key",
        lambda pod: container_status(pod)["state"].get("waiting", {}).get("message") == wanted,
    )
    words = f"{path_of(cluster, 'configmaps')}/words"
    begins_at_once(cluster_agent, cluster, "speaker", lambda: cluster.patch(words, {"data": {"first": "hello"}}))
    cluster.wait("its word", lambda: "hello" in output(cluster_agent, cluster, "speaker"))


def test_tokens_are_bound_to_their_pod_and_a_new_one_reaches_the_running_pod(
    cluster: Cluster, cluster_agent: Agent
) -> None:
    source = {"serviceAccountToken": {"path": "key", "audience": "vault", "expirationSeconds": 600}}
    (pod,) = cluster.run(mounting("bearer", {"projected": {"sources": [source]}}, SHOW))
    cluster.wait_ready("bearer")
    cluster.wait("the first token", lambda: len(shown(cluster_agent, cluster, "bearer")) == 1)
    token = shown(cluster_agent, cluster, "bearer")[0]
    review = cluster.create(
        "/apis/authentication.k8s.io/v1/tokenreviews",
        {
            "kind": "TokenReview",
            "apiVersion": "authentication.k8s.io/v1",
            "spec": {"token": token, "audiences": ["vault"]},
        },
    )["status"]
    assert review["authenticated"]
    assert review["user"]["username"] == f"system:serviceaccount:{cluster.namespace}:default"
    assert review["user"]["extra"]["authentication.kubernetes.io/pod-uid"] == [pod["metadata"]["uid"]]
    before = container_status(cluster.wait_ready("bearer")[0])["containerID"]
    time.sleep(1.1)  # times in a token are seconds: another one of the same second is the same
    cluster_agent.stop()
    cluster_agent.start()
    cluster.wait("another token", lambda: len(shown(cluster_agent, cluster, "bearer")) == 2)
    assert container_status(cluster.wait_ready("bearer")[0])["containerID"] == before


def shown(agent: Agent, cluster: Cluster, pod: str) -> list[str]:
    """The values that the pod's file has had, oldest first."""
    return [line.split("now ", 1)[1] for line in output(agent, cluster, pod).splitlines() if "now " in line]


def test_an_unknown_runtime_class_holds_up_the_sandbox_until_it_is_there(
    cluster: Cluster, cluster_agent: Agent
) -> None:
    classes = "/apis/node.k8s.io/v1/runtimeclasses"
    name = f"late-{cluster.namespace}"
    pod = make_pod("sealed")
    cluster.create(classes, {"metadata": {"name": name}, "handler": "runc"})  # admission wants it to be there
    cluster_agent.stop()
    cluster.run(pod | {"spec": pod["spec"] | {"runtimeClassName": name}})
    cluster.delete(f"{classes}/{name}")
    cluster_agent.start()
    wanted = f'Failed to create pod sandbox: runtimeclass.node.k8s.io "{name}" not found'
    wait_reported(cluster_agent, cluster, "sealed", wanted)
    begins_at_once(
        cluster_agent,
        cluster,
        "sealed",
        lambda: cluster.create(classes, {"metadata": {"name": name}, "handler": "runc"}),
    )
    cluster.delete(f"{classes}/{name}")


def test_services_are_in_the_environment(cluster: Cluster, cluster_agent: Agent) -> None:
    port = {"name": "web-port", "port": 8080}
    service = cluster.create(path_of(cluster, "services"), {"metadata": {"name": "my-shop"}, "spec": {"ports": [port]}})
    address = service["spec"]["clusterIP"]
    script = "env; echo all reported; sleep 1000"
    linked = make_pod("linked", make_container(script=script))
    alone = make_pod("alone", make_container(script=script), enableServiceLinks=False)
    cluster.run(linked, alone)
    cluster.wait_ready("linked", "alone")
    cluster.wait("the environment", lambda: "all reported" in output(cluster_agent, cluster, "linked"))
    seen = output(cluster_agent, cluster, "linked")
    for line in (
        f"MY_SHOP_SERVICE_HOST={address}",
        "MY_SHOP_SERVICE_PORT=8080",
        "MY_SHOP_SERVICE_PORT_WEB_PORT=8080",
        f"MY_SHOP_PORT_8080_TCP=tcp://{address}:8080",
        "KUBERNETES_SERVICE_PORT_HTTPS=443",
    ):
        assert line in seen
    cluster.wait("the other environment", lambda: "all reported" in output(cluster_agent, cluster, "alone"))
    assert "KUBERNETES_" in (other := output(cluster_agent, cluster, "alone")) and "MY_SHOP" not in other


def test_while_the_api_server_is_away_pods_keep_what_they_have(cluster: Cluster, cluster_agent: Agent) -> None:
    put_config_map(cluster, "settings", key="one")
    cluster.run(mounting("keeper", {"configMap": {"name": "settings"}}, SHOW))
    cluster.wait_ready("keeper")
    cluster.wait("the first value", lambda: shown(cluster_agent, cluster, "keeper") == ["one"])
    controlplane.kill(cluster.plane, APISERVER)
    time.sleep(1)
    controlplane.start(cluster.plane, APISERVER)
    cluster.patch(f"{path_of(cluster, 'configmaps')}/settings", {"data": {"key": "two"}})
    cluster.wait("the new value", lambda: shown(cluster_agent, cluster, "keeper") == ["one", "two"])


def test_a_pull_secret_that_is_missing_is_reported_when_a_pull_has_failed_without_it(
    cluster: Cluster, cluster_agent: Agent
) -> None:
    secrets = [{"name": "nowhere"}]
    cluster.run(make_pod("puller", imagePullSecrets=secrets))
    cluster.wait_ready("puller")
    cluster.run(
        make_pod(
            "denied", make_container(image="localhost:9/nowhere:1", imagePullPolicy="Always"), imagePullSecrets=secrets
        )
    )
    printed = "Unable to retrieve some image pull secrets (nowhere); attempting to pull the image may not succeed."
    wait_reported(cluster_agent, cluster, "denied", printed)
