"""Reviews: who a token is, and what a user may do. Answered, not stored. Pure.

Source: the API reference, groups authentication.k8s.io and authorization.k8s.io; texts are the API server's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from pykubelet.base.api.selectors import read_field_selector
from pykubelet.base.kit.values import replace
from pykubelet.base.manifests.validation import errors as fields
from pykubelet_local_api.access.authorize import authorize
from pykubelet_local_api.access.node import node_of
from pykubelet_local_api.access.rbac import AccessAttributes, aggregate, rules_for
from pykubelet_local_api.access.tokens import INVALID, AccountTokens, TokenError
from pykubelet_local_api.errors import bad_request, invalid
from pykubelet_local_api.kinds.kind import ResourceKind
from pykubelet_local_api.objects import Json, timestamp
from pykubelet_local_api.view import RequestUser, View

_SPEC = "spec"
_RESOURCE, _OTHER = "resourceAttributes", "nonResourceAttributes"
#: No path: matches only rules with `*`.
_NO_PATH = "\0"


def review(
    kind: ResourceKind, namespace: str, body: Json, user: RequestUser, view: View, tokens: AccountTokens
) -> Json:
    """The review with its answer. `body`: of the client, with fields of the right types. Raises StatusError."""
    answer = _ANSWERS[kind.name](kind, namespace, body, user, view, tokens)
    return {"kind": kind.name, "apiVersion": kind.api_version} | answer


def _token_review(_: ResourceKind, __: str, body: Json, ___: RequestUser, view: View, tokens: AccountTokens) -> Json:
    spec = body.get(_SPEC) or {}
    token = spec.get("token") or ""
    if not token:
        raise bad_request("token is required for TokenReview in authentication")
    try:
        found = tokens.verify(token, tuple(spec.get("audiences") or ()), view)
        user = _user_json(found.user)
        status: Json = {"authenticated": True, "user": user, "audiences": list(found.audiences)}
    except TokenError as error:
        status = {"user": {}, "error": f"[{INVALID}, {error}]" if str(error) else INVALID}
    return {"metadata": body.get("metadata") or {}, "spec": spec, "status": status}


def _self_review(_: ResourceKind, __: str, ___: Json, user: RequestUser, view: View, ____: AccountTokens) -> Json:
    return {"metadata": {"creationTimestamp": timestamp(view.now)}, "status": {"userInfo": _user_json(user)}}


def _user_json(user: RequestUser) -> Json:
    found: Json = {"username": user.name}
    if user.uid:
        found["uid"] = user.uid
    if user.groups:
        found["groups"] = list(user.groups)
    if user.extra:
        found["extra"] = {key: list(values) for key, values in user.extra.items()}
    return found


def _access_review(
    kind: ResourceKind, namespace: str, body: Json, user: RequestUser, view: View, _: AccountTokens
) -> Json:
    spec, metadata = body.get(_SPEC) or {}, body.get("metadata") or {}
    is_self, is_local = kind.name.startswith("Self"), kind.name.startswith("Local")
    wrong = _spec_errors(spec, is_self) + _metadata_errors(metadata, spec, is_local)
    if wrong:
        raise invalid(replace(kind, name=""), "", wrong)
    if is_local and namespace != (metadata.get("namespace") or ""):
        raise bad_request(f"spec.resourceAttributes.namespace must match namespace: {namespace}")
    who = user
    if not is_self:
        extra = {key: tuple(values or ()) for key, values in (spec.get("extra") or {}).items()}
        who = RequestUser(spec.get("user") or "", tuple(spec.get("groups") or ()), spec.get("uid") or "", extra)
    wanted, ignored = wanted_by(spec, who)
    decision = authorize(wanted, view)
    status: Json = {"allowed": decision.is_allowed}
    if decision.reason:
        status["reason"] = decision.reason
    if ignored:
        status["evaluationError"] = "; ".join(ignored)
    return {"metadata": metadata, "spec": spec, "status": status}


def wanted_by(spec: Json, user: RequestUser) -> tuple[AccessAttributes, list[str]]:
    """What a review asks for, and remarks on selectors that cannot be read."""
    other = spec.get(_OTHER)
    if other is not None:
        return AccessAttributes(user, other.get("verb") or "", path=other.get("path") or _NO_PATH), []
    found = spec[_RESOURCE]
    equals, ignored = _field_requirements(found.get("fieldSelector") or {})
    texts = {key: found.get(key) or "" for key in ("verb", "group", "resource", "subresource", "namespace", "name")}
    return AccessAttributes(user, **texts, fields=equals), ignored


def _field_requirements(selector: Json) -> tuple[tuple[tuple[str, str], ...], list[str]]:
    text = "spec.resourceAttributes.fieldSelector"
    if selector.get("rawSelector"):
        try:
            found = read_field_selector(selector["rawSelector"])
        except ValueError:
            return (), [f"{text} ignored due to parse error"]
        return tuple((path, value) for path, is_equal, value in found if is_equal), []
    equals, bad, read = [], 0, 0
    for requirement in selector.get("requirements") or ():
        values = requirement.get("values") or []
        if requirement.get("operator") not in ("In", "NotIn") or len(values) != 1:
            bad += 1
            continue
        read += 1
        if requirement["operator"] == "In":
            equals.append((requirement.get("key") or "", values[0]))
    how = "partially ignored" if read else "ignored"
    return tuple(equals), [f"{text} {how} due to parse error"] if bad else []


def _spec_errors(spec: Json, is_self: bool) -> fields.Errors:
    wrong: fields.Errors = []
    resource, other = spec.get(_RESOURCE), spec.get(_OTHER)
    if resource is not None and other is not None:
        shown = {"Path": other.get("path") or "", "Verb": other.get("verb") or ""}
        why = "cannot be specified in combination with resourceAttributes"
        wrong.append(fields.invalid(f"{_SPEC}.{_OTHER}", shown, why))
    if resource is None and other is None:
        why = "exactly one of nonResourceAttributes or resourceAttributes must be specified"
        wrong.append(fields.invalid(f"{_SPEC}.{_RESOURCE}", None, why))
    if not is_self and not spec.get("user") and not spec.get("groups"):
        wrong.append(fields.invalid(f"{_SPEC}.user", "", "at least one of user or group must be specified"))
    for key in ("fieldSelector", "labelSelector"):
        selector = (resource or {}).get(key)
        if selector is None:
            continue
        path, raw, requirements = (
            f"{_SPEC}.{_RESOURCE}.{key}",
            selector.get("rawSelector"),
            selector.get("requirements"),
        )
        if raw and requirements:
            why = "may not specified at the same time as requirements"
            wrong.append(fields.invalid(f"{path}.rawSelector", raw, why))
        if not raw and not requirements:
            why = f"when {path} is specified, requirements or rawSelector is required"
            wrong.append(fields.required(f"{path}.requirements", why))
    return wrong


def _metadata_errors(metadata: Json, spec: Json, is_local: bool) -> fields.Errors:
    ignored = ("managedFields", "namespace") if is_local else ("managedFields",)
    wrong: fields.Errors = []
    if any(value for key, value in metadata.items() if key not in ignored):
        why = "must be empty except for namespace" if is_local else "must be empty"
        wrong.append(fields.invalid("metadata", metadata, why))
    if not is_local:
        return wrong
    resource = spec.get(_RESOURCE)
    if resource is not None and (resource.get("namespace") or "") != (metadata.get("namespace") or ""):
        shown = resource.get("namespace") or ""
        wrong.append(fields.invalid(f"{_SPEC}.{_RESOURCE}.namespace", shown, "must match metadata.namespace"))
    if spec.get(_OTHER) is not None:
        wrong.append(fields.invalid(f"{_SPEC}.{_OTHER}", spec[_OTHER], "disallowed on this kind of request"))
    return wrong


def _rules_review(_: ResourceKind, __: str, body: Json, user: RequestUser, view: View, ___: AccountTokens) -> Json:
    namespace = (body.get(_SPEC) or {}).get("namespace") or ""
    if not namespace:
        raise bad_request("no namespace on request")
    rules, lacking = rules_for(user, namespace, view)
    resource_rules: list[Json] = []
    other_rules: list[Json] = []
    for rule in rules:
        if rule.resources:
            parts: tuple[tuple[str, Iterable[Any]], ...] = (
                ("verbs", rule.verbs), ("apiGroups", rule.groups), ("resources", rule.resources), ("resourceNames", rule.names),
            )  # fmt: skip
            resource_rules.append({key: list(values) for key, values in parts if values})
        if rule.urls:
            other_rules.append({"verbs": list(rule.verbs), "nonResourceURLs": list(rule.urls)})
    errors = ["node authorizer does not support user rule resolution"] if node_of(user) else []
    errors += [grant.missing for grant in lacking]
    status: Json = {
        "resourceRules": resource_rules,
        "nonResourceRules": other_rules,
        "incomplete": bool(node_of(user)),
    }
    if errors:
        status["evaluationError"] = aggregate(errors)
    return {"metadata": {}, "spec": {}, "status": status}


_Answer = Callable[[ResourceKind, str, Json, RequestUser, View, AccountTokens], Json]
_ANSWERS: dict[str, _Answer] = {
    "TokenReview": _token_review,
    "SelfSubjectReview": _self_review,
    "SubjectAccessReview": _access_review,
    "SelfSubjectAccessReview": _access_review,
    "LocalSubjectAccessReview": _access_review,
    "SelfSubjectRulesReview": _rules_review,
}
