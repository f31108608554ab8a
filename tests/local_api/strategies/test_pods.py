"""Pods: what an API server makes of a new pod, and which changes it refuses, with its messages."""

# ruff: noqa: E501  one case is one line
from __future__ import annotations

import re
from typing import Any

import pytest
from local_api.strategies.stored import ADMIN, NODE, StoredObjects, kind_of

from pykubelet_local_api.errors import StatusError
from pykubelet_local_api.objects import Json
from pykubelet_local_api.strategies.pod_binding import bound, check_eviction, marked_for_eviction
from pykubelet_local_api.strategies.strategy import Context
from pykubelet_local_api.strategies.table import strategy_of

FEW = (
    "spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`,"
    "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)


@pytest.fixture
def stored() -> StoredObjects:
    """A namespace and a node."""
    found = StoredObjects()
    found.namespace("ns")
    found.put("nodes", "n1", metadata={"labels": {"topology.kubernetes.io/zone": "z1"}}, spec={}, status={})
    return found


def pod(name: str = "p", container: dict[str, Any] | None = None, **spec: Any) -> Json:
    """A pod of one container."""
    return {
        "metadata": {"name": name},
        "spec": {"containers": [{"name": "c", "image": "busybox", **(container or {})}], **spec},
    }


def test_a_new_pod_gets_all_defaults(stored: StoredObjects) -> None:
    found = stored.create("pods", pod(hostNetwork=False), "ns")
    volume = found["spec"]["volumes"][0]["name"]
    assert volume.startswith("kube-api-access-")
    assert found["metadata"]["generation"] == 1
    assert found["status"] == {"phase": "Pending", "qosClass": "BestEffort"}
    toleration = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
    path = "/var/run/secrets/kubernetes.io/serviceaccount"
    namespace = {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}
    assert found["spec"] == {
        "containers": [
            {
                "name": "c",
                "image": "busybox",
                "imagePullPolicy": "Always",
                "resources": {},
                "terminationMessagePath": "/dev/termination-log",
                "terminationMessagePolicy": "File",
                "volumeMounts": [{"name": volume, "readOnly": True, "mountPath": path}],
            }
        ],
        "dnsPolicy": "ClusterFirst",
        "enableServiceLinks": True,
        "preemptionPolicy": "PreemptLowerPriority",
        "priority": 0,
        "restartPolicy": "Always",
        "schedulerName": "default-scheduler",
        "securityContext": {},
        "serviceAccount": "default",
        "serviceAccountName": "default",
        "terminationGracePeriodSeconds": 30,
        "tolerations": [
            {"key": "node.kubernetes.io/not-ready"} | toleration,
            {"key": "node.kubernetes.io/unreachable"} | toleration,
        ],
        "volumes": [
            {
                "name": volume,
                "projected": {
                    "defaultMode": 420,
                    "sources": [
                        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
                        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
                        {"downwardAPI": {"items": [namespace]}},
                    ],
                },
            }
        ],
    }


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        ({"spec": {"containers": [{"name": "c", "image": ""}]}}, "spec.containers[0].image: Required value"),
        ({"spec": {"hostNetwork": True}}, FEW),
        ({"spec": {"nodeName": "n1"}}, FEW),
        ({"spec": {"containers": []}}, "[spec.containers: Required value, "
         "spec.containers: Forbidden: pod updates may not add or remove containers]"),
        ({"spec": {"activeDeadlineSeconds": 60}},
         "spec.activeDeadlineSeconds: Invalid value: 60: must be less than or equal to previous value"),
        ({"spec": {"tolerations": [{"key": "a", "operator": "Exists"}]}}, ""),
        ({"spec": {"activeDeadlineSeconds": 5}}, ""),
    ],
)  # fmt: skip
def test_few_fields_of_a_pod_change(stored: StoredObjects, patch: Json, message: str) -> None:
    stored.create("pods", pod(activeDeadlineSeconds=50), "ns")
    refused = f'Pod "p" is invalid: {message}' if message else ""
    if "containers" in patch.get("spec", {}) and patch["spec"]["containers"]:
        old = stored.objects["pods", "ns", "p"]["spec"]["containers"][0]
        patch = {"spec": {"containers": [old | patch["spec"]["containers"][0]]}}
    assert stored.change_refusal("pods", "p", patch, "ns") == refused


def test_a_change_of_the_spec_makes_a_new_generation(stored: StoredObjects) -> None:
    stored.create("pods", pod(), "ns")
    assert stored.update("pods", "p", {"metadata": {"labels": {"a": "b"}}}, "ns")["metadata"]["generation"] == 1
    assert stored.update("pods", "p", {"spec": {"activeDeadlineSeconds": 5}}, "ns")["metadata"]["generation"] == 2
    status = stored.update("pods", "p", {"status": {"phase": "Running"}, "spec": {"x": 1}}, "ns", "status")
    assert status["metadata"]["generation"] == 2
    assert status["status"] == {"phase": "Running", "qosClass": "BestEffort"}


def test_a_resize_changes_cpu_and_memory_only(stored: StoredObjects) -> None:
    stored.create("pods", pod(container={"resources": {"requests": {"cpu": "100m"}}}), "ns")
    own = stored.objects["pods", "ns", "p"]["spec"]["containers"][0]

    def size(**fields: Any) -> Json:
        return {"spec": {"containers": [own | fields]}, "metadata": {"labels": {"a": "b"}}}

    found = stored.update("pods", "p", size(resources={"requests": {"cpu": "0.2"}}, image="x"), "ns", "resize")
    assert found["spec"]["containers"][0] == own | {"resources": {"requests": {"cpu": "200m"}}}
    assert "labels" not in found["metadata"]
    assert found["metadata"]["generation"] == 2
    refused = 'Pod "p" is invalid: '
    storage = size(resources={"requests": {"cpu": "200m", "ephemeral-storage": "1Gi"}})
    assert stored.change_refusal("pods", "p", storage, "ns", "resize") == (
        refused + "spec: Forbidden: only cpu and memory resources are mutable"
    )
    assert stored.change_refusal("pods", "p", size(resources={}), "ns", "resize") == (
        refused + '[spec: Invalid value: "Burstable": Pod QOS Class may not change as a result of resizing, '
        "spec.containers[0].resources.requests: Forbidden: resource requests cannot be removed]"
    )


def test_ephemeral_containers_are_only_added(stored: StoredObjects) -> None:
    stored.create("pods", pod(), "ns")

    def refused(*containers: Json) -> str:
        return stored.change_refusal(
            "pods", "p", {"spec": {"ephemeralContainers": list(containers)}}, "ns", "ephemeralcontainers"
        )

    assert refused({"name": "e", "image": "x"}) == ""
    assert refused() == (
        'Pod "p" is invalid: spec.ephemeralContainers: Forbidden: existing ephemeral containers "e" may not be removed'
    )
    assert refused({"name": "e", "image": "y"}).endswith('existing ephemeral containers "e" may not be changed')
    assert stored.objects["pods", "ns", "p"]["metadata"]["generation"] == 2


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"serviceAccountName": "no"}, 'error looking up service account ns/no: serviceaccount "no" not found'),
        ({"priorityClassName": "no"}, "no PriorityClass with name no was found"),
        ({"priority": 5}, "the integer value of priority (5) must not be provided in pod spec; "
         "priority admission controller computed 0 from the given PriorityClass name"),
        ({"runtimeClassName": "no"}, 'pod rejected: RuntimeClass "no" not found'),
        ({"runtimeClassName": "rc", "overhead": {"cpu": "5"}},
         "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead"),
        ({"runtimeClassName": "rc", "nodeSelector": {"a": "c"}},
         "conflict: runtimeClass.scheduling.nodeSelector[a] = b; pod.spec.nodeSelector[a] = c"),
    ],
)  # fmt: skip
def test_admission_refuses(stored: StoredObjects, spec: Json, message: str) -> None:
    scheduling = {"nodeSelector": {"a": "b"}}
    stored.put(
        "runtimeclasses.node.k8s.io", "rc", handler="x", overhead={"podFixed": {"cpu": "100m"}}, scheduling=scheduling
    )
    assert stored.refusal("pods", pod(**spec), "ns") == f'pods "p" is forbidden: {message}'


def test_a_runtime_class_adds_overhead_and_where_to_run(stored: StoredObjects) -> None:
    scheduling = {"nodeSelector": {"a": "b"}, "tolerations": [{"key": "x"}]}
    stored.put(
        "runtimeclasses.node.k8s.io", "rc", handler="x", overhead={"podFixed": {"cpu": "100m"}}, scheduling=scheduling
    )
    spec = stored.create("pods", pod(runtimeClassName="rc"), "ns")["spec"]
    assert (spec["overhead"], spec["nodeSelector"]) == ({"cpu": "100m"}, {"a": "b"})
    assert {"key": "x"} in spec["tolerations"]


def test_a_pod_of_a_missing_or_ending_namespace(stored: StoredObjects) -> None:
    assert stored.refusal("pods", pod(), "no") == 'namespaces "no" not found'
    stored.put("namespaces", "end", metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})
    assert stored.refusal("pods", pod(), "end") == (
        'pods "p" is forbidden: unable to create new content in namespace end because it is being terminated'
    )


def test_a_gated_pod_waits(stored: StoredObjects) -> None:
    found = stored.create("pods", pod(schedulingGates=[{"name": "a/b"}]), "ns")
    assert found["status"]["conditions"][0]["reason"] == "SchedulingGated"
    refused = stored.change_refusal("pods", "p", {"spec": {"schedulingGates": [{"name": "c/d"}]}}, "ns")
    assert refused == (
        'Pod "p" is invalid: spec.schedulingGates[0].name: Forbidden: '
        "only deletion is allowed, but found new scheduling gate 'c/d'"
    )
    assert stored.change_refusal("pods", "p", {"spec": {"nodeSelector": {"x": "y"}, "schedulingGates": []}}, "ns") == ""
    assert FEW in stored.change_refusal("pods", "p", {"spec": {"nodeSelector": {"x": "z"}}}, "ns")


def test_a_status_makes_no_mirror_pod_of_another(stored: StoredObjects) -> None:
    stored.create("pods", pod("p"), "ns")
    mirror = {"metadata": {"annotations": {"kubernetes.io/config.mirror": "x"}}}
    assert stored.change_refusal("pods", "p", mirror, "ns", "status") == (
        'Pod "p" is invalid: metadata.annotations[kubernetes.io/config.mirror]: Forbidden: may not add mirror pod annotation'
    )


def test_a_status_keeps_ended_containers_ended(stored: StoredObjects) -> None:
    stored.create("pods", pod(restartPolicy="Never"), "ns")

    def status(state: Json) -> str:
        patch = {"status": {"containerStatuses": [{"name": "c", "state": state}]}}
        return stored.change_refusal("pods", "p", patch, "ns", "status")

    assert status({"terminated": {"exitCode": 1}}) == ""
    assert status({"running": {}}) == (
        'Pod "p" is invalid: status.containerStatuses[0].state: Forbidden: may not be transitioned to non-terminated state'
    )


@pytest.mark.parametrize(
    ("policy", "container", "exit_code", "may_run_again"),
    [
        ("Always", {}, 0, True),
        ("OnFailure", {}, 1, True),
        ("OnFailure", {}, 0, False),
        ("Never", {"restartPolicy": "Always"}, 0, True),
        ("Always", {"restartPolicy": "Never"}, 1, False),
        ("Never", {"restartPolicy": "OnFailure"}, 1, True),
        ("Never", {"restartPolicy": "Never", "restartPolicyRules": [{"action": "Restart", "exitCodes": {"operator": "In", "values": [1]}}]}, 1, True),
        ("Never", {"restartPolicy": "Never", "restartPolicyRules": [{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [1]}}]}, 0, True),
    ],
)  # fmt: skip
def test_a_container_runs_again_as_its_policy_allows(
    stored: StoredObjects, policy: str, container: Json, exit_code: int, may_run_again: bool
) -> None:
    stored.create("pods", pod(container=container, restartPolicy=policy), "ns")
    for state, is_allowed in (({"terminated": {"exitCode": exit_code}}, True), ({"running": {}}, may_run_again)):
        patch: Json = {"status": {"containerStatuses": [{"name": "c", "state": state}]}}
        assert (stored.change_refusal("pods", "p", patch, "ns", "status") == "") is is_allowed


def test_a_node_creates_mirror_pods_only(stored: StoredObjects) -> None:
    mirror = pod(nodeName="n1")
    assert "can only create mirror pods" in stored.refusal("pods", mirror, "ns", NODE)
    mirror["metadata"]["annotations"] = {"kubernetes.io/config.mirror": "x"}
    assert "can only create pods with an owner reference set to itself" in stored.refusal("pods", mirror, "ns", NODE)
    owner = {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "other", "controller": True}
    mirror["metadata"]["ownerReferences"] = [owner]
    assert stored.refusal("pods", mirror, "ns", NODE) == (
        'pods "p" is forbidden: node n1 UID mismatch: expected other got uid-of-n1'
    )
    owner["uid"] = "uid-of-n1"
    found = stored.create("pods", mirror, "ns", NODE)
    assert found["metadata"]["labels"] == {"topology.kubernetes.io/zone": "z1"}
    assert "serviceAccountName" not in found["spec"]


def test_a_pod_is_bound_once(stored: StoredObjects) -> None:
    stored.create("pods", pod(), "ns")
    old = stored.update("pods", "p", {"status": {"nominatedNodeName": "n1"}}, "ns", "status")
    binding = {"metadata": {"name": "p", "annotations": {"x": "y"}}, "target": {"kind": "Node", "name": "n1"}}
    found = bound(old, binding, "p", Context(stored, ADMIN))
    assert "nominatedNodeName" not in found["status"]
    stored.objects["pods", "ns", "p"] = found
    assert stored.change_refusal("pods", "p", {"status": {"nominatedNodeName": "n1"}}, "ns", "status") == (
        'Pod "p" is invalid: status.nominatedNodeName: Forbidden: may not be set on pods that are already bound to a node'
    )
    assert found["spec"]["nodeName"] == "n1"
    assert found["metadata"]["annotations"] == {"x": "y"}
    assert found["status"]["conditions"] == [
        {"type": "PodScheduled", "status": "True", "lastProbeTime": None, "lastTransitionTime": "2027-01-15T08:00:00Z"}
    ]
    again = 'Operation cannot be fulfilled on pods/binding "p": pod p is already assigned to node "n1"'
    with pytest.raises(StatusError, match=re.escape(again)):
        bound(found, binding, "p", Context(stored, ADMIN))
    with pytest.raises(StatusError, match="name in URL does not match name in Binding object"):
        bound(old, binding, "other", Context(stored, ADMIN))


def test_a_bound_pod_gets_the_zone_of_its_node_and_no_new_generation(stored: StoredObjects) -> None:
    stored.create("pods", pod(), "ns")
    found = stored.update("pods", "p", {"spec": {"nodeName": "n1"}}, "ns", "binding")
    assert found["metadata"]["labels"] == {"topology.kubernetes.io/zone": "z1"}
    assert found["metadata"]["generation"] == 1


def test_an_eviction_names_its_pod(stored: StoredObjects) -> None:
    old = stored.create("pods", pod(), "ns")
    assert check_eviction(old, {"metadata": {"name": "p"}, "deleteOptions": {"gracePeriodSeconds": 1}}, "p") == {
        "gracePeriodSeconds": 1
    }
    with pytest.raises(StatusError, match="name in URL does not match name in Eviction object"):
        check_eviction(old, {}, "p")
    with pytest.raises(
        StatusError, match=re.escape("the UID in the precondition (x) does not match the UID in record (uid-of-p)")
    ):
        check_eviction(old, {"metadata": {"name": "p"}, "deleteOptions": {"preconditions": {"uid": "x"}}}, "p")
    assert marked_for_eviction(old, 0)["status"]["conditions"][0]["reason"] == "EvictionByEvictionAPI"


def test_a_pod_is_warned_of_as_by_an_api_server(stored: StoredObjects) -> None:
    env = [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}, {"name": "A", "value": "$(A)x"}]
    ports = [{"containerPort": 80}, {"containerPort": 80}, {"containerPort": 80, "hostIP": "1.1.1.1"}]
    found = stored.create(
        "pods",
        pod(
            container={"env": env, "ports": ports, "resources": {"requests": {"memory": "100m"}}},
            nodeSelector={"beta.kubernetes.io/os": "linux"},
            volumes=[{"name": "g", "gitRepo": {"repository": "x"}}],
        ),
        "ns",
    )
    assert strategy_of(kind_of("pods")).warnings(found, None, Context(stored, ADMIN)) == [
        'spec.nodeSelector[beta.kubernetes.io/os]: deprecated since v1.14; use "kubernetes.io/os" instead',
        "spec.volumes[0].gitRepo: deprecated in v1.11, and disabled by default in v1.33+",
        'spec.containers[0].resources.requests[memory]: fractional byte value "100m" is invalid, must be an integer',
        'spec.containers[0].env[1]: hides previous definition of "A", which may be dropped when using apply',
        "spec.containers[0].ports[1]: duplicate port definition with spec.containers[0].ports[0]",
        "spec.containers[0].ports[2]: hostIP set without hostPort: {Name: HostPort:0 ContainerPort:80 Protocol:TCP HostIP:1.1.1.1}",
        "spec.containers[0].ports[2]: overlapping port definition with spec.containers[0].ports[0]",
        "spec.containers[0].ports[2]: overlapping port definition with spec.containers[0].ports[1]",
    ]


RESTRICTED = {
    "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"},
}  # fmt: skip


@pytest.mark.parametrize(
    ("level", "container", "spec", "why"),
    [
        ("privileged", {"securityContext": {"privileged": True}}, {"hostNetwork": True}, ""),
        ("restricted", {"securityContext": RESTRICTED}, {}, ""),
        ("restricted", {"securityContext": RESTRICTED | {"runAsUser": 0}}, {}, 'runAsUser=0 (container "c" must not set runAsUser=0)'),
        ("restricted", {}, {}, 'allowPrivilegeEscalation != false (container "c" must set securityContext.allowPrivilegeEscalation=false), '
         'unrestricted capabilities (container "c" must set securityContext.capabilities.drop=["ALL"]), '
         'runAsNonRoot != true (pod or container "c" must set securityContext.runAsNonRoot=true), '
         'seccompProfile (pod or container "c" must set securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost")'),
        ("restricted", {"securityContext": RESTRICTED}, {"volumes": [{"name": "a", "hostPath": {"path": "/"}}, {"name": "b", "nfs": {"server": "a", "path": "/b"}}]},
         'restricted volume types (volumes "a", "b" use restricted volume types "hostPath", "nfs")'),
        ("baseline", {"securityContext": {"privileged": True}}, {"hostPID": True, "volumes": [{"name": "a", "hostPath": {"path": "/"}}]},
         'host namespaces (hostPID=true), hostPath volumes (volume "a"), privileged (container "c" must not set securityContext.privileged=true)'),
        ("baseline", {"securityContext": {"capabilities": {"add": ["NET_ADMIN", "CHOWN"]}}, "ports": [{"containerPort": 80, "hostPort": 80}]}, {},
         'non-default capabilities (container "c" must not include "NET_ADMIN" in securityContext.capabilities.add), hostPort (container "c" uses hostPort 80)'),
        ("baseline", {"securityContext": {"seLinuxOptions": {"type": "foo", "user": "u"}}}, {"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}},
         'seLinuxOptions (container "c" set forbidden securityContext.seLinuxOptions: type "foo"; user may not be set), forbidden sysctls (kernel.msgmax)'),
        ("baseline", {"livenessProbe": {"httpGet": {"host": "1.2.3.4", "port": 80}}}, {"securityContext": {"seccompProfile": {"type": "Unconfined"}}},
         'probe or lifecycle host (container "c" uses probe or lifecycle host "1.2.3.4"), seccompProfile (pod must not set securityContext.seccompProfile.type to "Unconfined")'),
        ("baseline", {"securityContext": {"appArmorProfile": {"type": "Unconfined"}}}, {},
         'forbidden AppArmor profile (container "c" must not set AppArmor profile type to "Unconfined")'),
    ],
)  # fmt: skip
def test_pod_security_of_a_namespace(stored: StoredObjects, level: str, container: Json, spec: Json, why: str) -> None:
    stored.namespace("safe", **{"pod-security.kubernetes.io/enforce": level})
    stored.namespace("warned", **{"pod-security.kubernetes.io/warn": level})
    body = pod(container=container, **spec)
    expected = f'pods "p" is forbidden: violates PodSecurity "{level}:latest": {why}' if why else ""
    assert stored.refusal("pods", body, "safe") == expected
    found = stored.create("pods", body, "warned")
    warnings = strategy_of(kind_of("pods")).warnings(found, None, Context(stored, ADMIN))
    assert warnings == ([f'would violate PodSecurity "{level}:latest": {why}'] if why else [])
