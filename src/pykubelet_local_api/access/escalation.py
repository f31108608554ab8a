"""No user gives a right that the user does not have: checks of Roles and bindings that are written. Pure.

Who may use the verb `escalate` on roles, or `bind` on a role, may give rights of others. Asked before the object is stored; `new`
is the object as it would be.
Source: "Using RBAC Authorization", privilege escalation prevention and bootstrapping; texts are the API server's.
"""

from __future__ import annotations

from collections.abc import Iterable

from pykubelet_local_api.access.authorize import authorize
from pykubelet_local_api.access.covers import go_list, is_covered, missing_rights
from pykubelet_local_api.access.rbac import GROUP, MASTERS, AccessAttributes, Rule, index_of, rules_for, rules_of
from pykubelet_local_api.errors import forbidden, not_found
from pykubelet_local_api.kinds.kind import ResourceKind
from pykubelet_local_api.objects import Json, namespace_of
from pykubelet_local_api.view import RequestUser, View

_ALL = (Rule(("*",), ("*",), ("*",)), Rule(("*",), urls=("*",)))
#: Fields of metadata that garbage collection changes.
_COLLECTED = ("ownerReferences", "finalizers", "managedFields", "selfLink", "resourceVersion", "generation")


def check_role(kind: ResourceKind, new: Json, old: Json | None, user: RequestUser, view: View) -> None:
    """Raise StatusError (403) if a Role or ClusterRole has a right that the user lacks. `old`: None for a new one."""
    if MASTERS in user.groups:
        return
    name, namespace = new["metadata"].get("name") or "", namespace_of(new)
    wanted = AccessAttributes(user, "escalate", GROUP, kind.plural, "", namespace, name if old is not None else "")
    if authorize(wanted, view).is_allowed or (old is not None and _is_only_collected(new, old)):
        return
    _check_rights(kind, name, namespace, rules_of(new), user, view)
    if _is_aggregated(new) or _is_aggregated(old or {}):
        held, _ = rules_for(user, namespace, view)
        if not all(is_covered(rule, held) for rule in _ALL):
            raise forbidden(kind, name, "must have cluster-admin privileges to use the aggregationRule")


def check_binding(kind: ResourceKind, new: Json, old: Json | None, user: RequestUser, view: View) -> None:
    """Raise StatusError (403; 404 without the role) if a binding gives a right that the user lacks."""
    if MASTERS in user.groups or (old is not None and _is_only_collected(new, old)):
        return
    ref = new.get("roleRef") or {}
    name, namespace = new["metadata"].get("name") or "", namespace_of(new)
    role = ref.get("name") or ""
    plural = {"ClusterRole": "clusterroles", "Role": "roles"}.get(ref.get("kind") or "")
    wanted = AccessAttributes(user, "bind", ref.get("apiGroup") or "", plural or "", "", namespace, role)
    if plural and authorize(wanted, view).is_allowed:
        return
    rules = index_of(view).role(ref, namespace)
    if rules is None:
        raise not_found(kind, role)
    _check_rights(kind, name, namespace, rules, user, view)


def _check_rights(
    kind: ResourceKind, name: str, namespace: str, rules: Iterable[Rule], user: RequestUser, view: View
) -> None:
    held, lacking = rules_for(user, namespace, view)
    missing = missing_rights(rules, held)
    if not missing:
        return
    groups = go_list(list(user.groups))
    text = f'user "{user.name}" (groups={groups}) is attempting to grant RBAC permissions not currently held:\n'
    text += "\n".join(missing)
    if lacking:
        texts = dict.fromkeys(f'{kind.resource} "{grant.missing_role}" not found' for grant in lacking)
        listed = ", ".join(texts)
        text += f"; resolution errors: [{f'[{listed}]' if len(texts) > 1 else listed}]"
    raise forbidden(kind, name, text)


def _is_aggregated(role: Json) -> bool:
    return bool((role.get("aggregationRule") or {}).get("clusterRoleSelectors"))


def _is_only_collected(new: Json, old: Json) -> bool:
    """Whether a change is about owners and finalizers only."""

    def rest(found: Json) -> Json:
        metadata = {key: value for key, value in found["metadata"].items() if key not in _COLLECTED}
        return found | {"metadata": metadata}

    return rest(new) == rest(old)
