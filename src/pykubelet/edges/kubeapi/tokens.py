"""Requests service account tokens for pods, and reads service accounts.

Source: KEP-1205; the API reference, TokenRequest.
"""

from __future__ import annotations

import random

import msgspec

from pykubelet.base.api.auth import BoundObjectReference, TokenRequest, TokenRequestSpec
from pykubelet.base.api.core import ObjectMeta
from pykubelet.base.api.times import parse_time
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.values import Value
from pykubelet.base.model.content import Token, TokenKey
from pykubelet.base.model.ids import is_object_name
from pykubelet.edges.kubeapi.client import ApiClient
from pykubelet.edges.kubeapi.errors import ApiError

DAY_S = 24 * 3600.0
JITTER_S = 10.0


def refresh_after_s(life_s: float, chance: float) -> float:
    """The seconds after which a token that is valid for `life_s` seconds is replaced. `chance`: 0 to 1, spreads the times."""
    return max(1.0, min(0.8 * life_s, DAY_S) - JITTER_S * chance)


class HeldToken(Value):
    """A token, with the monotonic and wall second at which it was issued, its lifetime, and the age at which to replace it."""

    token: Token
    at: float
    wall: float
    life_s: float
    refresh_s: float

    def age_s(self, now: float, wall: float) -> float:
        """The age in seconds, by the clock that shows more: the wall clock may be set, and the monotonic one may pause."""
        return max(now - self.at, wall - self.wall)


class _ServiceAccount(msgspec.Struct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()


async def read_account(client: ApiClient, namespace: str, name: str) -> ObjectMeta:
    """The metadata of a ServiceAccount. Raises ApiError."""
    if not is_object_name(name):
        raise ApiError(404, "NotFound", f'serviceaccounts "{name}" not found')
    return (await client.get(f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}", _ServiceAccount)).metadata


async def request_token(client: ApiClient, key: TokenKey, clock: Clock) -> HeldToken:
    """Request a new token. Raises ApiError."""
    if not is_object_name(key.service_account):
        raise ApiError(404, "NotFound", f'serviceaccounts "{key.service_account}" not found')
    bound = BoundObjectReference(apiVersion="v1", kind="Pod", name=key.pod_name, uid=key.pod)
    spec = TokenRequestSpec(
        audiences=(key.audience,) if key.audience else (),
        boundObjectRef=bound,
        expirationSeconds=key.expiration_s or None,
    )
    body = TokenRequest(apiVersion="authentication.k8s.io/v1", kind="TokenRequest", spec=spec)
    path = f"/api/v1/namespaces/{key.namespace}/serviceaccounts/{key.service_account}/token"
    answer = await client.create(path, body, TokenRequest)
    if answer.status is None or not answer.status.token:
        raise ApiError(0, "Undecodable", f"{path}: the answer has no token")
    now, wall = clock.monotonic(), clock.wall()
    expires_at = _expiry(answer.status.expirationTimestamp)
    life_s = float(answer.spec.expirationSeconds or max(0.0, expires_at - wall))
    token = Token(answer.status.token, expires_at)
    return HeldToken(token, now, wall, life_s, refresh_after_s(life_s, random.random()))


def _expiry(text: str) -> float:
    try:
        return parse_time(text)
    except ValueError as error:
        raise ApiError(0, "Undecodable", f"the answer has no usable expirationTimestamp: {error}") from error
