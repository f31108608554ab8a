"""ClusterRoles that are made of others: `aggregationRule`. Pure.

Source: "Using RBAC Authorization", aggregated ClusterRoles.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from pykubelet.base.api.core import LabelSelector
from pykubelet.base.api.labels import matches_selector
from pykubelet_local_api.access.rbac import CLUSTER_ROLES
from pykubelet_local_api.objects import Json, name_of
from pykubelet_local_api.view import ObjectChange, Verb, View

#: The beginning of the labels with which roles become parts of admin, edit and view.
AGGREGATE = "rbac.authorization.k8s.io/aggregate-to"


def aggregated_rules(role: Json, roles: Iterable[Json]) -> list[Json]:
    """The rules of all roles that the aggregation rule selects, each once. `roles`: in the order of their names."""
    selectors = [
        msgspec.convert(selector, LabelSelector)
        for selector in (role.get("aggregationRule") or {}).get("clusterRoleSelectors") or ()
    ]
    rules: dict[bytes, Json] = {}
    listed = list(roles)
    for selector in selectors:
        for other in listed:
            if name_of(other) != name_of(role) and _is_selected(selector, other):
                for rule in other.get("rules") or ():
                    rules.setdefault(msgspec.json.encode(rule, order="sorted"), rule)
    return list(rules.values())


def aggregated_roles(view: View) -> list[ObjectChange]:
    """The changes of the ClusterRoles that lack a rule of their parts, or have one too many."""
    roles = sorted(view.list(CLUSTER_ROLES), key=name_of)
    changes = []
    for role in roles:
        if (role.get("aggregationRule") or {}).get("clusterRoleSelectors"):
            rules = aggregated_rules(role, roles)
            if rules != (role.get("rules") or []):
                changes.append(ObjectChange(Verb.UPDATE, CLUSTER_ROLES, role | {"rules": rules}))
    return changes


def _is_selected(selector: LabelSelector, role: Json) -> bool:
    try:
        return matches_selector(selector, role["metadata"].get("labels") or {})
    except ValueError:
        return False
