"""Roles and their bindings. Pure. Source: the Kubernetes documentation "Using RBAC Authorization".

That a client grants no more than it has is a matter of access, which admission asks.
"""

from __future__ import annotations

from pykubelet.base.api import labels as names
from pykubelet.base.api.core import LabelSelector
from pykubelet.base.manifests.validation.errors import Errors, invalid, invalids, not_supported, required, too_many
from pykubelet.base.manifests.validation.scheduling import validate_label_selector
from pykubelet_local_api.access.admission import admit_write
from pykubelet_local_api.objects import Json
from pykubelet_local_api.strategies.common import ObjectStrategy, struct_of
from pykubelet_local_api.strategies.strategy import Context

GROUP = "rbac.authorization.k8s.io"
#: The most selectors of an aggregated role. Each of them is compared with all roles at each change of one.
MAX_SELECTORS = 100


class RoleStrategy(ObjectStrategy):
    """The strategy of Roles and ClusterRoles."""

    allows_create_on_update = True

    def name_errors(self, name: str) -> list[str]:
        """Why the name is not legal."""
        return names.path_segment_errors(name)

    def default(self, new: Json, old: Json | None, context: Context) -> None:
        new["rules"] = new.get("rules") or None

    def admit(self, new: Json, old: Json | None, context: Context) -> None:
        """No user gives a right that the user does not have."""
        admit_write(self.kind, new, old, context.subresource, context.user, context.view)

    def validate(self, new: Json, context: Context) -> Errors:
        errors: Errors = []
        for i, rule in enumerate(new.get("rules") or ()):
            errors += _rule_errors(rule, f"rules[{i}]", is_namespaced=self.kind.is_namespaced)
        aggregation = new.get("aggregationRule")
        if aggregation is None or self.kind.is_namespaced:
            return errors
        path = "aggregationRule.clusterRoleSelectors"
        selectors = aggregation.get("clusterRoleSelectors") or []
        if not selectors:
            errors.append(required(path, "at least one clusterRoleSelector required if aggregationRule is non-nil"))
        if len(selectors) > MAX_SELECTORS:
            return [*errors, too_many(path, len(selectors), MAX_SELECTORS)]
        for i, selector in enumerate(selectors):
            errors += validate_label_selector(struct_of(LabelSelector, selector, self.kind), f"{path}[{i}]")
        return errors


def _rule_errors(rule: Json, path: str, *, is_namespaced: bool) -> Errors:
    errors: Errors = []
    if not rule.get("verbs"):
        errors.append(required(f"{path}.verbs", "verbs must contain at least one value"))
    urls = rule.get("nonResourceURLs") or []
    if urls:
        at = f"{path}.nonResourceURLs"
        if is_namespaced:
            errors.append(invalid(at, urls, "namespaced rules cannot apply to non-resource URLs"))
        if any(rule.get(field) for field in ("apiGroups", "resources", "resourceNames")):
            errors.append(invalid(at, urls, "rules cannot apply to both regular resources and non-resource URLs"))
        return errors
    if not rule.get("apiGroups"):
        errors.append(required(f"{path}.apiGroups", "resource rules must supply at least one api group"))
    if not rule.get("resources"):
        errors.append(required(f"{path}.resources", "resource rules must supply at least one resource"))
    return errors


class RoleBindingStrategy(ObjectStrategy):
    """The strategy of RoleBindings and ClusterRoleBindings."""

    allows_create_on_update = True

    def name_errors(self, name: str) -> list[str]:
        """Why the name is not legal."""
        return names.path_segment_errors(name)

    def default(self, new: Json, old: Json | None, context: Context) -> None:
        role = new["roleRef"] = new.get("roleRef") or {}
        role["apiGroup"] = role.get("apiGroup") or GROUP
        for subject in new.get("subjects") or ():
            if not subject.get("apiGroup") and subject.get("kind") in ("User", "Group"):
                subject["apiGroup"] = GROUP

    def admit(self, new: Json, old: Json | None, context: Context) -> None:
        """No user gives a right that the user does not have."""
        admit_write(self.kind, new, old, context.subresource, context.user, context.view)

    def validate(self, new: Json, context: Context) -> Errors:
        errors: Errors = []
        role = new["roleRef"]
        kinds = ("Role", "ClusterRole") if self.kind.is_namespaced else ("ClusterRole",)
        if role["apiGroup"] != GROUP:
            errors.append(not_supported("roleRef.apiGroup", role["apiGroup"], (GROUP,)))
        if role.get("kind") not in kinds:
            errors.append(not_supported("roleRef.kind", role.get("kind") or "", kinds))
        name = str(role.get("name") or "")
        errors += (
            invalids("roleRef.name", name, names.path_segment_errors(name)) if name else [required("roleRef.name")]
        )
        for i, subject in enumerate(new.get("subjects") or ()):
            errors += self._subject_errors(subject, f"subjects[{i}]")
        return errors

    def _subject_errors(self, subject: Json, path: str) -> Errors:
        errors: Errors = []
        name, group = str(subject.get("name") or ""), str(subject.get("apiGroup") or "")
        if not name:
            errors.append(required(f"{path}.name"))
        match subject.get("kind"):
            case "ServiceAccount":
                if name:
                    errors += invalids(f"{path}.name", name, names.dns_subdomain_errors(name))
                if group:
                    errors.append(not_supported(f"{path}.apiGroup", group, ("",)))
                if not self.kind.is_namespaced and not subject.get("namespace"):
                    errors.append(required(f"{path}.namespace"))
            case "User" | "Group":
                if group != GROUP:
                    errors.append(not_supported(f"{path}.apiGroup", group, (GROUP,)))
            case other:
                errors.append(not_supported(f"{path}.kind", other or "", ("ServiceAccount", "User", "Group")))
        return errors

    def validate_change(self, new: Json, old: Json, context: Context) -> Errors:
        errors = self.validate(new, context)
        role = new["roleRef"]
        if role != old["roleRef"]:
            shown = {"APIGroup": role["apiGroup"], "Kind": role.get("kind", ""), "Name": role.get("name", "")}
            errors.append(invalid("roleRef", shown, "cannot change roleRef"))
        return errors
