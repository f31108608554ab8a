"""Constrained impersonation: a client may act as another one for some requests only. Compared with a real API server in tests/cluster."""

from __future__ import annotations

import pytest
from local_api.access.objects import Objects, bound, rbac, rule, user

from pykubelet_local_api.access.impersonate import impersonated
from pykubelet_local_api.access.rbac import AccessAttributes
from pykubelet_local_api.errors import StatusError
from pykubelet_local_api.view import RequestUser

AUTHENTICATION = "authentication.k8s.io"


def acting(who: RequestUser, view: Objects, name: str, verb: str = "get", **headers: str) -> RequestUser:
    given = {"impersonate-user": [name], **{key.replace("_", "-"): [value] for key, value in headers.items()}}
    wanted = AccessAttributes(who, verb, "", "pods", namespace="default", name="p")
    return impersonated(who, given, view, wanted)


def world(mode: str, resources: str, names: str = "", verbs: str = "get") -> Objects:
    """Jane may act so on pods."""
    role = rbac(
        "ClusterRole",
        "r",
        rules=[
            rule(" ".join(f"impersonate-on:{mode}:{verb}" for verb in verbs.split()), "pods"),
            rule(f"impersonate:{mode}", resources, AUTHENTICATION, names=names),
        ],
    )
    return Objects(role, bound(role, "User:jane", "User:system:serviceaccount:kube-system:agent"))


def test_a_user_is_acted_as_for_the_verbs_that_are_allowed() -> None:
    jane, view = user("jane"), world("user-info", "users", "bob")
    assert acting(jane, view, "bob").groups == ("system:authenticated",)
    for name, verb, why in (
        ("bob", "list", 'pods "p" is forbidden: User "jane" cannot impersonate-on:user-info:list resource "pods"'),
        ("eve", "get", f'users.{AUTHENTICATION} "eve" is forbidden: User "jane" cannot impersonate:user-info'),
    ):
        with pytest.raises(StatusError) as caught:
            acting(jane, view, name, verb)
        assert (caught.value.code, why in caught.value.message) == (403, True), caught.value.message


def test_no_one_becomes_an_administrator_so() -> None:
    jane, view = user("jane"), world("user-info", "users groups")
    assert acting(jane, view, "bob", impersonate_group="devs").groups == ("devs", "system:authenticated")
    with pytest.raises(StatusError, match="impersonating the system:masters group is not allowed"):
        acting(jane, view, "bob", impersonate_group="system:masters")


def test_each_header_is_one_group_whatever_is_in_it() -> None:
    root, view = user("root", "system:masters"), Objects()
    found = impersonated(root, {"impersonate-user": ["jane", "eve"], "impersonate-group": ["a,b, c", "", "d"]}, view)
    assert (found.name, found.groups) == ("jane", ("a,b, c", "", "d", "system:authenticated"))
    jane, view = user("jane"), world("user-info", "users groups", "bob devs,ops")
    assert acting(jane, view, "bob", impersonate_group="devs,ops").groups == ("devs,ops", "system:authenticated")
    for other in ("devs", "ops", "devs,masters"):
        with pytest.raises(StatusError):
            acting(jane, view, "bob", impersonate_group=other)


def test_values_of_one_extra_key_belong_together() -> None:
    headers = {"impersonate-user": ["x"], "impersonate-extra-a%2fb": ["1,2"], "impersonate-extra-a%2f%62": ["3"]}
    assert impersonated(user("root", "system:masters"), headers, Objects()).extra == {"a/b": ("1,2", "3")}


def test_extra_values_have_keys_with_a_domain() -> None:
    jane, view = user("jane"), world("user-info", "users userextras/a userextras/b.c/d")
    assert acting(jane, view, "bob", **{"impersonate-extra-b.c%2fd": "1"}).extra == {"b.c/d": ("1",)}
    with pytest.raises(StatusError, match="must be a domain-prefixed path"):
        acting(jane, view, "bob", **{"impersonate-extra-a": "1"})


def test_a_service_account_is_not_a_user_of_that_mode() -> None:
    account = "system:serviceaccount:default:bot"
    with pytest.raises(StatusError):
        acting(user("jane"), world("user-info", "users"), account)
    found = acting(user("jane"), world("serviceaccount", "serviceaccounts"), account)
    assert found.groups == ("system:serviceaccounts", "system:serviceaccounts:default", "system:authenticated")
    with pytest.raises(StatusError):
        acting(user("jane"), world("serviceaccount", "serviceaccounts"), account, impersonate_group="devs")


def test_a_node_has_the_group_of_nodes() -> None:
    found = acting(user("jane"), world("arbitrary-node", "nodes", "n1"), "system:node:n1")
    assert found.groups == ("system:nodes", "system:authenticated")
    with pytest.raises(StatusError):
        acting(user("jane"), world("arbitrary-node", "nodes", "n1"), "system:node:n2")


def test_an_agent_of_a_node_acts_as_its_own_node() -> None:
    extra: dict[str, tuple[str, ...]] = {"authentication.kubernetes.io/node-name": ("n1",)}
    agent = RequestUser("system:serviceaccount:kube-system:agent", ("system:authenticated",), "", extra)
    view = world("associated-node", "nodes")
    assert acting(agent, view, "system:node:n1").name == "system:node:n1"
    with pytest.raises(StatusError):
        acting(agent, view, "system:node:n2")
    with pytest.raises(StatusError):
        acting(user("jane"), view, "system:node:n1")
