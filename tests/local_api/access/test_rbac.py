"""Decisions by roles, checks against escalation, aggregated roles."""

from __future__ import annotations

import pytest
from local_api.access.objects import Objects, bound, rbac, rule, user
from support.cost import is_quick

from pykubelet_local_api.access.aggregation import aggregated_roles
from pykubelet_local_api.access.authenticate import NO_USER
from pykubelet_local_api.access.authorize import authorize, check
from pykubelet_local_api.access.bootstrap import AUTOUPDATE, bootstrap_changes, bootstrap_objects
from pykubelet_local_api.access.escalation import check_binding, check_role
from pykubelet_local_api.access.rbac import ROLES, AccessAttributes, index_of, rules_of
from pykubelet_local_api.errors import StatusError
from pykubelet_local_api.kinds.table import BY_PATH
from pykubelet_local_api.objects import Json, name_of
from pykubelet_local_api.view import Verb

GROUP = "rbac.authorization.k8s.io"
KINDS = {
    plural: BY_PATH[GROUP, "v1", plural] for plural in ("roles", "clusterroles", "rolebindings", "clusterrolebindings")
}
JANE = user("jane")


def may(
    view: Objects, verb: str, what: str = "pods", namespace: str = "default", name: str = "", group: str = ""
) -> bool:
    resource, _, subresource = what.partition("/")
    if what.startswith("/"):
        return authorize(AccessAttributes(JANE, verb, path=what), view).is_allowed
    return authorize(AccessAttributes(JANE, verb, group, resource, subresource, namespace, name), view).is_allowed


def with_rules(*rules: Json) -> Objects:
    role = rbac("Role", "r", "default", rules=list(rules))
    return Objects(role, bound(role, "User:jane", namespace="default"))


def test_a_role_allows_what_it_lists_in_its_namespace() -> None:
    view = with_rules(rule("get list", "pods pods/log"))
    assert may(view, "get")
    assert may(view, "list", "pods/log")
    assert not may(view, "delete")
    assert not may(view, "get", "pods/exec")
    assert not may(view, "get", namespace="other")
    assert not may(view, "get", namespace="")
    assert not may(view, "get", group="apps")


def test_names_limit_a_rule_and_are_not_known_in_lists() -> None:
    view = with_rules(rule("get list create", "pods", names="a b"))
    assert may(view, "get", name="b")
    assert not may(view, "get", name="c")
    assert not may(view, "list")
    assert not may(view, "create")


def test_stars() -> None:
    assert may(with_rules(rule("*", "pods")), "anything")
    assert may(with_rules(rule("get", "*", "*")), "get", "x/y", group="g")
    view = with_rules(rule("update", "*/scale", "apps"))
    assert may(view, "update", "deployments/scale", group="apps")
    assert not may(view, "update", "deployments", group="apps")
    assert not may(view, "update", "deployments/scaled", group="apps")


def test_paths_are_for_the_whole_cluster_only() -> None:
    role = rbac("ClusterRole", "r", rules=[rule("get", urls="/healthz /logs/*")])
    view = Objects(role, bound(role, "User:jane"))
    assert may(view, "get", "/healthz")
    assert may(view, "get", "/logs/a/b")
    assert not may(view, "get", "/logs")
    assert not may(view, "post", "/healthz")
    assert not may(Objects(role, bound(role, "User:jane", namespace="default")), "get", "/healthz")


def test_the_reason_names_binding_role_and_subject() -> None:
    role = rbac("ClusterRole", "reader", rules=[rule("get", "pods")])
    account = user("system:serviceaccount:default:bot")
    view = Objects(role, bound(role, "User:x", "ServiceAccount:bot", namespace="default", name="b"))
    assert (
        authorize(AccessAttributes(account, "get", resource="pods", namespace="default"), view).reason
        == 'RBAC: allowed by RoleBinding "b/default" of ClusterRole "reader" to ServiceAccount "bot/default"'
    )


def test_the_message_of_a_refusal() -> None:
    with pytest.raises(StatusError) as caught:
        check(AccessAttributes(JANE, "list", resource="pods", namespace="default"), Objects())
    assert caught.value.message == (
        'pods is forbidden: User "jane" cannot list resource "pods" in API group "" in the namespace "default"'
    )
    assert caught.value.details == {"kind": "pods"}
    lost = bound(rbac("ClusterRole", "nothere"), "User:jane")
    with pytest.raises(StatusError) as caught:
        check(AccessAttributes(JANE, "get", "g", "nodes", "proxy", "", "n1"), Objects(lost))
    assert caught.value.message == (
        'nodes.g "n1" is forbidden: User "jane" cannot get resource "nodes/proxy" in API group "g" at the cluster scope: '
        f'RBAC: clusterrole.{GROUP} "nothere" not found'
    )


def test_a_change_of_a_role_counts_at_once_and_anything_else_costs_no_new_index() -> None:
    view = with_rules(rule("get", "pods"))
    assert not may(view, "list")
    before = index_of(view)
    view.put({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x", "namespace": "y"}})
    assert index_of(view) is before
    view.put(rbac("Role", "r", "default", rules=[rule("list", "pods")]))
    assert may(view, "list")
    view.remove(f"rolebindings.{GROUP}", "default", "r")
    assert not may(view, "list")


def test_masters_and_anonymous_users() -> None:
    view = Objects(*bootstrap_objects())
    assert authorize(AccessAttributes(user("root", "system:masters"), "any", path="/x"), Objects()).is_allowed
    allowed = [
        path
        for path in (
            "/healthz",
            "/livez",
            "/readyz",
            "/version",
            "/api",
            "/metrics",
            "/openapi/v3",
            "/healthz/etcd",
            "/",
        )
        if authorize(AccessAttributes(NO_USER, "get", path=path), view).is_allowed
    ]
    assert allowed == ["/healthz", "/livez", "/readyz", "/version"]
    assert not authorize(
        AccessAttributes(NO_USER, "create", "authorization.k8s.io", "selfsubjectaccessreviews"), view
    ).is_allowed


def ways(*extra: Json) -> Objects:
    """Jane may write all roles and bindings, read pods, and has what `extra` gives."""
    editor = rbac("ClusterRole", "editor", rules=[rule("*", " ".join(KINDS), GROUP), rule("get list", "pods")])
    return Objects(editor, bound(editor, "User:jane"), *extra)


def refusal_of_role(role: Json, view: Objects, old: Json | None = None) -> str:
    kind = KINDS["roles" if role["kind"] == "Role" else "clusterroles"]
    try:
        check_role(kind, role, old, JANE, view)
    except StatusError as error:
        assert error.code == 403
        return error.message
    return ""


def test_no_role_has_more_than_its_writer() -> None:
    editor = rbac(
        "ClusterRole", "narrow", rules=[rule("create update", "roles clusterroles", GROUP), rule("get list", "pods")]
    )
    view = Objects(editor, bound(editor, "User:jane"))
    assert not refusal_of_role(
        rbac("Role", "r", "default", rules=[rule("get list", "pods"), rule("get", "pods", names="x")]), view
    )
    wanted = rbac(
        "Role",
        "r",
        "default",
        rules=[rule("get list delete watch", "pods pods/log"), rule("get", "secrets", names="a b")],
    )
    assert refusal_of_role(wanted, view) == (
        f'roles.{GROUP} "r" is forbidden: user "jane" (groups=["system:authenticated"]) is attempting to grant RBAC permissions'
        " not currently held:\n"
        '{APIGroups:[""], Resources:["pods"], Verbs:["delete" "watch"]}\n'
        '{APIGroups:[""], Resources:["pods/log"], Verbs:["get" "list" "delete" "watch"]}\n'
        '{APIGroups:[""], Resources:["secrets"], ResourceNames:["a"], Verbs:["get"]}\n'
        '{APIGroups:[""], Resources:["secrets"], ResourceNames:["b"], Verbs:["get"]}'
    )
    assert 'NonResourceURLs:["/x"], Verbs:["get"]' in refusal_of_role(
        rbac("ClusterRole", "r", rules=[rule("get", urls="/x")]), view
    )


def test_missing_roles_are_named() -> None:
    editor = rbac("ClusterRole", "narrow", rules=[rule("create", "roles", GROUP)])
    view = Objects(editor, bound(editor, "User:jane"), bound(rbac("ClusterRole", "gone"), "User:jane"))
    message = refusal_of_role(rbac("Role", "r", "default", rules=[rule("get", "pods")]), view)
    assert message.endswith(f'; resolution errors: [roles.{GROUP} "gone" not found]')


def test_the_verb_escalate_and_changes_of_owners_only() -> None:
    assert not refusal_of_role(rbac("Role", "r", "default", rules=[rule("*", "*", "*")]), ways())
    editor = rbac("ClusterRole", "narrow", rules=[rule("create update", "roles", GROUP)])
    view = Objects(editor, bound(editor, "User:jane"))
    old = rbac("Role", "r", "default", rules=[rule("get", "secrets")])
    new = old | {"metadata": old["metadata"] | {"finalizers": []}}
    assert not refusal_of_role(new, view, old)
    assert refusal_of_role(new | {"rules": [rule("get list", "secrets")]}, view, old)


def test_an_aggregation_rule_needs_everything() -> None:
    aggregated = rbac("ClusterRole", "r", aggregationRule={"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]})
    editor = rbac("ClusterRole", "narrow", rules=[rule("create", "clusterroles", GROUP)])
    view = Objects(editor, bound(editor, "User:jane"))
    assert refusal_of_role(aggregated, view).endswith("must have cluster-admin privileges to use the aggregationRule")
    full = rbac("ClusterRole", "full", rules=[rule("*", "*", "*"), rule("*", urls="*")])
    assert not refusal_of_role(aggregated, Objects(full, bound(full, "User:jane")))


def refusal_of_binding(binding: Json, view: Objects) -> tuple[int, str]:
    kind = KINDS["rolebindings" if binding["kind"] == "RoleBinding" else "clusterrolebindings"]
    try:
        check_binding(kind, binding, None, JANE, view)
    except StatusError as error:
        return error.code, error.message
    return 0, ""


def test_no_binding_gives_more_than_its_writer_has() -> None:
    strong = rbac("ClusterRole", "strong", rules=[rule("get", "secrets")])
    weak = rbac("ClusterRole", "weak", rules=[rule("get", "pods")])
    editor = rbac("ClusterRole", "narrow", rules=[rule("create", "rolebindings", GROUP), rule("get list", "pods")])
    view = Objects(strong, weak, editor, bound(editor, "User:jane"))
    assert refusal_of_binding(bound(weak, "User:x", namespace="default"), view) == (0, "")
    code, message = refusal_of_binding(bound(strong, "User:x", namespace="default"), view)
    assert code == 403
    assert 'Resources:["secrets"]' in message
    gone = bound(rbac("ClusterRole", "gone"), "User:x", namespace="default", name="b")
    assert refusal_of_binding(gone, view) == (404, f'rolebindings.{GROUP} "gone" not found')
    binder = rbac("ClusterRole", "binder", rules=[rule("bind", "clusterroles", GROUP, names="strong")])
    view.put(binder)
    view.put(bound(binder, "User:jane", namespace="default"))
    assert refusal_of_binding(bound(strong, "User:x", namespace="default"), view) == (0, "")
    assert refusal_of_binding(bound(strong, "User:x", namespace="other"), view)[0] == 403
    assert refusal_of_binding(bound(strong, "User:x"), view)[0] == 403


def test_a_role_of_a_million_combinations_costs_little() -> None:
    view = Objects(*bootstrap_objects())
    view.put(bound(rbac("ClusterRole", "edit"), "User:jane", name="jane"))
    words = [f"w{number}" for number in range(2000)]
    huge = rbac(
        "ClusterRole", "r", rules=[{"verbs": words, "apiGroups": words, "resources": words, "resourceNames": words}]
    )
    assert is_quick(lambda: refusal_of_role(huge, view), 0.5)
    assert len(refusal_of_role(huge, view)) < 100_000


def test_rules_that_are_held_by_several_bindings_in_all_combinations() -> None:
    held = rbac(
        "ClusterRole", "held", rules=[rule("get", "pods"), rule("list", "secrets"), rule("update", "roles", GROUP)]
    )
    view = Objects(held, bound(held, "User:jane"))
    mixed = rbac("Role", "r", "default", rules=[rule("get list", "pods secrets")])
    message = refusal_of_role(mixed, view)
    assert 'Resources:["pods"], Verbs:["list"]' in message
    assert 'Resources:["secrets"], Verbs:["get"]' in message


def test_default_roles_are_made_once_and_completed_later() -> None:
    view = Objects()
    for change in bootstrap_changes(view):
        assert change.verb is Verb.CREATE
        view.put(change.object)
    assert bootstrap_changes(view) == []
    assert aggregated_roles(view) == []
    role = view.get(f"clusterroles.{GROUP}", "", "system:basic-user")
    assert role is not None
    cut = role | {"rules": [*role["rules"][1:], rule("get", "nodes")]}
    view.put(cut)
    (change,) = bootstrap_changes(view)
    assert change.object["rules"] == [*cut["rules"], role["rules"][0]]
    own = cut | {"metadata": cut["metadata"] | {"annotations": {AUTOUPDATE: "false"}}}
    view.put(own)
    assert bootstrap_changes(view) == []


def test_a_label_makes_a_role_a_part_of_admin_edit_and_view() -> None:
    view = Objects(*bootstrap_objects())
    part = rbac(
        "ClusterRole", "mine", rules=[rule("get", "widgets", "example.com")],
        metadata={"labels": {f"{GROUP}/aggregate-to-view": "true"}},
    )  # fmt: skip
    view.put(part)
    for _ in range(3):
        for change in aggregated_roles(view):
            view.put(change.object)
    assert aggregated_roles(view) == []
    for name in ("view", "edit", "admin"):
        role = view.get(f"clusterroles.{GROUP}", "", name)
        assert role is not None
        assert part["rules"][0] in role["rules"]
    view.put(part | {"metadata": part["metadata"] | {"labels": {}}})
    assert [name_of(change.object) for change in aggregated_roles(view)] == ["view"]


def test_a_change_of_one_role_has_no_other_role_read_again() -> None:
    """A role of the largest size costs as much as that once, and not after each change of any role."""
    large = rbac("Role", "large", "default", rules=[rule("get", "pods")] * 2000)
    view = Objects(large, rbac("Role", "small", "default", rules=[rule("get", "pods")]))
    ref = {"kind": "Role", "name": "large"}
    rules = index_of(view).role(ref, "default")
    view.put(rbac("Role", "small", "default", rules=[rule("list", "pods")]))
    assert index_of(view).role(ref, "default") is rules
    view.put(rbac("Role", "large", "default", rules=[rule("list", "pods")]))
    assert index_of(view).role(ref, "default") == rules_of({"rules": [rule("list", "pods")]})
    view.remove(ROLES, "default", "large")
    assert index_of(view).role(ref, "default") is None
