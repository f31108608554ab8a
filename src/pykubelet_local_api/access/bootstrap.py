"""The roles and bindings that every cluster has, for the kinds that are served. Pure.

What they allow is that of Kubernetes' default roles. Rules about kinds that are not served are left out, and come with the kind.
Source: "Using RBAC Authorization", default roles and role bindings.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pykubelet_local_api.access.aggregation import AGGREGATE, aggregated_rules
from pykubelet_local_api.access.covers import is_covered
from pykubelet_local_api.access.rbac import GROUP, Rule, rule_json, rules_of
from pykubelet_local_api.kinds.table import KINDS
from pykubelet_local_api.objects import Json, copied, name_of, namespace_of
from pykubelet_local_api.view import ObjectChange, Verb, View

AUTOUPDATE = "rbac.authorization.kubernetes.io/autoupdate"
_MARK = {"kubernetes.io/bootstrapping": "rbac-defaults"}
_READ = "get list watch"
_WRITE = "create update patch delete deletecollection"
_READ_WRITE = f"{_READ} {_WRITE}"
_READ_UPDATE = f"{_READ} update patch"
_CORE, _AUTHENTICATION, _AUTHORIZATION = "", "authentication.k8s.io", "authorization.k8s.io"
_CERTIFICATES, _LEASES, _STORAGE = "certificates.k8s.io", "coordination.k8s.io", "storage.k8s.io"
_DEVICES, _EVENTS, _SLICES = "resource.k8s.io", "events.k8s.io", "discovery.k8s.io"
_SIGNERS = "kubernetes.io"
_REQUESTS = "system:certificates.k8s.io"
_SERVED = frozenset((kind.group, kind.plural) for kind in KINDS)
#: The user that this API is when it calls the agent. Not an administrator: what listens at the address that a Node names could pass
#: the connection on to this API.
AGENT_CLIENT = "kube-apiserver-kubelet-client"
#: Resources that rules name, and that have no objects.
_VIRTUAL = frozenset({(_CERTIFICATES, "signers")})


def _is_served(group: str, resource: str) -> bool:
    plural = resource.partition("/")[0]
    return "*" in (group, plural) or (group, plural) in _SERVED or (group, plural) in _VIRTUAL


def _rules(*lines: Sequence[str]) -> tuple[Rule, ...]:
    """Rules of (verbs, group, resources, names): words separated by spaces; those of kinds that are not served are left out."""
    made = []
    for verbs, group, resources, *names in lines:
        served = tuple(found for found in resources.split() if _is_served(group, found))
        if served:
            made.append(Rule(tuple(verbs.split()), (group,), served, tuple(names)))
    return tuple(made)


def _paths(*paths: str) -> tuple[Rule, ...]:
    return (Rule(("get",), urls=paths),)


_EVENT_RULES = _rules(("create update patch", _CORE, "events"), ("create update patch", _EVENTS, "events"))
_HEALTH = ("/healthz", "/livez", "/readyz")
_VERSION = ("/version", "/version/")

#: What a node may do besides what is decided by its relationship to objects.
NODE_RULES = (
    *_rules(
        ("create", _AUTHENTICATION, "tokenreviews"),
        ("create", _AUTHORIZATION, "localsubjectaccessreviews subjectaccessreviews"),
        (_READ, _CORE, "services"),
        (f"create {_READ}", _CORE, "nodes"),
        ("patch update", _CORE, "nodes/status"),
        ("patch update", _CORE, "nodes"),
        (_READ, _CORE, "pods"),
        ("create delete", _CORE, "pods"),
        ("patch update", _CORE, "pods/status"),
        ("create", _CORE, "pods/eviction"),
        (_READ, _CORE, "configmaps secrets"),
        ("get", _CORE, "persistentvolumeclaims persistentvolumes"),
        ("get", _CORE, "endpoints"),
        (f"create {_READ}", _CERTIFICATES, "certificatesigningrequests"),
        ("create delete get patch update", _LEASES, "leases"),
        ("get", _STORAGE, "volumeattachments"),
        ("create", _CORE, "serviceaccounts/token"),
        ("get patch update", _CORE, "persistentvolumeclaims/status"),
        (_READ, _STORAGE, "csidrivers"),
        ("create delete get patch update", _STORAGE, "csinodes"),
        (_READ, "node.k8s.io", "runtimeclasses"),
        ("get", _DEVICES, "resourceclaims"),
        ("deletecollection", _DEVICES, "resourceslices"),
        (_READ, _CERTIFICATES, "clustertrustbundles"),
        ("get", _CORE, "serviceaccounts"),
        (f"create {_READ}", _CERTIFICATES, "podcertificaterequests"),
    ),
    *_EVENT_RULES,
)
_VIEW = _rules(
    (
        _READ, _CORE,
        "configmaps endpoints persistentvolumeclaims persistentvolumeclaims/status pods replicationcontrollers"
        " replicationcontrollers/scale serviceaccounts services services/status",
    ),
    (
        _READ, _CORE,
        "bindings events limitranges namespaces/status pods/log pods/status replicationcontrollers/status resourcequotas"
        " resourcequotas/status",
    ),
    (_READ, _CORE, "namespaces"),
    (_READ, _EVENTS, "events"),
    (_READ, _SLICES, "endpointslices"),
    (
        _READ, "apps",
        "controllerrevisions daemonsets daemonsets/status deployments deployments/scale deployments/status replicasets"
        " replicasets/scale replicasets/status statefulsets statefulsets/scale statefulsets/status",
    ),
    (_READ, "autoscaling", "horizontalpodautoscalers horizontalpodautoscalers/status"),
    (_READ, "batch", "cronjobs cronjobs/status jobs jobs/status"),
    (_READ, "policy", "poddisruptionbudgets poddisruptionbudgets/status"),
    (_READ, "networking.k8s.io", "ingresses ingresses/status networkpolicies"),
    (_READ, _DEVICES, "resourceclaims resourceclaims/status resourceclaimtemplates"),
)  # fmt: skip
_EDIT = _rules(
    (_READ, _CORE, "pods/attach pods/exec pods/portforward pods/proxy secrets services/proxy"),
    ("impersonate", _CORE, "serviceaccounts"),
    (_WRITE, _CORE, "pods pods/attach pods/exec pods/portforward pods/proxy"),
    ("create", _CORE, "pods/eviction"),
    (
        _WRITE, _CORE,
        "configmaps events persistentvolumeclaims replicationcontrollers replicationcontrollers/scale secrets serviceaccounts services"
        " services/proxy",
    ),
    ("create", _CORE, "serviceaccounts/token"),
    (_WRITE, _EVENTS, "events"),
    (
        _WRITE, "apps",
        "daemonsets deployments deployments/rollback deployments/scale replicasets replicasets/scale statefulsets statefulsets/scale",
    ),
    (_WRITE, "autoscaling", "horizontalpodautoscalers"),
    (_WRITE, "batch", "cronjobs jobs"),
    (_WRITE, "policy", "poddisruptionbudgets"),
    (_WRITE, "networking.k8s.io", "ingresses networkpolicies"),
    (_READ_WRITE, _LEASES, "leases"),
    (_WRITE, _DEVICES, "resourceclaims resourceclaimtemplates"),
)  # fmt: skip
_ADMIN = _rules(("create", _AUTHORIZATION, "localsubjectaccessreviews"), (_READ_WRITE, GROUP, "rolebindings roles"))
_VOLUMES = _rules(
    (_READ_UPDATE, _CORE, "persistentvolumes"),
    (_READ, _STORAGE, "storageclasses"),
    (_READ_UPDATE, _CORE, "persistentvolumeclaims"),
)


def _approver(signer: str) -> tuple[Rule, ...]:
    return _rules(("approve", _CERTIFICATES, "signers", f"{_SIGNERS}/{signer}"))


#: By the name of the ClusterRole.
CLUSTER_ROLE_RULES: dict[str, tuple[Rule, ...]] = {
    "cluster-admin": (Rule(("*",), ("*",), ("*",)), Rule(("*",), urls=("*",))),
    "system:discovery": _paths(
        "/api", "/api/*", "/apis", "/apis/*", "/healthz", "/livez", "/openapi", "/openapi/*", "/readyz", *_VERSION
    ),
    "system:monitoring": (
        *_paths(*_HEALTH, *(f"{path}/*" for path in _HEALTH), "/metrics", "/metrics/slis"),
        *_rules(("get", _CORE, "nodes/metrics")),
    ),
    "system:basic-user": _rules(
        ("create", _AUTHORIZATION, "selfsubjectaccessreviews selfsubjectrulesreviews"),
        ("create", _AUTHENTICATION, "selfsubjectreviews"),
    ),
    "system:public-info-viewer": _paths(*_HEALTH, *_VERSION),
    "system:aggregate-to-admin": _ADMIN,
    "system:aggregate-to-edit": _EDIT,
    "system:aggregate-to-view": _VIEW,
    "system:node": NODE_RULES,
    "system:node-problem-detector": (
        *_rules(("get", _CORE, "nodes"), ("patch", _CORE, "nodes/status")),
        *_EVENT_RULES,
    ),
    "system:node-bootstrapper": _rules((f"create {_READ}", _CERTIFICATES, "certificatesigningrequests")),
    "system:auth-delegator": _rules(
        ("create", _AUTHENTICATION, "tokenreviews"), ("create", _AUTHORIZATION, "subjectaccessreviews")
    ),
    "system:kube-dns": _rules(("list watch", _CORE, "endpoints services")),
    "system:persistent-volume-provisioner": (
        *_rules(
            (f"create delete {_READ}", _CORE, "persistentvolumes"),
            (f"{_READ} update", _CORE, "persistentvolumeclaims"),
            (_READ, _STORAGE, "storageclasses"),
            ("watch", _CORE, "events"),
        ),
        *_EVENT_RULES,
    ),
    "system:volume-scheduler": _VOLUMES,
    f"{_REQUESTS}:certificatesigningrequests:nodeclient": _rules(
        ("create", _CERTIFICATES, "certificatesigningrequests/nodeclient")
    ),
    f"{_REQUESTS}:certificatesigningrequests:selfnodeclient": _rules(
        ("create", _CERTIFICATES, "certificatesigningrequests/selfnodeclient")
    ),
    f"{_REQUESTS}:kubelet-serving-approver": _approver("kubelet-serving"),
    f"{_REQUESTS}:kube-apiserver-client-approver": _approver("kube-apiserver-client"),
    f"{_REQUESTS}:kube-apiserver-client-kubelet-approver": _approver("kube-apiserver-client-kubelet"),
    "system:service-account-issuer-discovery": _paths(
        "/.well-known/openid-configuration", "/.well-known/openid-configuration/", "/openid/v1/jwks", "/openid/v1/jwks/"
    ),
    "system:kubelet-api-admin": _rules(
        (_READ, _CORE, "nodes"),
        ("proxy", _CORE, "nodes"),
        ("*", _CORE, "nodes/log nodes/metrics nodes/proxy nodes/stats"),
        ("*", _CORE, "nodes/configz nodes/healthz nodes/pods"),
    ),
    "system:pykubelet:agent-client": _rules(
        ("*", _CORE, "nodes/log nodes/metrics nodes/proxy nodes/stats nodes/configz nodes/healthz nodes/pods"),
        ("*", _CORE, "nodes/checkpoint nodes/statusz"),
    ),
    "system:node-proxier": (
        *_rules(
            ("list watch", _CORE, "endpoints services"),
            (_READ, _CORE, "nodes"),
            ("list watch", "networking.k8s.io", "servicecidrs"),
            ("list watch", _SLICES, "endpointslices"),
        ),
        *_EVENT_RULES,
    ),
}
#: Roles that are made of others, in the order in which they depend on each other.
_AGGREGATED = ("view", "edit", "admin")
#: Labels of roles that are parts of others.
_PART_OF = {
    "system:aggregate-to-view": "view", "view": "edit", "system:aggregate-to-edit": "edit", "edit": "admin",
    "system:aggregate-to-admin": "admin",
}  # fmt: skip
#: The groups and users that have a ClusterRole from the beginning. A node may renew its own client certificate, as in clusters
#: that kubeadm has made.
_BOUND: dict[str, tuple[tuple[str, str], ...]] = {
    "cluster-admin": (("Group", "system:masters"),),
    "system:monitoring": (("Group", "system:monitoring"),),
    "system:discovery": (("Group", "system:authenticated"),),
    "system:basic-user": (("Group", "system:authenticated"),),
    "system:public-info-viewer": (("Group", "system:authenticated"), ("Group", "system:unauthenticated")),
    "system:node-proxier": (("User", "system:kube-proxy"),),
    "system:node": (),
    "system:pykubelet:agent-client": (("User", AGENT_CLIENT),),
    "system:service-account-issuer-discovery": (("Group", "system:serviceaccounts"),),
    f"{_REQUESTS}:certificatesigningrequests:selfnodeclient": (("Group", "system:nodes"),),
}
#: A Role that servers behind the API bind to, to read with which authority to check clients.
_READER = "extension-apiserver-authentication-reader"


def bootstrap_objects() -> list[Json]:
    """The roles and bindings, as clients would create them. The namespace kube-system must exist."""
    roles = {name: _role(name, rules) for name, rules in CLUSTER_ROLE_RULES.items()}
    for name in _AGGREGATED:
        rule = {"clusterRoleSelectors": [{"matchLabels": {f"{AGGREGATE}-{name}": "true"}}]}
        roles[name] = _role(name, ()) | {"aggregationRule": rule}
    for name in _AGGREGATED:
        roles[name]["rules"] = aggregated_rules(roles[name], [roles[key] for key in sorted(roles)])
    reader = _object("Role", _READER, "kube-system") | {
        "rules": [rule_json(Rule(("get", "list", "watch"), ("",), ("configmaps",), (_READER.removesuffix("-reader"),)))]
    }
    return [*roles.values(), *(_binding(name, subjects) for name, subjects in _BOUND.items()), reader]


def bootstrap_changes(view: View) -> list[ObjectChange]:
    """What is missing of them: objects, and rules and subjects of objects that are not marked as the administrator's own.

    The mark is the annotation AUTOUPDATE with the value "false". Nothing is taken away.
    """
    changes = []
    for wanted in bootstrap_objects():
        resource = f"{wanted['kind'].lower()}s.{GROUP}"
        found = view.get(resource, namespace_of(wanted), name_of(wanted))
        if found is None:
            changes.append(ObjectChange(Verb.CREATE, resource, wanted))
        elif (found["metadata"].get("annotations") or {}).get(AUTOUPDATE) != "false":
            completed = _completed(found, wanted)
            if completed is not None:
                changes.append(ObjectChange(Verb.UPDATE, resource, completed))
    return changes


def _completed(found: Json, wanted: Json) -> Json | None:
    """The object with what it lacks; None if it lacks nothing."""
    added: Json = {}
    has = rules_of(found)
    rules = [rule for rule in wanted.get("rules") or () if not all(_covered(has, rule))]
    if rules and "aggregationRule" not in wanted:
        added["rules"] = [*(found.get("rules") or ()), *rules]
    subjects = [subject for subject in wanted.get("subjects") or () if subject not in (found.get("subjects") or ())]
    if subjects and found.get("roleRef") == wanted.get("roleRef"):
        added["subjects"] = [*(found.get("subjects") or ()), *subjects]
    return copied(found) | added if added else None


def _covered(has: Iterable[Rule], rule: Json) -> Iterable[bool]:
    return (is_covered(part, has) for part in rules_of({"rules": [rule]}))


def _object(kind: str, name: str, namespace: str = "") -> Json:
    metadata: Json = {"name": name, "labels": dict(_MARK), "annotations": {AUTOUPDATE: "true"}}
    return {
        "apiVersion": f"{GROUP}/v1",
        "kind": kind,
        "metadata": metadata | ({"namespace": namespace} if namespace else {}),
    }


def _role(name: str, rules: Iterable[Rule]) -> Json:
    made = _object("ClusterRole", name) | {"rules": [rule_json(rule) for rule in rules]}
    if name in _PART_OF:
        made["metadata"]["labels"][f"{AGGREGATE}-{_PART_OF[name]}"] = "true"
    return made


def _binding(role: str, subjects: Iterable[tuple[str, str]]) -> Json:
    made = _object("ClusterRoleBinding", role) | {"roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": role}}
    listed = [{"apiGroup": GROUP, "kind": kind, "name": name} for kind, name in subjects]
    return made | ({"subjects": listed} if listed else {})
