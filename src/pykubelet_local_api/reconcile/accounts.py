"""What each namespace has for its pods: the ServiceAccount `default`, and the ConfigMap with the CA's certificate. Pure.

Source: the Kubernetes documentation "Managing Service Accounts"; the ConfigMap is that of KEP-1205 (bound service account tokens).
"""

from __future__ import annotations

from collections.abc import Callable

from pykubelet_local_api.objects import Json, is_deleting, name_of
from pykubelet_local_api.reconcile.changes import created, updated
from pykubelet_local_api.reconcile.reconciler import Reconciler
from pykubelet_local_api.view import ObjectChange, View

ACCOUNT = "default"
ROOT_CA = "kube-root-ca.crt"
CA_KEY = "ca.crt"
_DESCRIPTION = (
    "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the internal service IP or "
    "kubernetes.default.svc. No other usage is guaranteed across distributions of Kubernetes clusters."
)
READS = frozenset({"configmaps", "namespaces", "serviceaccounts"})


def reconcile(view: View, ca: str) -> list[ObjectChange]:
    """The objects that namespaces lack. `ca`: the certificates of the CA, PEM."""
    changes = []
    for namespace in view.list("namespaces"):
        if is_deleting(namespace):
            continue
        place = name_of(namespace)
        if view.get("serviceaccounts", place, ACCOUNT) is None:
            changes.append(created("serviceaccounts", _object("ServiceAccount", place, ACCOUNT)))
        found = view.get("configmaps", place, ROOT_CA)
        if found is None:
            new = _object("ConfigMap", place, ROOT_CA)
            new["metadata"]["annotations"] = {"kubernetes.io/description": _DESCRIPTION}
            changes.append(created("configmaps", new | {"data": {CA_KEY: ca}}))
        elif found.get("data") != {CA_KEY: ca} and not is_deleting(found):
            changes.append(updated("configmaps", found | {"data": {CA_KEY: ca}}))
    return changes


def _object(kind: str, namespace: str, name: str) -> Json:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"namespace": namespace, "name": name}}


def concerns(view: View, resource: str, namespace: str, name: str) -> bool:
    """Namespaces, and the objects of these names."""
    return resource == "namespaces" or name == (ROOT_CA if resource == "configmaps" else ACCOUNT)


def accounts(ca: Callable[[], str]) -> Reconciler:
    """The reconciler. `ca`: gives the certificates of the CA, PEM, which are renewed."""
    return Reconciler("accounts", READS, lambda view: reconcile(view, ca()), concerns)
