"""The user of a request, from a certificate or review, and the attributes that authorize the request. Pure.

Rules: every path belongs to one or more subresources of the node, tried in order; the method determines the verb.
Source: the Kubernetes documentation "Kubelet authentication/authorization"; KEP-2862 (fine-grained authorization).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any

from pykubelet.base.api.auth import ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec, UserInfo
from pykubelet.base.kit.values import Value

AUTHENTICATED = "system:authenticated"
_VERBS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


class Subresource(StrEnum):
    """Subresources of `nodes` that authorize requests."""

    CHECKPOINT = "checkpoint"
    CONFIGZ = "configz"
    HEALTHZ = "healthz"
    LOG = "log"
    METRICS = "metrics"
    PODS = "pods"
    PROXY = "proxy"
    STATS = "stats"
    STATUSZ = "statusz"


#: Subresources by the first segment of the path.
AuthorizationRules = Mapping[str, tuple[Subresource, ...]]


class User(Value):
    """A user. `extra`: as in a TokenReview, in a hashable form."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


ANONYMOUS = User("system:anonymous", groups=("system:unauthenticated",))


class Attributes(Value):
    """The attributes that authorize a request: the verb on one of these subresources of the node, tried in order."""

    verb: str
    subresources: tuple[Subresource, ...]


def user_of_certificate(certificate: Mapping[str, Any]) -> User | None:
    """The user of a certificate: its common name, with the organizations as groups; None without a common name."""
    names: list[str] = []
    groups: list[str] = []
    for key, value in _subject(certificate):
        if key == "commonName":
            names.append(value)
        elif key == "organizationName":
            groups.append(value)
    return authenticated(User(names[-1], groups=tuple(groups))) if names and names[-1] else None


def _subject(certificate: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for part in certificate.get("subject", ()):
        yield from part


def user_of_review(info: UserInfo) -> User:
    """The user that a TokenReview names, with the group `system:authenticated`."""
    extra = tuple(sorted((key, tuple(values)) for key, values in info.extra.items()))
    return authenticated(User(info.username, info.uid, tuple(info.groups), extra))


def authenticated(user: User) -> User:
    """The user with the group `system:authenticated`, unless it has that or `system:unauthenticated`."""
    if AUTHENTICATED in user.groups or ANONYMOUS.groups[0] in user.groups:
        return user
    return User(user.name, user.uid, (*user.groups, AUTHENTICATED), user.extra)


def first_segment(path: str) -> str:
    """The name before the second slash; "" for a path that does not begin with a slash."""
    return path.split("/", 2)[1] if path.startswith("/") else ""


def attributes_of(method: str, path: str, rules: AuthorizationRules) -> Attributes:
    """The attributes that a request needs. A path that is not in `rules` needs the highest: `nodes/proxy`."""
    return Attributes(_VERBS.get(method, ""), rules.get(first_segment(path), (Subresource.PROXY,)))


def review_of(user: User, verb: str, subresource: str, node: str) -> SubjectAccessReview:
    """The SubjectAccessReview of a request to the node named `node`."""
    wanted = ResourceAttributes(version="v1", resource="nodes", name=node, verb=verb, subresource=subresource)
    spec = SubjectAccessReviewSpec(
        user=user.name, uid=user.uid, groups=user.groups, extra=dict(user.extra), resourceAttributes=wanted
    )
    return SubjectAccessReview(apiVersion="authorization.k8s.io/v1", kind="SubjectAccessReview", spec=spec)


def bearer_token(authorization: str) -> str:
    """The bearer token of an Authorization header; "" if it has none."""
    scheme, _, token = authorization.strip().partition(" ")
    return token.strip() if scheme.lower() == "bearer" and " " not in token.strip() else ""
