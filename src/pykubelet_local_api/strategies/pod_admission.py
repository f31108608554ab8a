"""Admission of new pods: service account, priority, runtime class, tolerations, topology labels. Pure.

Source: the Kubernetes documentation "Admission Control" (ServiceAccount, Priority, RuntimeClass, DefaultTolerationSeconds,
PodTopologyLabels), and "Configure Service Accounts for Pods".
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256

import msgspec

from pykubelet.base.api.quantity import QuantityError, parse
from pykubelet.base.model.labels import CONFIG_MIRROR
from pykubelet_local_api.errors import forbidden, internal
from pykubelet_local_api.kinds.kind import ResourceKind
from pykubelet_local_api.objects import Json, copied
from pykubelet_local_api.strategies.common import shown_name
from pykubelet_local_api.strategies.strategy import Context

TOKEN_VOLUME = "kube-api-access-"
TOKEN_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"
#: A little more than an hour, by which the API server recognizes tokens that it asked for itself.
TOKEN_SECONDS = 3607
ROOT_CA = "kube-root-ca.crt"
TOLERATION_SECONDS = 300
#: Letters of generated names, without those that could form words.
_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
_TAINTS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_TOPOLOGY = ("topology.kubernetes.io/region", "topology.kubernetes.io/zone")
#: Annotations of service accounts that restrict which Secrets pods may use.
_ENFORCE = "kubernetes.io/enforce-mountable-secrets"

SYSTEM_PRIORITIES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}


def admit_pod(kind: ResourceKind, pod: Json, context: Context) -> None:
    """Complete a new pod, which has its defaults. Raises `StatusError` (403) if it is refused."""
    _service_account(kind, pod, context)
    _priority(kind, pod, context)
    _tolerations(pod["spec"])
    _runtime_class(kind, pod, context)
    if node := pod["spec"].get("nodeName"):
        add_topology_labels(pod, str(node), context)


def admit_pod_change(spec: Json, before: Json) -> None:
    """Complete a changed spec: tolerations are added again, and a priority that a client leaves out stays."""
    for field in ("priority", "preemptionPolicy"):
        if spec.get(field) is None and before.get(field) is not None:
            spec[field] = before[field]
    _tolerations(spec)


def containers_of(spec: Json) -> Iterator[Json]:
    """Init containers, containers and ephemeral containers."""
    for field in ("initContainers", "containers", "ephemeralContainers"):
        yield from spec.get(field) or ()


def uses_secrets(spec: Json) -> bool:
    """Whether a field of the pod refers to a Secret."""
    if spec.get("imagePullSecrets"):
        return True
    for volume in spec.get("volumes") or ():
        if "secret" in volume or any("secret" in item for item in (volume.get("projected") or {}).get("sources") or ()):
            return True
        for source in volume.values():
            if isinstance(source, dict) and ({"secretRef", "nodePublishSecretRef", "secretName"} & source.keys()):
                return True
    return any(_has_env_of(container, "secretRef", "secretKeyRef") for container in containers_of(spec))


def uses_config_maps(spec: Json) -> bool:
    """Whether a field of the pod refers to a ConfigMap."""
    for volume in spec.get("volumes") or ():
        sources = (volume.get("projected") or {}).get("sources") or ()
        if "configMap" in volume or any("configMap" in item for item in sources):
            return True
    return any(_has_env_of(container, "configMapRef", "configMapKeyRef") for container in containers_of(spec))


def _has_env_of(container: Json, whole: str, key: str) -> bool:
    return any(whole in item for item in container.get("envFrom") or ()) or any(
        key in (item.get("valueFrom") or {}) for item in container.get("env") or ()
    )


def _service_account(kind: ResourceKind, pod: Json, context: Context) -> None:
    spec, name = pod["spec"], shown_name(pod)
    if CONFIG_MIRROR in (pod["metadata"].get("annotations") or {}):
        if spec.get("serviceAccountName"):
            raise forbidden(kind, name, "a mirror pod may not reference service accounts")
        if uses_secrets(spec):
            raise forbidden(kind, name, "a mirror pod may not reference secrets")
        for volume in spec.get("volumes") or ():
            if any("serviceAccountToken" in item for item in (volume.get("projected") or {}).get("sources") or ()):
                raise forbidden(kind, name, "a mirror pod may not use ServiceAccountToken volume projections")
        return
    spec.setdefault("serviceAccountName", "default")
    spec["serviceAccount"] = spec["serviceAccountName"]
    namespace = str(pod["metadata"].get("namespace") or "")
    account = context.view.get("serviceaccounts", namespace, spec["serviceAccountName"])
    if account is None:
        shown = f"{namespace}/{spec['serviceAccountName']}"
        why = f'error looking up service account {shown}: serviceaccount "{spec["serviceAccountName"]}" not found'
        raise forbidden(kind, name, why)
    _limit_secrets(kind, pod, account)
    if _wants_token(spec, account):
        _mount_token(pod, context)
    if not spec.get("imagePullSecrets") and account.get("imagePullSecrets"):
        spec["imagePullSecrets"] = copied({"of": account["imagePullSecrets"]})["of"]


def _limit_secrets(kind: ResourceKind, pod: Json, account: Json) -> None:
    if (account["metadata"].get("annotations") or {}).get(_ENFORCE) != "true":
        return
    allowed = {item.get("name") for item in account.get("secrets") or ()}
    who, name = account["metadata"]["name"], shown_name(pod)
    for volume in pod["spec"].get("volumes") or ():
        wanted = (volume.get("secret") or {}).get("secretName")
        if wanted and wanted not in allowed:
            why = f'volume with secret.secretName="{wanted}" is not allowed because service account {who} does not reference that secret'
            raise forbidden(kind, name, why)
    for field in ("initContainers", "containers"):
        for container in pod["spec"].get(field) or ():
            for variable in container.get("env") or ():
                ref = (variable.get("valueFrom") or {}).get("secretKeyRef")
                if ref and ref.get("name") not in allowed:
                    what = "init container" if field == "initContainers" else "container"
                    why = (
                        f"{what} {container['name']} with envVar {variable['name']} referencing secret.secretName="
                        f'"{ref.get("name", "")}" is not allowed because service account {who} does not reference that secret'
                    )
                    raise forbidden(kind, name, why)


def _wants_token(spec: Json, account: Json) -> bool:
    for given in (spec.get("automountServiceAccountToken"), account.get("automountServiceAccountToken")):
        if given is not None:
            return bool(given)
    return True


def _mount_token(pod: Json, context: Context) -> None:
    """Add the volume with the account's token to the containers that have nothing at its path."""
    spec = pod["spec"]
    taken = {volume.get("name") for volume in spec.get("volumes") or ()}
    volume = next((str(name) for name in taken if _is_token_volume(spec, name)), "")
    is_new = not volume
    volume = volume or _free_name(pod, taken, context)
    mounted = False
    for field in ("initContainers", "containers"):
        for container in spec.get(field) or ():
            mounts = container.setdefault("volumeMounts", [])
            if all(mount.get("mountPath") != TOKEN_PATH for mount in mounts):
                mounts.append({"name": volume, "readOnly": True, "mountPath": TOKEN_PATH})
                mounted = True
    if not (mounted and is_new):
        return
    namespace = {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}
    sources = [
        {"serviceAccountToken": {"expirationSeconds": TOKEN_SECONDS, "path": "token"}},
        {"configMap": {"name": ROOT_CA, "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [namespace]}},
    ]
    found = {"name": volume, "projected": {"sources": sources, "defaultMode": 0o644}}
    spec["volumes"] = [*(spec.get("volumes") or ()), found]


def _is_token_volume(spec: Json, name: object) -> bool:
    return str(name).startswith(TOKEN_VOLUME) and any(
        volume.get("name") == name and "projected" in volume for volume in spec.get("volumes") or ()
    )


def _free_name(pod: Json, taken: set[object], context: Context) -> str:
    """A name with five letters that follow from the pod and the time: strategies have no random numbers."""
    meta = pod["metadata"]
    seed = f"{meta.get('namespace')}/{meta.get('name')}/{meta.get('uid')}/{context.view.now}"
    for attempt in range(len(taken) + 1):
        digest = sha256(f"{seed}/{attempt}".encode()).digest()
        name = TOKEN_VOLUME + "".join(_LETTERS[byte % len(_LETTERS)] for byte in digest[:5])
        if name not in taken:
            return name
    raise internal("no free name for the volume of the service account's token")


def _priority(kind: ResourceKind, pod: Json, context: Context) -> None:
    spec, name = pod["spec"], shown_name(pod)
    wanted = str(spec.get("priorityClassName") or "")
    if wanted:
        found = context.view.get("priorityclasses.scheduling.k8s.io", "", wanted)
        if found is None:
            raise forbidden(kind, name, f"no PriorityClass with name {wanted} was found")
    else:
        found = _default_priority(context)
        if found is not None:
            spec["priorityClassName"] = wanted = str(found["metadata"]["name"])
    value = int(found["value"]) if found is not None else 0
    policy = str((found or {}).get("preemptionPolicy") or "PreemptLowerPriority")
    for field, shown, given, computed in (
        ("priority", "the integer value of priority", spec.get("priority"), value),
        ("preemptionPolicy", "the string value of PreemptionPolicy", spec.get("preemptionPolicy"), policy),
    ):
        if given not in (None, "", computed):
            why = (
                f"{shown} ({given}) must not be provided in pod spec; "
                f"priority admission controller computed {computed} from the given PriorityClass name"
            )
            raise forbidden(kind, name, why)
        spec[field] = computed


def _default_priority(context: Context) -> Json | None:
    """The class for pods that name none: of several, the one of the lowest value."""
    classes = (item for item in context.view.list("priorityclasses.scheduling.k8s.io") if item.get("globalDefault"))
    return min(classes, key=lambda item: int(item["value"]), default=None)


def _tolerations(spec: Json) -> None:
    """Pods tolerate for five minutes that their node is away."""
    given = spec.get("tolerations") or []
    for taint in _TAINTS:
        if not any(
            item.get("key", taint) in (taint, "") and item.get("effect", "") in ("", "NoExecute") for item in given
        ):
            added = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": TOLERATION_SECONDS}
            given.append({"key": taint} | added)
    spec["tolerations"] = given


def _runtime_class(kind: ResourceKind, pod: Json, context: Context) -> None:
    spec, name = pod["spec"], shown_name(pod)
    wanted = spec.get("runtimeClassName")
    if not wanted:
        if spec.get("overhead"):
            raise forbidden(
                kind, name, "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead"
            )
        return
    found = context.view.get("runtimeclasses.node.k8s.io", "", str(wanted))
    if found is None:
        raise forbidden(kind, name, f'pod rejected: RuntimeClass "{wanted}" not found')
    fixed = (found.get("overhead") or {}).get("podFixed") or {}
    if spec.get("overhead") and not _same_amounts(spec["overhead"], fixed):
        raise forbidden(kind, name, "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead")
    if fixed:
        spec["overhead"] = dict(fixed)
    scheduling = found.get("scheduling") or {}
    selector = dict(spec.get("nodeSelector") or {})
    for key, label in sorted((scheduling.get("nodeSelector") or {}).items()):
        if selector.setdefault(key, label) != label:
            why = f"conflict: runtimeClass.scheduling.nodeSelector[{key}] = {label}; pod.spec.nodeSelector[{key}] = {selector[key]}"
            raise forbidden(kind, name, why)
    if selector:
        spec["nodeSelector"] = selector
    seen = {encode_sorted(toleration) for toleration in spec["tolerations"]}
    for toleration in scheduling.get("tolerations") or ():
        if encode_sorted(toleration) not in seen:
            spec["tolerations"].append(copied(toleration))


def encode_sorted(part: Json) -> bytes:
    """A part of an object as text, in which the order of its members makes no difference."""
    return msgspec.json.encode(part, order="sorted")


def _same_amounts(given: Json, other: Json) -> bool:
    try:
        return {key: parse(amount).nano for key, amount in given.items()} == {
            key: parse(amount).nano for key, amount in other.items()
        }
    except QuantityError:
        return False


def add_topology_labels(pod: Json, node: str, context: Context) -> None:
    """Copy the zone and region of its node to a pod."""
    found = context.view.get("nodes", "", node)
    labels = (found["metadata"].get("labels") or {}) if found else {}
    if copied_labels := {key: labels[key] for key in _TOPOLOGY if key in labels}:
        pod["metadata"]["labels"] = (pod["metadata"].get("labels") or {}) | copied_labels


def merge_label_keys(pod: Json) -> None:
    """Put the labels that `matchLabelKeys` and `mismatchLabelKeys` name into the selectors beside them (KEP-3633, KEP-3243)."""
    labels = pod["metadata"].get("labels") or {}
    affinity = pod["spec"].get("affinity") or {}
    for field in ("podAffinity", "podAntiAffinity"):
        part = affinity.get(field) or {}
        terms = list(part.get("requiredDuringSchedulingIgnoredDuringExecution") or ())
        preferred = part.get("preferredDuringSchedulingIgnoredDuringExecution") or ()
        terms += [found["podAffinityTerm"] for found in preferred if found.get("podAffinityTerm")]
        for term in terms:
            _require(term, "matchLabelKeys", "In", labels)
            _require(term, "mismatchLabelKeys", "NotIn", labels)
    for constraint in pod["spec"].get("topologySpreadConstraints") or ():
        _require(constraint, "matchLabelKeys", "In", labels)


def _require(term: Json, keys: str, operator: str, labels: Json) -> None:
    selector = term.get("labelSelector")
    added = [
        {"key": key, "operator": operator, "values": [labels[key]]} for key in term.get(keys) or () if key in labels
    ]
    if selector is not None and added:
        selector["matchExpressions"] = [*(selector.get("matchExpressions") or ()), *added]
