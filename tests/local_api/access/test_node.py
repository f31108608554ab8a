"""What a node may do, impersonation, and reviews."""

from __future__ import annotations

from typing import Any

import pytest
from local_api.access.objects import Objects, bound, pod, rbac, rule, thing, user
from support.cost import is_quick

from pykubelet_local_api.access import node as node_module
from pykubelet_local_api.access.authorize import authorize
from pykubelet_local_api.access.bootstrap import bootstrap_objects
from pykubelet_local_api.access.certificates import key_pem, new_key
from pykubelet_local_api.access.impersonate import impersonated
from pykubelet_local_api.access.rbac import AccessAttributes
from pykubelet_local_api.access.reviews import review
from pykubelet_local_api.access.tokens import AccountTokens, token_key
from pykubelet_local_api.errors import StatusError
from pykubelet_local_api.kinds.table import KINDS
from pykubelet_local_api.objects import Json
from pykubelet_local_api.view import RequestUser

NODE = user("system:node:n1", "system:nodes")
FAR = "no relationship found between node 'n1' and this object"


def asked(
    view: Objects, verb: str, what: str, name: str = "", namespace: str = "", group: str = "", **more: Any
) -> tuple[bool, str]:
    resource, _, subresource = what.partition("/")
    found = authorize(AccessAttributes(NODE, verb, group, resource, subresource, namespace, name, **more), view)
    return found.is_allowed, found.reason


def full_pod(name: str = "p", node: str = "n1") -> Json:
    """A pod that refers to something in every way."""
    return pod(
        name, node=node, serviceAccountName="sa", imagePullSecrets=[{"name": "pull"}],
        containers=[{
            "env": [{"valueFrom": {"secretKeyRef": {"name": "env"}}}, {"valueFrom": {"configMapKeyRef": {"name": "env"}}}, {"value": "x"}],
            "envFrom": [{"secretRef": {"name": "from"}}, {"configMapRef": {"name": "from"}}],
        }],
        initContainers=[{"envFrom": [{"secretRef": {"name": "init"}}]}],
        ephemeralContainers=[{"envFrom": [{"secretRef": {"name": "ephemeral"}}]}],
        volumes=[
            {"name": "a", "secret": {"secretName": "volume"}},
            {"name": "b", "configMap": {"name": "volume"}},
            {"name": "c", "projected": {"sources": [{"secret": {"name": "part"}}, {"configMap": {"name": "part"}}]}},
            {"name": "d", "persistentVolumeClaim": {"claimName": "claim"}},
            {"name": "e", "ephemeral": {"volumeClaimTemplate": {}}},
            {"name": "f", "csi": {"nodePublishSecretRef": {"name": "csi"}}},
        ],
        resourceClaims=[{"name": "r", "resourceClaimName": "devices"}, {"name": "t", "resourceClaimTemplateName": "x"}],
    ) | {"status": {"resourceClaimStatuses": [{"name": "t", "resourceClaimName": "made"}]}}  # fmt: skip


def test_a_node_reads_what_its_pods_refer_to() -> None:
    view = Objects(full_pod())
    secrets = ("pull", "env", "from", "init", "ephemeral", "volume", "part", "csi")
    for resource, names in (("secrets", secrets), ("configmaps", ("env", "from", "volume", "part"))):
        for name in names:
            for verb in ("get", "list", "watch"):
                assert asked(view, verb, resource, name, "default")[0], (resource, name)
            assert asked(view, "get", resource, name, "other") == (False, FAR)
        assert asked(view, "get", resource, "none", "default") == (False, FAR)
    for name in ("claim", "p-e"):
        assert asked(view, "get", "persistentvolumeclaims", name, "default")[0]
    for name in ("devices", "made"):
        assert asked(view, "get", "resourceclaims", name, "default", "resource.k8s.io")[0]
    assert asked(view, "create", "serviceaccounts/token", "sa", "default")[0]
    assert asked(view, "get", "serviceaccounts", "sa", "default")[0]
    assert asked(view, "create", "serviceaccounts/token", "default", "default") == (False, FAR)


def test_a_node_reads_nothing_of_other_nodes_or_of_mirror_pods() -> None:
    assert asked(Objects(full_pod(node="n2")), "get", "secrets", "env", "default") == (False, FAR)
    mirror = full_pod()
    mirror["metadata"]["annotations"] = {"kubernetes.io/config.mirror": "x"}
    assert asked(Objects(mirror), "get", "secrets", "env", "default") == (False, FAR)
    assert asked(Objects(mirror), "get", "pods", "p", "default") == (True, "")


def test_a_pod_that_changes_is_read_again() -> None:
    view = Objects(full_pod())
    assert asked(view, "get", "secrets", "env", "default")[0]
    view.put(pod("p", volumes=[{"name": "a", "secret": {"secretName": "new"}}]))
    assert asked(view, "get", "secrets", "new", "default")[0]
    assert asked(view, "get", "secrets", "env", "default") == (False, FAR)


def test_a_node_reads_the_volumes_of_its_claims_and_their_secrets() -> None:
    volume = thing("v1", "PersistentVolume", "pv", spec={
        "claimRef": {"namespace": "default", "name": "claim"},
        "csi": {"nodeStageSecretRef": {"namespace": "storage", "name": "stage"},
                "controllerPublishSecretRef": {"namespace": "storage", "name": "controller"}},
    })  # fmt: skip
    attachment = thing("storage.k8s.io/v1", "VolumeAttachment", "va", spec={"nodeName": "n1"})
    view = Objects(full_pod(), volume, attachment, thing("v1", "PersistentVolume", "free"))
    assert asked(view, "get", "persistentvolumes", "pv")[0]
    assert asked(view, "get", "persistentvolumes", "free") == (False, FAR)
    assert asked(view, "get", "secrets", "stage", "storage")[0]
    assert asked(view, "get", "secrets", "controller", "storage") == (False, FAR)
    assert asked(view, "get", "volumeattachments", "va", group="storage.k8s.io")[0]
    assert asked(view, "patch", "persistentvolumeclaims/status", "claim", "default")[0]
    assert asked(view, "patch", "persistentvolumeclaims/status", "other", "default") == (False, FAR)


@pytest.mark.parametrize(
    ("verb", "what", "name", "namespace", "group", "reason"),
    [
        ("list", "secrets", "", "default", "", "No Object name found"),
        ("list", "secrets", "", "", "", "can only read namespaced object of this type"),
        ("delete", "secrets", "env", "default", "", "can only read resources of this type"),
        ("list", "persistentvolumes", "", "", "", "can only get individual resources of this type"),
        ("list", "nodes", "", "", "", "node 'n1' cannot read all nodes, only its own Node object"),
        ("get", "nodes", "n2", "", "", "node 'n1' cannot read 'n2', only its own Node object"),
        ("list", "pods", "", "", "", "can only list/watch pods with spec.nodeName field selector"),
        ("get", "pods", "x", "default", "", FAR),
        ("get", "leases", "n1", "default", "coordination.k8s.io", 'can only access leases in the "kube-node-lease" system namespace'),
        ("get", "leases", "n2", "kube-node-lease", "coordination.k8s.io",
         "can only access node lease with the same name as the requesting node"),
        ("update", "csinodes", "n2", "", "storage.k8s.io", "can only access CSINode with the same name as the requesting node"),
        ("list", "resourceslices", "", "", "resource.k8s.io",
         "can only list/watch/deletecollection resourceslices with nodeName field selector"),
        ("delete", "nodes", "n1", "", "", ""),
        ("create", "pods/exec", "p", "default", "", ""),
        ("get", "roles", "x", "default", "rbac.authorization.k8s.io", ""),
    ],
)  # fmt: skip
def test_refusals_of_a_node(verb: str, what: str, name: str, namespace: str, group: str, reason: str) -> None:
    assert asked(Objects(full_pod()), verb, what, name, namespace, group) == (False, reason)


@pytest.mark.parametrize(
    ("verb", "what", "name", "namespace", "group"),
    [
        ("get", "nodes", "n1", "", ""), ("patch", "nodes/status", "n1", "", ""), ("create", "nodes", "", "", ""),
        ("update", "pods/status", "p", "default", ""), ("create", "pods/eviction", "p", "default", ""),
        ("update", "leases", "n1", "kube-node-lease", "coordination.k8s.io"), ("create", "csinodes", "", "", "storage.k8s.io"),
        ("create", "events", "", "default", ""), ("patch", "events", "x", "default", "events.k8s.io"),
        ("list", "services", "", "", ""), ("watch", "runtimeclasses", "", "", "node.k8s.io"),
        ("create", "tokenreviews", "", "", "authentication.k8s.io"),
        ("create", "certificatesigningrequests", "", "", "certificates.k8s.io"),
    ],
)  # fmt: skip
def test_the_work_of_a_node(verb: str, what: str, name: str, namespace: str, group: str) -> None:
    assert asked(Objects(full_pod()), verb, what, name, namespace, group) == (True, "")


def test_lists_of_a_node_are_limited_by_selectors() -> None:
    own = (("spec.nodeName", "n1"),)
    assert asked(Objects(), "watch", "pods", fields=own)[0]
    assert not asked(Objects(), "watch", "pods", fields=(("spec.nodeName", "n2"),))[0]
    assert asked(Objects(), "list", "resourceslices", group="resource.k8s.io", fields=own)[0]


def test_a_name_alone_makes_no_node() -> None:
    view = Objects(full_pod())
    for who in (user("system:node:n1"), user("n1", "system:nodes")):
        assert not authorize(AccessAttributes(who, "get", resource="nodes", name="n1"), view).is_allowed
    found = authorize(AccessAttributes(user("system:node:", "system:nodes"), "get", resource="nodes"), view)
    assert (found.is_allowed, found.reason) == (False, 'unknown node for user "system:node:"')


def test_many_pods_cost_little_and_those_that_are_gone_nothing() -> None:
    view = Objects(*(full_pod(f"p{number}") for number in range(1500)))
    asked(view, "get", "secrets", "none", "default")
    assert is_quick(lambda: asked(view, "get", "secrets", "none", "default"), 0.05)
    few = Objects(full_pod("q"))
    for _ in range(2):
        assert asked(few, "get", "secrets", "env", "default")[0]
    assert len(node_module._references) < 1000


def acting(who: RequestUser, view: Objects, **headers: str) -> RequestUser:
    return impersonated(who, {name.replace("_", "-"): value.split(" ") for name, value in headers.items()}, view)


def test_an_administrator_acts_as_others() -> None:
    root, view = user("root", "system:masters"), Objects()
    assert acting(root, view) is root
    jane = acting(root, view, impersonate_user="jane", impersonate_group="a b", impersonate_uid="7")
    assert (jane.name, jane.uid) == ("jane", "7")
    assert jane.groups == ("a", "b", "system:authenticated")
    account = acting(root, view, impersonate_user="system:serviceaccount:default:bot")
    assert account.groups == ("system:serviceaccounts", "system:serviceaccounts:default", "system:authenticated")
    assert acting(root, view, impersonate_user="system:anonymous").groups == ("system:unauthenticated",)
    extra = impersonated(root, {"impersonate-user": ["x"], "impersonate-extra-a%2fb": ["1", "2"]}, view)
    assert extra.extra == {"a/b": ("1", "2")}
    with pytest.raises(StatusError) as caught:
        acting(root, view, impersonate_group="x")
    assert caught.value.message == (
        'requested &user.DefaultInfo{Name:"", UID:"", Groups:[]string{"x"}, Extra:map[string][]string(nil)} '
        "without impersonating a user name"
    )


def test_others_act_as_those_that_roles_allow() -> None:
    role = rbac("ClusterRole", "r", rules=[
        rule("impersonate", "users", names="bob"), rule("impersonate", "groups", names="g"),
        rule("impersonate", "userextras/scopes uids", "authentication.k8s.io"),
    ])  # fmt: skip
    jane, view = user("jane"), Objects(role, bound(role, "User:jane"))
    assert acting(jane, view, impersonate_user="bob", impersonate_group="g", impersonate_extra_scopes="s").name == "bob"
    for headers, why in (
        ({"impersonate_user": "eve"}, 'users "eve" is forbidden: User "jane" cannot impersonate resource "users"'),
        ({"impersonate_user": "bob", "impersonate_group": "g system:masters"}, 'groups "system:masters" is forbidden'),
        ({"impersonate_user": "bob", "impersonate_extra_other": "s"}, 'cannot impersonate resource "userextras/other"'),
        ({"impersonate_user": "system:serviceaccount:a:b"}, 'serviceaccounts "b" is forbidden'),
    ):
        with pytest.raises(StatusError) as caught:
            acting(jane, view, **headers)
        assert caught.value.code == 403
        assert why in caught.value.message


TOKENS = AccountTokens(token_key(key_pem(new_key())), "https://issuer", "")
REVIEWS = {kind.name: kind for kind in KINDS}


def answer(
    kind: str, spec: Json, who: RequestUser = NODE, namespace: str = "", view: Objects | None = None, **rest: Any
) -> Json:
    found = view or Objects(*bootstrap_objects())
    return review(REVIEWS[kind], namespace, {"spec": spec, **rest}, who, found, TOKENS)


def refused(kind: str, spec: Json, namespace: str = "", **rest: Any) -> tuple[int, str]:
    with pytest.raises(StatusError) as caught:
        answer(kind, spec, namespace=namespace, **rest)
    return caught.value.code, caught.value.message


def test_reviews_of_access() -> None:
    spec: Json = {
        "user": "x",
        "groups": ["system:authenticated"],
        "nonResourceAttributes": {"verb": "get", "path": "/healthz"},
    }
    found = answer("SubjectAccessReview", spec)
    assert found["status"] == {
        "allowed": True,
        "reason": 'RBAC: allowed by ClusterRoleBinding "system:discovery" of ClusterRole "system:discovery" to Group '
        '"system:authenticated"',
    }
    assert (found["kind"], found["apiVersion"], found["spec"]) == (
        "SubjectAccessReview",
        "authorization.k8s.io/v1",
        spec,
    )
    wanted: Json = {
        "resourceAttributes": {"verb": "list", "resource": "pods", "fieldSelector": {"rawSelector": "spec.nodeName=n1"}}
    }
    assert answer("SelfSubjectAccessReview", wanted)["status"] == {"allowed": True}
    by_parts = {
        "requirements": [
            {"key": "spec.nodeName", "operator": "In", "values": ["n1"]},
            {"key": "x", "operator": "Exists"},
        ]
    }
    wanted["resourceAttributes"]["fieldSelector"] = by_parts
    assert answer("SelfSubjectAccessReview", wanted)["status"] == {
        "allowed": True,
        "evaluationError": "spec.resourceAttributes.fieldSelector partially ignored due to parse error",
    }
    local = {"user": "x", "resourceAttributes": {"namespace": "default", "verb": "get"}}
    assert answer("LocalSubjectAccessReview", local, namespace="default", metadata={"namespace": "default"})[
        "status"
    ] == {"allowed": False}
    everything = rbac("ClusterRole", "r", rules=[rule("*", "*", "*")])
    view = Objects(everything, bound(everything, "User:x"))
    assert not answer("SubjectAccessReview", {"user": "x", "nonResourceAttributes": {"verb": "get"}}, view=view)[
        "status"
    ]["allowed"]


def test_wrong_reviews() -> None:
    start = '.authorization.k8s.io "" is invalid: '
    assert refused("SubjectAccessReview", {}) == (
        422,
        f"{start}[spec.resourceAttributes: Invalid value: null: exactly one of nonResourceAttributes or resourceAttributes must be "
        'specified, spec.user: Invalid value: "": at least one of user or group must be specified]',
    )
    both = {"user": "a", "resourceAttributes": {}, "nonResourceAttributes": {}}
    assert refused("SubjectAccessReview", both, metadata={"name": "x"})[1] == (
        f'{start}[spec.nonResourceAttributes: Invalid value: {{"Path":"","Verb":""}}: cannot be specified in combination with '
        'resourceAttributes, metadata: Invalid value: {"name":"x"}: must be empty]'
    )
    local = {"user": "a", "resourceAttributes": {"namespace": "x"}}
    assert refused("LocalSubjectAccessReview", local, "default", metadata={"namespace": "default"})[1] == (
        f'{start}spec.resourceAttributes.namespace: Invalid value: "x": must match metadata.namespace'
    )
    selector = {"user": "a", "resourceAttributes": {"fieldSelector": {}}}
    assert refused("SubjectAccessReview", selector)[1] == (
        f"{start}spec.resourceAttributes.fieldSelector.requirements: Required value: when spec.resourceAttributes.fieldSelector is "
        "specified, requirements or rawSelector is required"
    )
    assert refused("SelfSubjectRulesReview", {}) == (400, "no namespace on request")
    assert refused("TokenReview", {}) == (400, "token is required for TokenReview in authentication")


def test_other_reviews() -> None:
    assert answer("TokenReview", {"token": "x"})["status"] == {"user": {}, "error": "invalid bearer token"}
    who = RequestUser("jane", ("b", "a"), "7", {"k": ("v",)})
    assert answer("SelfSubjectReview", {}, who)["status"]["userInfo"] == {
        "username": "jane", "uid": "7", "groups": ["b", "a"], "extra": {"k": ["v"]},
    }  # fmt: skip
    status = answer("SelfSubjectRulesReview", {"namespace": "default"}, user("jane"))["status"]
    assert {"verbs": ["create"], "apiGroups": ["authentication.k8s.io"], "resources": ["selfsubjectreviews"]} in status[
        "resourceRules"
    ]
    assert status["incomplete"] is False
    assert "evaluationError" not in status
    assert answer("SelfSubjectRulesReview", {"namespace": "default"}, NODE)["status"]["incomplete"] is True
