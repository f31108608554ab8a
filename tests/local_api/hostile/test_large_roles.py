"""Roles with many rules and bindings with many subjects: a decision after a change of one holds no other client up."""

from __future__ import annotations

from local_api.access.objects import Objects, rbac, rule, user
from support.cost import PAUSE_S, count_instructions, is_quick, no_collections

from pykubelet_local_api.access.covers import missing_rights
from pykubelet_local_api.access.rbac import AccessAttributes, authorize_by_roles, rules_of
from pykubelet_local_api.objects import Json, copied

WANTED = AccessAttributes(user("jane"), "list", "", "x", namespace="n")
ROLE = {"kind": "Role", "name": "r"}


def is_decided_quickly(*objects: Json) -> bool:
    """Whether the first decision after a change of all objects is quick."""
    views = iter([Objects(*map(copied, objects)) for _ in range(5)])
    with no_collections():
        return is_quick(lambda: authorize_by_roles(WANTED, next(views)), PAUSE_S)


def test_twenty_thousand_rules() -> None:
    role = rbac("Role", "r", "n", rules=[rule("get", f"r{number}") for number in range(20_000)])
    bound = rbac("RoleBinding", "r", "n", roleRef=ROLE, subjects=[{"kind": "User", "name": "jane"}])
    assert is_decided_quickly(role, bound)


def test_rules_are_read_without_a_step_in_python_for_each() -> None:
    role = rbac("Role", "r", "n", rules=[rule("get", f"r{number}") for number in range(2000)])
    assert count_instructions(lambda: rules_of(role)) < len(role["rules"])


def test_forty_thousand_subjects() -> None:
    subjects = [{"kind": "User", "name": f"jane-{number}"} for number in range(40_000)]
    assert is_decided_quickly(rbac("RoleBinding", "r", "n", roleRef=ROLE, subjects=subjects))


def test_a_right_given_by_a_user_with_many_rules() -> None:
    held = rules_of({"rules": [rule("get", f"r{number}") for number in range(20_000)]})
    given = rules_of({"rules": [rule("get", "r1"), rule("get", "x")]})
    with no_collections():
        assert is_quick(lambda: missing_rights(given, held), PAUSE_S)
    assert missing_rights(given, held) == ['{APIGroups:[""], Resources:["x"], Verbs:["get"]}']
