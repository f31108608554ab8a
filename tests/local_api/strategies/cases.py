"""Objects and changes that are written to a real API server and through strategies, whose answers are then the same.

`NS` stands for the namespace of the run.
"""

# ruff: noqa: E501  one case is one line
from __future__ import annotations

from typing import Any, NamedTuple

from pykubelet_local_api.objects import Json

Change = tuple[Json, str]


class Case(NamedTuple):
    """An object to create, and merge patches of it, each with its subresource ("" for none)."""

    plural: str
    body: Json
    changes: tuple[Change, ...] = ()


def case(plural: str, name: str, *changes: Json | Change, metadata: Json | None = None, **fields: Any) -> Case:
    """A case; a change that is no pair is one of the object itself."""
    pairs = tuple(change if isinstance(change, tuple) else (change, "") for change in changes)
    return Case(plural, {"metadata": {"name": name, **(metadata or {})}, **fields}, pairs)


def pod(
    name: str, *changes: Json | Change, metadata: Json | None = None, container: Json | None = None, **spec: Any
) -> Case:
    """A case of a pod with one container."""
    containers = [{"name": "c", "image": "busybox", **(container or {})}]
    return case("pods", name, *changes, metadata=metadata, spec={"containers": containers, **spec})


def spec(**fields: Any) -> Json:
    """A change of the specification."""
    return {"spec": fields}


def status(**fields: Any) -> Change:
    """A change of the status."""
    return {"status": fields}, "status"


def labels(**fields: Any) -> Json:
    """A change of labels."""
    return {"metadata": {"labels": fields}}


BAD_SELECTOR = {"matchLabels": {"a b": "c"}}
TERM = {
    "requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchExpressions": [{"key": "x", "operator": "Exists"}]}]
    }
}
MIRROR = {"annotations": {"kubernetes.io/config.mirror": "x"}}
SIZED = {"resources": {"requests": {"cpu": "100m", "memory": "10Mi"}, "limits": {"memory": "20Mi"}}}
PATHS = {"name": "v", "hostPath": {"path": "/x"}}

PODS = (
    pod("p1", labels(a="b"), labels(**{"a b": "c"}), spec(hostNetwork=True), spec(nodeName="n"), spec(activeDeadlineSeconds=5),
        spec(activeDeadlineSeconds=6), spec(activeDeadlineSeconds=None), spec(terminationGracePeriodSeconds=1), spec(containers=[]),
        spec(tolerations=[{"key": "a", "operator": "Exists"}]), {"metadata": {"finalizers": ["a b"]}}, {"metadata": {"annotations": {"a b": "c"}}},
        {"metadata": {"ownerReferences": [{"apiVersion": "", "kind": "", "name": "", "uid": ""}]}}),
    pod("p2", hostNetwork=False, container={"stdin": False, "ports": [{"containerPort": 80}], "resources": {"limits": {"cpu": "0.5"}}}),
    pod("p3", container={"livenessProbe": {"httpGet": {"port": 80}}, "env": [{"name": "a", "value": ""}], "lifecycle": {"preStop": {"httpGet": {"port": "x"}}}}),
    pod("p4", volumes=[{"name": "a", "secret": {"secretName": "x"}}, {"name": "b", "configMap": {"name": "x", "optional": False}}, {"name": "c"},
                       {"name": "d", "projected": {"sources": [{"serviceAccountToken": {"path": "x"}}]}}, {"name": "e", "hostPath": {"path": "/x"}},
                       {"name": "f", "persistentVolumeClaim": {"claimName": "x", "readOnly": False}}, {"name": "g", "image": {"reference": "x:1"}},
                       {"name": "h", "ephemeral": {"volumeClaimTemplate": {"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "0.5Gi"}}}}}}]),
    pod("p5", restartPolicy="Foo", dnsPolicy="Bar", hostname="A", subdomain="b c", priorityClassName="nope"),
    pod("p6", restartPolicy="Foo", dnsPolicy="Bar", hostname="A", subdomain="b c"),
    pod("p7", container={"name": "A", "image": "", "imagePullPolicy": "x", "ports": [{"containerPort": 0, "name": "x_y", "protocol": "z"}]}),
    pod("p8", container={"volumeMounts": [{"name": "no", "mountPath": "/x"}], "env": [{"name": ""}], "resources": {"limits": {"foo": "1"}}}),
    pod("p9", serviceAccountName="nope"), pod("p10", priority=5), pod("p11", runtimeClassName="nope"), pod("p12", overhead={"cpu": "1"}),
    pod("p13", priorityClassName="system-node-critical"), pod("p14", automountServiceAccountToken=False, tolerations=[{"operator": "Exists"}]),
    pod("p15", spec(schedulingGates=[{"name": "c/d"}]), spec(nodeSelector={"a": "b"}), spec(nodeSelector={"a": "c"}), spec(affinity={"nodeAffinity": TERM}),
        spec(affinity={"nodeAffinity": None}), spec(schedulingGates=[]), spec(nodeSelector={"q": "r"}), schedulingGates=[{"name": "a/b"}]),
    pod("p16", terminationGracePeriodSeconds=-5), pod("p17", metadata=MIRROR, serviceAccountName="x", nodeName="n"),
    pod("p18", spec(activeDeadlineSeconds=5), {"metadata": {"annotations": None}}, metadata=MIRROR, nodeName="n"),
    pod("p19", metadata=MIRROR), pod("p20", topologySpreadConstraints=[{"maxSkew": 0, "topologyKey": "", "whenUnsatisfiable": "x"}]),
    pod("p21", securityContext={"runAsUser": -1, "sysctls": [{"name": "a b", "value": "x"}], "supplementalGroups": [-1]}, container={"resources": {"limits": {"cpu": "-1"}}}),
    pod("p22", ephemeralContainers=[{"name": "e", "image": "x"}]), pod("p23", initContainers=[{"name": "c", "image": "x", "readinessProbe": {"tcpSocket": {"port": 1}}}]),
    pod("p24", dnsConfig={"nameservers": ["1.1.1.1"] * 4, "searches": ["A_"], "options": [{"name": ""}]}, hostAliases=[{"ip": "x", "hostnames": ["A"]}]),
    pod("p25", container={"envFrom": [{"configMapRef": {"name": "x"}}, {}], "terminationMessagePolicy": "x", "resizePolicy": [{"resourceName": "cpu", "restartPolicy": "x"}]}),
    pod("p26", labels(a="b"), spec(activeDeadlineSeconds=5), metadata={"labels": {"v": "1"}}, topologySpreadConstraints=[{"maxSkew": 1, "topologyKey": "x", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}, "matchLabelKeys": ["v", "q"]}],
        affinity={"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "x", "labelSelector": {"matchLabels": {"a": "b"}}, "matchLabelKeys": ["v"], "mismatchLabelKeys": ["z"]}]}}),
    pod("p27", hostAliases=[{"ip": "01.1.1.1", "hostnames": ["b"]}]),
    pod("s1", status(phase="Running", conditions=[{"type": "x y", "status": "True"}], podIPs=[{"ip": "x"}]), status(qosClass="Guaranteed"),
        status(observedGeneration=-1, nominatedNodeName="A"), status(podIPs=[{"ip": "1.2.3.4"}, {"ip": "1.2.3.5"}]), status(hostIPs=[{"ip": "1.2.3.4"}], hostIP="1.2.3.5"),
        status(podIP="1.2.3.5", phase="Running"), status(resourceClaimStatuses=[{"name": "x"}]), ({"metadata": {"labels": {"q": "r"}}, "spec": {"hostNetwork": True}}, "status"),
        status(containerStatuses=[{"name": "c", "image": "a", "imageID": "b", "ready": True, "restartCount": 0, "state": {"terminated": {"exitCode": 1, "startedAt": None, "finishedAt": None}}}]),
        status(containerStatuses=[{"name": "c", "image": "a", "imageID": "b", "ready": True, "restartCount": 0, "state": {"running": {"startedAt": None}}}]), restartPolicy="Never"),
    pod("e1", *(({"spec": {"ephemeralContainers": found}}, "ephemeralcontainers") for found in (
        [{"name": "e", "image": "busybox", "targetContainerName": "c"}], [{"name": "e", "image": "other"}], [],
        [{"name": "e", "image": "busybox", "targetContainerName": "c"}, {"name": "c", "image": "x"}],
        [{"name": "e", "image": "busybox", "targetContainerName": "c"}, {"name": "f", "image": "x", "ports": [{"containerPort": 1}], "targetContainerName": "no"}]))),
    pod("e2", (spec(ephemeralContainers=[{"name": "e", "image": "x"}]), "ephemeralcontainers"), (spec(containers=[{"name": "c", "image": "busybox", **SIZED}]), "resize"), metadata=MIRROR, nodeName="n"),
    pod("r1", *((spec(containers=[{"name": "c", "image": "busybox", "resources": found}]), "resize") for found in (
        {"requests": {"cpu": "0.2", "memory": "10Mi"}, "limits": {"memory": "20Mi"}}, {"requests": {"cpu": "0.2"}, "limits": {"cpu": "0.1"}}, {}, {"requests": {"cpu": "1"}},
        {"requests": {"cpu": "200m", "memory": "10Mi", "ephemeral-storage": "1Gi"}, "limits": {"memory": "20Mi"}})), (labels(a="b"), "resize"), container=SIZED),
)  # fmt: skip

DATA = (
    case("configmaps", "a", {"data": {"a": "c"}}, data={"a": "b"}), case("configmaps", "A_"), case("configmaps", "d", data={"c d": "e"}), case("configmaps", "b", data={"a": "b"}, binaryData={"a": "YQ=="}),
    case("configmaps", "c", {"data": {"a": "c"}}, {"immutable": False}, {"binaryData": {"z": "YQ=="}}, labels(a="b"), data={"a": "b"}, immutable=True),
    case("secrets", "a", {"stringData": {"c": "d"}}, {"type": "x"}, {"data": {"a": None}}, stringData={"a": "b"}), case("secrets", "b", data={"a": "***"}),
    case("secrets", "c", {"data": {"a": "YQ=="}}, {"immutable": None}, data={"a": "Yg=="}, immutable=True),
    *(case("secrets", f"t{i}", type=f"kubernetes.io/{kind}", data={}) for i, kind in enumerate(("tls", "basic-auth", "ssh-auth", "dockercfg", "service-account-token"))),
    case("serviceaccounts", "a", {"imagePullSecrets": [{"name": "x"}]}), case("serviceaccounts", "A_"),
    case("events", "e1", {"reason": "x"}, involvedObject={"namespace": "NS", "kind": "Pod"}, reason="r"), case("events", "e2", involvedObject={"namespace": "other"}), case("events", "e3", involvedObject={"kind": "Node"}),
    case("events", "e4", involvedObject={"namespace": "NS"}, eventTime="2026-01-01T00:00:00.000000Z", reason="x"),
    case("leases.coordination.k8s.io", "a", spec(leaseDurationSeconds=0), spec(holderIdentity="y"), spec={"holderIdentity": "x"}), case("leases.coordination.k8s.io", "b", spec={"leaseDurationSeconds": 0, "leaseTransitions": -1}),
    case("endpoints", "a", subsets=[{"addresses": [{"ip": "1.2.3.4"}], "ports": [{"port": 1}]}]), case("endpoints", "b", subsets=[{"addresses": [{"ip": "127.0.0.1"}], "ports": [{"port": 0}, {"port": 80}]}, {}]),
    case("endpointslices.discovery.k8s.io", "a", {"addressType": "IPv6"}, {"ports": [{"port": 1}]}, labels(a="b"), addressType="IPv4", endpoints=[{"addresses": ["1.2.3.4"]}], ports=[{"port": 1}]),
    case("endpointslices.discovery.k8s.io", "b"), case("endpointslices.discovery.k8s.io", "c", addressType="IPv4", endpoints=[{"addresses": []}, {"addresses": ["x"], "nodeName": "A_"}], ports=[{"name": "A", "protocol": "X"}]),
)  # fmt: skip

SERVICES = (
    case("services", "s1", spec(clusterIP="10.96.0.78", clusterIPs=["10.96.0.78"]), spec(clusterIP=""), spec(type="NodePort"), spec(type="ClusterIP"), spec(type="ExternalName", externalName="x.y"), spec(type="ClusterIP", externalName=None), spec={"ports": [{"port": 80}], "selector": {"a": "b"}}),
    case("services", "s2", spec={"ports": []}), case("services", "s3", spec={"ports": [{"port": 80}, {"port": 80}]}), case("services", "s4", spec={"ports": [{"port": 0, "name": "A"}, {"port": 99999, "protocol": "X", "name": "b"}]}),
    case("services", "s5", spec={"ports": [{"port": 80}], "type": "Foo"}), case("services", "s6", spec={"ports": [{"port": 80}], "clusterIP": "10.97.0.1"}), case("services", "s7", spec={"ports": [{"port": 80}], "clusterIP": "x"}),
    case("services", "s8", spec={"type": "NodePort", "ports": [{"port": 80, "nodePort": 80}]}), case("services", "s9", spec={"ports": [{"port": 80, "nodePort": 30081}]}), case("services", "s10", spec={"type": "ExternalName"}),
    case("services", "s11", spec={"type": "ExternalName", "externalName": "A_", "clusterIP": "10.96.0.9"}), case("services", "s12", spec={"ports": [{"port": 80}], "sessionAffinity": "Foo"}),
    case("services", "s13", spec={"ports": [{"port": 80}], "sessionAffinity": "ClientIP"}), case("services", "s14", spec={"ports": [{"port": 80}], "externalIPs": ["x", "127.0.0.1"], "internalTrafficPolicy": "Foo", "selector": {"a b": "c"}}),
    case("services", "s15", spec={"ports": [{"port": 80}], "ipFamilies": ["IPv6"]}), case("services", "s16", spec={"ports": [{"port": 80}], "ipFamilyPolicy": "RequireDualStack"}), case("services", "s17", spec={"clusterIP": "None", "selector": {"a": "b"}}),
    case("services", "s18", spec={"clusterIP": "None", "ports": [{"port": 80}]}), case("services", "s19", spec={"clusterIP": "None", "type": "NodePort", "ports": [{"port": 80}]}), case("services", "s20", status(loadBalancer={"ingress": [{"ip": "1.2.3.4"}]}), spec={"type": "LoadBalancer", "ports": [{"port": 80, "targetPort": "http"}]}),
    case("services", "s21", status(loadBalancer={"ingress": [{"ip": "1.2.3.4"}]}), spec={"ports": [{"port": 80}], "trafficDistribution": "PreferClose"}), case("services", "A_", spec={"ports": [{"port": 80}]}),
)  # fmt: skip

VOLUME = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/tmp"}}
CLAIM = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
NODE_TERM = {"required": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Exists"}]}]}}

STORAGE = (
    case("persistentvolumes", "NS-a", spec(hostPath={"path": "/x"}), spec(capacity={"storage": "2Gi"}), spec(volumeMode="Block"), spec(persistentVolumeReclaimPolicy="Delete"), spec(nodeAffinity=NODE_TERM), spec(nodeAffinity=None), spec(storageClassName="x"), status(phase="Available"), status(phase="Available", message="x"), spec={**VOLUME, "storageClassName": "none-such", "claimRef": {"name": "x", "namespace": "no-such"}}),
    case("persistentvolumes", "NS-b", spec={}), case("persistentvolumes", "NS-c", spec={**VOLUME, "hostPath": {"path": "/tmp/../a"}, "accessModes": ["Foo"], "volumeMode": "Foo", "persistentVolumeReclaimPolicy": "Foo", "nfs": {"server": "", "path": ""}}), case("persistentvolumes", "NS-d", spec={**VOLUME, "capacity": {"storage": "0", "cpu": "1"}, "accessModes": ["ReadWriteOnce", "ReadWriteOncePod"]}),
    case("persistentvolumeclaims", "a", spec(resources={"requests": {"storage": "2Gi"}}), spec(accessModes=["ReadWriteMany"]), spec(storageClassName="zz"), spec={**CLAIM, "storageClassName": "none-such"}),
    case("persistentvolumeclaims", "b", spec={}), case("persistentvolumeclaims", "c", spec={"accessModes": ["Foo"], "resources": {"requests": {"storage": "0"}}, "volumeMode": "Foo", "storageClassName": "A_", "selector": BAD_SELECTOR}),
    case("storageclasses.storage.k8s.io", "NS-a", {"provisioner": "z"}, {"parameters": {"a": "b"}}, {"reclaimPolicy": "Retain"}, {"volumeBindingMode": "WaitForFirstConsumer"}, {"allowVolumeExpansion": True}, provisioner="a.b/c"),
    case("storageclasses.storage.k8s.io", "NS-b"), case("storageclasses.storage.k8s.io", "NS-c", provisioner="A b", reclaimPolicy="Foo", volumeBindingMode="Bar", allowedTopologies=[{"matchLabelExpressions": [{"key": "", "values": []}]}], parameters={"": "x"}),
    case("csidrivers.storage.k8s.io", "NS-a", spec(attachRequired=False), spec(fsGroupPolicy="None"), spec(volumeLifecycleModes=["Ephemeral"]), spec(podInfoOnMount=True), labels(a="b"), spec={}), case("csidrivers.storage.k8s.io", "NS-b", spec={"fsGroupPolicy": "Foo", "volumeLifecycleModes": ["Bar"], "tokenRequests": [{"audience": "a"}, {"audience": "a"}]}),
    case("csinodes.storage.k8s.io", "NS-a", spec(drivers=[{"name": "a", "nodeID": "r"}]), spec(drivers=[]), spec={"drivers": [{"name": "a", "nodeID": "q"}]}), case("csinodes.storage.k8s.io", "NS-b", spec={"drivers": [{"name": "", "nodeID": ""}, {"name": "a", "nodeID": "q", "topologyKeys": ["a b"], "allocatable": {"count": -1}}, {"name": "a", "nodeID": "q"}]}),
    case("volumeattachments.storage.k8s.io", "NS-a", spec(nodeName="m"), ({"status": {"attached": True}, "metadata": {"labels": {"a": "b"}}}, "status"), labels(a="b"), spec={"attacher": "a", "source": {"persistentVolumeName": "x"}, "nodeName": "n"}), case("volumeattachments.storage.k8s.io", "NS-b", spec={"attacher": "", "source": {}, "nodeName": "A"}),
    case("csistoragecapacities.storage.k8s.io", "a", {"storageClassName": "b"}, {"nodeTopology": {"matchLabels": {"a": "c"}}}, {"capacity": "2"}, storageClassName="a", capacity="0.5Gi"), case("csistoragecapacities.storage.k8s.io", "b", storageClassName="", capacity="-1", nodeTopology=BAD_SELECTOR), case("csistoragecapacities.storage.k8s.io", "c", storageClassName="a", capacity="x"),
)  # fmt: skip

GROUP = "rbac.authorization.k8s.io"
EXACT = [{"name": "r", "exactly": {"deviceClassName": "c"}}]
SLICE = {"driver": "a.b", "pool": {"name": "p", "resourceSliceCount": 1}, "nodeName": "n"}
TAINTS = [
    {"key": "a", "effect": "Foo"},
    {"key": "b", "effect": "NoSchedule"},
    {"key": "b", "effect": "NoSchedule"},
    {"key": "", "effect": "NoSchedule"},
    {"key": "c", "value": "a b", "effect": "NoSchedule"},
]
RESULT = {"request": "r", "driver": "a.b", "pool": "p", "device": "d"}
CONSUMER = {"resource": "pods", "name": "x", "uid": "y"}

OTHERS = (
    case("namespaces", "NS-x", labels(**{"kubernetes.io/metadata.name": "z"}), spec(finalizers=["x/y"]), status(phase="Foo")), case("namespaces", "a.b"),
    case("namespaces", "NS-y", metadata={"labels": {"pod-security.kubernetes.io/enforce": "foo", "pod-security.kubernetes.io/warn-version": "zz"}}), case("namespaces", "NS-z", spec={"finalizers": ["a/b"]}, status={"phase": "Terminating"}),
    case("nodes", "NS-n", spec(podCIDR="10.0.1.0/24", podCIDRs=["10.0.1.0/24"]), spec(providerID="b"), spec(unschedulable=True), status(capacity={"cpu": "1"}, addresses=[{"type": "InternalIP", "address": "1.1.1.1"}] * 2), status(capacity={"example.com/a": "0.5"}), spec={"podCIDR": "10.0.0.0/24", "providerID": "a"}, status={"capacity": {"cpu": "0.5"}}), case("nodes", "NS-m", spec={"taints": TAINTS}),
    case("runtimeclasses.node.k8s.io", "NS-a", {"handler": "b"}, {"overhead": {"podFixed": {"cpu": "5"}}}, handler="a", overhead={"podFixed": {"cpu": "0.1"}}), case("runtimeclasses.node.k8s.io", "NS-b", handler="A"), case("runtimeclasses.node.k8s.io", "NS-c"),
    case("priorityclasses.scheduling.k8s.io", "NS-a", {"value": 3}, {"preemptionPolicy": "Never"}, {"description": "x"}, value=5), case("priorityclasses.scheduling.k8s.io", "system-foo", value=1), case("priorityclasses.scheduling.k8s.io", "NS-b", value=2_000_000_000, preemptionPolicy="Foo"),
    case("roles.rbac.authorization.k8s.io", "a/b%", rules=[{"verbs": ["get"], "nonResourceURLs": ["/z"]}, {}]), case("roles.rbac.authorization.k8s.io", "A_:", {"rules": []}, rules=[{"verbs": ["get"], "apiGroups": [""], "resources": ["x"]}]),
    case("clusterroles.rbac.authorization.k8s.io", "NS-a", rules=[{"verbs": ["get"], "apiGroups": [""], "resources": ["x"], "nonResourceURLs": ["/z"]}], aggregationRule={"clusterRoleSelectors": []}),
    case("rolebindings.rbac.authorization.k8s.io", "a", {"roleRef": {"name": "y"}}, roleRef={"kind": "Role", "name": "x"}, subjects=[{"kind": "User", "name": "u"}, {"kind": "ServiceAccount", "name": "x", "namespace": "y"}]),
    case("rolebindings.rbac.authorization.k8s.io", "b", roleRef={"kind": "Foo", "name": "a/b", "apiGroup": "x"}, subjects=[{"kind": "Foo", "name": "x"}, {"kind": "ServiceAccount", "name": "A_"}, {"kind": "User", "name": ""}, {"kind": "Group", "name": "g", "apiGroup": "zz"}, {"kind": "ServiceAccount", "name": "a", "apiGroup": "zz", "namespace": "z"}]),
    case("clusterrolebindings.rbac.authorization.k8s.io", "NS-a", roleRef={"kind": "Role", "name": "x"}, subjects=[{"kind": "ServiceAccount", "name": "a"}]),
    case("certificatesigningrequests.certificates.k8s.io", "NS-a", spec={}), case("certificatesigningrequests.certificates.k8s.io", "NS-b", spec={"request": "YQ==", "signerName": "x", "usages": ["foo", "client auth", "client auth"], "expirationSeconds": 5}),
    case("resourceclaims.resource.k8s.io", "a", spec(devices={"requests": []}), status(reservedFor=[CONSUMER]), ({"status": {"allocation": {"devices": {"results": [RESULT]}}, "reservedFor": [CONSUMER]}, "metadata": {"labels": {"a": "b"}}}, "status"), status(reservedFor=[CONSUMER, CONSUMER]), status(devices=[{"driver": "a.b", "pool": "p", "device": "z"}]), spec={"devices": {"requests": EXACT}}),
    case("resourceclaims.resource.k8s.io", "b", spec={"devices": {"requests": [{"name": "A"}, {"name": "b", "exactly": {}}, {"name": "b", "exactly": {"deviceClassName": "c", "allocationMode": "Foo"}}, {"name": "d", "exactly": {"deviceClassName": "c", "allocationMode": "All", "count": 2}}, {"name": "e", "exactly": {"deviceClassName": "c", "count": -2}}, {"name": "f", "firstAvailable": []}]}}),
    case("resourceclaims.resource.k8s.io", "c", spec={"devices": {"requests": EXACT, "constraints": [{"requests": ["zz"], "matchAttribute": "x"}], "config": [{"requests": ["yy"]}, {"opaque": {"driver": "", "parameters": None}}]}}),
    case("resourceclaimtemplates.resource.k8s.io", "a", spec(spec={"devices": {"requests": []}}), spec={"spec": {"devices": {"requests": EXACT}}}), case("resourceclaimtemplates.resource.k8s.io", "b", spec={"spec": {"devices": {"requests": [{"name": "A"}]}}, "metadata": {"name": "x", "labels": {"a b": "c"}}}),
    case("resourceslices.resource.k8s.io", "NS-a", spec(nodeName="m"), spec(driver="c"), spec(pool={"name": "q"}), spec(pool={"generation": 2}), spec=SLICE), case("resourceslices.resource.k8s.io", "NS-b", spec={}),
    case("resourceslices.resource.k8s.io", "NS-c", spec={"driver": "A_", "pool": {"name": "", "resourceSliceCount": 0, "generation": -1}, "nodeName": "A_", "allNodes": True, "devices": [{"name": "A"}, {"name": "b"}, {"name": "b"}]}),
    case("deviceclasses.resource.k8s.io", "NS-a", spec(extendedResourceName="a.b/c"), labels(a="b"), spec={}), case("deviceclasses.resource.k8s.io", "NS-b", spec={"extendedResourceName": "foo"}), case("deviceclasses.resource.k8s.io", "NS-c", spec={"selectors": [{}], "config": [{"opaque": {"driver": "A_", "parameters": {}}}]}),
)  # fmt: skip

CASES = {"pods": PODS, "data": DATA, "services": SERVICES, "storage": STORAGE, "others": OTHERS}
