"""What runs on the ten nodes, and what users of it look at.

Each pod of the StatefulSet writes a line to a file of its name when it starts and when it ends, in a folder that all nodes
share: the file shows whether two pods of one name ever ran at once, whatever the API server reports.
"""

from __future__ import annotations

import json
import os
from typing import Any

from support.agent import Json, condition, make_container, make_pod
from support.cluster import WITHIN_S, node_condition
from ten.nodes import KIND, REAL, Node, Ten
from testbed.controlplane import CONTROLLERS_S

REPLICAS = int(os.environ.get("TEN_REPLICAS", "300"))
SURPLUS = 0.25
MEMBERS = 3
#: How long a pod stays on a node that cannot be reached, in seconds; Kubernetes' default is 300.
TOLERATION_S = 10
AWAY = ("node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready")
FOREVER = 'trap "exit 0" TERM; while :; do sleep 3600 & wait $!; done'
_MEMBER = """
echo "start $POD_UID" >> /shared/$POD_NAME
trap 'echo "end $POD_UID" >> /shared/$POD_NAME; exit 0' TERM
while :; do sleep 3600 & wait $!; done
"""


def tolerations(seconds: int | None) -> list[Json]:
    """Tolerations of nodes that are away; None: for ever."""
    limit = {} if seconds is None else {"tolerationSeconds": seconds}
    return [{"key": key, "operator": "Exists", "effect": "NoExecute", **limit} for key in AWAY]


def pod(name: str, script: str = FOREVER, **spec: Any) -> Json:
    """A small pod without a token."""
    container = make_container("main", script) | {"resources": {"requests": {"cpu": "1m", "memory": "1Mi"}}}
    return make_pod(name, container, automountServiceAccountToken=False, **spec)


def template(name: str, **spec: Any) -> Json:
    """The template of a workload's pods."""
    return {"metadata": {"labels": {"app": name}}, "spec": pod(name, **spec)["spec"]}


def workload(kind: str, name: str, spec: Json) -> Json:
    """A Deployment, StatefulSet or DaemonSet."""
    selector = {"matchLabels": {"app": name}}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name}, "spec": {"selector": selector, **spec}}


def deployment() -> Json:
    """Three hundred pods, or as many as the variable has, on all nodes."""
    return workload(
        "Deployment", "web", {"replicas": REPLICAS, "template": template("web", tolerations=tolerations(TOLERATION_S))}
    )


def stateful_set(ten: Ten) -> Json:
    """Three members with identities, on nodes with real containers, no two on one node as long as there are others."""
    field = {"fieldRef": {"fieldPath": "metadata.name"}}, {"fieldRef": {"fieldPath": "metadata.uid"}}
    env = [{"name": name, "valueFrom": value} for name, value in zip(("POD_NAME", "POD_UID"), field, strict=True)]
    volume = {"name": "shared", "hostPath": {"path": str(ten.shared), "type": "DirectoryOrCreate"}}
    made = template("db", script=_MEMBER, nodeSelector={KIND: REAL}, tolerations=tolerations(TOLERATION_S))
    made["spec"]["volumes"] = [volume]
    made["spec"]["containers"][0] |= {"env": env, "volumeMounts": [{"name": "shared", "mountPath": "/shared"}]}
    made["spec"]["topologySpreadConstraints"] = [
        {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": {"app": "db"}},
        }
    ]
    return workload("StatefulSet", "db", {"replicas": MEMBERS, "serviceName": "db", "template": made})


def start_workloads(ten: Ten) -> None:
    """A static pod on each node, a DaemonSet, a StatefulSet, a Deployment; returns when all run."""
    ten.shared.mkdir(exist_ok=True)
    for node in ten.nodes:
        node.put_static_pod(pod("fixed"))
    daemons = workload("DaemonSet", "helper", {"template": template("helper")})
    everything = {"apiVersion": "v1", "kind": "List", "items": [daemons, stateful_set(ten), deployment()]}
    ten.cluster.kubectl("apply", "-f", "-", stdin=json.dumps(everything))
    wait_all(ten)


def wait_all(ten: Ten, within: float = 2 * CONTROLLERS_S) -> None:
    """Until every workload has all its pods, ready."""
    ten.cluster.kubectl("rollout", "status", "statefulset/db", f"--timeout={within:.0f}s", timeout_s=within + 30)
    wait_web(ten, within)
    ten.cluster.wait("a helper on each node", lambda: len(ready(ten, "helper")) == len(ten.nodes), within)
    for node in ten.nodes:
        ten.cluster.wait_ready(f"fixed-{node.name}", within=within)


def wait_web(ten: Ten, within: float = 2 * CONTROLLERS_S) -> None:
    """Until the Deployment has all its pods, ready."""
    ten.cluster.wait(f"{REPLICAS} pods of web ready", lambda: web_status(ten).get("readyReplicas") == REPLICAS, within)


def web_status(ten: Ten) -> Json:
    """The status of the Deployment."""
    found = ten.cluster.get("/apis/apps/v1/namespaces/default/deployments/web")
    assert found is not None
    return dict(found["status"])


def pods(ten: Ten, app: str = "", node: Node | None = None) -> list[Json]:
    """The pods of a workload, or on a node, or both."""
    query = [f"labelSelector=app%3D{app}"] if app else []
    query += [f"fieldSelector=spec.nodeName%3D{node.name}"] if node is not None else []
    return ten.cluster.list_objects(f"{ten.cluster.pods_path}?{'&'.join(query)}")


def ready(ten: Ten, app: str, node: Node | None = None) -> list[Json]:
    """Those that are ready and not being deleted."""
    return [item for item in pods(ten, app, node) if condition(item, "Ready") == "True" and not is_deleted(item)]


def is_deleted(found: Json) -> bool:
    """Whether its deletion was requested."""
    return "deletionTimestamp" in found["metadata"]


def uid(found: Json) -> str:
    """The pod's UID."""
    return str(found["metadata"]["uid"])


def names(found: list[Json]) -> set[str]:
    """The pods' names."""
    return {str(item["metadata"]["name"]) for item in found}


def container_ids(found: Json) -> list[str]:
    """The ids of its containers, as the runtime has them."""
    return [status["containerID"].rpartition("/")[2] for status in found["status"]["containerStatuses"]]


def member_on(ten: Ten, node: Node) -> Json:
    """A member of the StatefulSet on this node."""
    return pods(ten, "db", node)[0]


def wait_unknown(ten: Ten, node: Node, within: float = 2 * WITHIN_S) -> None:
    """Until the control plane has given up a node: its Ready condition is Unknown, and it has the taint that ends pods."""

    def holds() -> bool:
        found = ten.cluster.node(node.name)
        assert found is not None
        taints = {(taint["key"], taint["effect"]) for taint in found["spec"].get("taints", [])}
        return node_condition(found, "Ready") == "Unknown" and (AWAY[0], "NoExecute") in taints

    ten.cluster.wait(f"{node.name} is Unknown and tainted", holds, within)


def wait_back(ten: Ten, node: Node, within: float = 2 * WITHIN_S) -> None:
    """Until a node is Ready again, and without the taints of a node that is away."""
    ten.cluster.wait_node_ready(node.name, within)

    def holds() -> bool:
        found = ten.cluster.node(node.name)
        return found is not None and not {taint["key"] for taint in found["spec"].get("taints", [])} & set(AWAY)

    ten.cluster.wait(f"{node.name} has no taint", holds, within)


def assert_never_two(ten: Ten) -> None:
    """No member of the StatefulSet ever started before the one of its name before had ended."""
    for path in ten.shared.iterdir():
        running = ""
        for line in path.read_text().splitlines():
            what, who = line.split()
            if what == "start":
                assert running in ("", who), f"{path.name} {who} started while {running} ran:\n{path.read_text()}"
                running = who
            elif who == running:
                running = ""


def note_killed(ten: Ten, members: list[Json]) -> None:
    """Write the last line of members that were killed."""
    for member in members:
        with (ten.shared / member["metadata"]["name"]).open("a") as file:
            file.write(f"end {uid(member)}\n")
