"""RBAC: who may do what by Roles and their bindings. Pure.

The bindings are indexed by user and group. The index is kept for as long as the view has the same objects (stored objects never
change, so the same object is the same version); a comparison costs one look at each of them.
Source: "Using RBAC Authorization"; texts are the API server's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import is_

import msgspec

from pykubelet.base.kit.values import Value
from pykubelet_local_api.objects import Json, name_of, namespace_of
from pykubelet_local_api.view import RequestUser, View

GROUP = "rbac.authorization.k8s.io"
ROLES, CLUSTER_ROLES = f"roles.{GROUP}", f"clusterroles.{GROUP}"
BINDINGS, CLUSTER_BINDINGS = f"rolebindings.{GROUP}", f"clusterrolebindings.{GROUP}"
MASTERS = "system:masters"
AUTHENTICATED, UNAUTHENTICATED = "system:authenticated", "system:unauthenticated"
ANONYMOUS = "system:anonymous"


class AccessAttributes(Value):
    """What a client wants to do. `path`: of a request without a resource; empty for all others. `fields`: the requirements of
    its field selector that a field equals a value."""

    user: RequestUser
    verb: str
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""
    fields: tuple[tuple[str, str], ...] = ()

    @property
    def whole_resource(self) -> str:
        """The resource with its subresource: `pods/log`."""
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource


class Permission(Value):
    """Whether a request is allowed. `reason`: for people; empty if there is nothing to state."""

    is_allowed: bool
    reason: str = ""


class Rule(Value, rename={"groups": "apiGroups", "names": "resourceNames", "urls": "nonResourceURLs"}):
    """A PolicyRule. `names`: empty for all names."""

    verbs: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    urls: tuple[str, ...] = ()

    def allows(self, wanted: AccessAttributes) -> bool:
        """Whether the rule allows the request."""
        if "*" not in self.verbs and wanted.verb not in self.verbs:
            return False
        if wanted.path:
            return any(url_covers(url, wanted.path) for url in self.urls)
        return (
            ("*" in self.groups or wanted.group in self.groups)
            and self._has_resource(wanted)
            and (not self.names or wanted.name in self.names)
        )

    def _has_resource(self, wanted: AccessAttributes) -> bool:
        if "*" in self.resources or wanted.whole_resource in self.resources:
            return True
        return bool(wanted.subresource) and f"*/{wanted.subresource}" in self.resources


class Grant(Value):
    """Rules that a user has. `source`: by which binding. `missing`: the message about a role that does not exist."""

    source: str
    rules: tuple[Rule, ...] = ()
    missing: str = ""
    missing_role: str = ""


#: By name of a subject: the number of each binding with it, and the first number of the subject in that.
_Bound = dict[str, dict[int, int]]


class RbacIndex:
    """The bindings and roles of a view."""

    def __init__(self, view: View) -> None:
        self._roles = {(namespace_of(found), name_of(found)): found for found in view.list(ROLES)}
        self._roles |= {("", name_of(found)): found for found in view.list(CLUSTER_ROLES)}
        for key in _rules.keys() - self._roles.keys():
            _rules.pop(key, None)
        self._grants: list[Json] = []
        #: By namespace; "": of the cluster.
        self._users: dict[str, _Bound] = {}
        self._groups: dict[str, _Bound] = {}
        for binding in (*view.list(CLUSTER_BINDINGS), *view.list(BINDINGS)):
            self._add(binding)

    def _add(self, binding: Json) -> None:
        namespace, number = namespace_of(binding), len(self._grants)
        self._grants.append(binding)
        users, groups = self._users.setdefault(namespace, {}), self._groups.setdefault(namespace, {})
        for index, subject in enumerate(binding.get("subjects") or ()):
            kind, name = subject.get("kind"), subject.get("name") or ""
            if kind == "ServiceAccount":
                home = subject.get("namespace") or namespace
                if not home:
                    continue
                name = f"system:serviceaccount:{home}:{name}"
            if kind in ("User", "ServiceAccount"):
                bound = users
            elif kind == "Group":
                bound = groups
            else:
                continue
            known = bound.get(name)
            if known is None:
                bound[name] = {number: index}
            elif number not in known:
                known[number] = index

    def role(self, ref: Json, namespace: str) -> tuple[Rule, ...] | None:
        """The rules of the role that a binding in the namespace refers to; None if there is none."""
        key = ("" if ref.get("kind") == "ClusterRole" else namespace, ref.get("name") or "")
        found, known = self._roles.get(key), _rules.get(key)
        if found is None:
            return None
        if known is None or known[0] is not found:
            known = _rules[key] = (found, rules_of(found))
        return known[1]

    def grants(self, user: RequestUser, namespace: str) -> Iterator[Grant]:
        """What a user has in a namespace: first by ClusterRoleBindings, then by RoleBindings."""
        for place in ("", namespace) if namespace else ("",):
            groups = self._groups.get(place, {})
            found = [self._users.get(place, {}).get(user.name), *map(groups.get, user.groups)]
            first: dict[int, int] = {}
            for bound in filter(None, found):
                for number, index in bound.items():
                    first[number] = min(index, first.get(number, index))
            for number in sorted(first):
                yield self._grant(self._grants[number], first[number])

    def _grant(self, binding: Json, index: int) -> Grant:
        ref, namespace = binding.get("roleRef") or {}, namespace_of(binding)
        rules = self.role(ref, namespace)
        if rules is None:
            name = ref.get("name") or ""
            return Grant("", (), f'{str(ref.get("kind")).lower()}.{GROUP} "{name}" not found', name)
        return Grant(_source(binding, binding["subjects"][index]), rules)


def _source(binding: Json, subject: Json) -> str:
    ref, namespace = binding["roleRef"], namespace_of(binding)
    kind = "RoleBinding" if namespace else "ClusterRoleBinding"
    shown = f"{name_of(binding)}/{namespace}" if namespace else name_of(binding)
    who = subject.get("name") or ""
    if subject.get("kind") == "ServiceAccount":
        who = f"{who}/{subject.get('namespace') or namespace}"
    return f'{kind} "{shown}" of {ref["kind"]} "{ref["name"]}" to {subject["kind"]} "{who}"'


#: The rules of roles that were asked for, by namespace and name, with the object that has them: a change of one role does not have the
#: others read again.
_rules: dict[tuple[str, str], tuple[Json, tuple[Rule, ...]]] = {}
#: The last index, with the objects that it is made of.
_kept: list[tuple[list[Json], RbacIndex]] = []


def index_of(view: View) -> RbacIndex:
    """The index of a view, made anew if a role or binding has changed since the last call."""
    objects = [
        found for resource in (ROLES, CLUSTER_ROLES, BINDINGS, CLUSTER_BINDINGS) for found in view.list(resource)
    ]
    for known, index in _kept:
        if len(known) == len(objects) and all(map(is_, known, objects)):
            return index
    index = RbacIndex(view)
    _kept[:] = [(objects, index)]
    return index


def authorize_by_roles(wanted: AccessAttributes, view: View) -> Permission:
    """The decision by roles alone."""
    missing: dict[str, None] = {}
    for grant in index_of(view).grants(wanted.user, wanted.namespace):
        if any(rule.allows(wanted) for rule in grant.rules):
            return Permission(True, f"RBAC: allowed by {grant.source}")
        if grant.missing:
            missing[grant.missing] = None
    return Permission(False, f"RBAC: {aggregate(missing)}" if missing else "")


def rules_for(user: RequestUser, namespace: str, view: View) -> tuple[list[Rule], list[Grant]]:
    """All rules of a user in a namespace, and what of them is missing."""
    rules: list[Rule] = []
    missing: list[Grant] = []
    for grant in index_of(view).grants(user, namespace):
        rules += grant.rules
        if grant.missing:
            missing.append(grant)
    return rules, missing


def rules_of(role: Json) -> tuple[Rule, ...]:
    """The rules of a Role or ClusterRole."""
    rules = role.get("rules") or ()
    try:
        return msgspec.convert(rules, tuple[Rule, ...])
    except msgspec.ValidationError:  # a null in the place of a list
        return tuple(map(rule_of, rules))


def rule_of(rule: Json) -> Rule:
    """A rule as objects have it, as a value."""
    keys = ("verbs", "apiGroups", "resources", "resourceNames", "nonResourceURLs")
    return Rule(*(tuple(rule.get(key) or ()) for key in keys))


def rule_json(rule: Rule) -> Json:
    """A rule as objects have it."""
    parts = {
        "apiGroups": rule.groups,
        "nonResourceURLs": rule.urls,
        "resourceNames": rule.names,
        "resources": rule.resources,
    }
    return {key: list(values) for key, values in parts.items() if values} | {"verbs": list(rule.verbs)}


def url_covers(pattern: str, url: str) -> bool:
    """Whether a path is the one that a rule names; a rule may end with `*`."""
    return pattern in ("*", url) or (pattern.endswith("*") and url.startswith(pattern.rstrip("*")))


def aggregate(messages: Iterable[str]) -> str:
    """Several messages as one."""
    listed = list(dict.fromkeys(messages))
    return listed[0] if len(listed) == 1 else f"[{', '.join(listed)}]"
