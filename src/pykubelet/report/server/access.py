"""Who asks, and what for: users from certificates and reviews, the attributes of a request. Pure.

Rules: every path stands for one or more subresources of the node, tried in order; the verb follows from the method.
Source: the Kubernetes documentation "Kubelet authentication/authorization"; KEP-2862 (fine-grained authorization).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pykubelet.base.api.auth import ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec, UserInfo
from pykubelet.base.kit.values import Value

AUTHENTICATED = "system:authenticated"
_VERBS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_SUBRESOURCES = {
    "/pods": ("pods", "proxy"),
    "/runningpods": ("pods", "proxy"),
    "/healthz": ("healthz", "proxy"),
    "/configz": ("configz", "proxy"),
    "/flagz": ("configz",),
    "/statusz": ("statusz",),
    "/stats": ("stats",),
    "/metrics": ("metrics",),
    "/logs": ("log",),
    "/checkpoint": ("checkpoint",),
}


class User(Value):
    """`extra` as TokenReview gives it, in a form that can be hashed."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


ANONYMOUS = User("system:anonymous", groups=("system:unauthenticated",))


class Attributes(Value):
    """What a request wants: a verb on one of these subresources of the node, the first that is allowed."""

    verb: str
    subresources: tuple[str, ...]


def user_of_certificate(certificate: Mapping[str, Any]) -> User | None:
    """The common name, with the organizations as groups; None without a common name."""
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
    extra = tuple(sorted((key, tuple(values)) for key, values in info.extra.items()))
    return authenticated(User(info.username, info.uid, tuple(info.groups), extra))


def authenticated(user: User) -> User:
    """With the group of all that are known by name."""
    if AUTHENTICATED in user.groups or ANONYMOUS.groups[0] in user.groups:
        return user
    return User(user.name, user.uid, (*user.groups, AUTHENTICATED), user.extra)


def attributes_of(method: str, path: str) -> Attributes:
    for prefix, subresources in _SUBRESOURCES.items():
        if path == prefix or path.startswith(prefix + "/"):
            return Attributes(_VERBS.get(method, ""), subresources)
    return Attributes(_VERBS.get(method, ""), ("proxy",))


def review_of(user: User, verb: str, subresource: str, node: str) -> SubjectAccessReview:
    """The question to the API server."""
    wanted = ResourceAttributes(version="v1", resource="nodes", name=node, verb=verb, subresource=subresource)
    spec = SubjectAccessReviewSpec(
        user=user.name, uid=user.uid, groups=user.groups, extra=dict(user.extra), resourceAttributes=wanted
    )
    return SubjectAccessReview(apiVersion="authorization.k8s.io/v1", kind="SubjectAccessReview", spec=spec)


def bearer_token(authorization: str) -> str:
    """The token of an Authorization header; "" when it is none."""
    scheme, _, token = authorization.strip().partition(" ")
    return token.strip() if scheme.lower() == "bearer" and " " not in token.strip() else ""
