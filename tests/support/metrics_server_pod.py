"""metrics-server as a pod of a cluster, with the rights and the flags that its own manifest gives it."""

from __future__ import annotations

from support.agent import Json
from testbed.kubernetes import METRICS, METRICS_IMAGE
from testvm.builds import BUILT, IMAGES

_NAME, _NAMESPACE = "metrics-server", "kube-system"
_PORT = 4443
_RBAC = "rbac.authorization.k8s.io"


def is_built() -> bool:
    """Whether there is an image of it."""
    return (BUILT / IMAGES / f"{METRICS}.tar").exists()


def objects(node: str) -> Json:
    """Everything it needs, as a List; the pod is on `node` and uses its network."""
    labels = {"k8s-app": _NAME}
    account = {"kind": "ServiceAccount", "name": _NAME, "namespace": _NAMESPACE}
    rules = [
        {"apiGroups": [""], "resources": ["nodes/metrics"], "verbs": ["get"]},
        {"apiGroups": [""], "resources": ["pods", "nodes"], "verbs": ["get", "list", "watch"]},
    ]
    service: Json = {
        "selector": labels,
        "ports": [{"name": "https", "port": 443, "targetPort": _PORT}],
    }
    registration = {
        "service": {"name": _NAME, "namespace": _NAMESPACE},
        "group": "metrics.k8s.io",
        "version": "v1beta1",
        "insecureSkipTLSVerify": True,
        "groupPriorityMinimum": 100,
        "versionPriority": 100,
    }
    items = [
        _thing("v1", "ServiceAccount", _NAME),
        _thing(f"{_RBAC}/v1", "ClusterRole", f"system:{_NAME}", rules=rules),
        _binding("ClusterRoleBinding", f"system:{_NAME}", "ClusterRole", f"system:{_NAME}", account),
        _binding("ClusterRoleBinding", f"{_NAME}:delegator", "ClusterRole", "system:auth-delegator", account),
        _binding("RoleBinding", f"{_NAME}-reader", "Role", "extension-apiserver-authentication-reader", account),
        _thing("v1", "Service", _NAME, spec=service),
        _thing("apps/v1", "Deployment", _NAME, spec=_deployment(labels, node)),
        _thing("apiregistration.k8s.io/v1", "APIService", "v1beta1.metrics.k8s.io", spec=registration),
    ]
    return {"apiVersion": "v1", "kind": "List", "items": items}


def _thing(version: str, kind: str, name: str, **rest: object) -> Json:
    metadata = {"name": name, "namespace": _NAMESPACE}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **rest}


def _binding(kind: str, name: str, role_kind: str, role: str, account: Json) -> Json:
    reference = {"apiGroup": _RBAC, "kind": role_kind, "name": role}
    return _thing(f"{_RBAC}/v1", kind, name, roleRef=reference, subjects=[account])


def _deployment(labels: Json, node: str) -> Json:
    container = {
        "name": _NAME,
        "image": METRICS_IMAGE,
        "command": [f"/usr/local/bin/{METRICS}"],
        # the nodes of a cluster by kubeadm sign their serving certificates themselves
        "args": [
            "--cert-dir=/tmp",
            f"--secure-port={_PORT}",
            "--kubelet-preferred-address-types=InternalIP",
            "--kubelet-use-node-status-port",
            "--kubelet-insecure-tls",
            "--metric-resolution=30s",
            "--kubelet-request-timeout=20s",
        ],
        "readinessProbe": {
            "httpGet": {"path": "/readyz", "port": _PORT, "scheme": "HTTPS"},
            "periodSeconds": 10,
            "timeoutSeconds": 30,
            "failureThreshold": 3,
        },
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }
    spec = {
        "serviceAccountName": _NAME,
        "hostNetwork": True,
        "nodeSelector": {"kubernetes.io/hostname": node},
        "containers": [container],
        "volumes": [{"name": "tmp", "emptyDir": {}}],
    }
    return {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": spec}}
