"""Authentication and authorization on the authenticated port: a request is admitted, or refused with an answer.

Owns: the order of authenticators (client certificate, bearer token, anonymous), the reviews by the API server (TokenReview,
SubjectAccessReview) with their retries, and the caches of their results, limited in number and time.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

from pykubelet.base.api.auth import SubjectAccessReview, TokenReview, TokenReviewSpec
from pykubelet.base.kit.backoff import BackoffPolicy
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.values import Value
from pykubelet.config.kubelet import KubeletConfiguration
from pykubelet.edges.kubeapi.errors import ApiError
from pykubelet.net.http.server import Request, Response, ServedConnection, text
from pykubelet.serve.auth.access import (
    ANONYMOUS,
    Attributes,
    AuthorizationRules,
    User,
    attributes_of,
    bearer_token,
    review_of,
    user_of_certificate,
    user_of_review,
)

log = Log("server")
T = TypeVar("T")
KEPT = 4096
TRIES = 5
RETRY = BackoffPolicy(initial_s=0.5, cap_s=float("inf"), factor=1.5)
TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
NO_API_SERVER = "no API server is configured"
ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


class Reviewer(Protocol):
    """The part of the API client that is used here. Raises ApiError."""

    async def create(self, path: str, body: object, kind: type[T]) -> T:
        """Create `body` at `path` and decode the answer as `kind`. Raises ApiError."""
        ...


class Reviewers(Value):
    """The clients for reviews. `tokens`: for tokens that were never valid. `access`: for other tokens and SubjectAccessReviews.

    There are two, so that a flood of unknown tokens does not delay a client that was authenticated before.
    """

    tokens: Reviewer
    access: Reviewer


class AuthRules(Value):
    """The rules from `authentication` and `authorization` of the configuration (times in seconds), and of the endpoints."""

    node: str
    anonymous: bool
    tokens: bool
    token_ttl_s: float
    always_allow: bool
    allowed_ttl_s: float
    denied_ttl_s: float
    authorization: AuthorizationRules


class _TtlCache(Generic[T]):
    """Answers by key, each with a time to live. If there are more than KEPT, the oldest are dropped."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kept: OrderedDict[object, tuple[float, T]] = OrderedDict()

    def get(self, key: object) -> T | None:
        found = self._kept.get(key)
        if found is None or found[0] <= self._clock.monotonic():
            return None
        return found[1]

    def has_stale(self, key: object) -> bool:
        """Whether there is an answer, expired or not."""
        return key in self._kept

    def forget(self, key: object) -> None:
        self._kept.pop(key, None)

    def put(self, key: object, value: T, ttl_s: float) -> None:
        self._kept[key] = (self._clock.monotonic() + ttl_s, value)
        self._kept.move_to_end(key)
        if len(self._kept) > KEPT:
            self._kept.popitem(last=False)


class _Coalesced(Generic[T]):
    """Concurrent calls with the same key share one review."""

    def __init__(self) -> None:
        self._pending: dict[object, asyncio.Future[T]] = {}

    async def call(self, key: object, review: Callable[[], Awaitable[T]]) -> T:
        """The result that all callers share. Raises ApiError, for all of them."""
        while (shared := self._pending.get(key)) is not None:
            await asyncio.wait((shared,))
            if not shared.cancelled():
                try:
                    return shared.result()
                finally:
                    del shared  # its error refers to this frame
            # try again: the caller that made the review was cancelled
        pending = self._pending[key] = asyncio.get_running_loop().create_future()
        try:
            result = await review()
            pending.set_result(result)
            return result
        except ApiError as error:
            pending.set_exception(error)
            pending.exception()  # marks it as retrieved, because possibly no other caller waits
            raise
        finally:
            del self._pending[key]
            pending.cancel()
            del pending  # its error refers to this frame


class AuthFilter:
    """Authenticates and authorizes requests. `reviewers`: None without an API server.

    Without it, no token can be reviewed, and the API server cannot authorize a request.
    """

    def __init__(self, rules: AuthRules, reviewers: Reviewers | None, clock: Clock) -> None:
        self._rules = rules
        self._reviewers = reviewers
        self._users: _TtlCache[User] = _TtlCache(clock)
        self._unknown: _TtlCache[bool] = _TtlCache(clock)
        self._allowed: _TtlCache[bool] = _TtlCache(clock)
        self._token_reviews: _Coalesced[User | None] = _Coalesced()
        self._access_reviews: _Coalesced[bool] = _Coalesced()

    async def refuse(self, request: Request, connection: ServedConnection) -> Response | None:
        """The answer to a refused request: 401 without a known user, 403 without permission. None if it is admitted."""
        try:
            user = await self._user(request, connection)
        except ApiError as error:
            log.warning("TokenReview failed", error=error)
            user = None
        if user is None:
            return text(401, "Unauthorized")
        if self._rules.always_allow:
            return None
        wanted = attributes_of(request.method, request.path, self._rules.authorization)
        return await self._forbid(user, wanted)

    async def _user(self, request: Request, connection: ServedConnection) -> User | None:
        if connection.certificate is not None:
            known = user_of_certificate(connection.certificate)
            if known is not None:
                return known
        token = bearer_token(request.headers.get("authorization", ""))
        if token and self._rules.tokens:
            return await self._review_token(token)
        return ANONYMOUS if self._rules.anonymous else None

    async def _review_token(self, token: str) -> User | None:
        key = hashlib.sha256(token.encode("latin-1", "replace")).digest()
        if self._unknown.get(key):
            return None
        return self._users.get(key) or await self._token_reviews.call(key, lambda: self._user_of_token(key, token))

    async def _user_of_token(self, key: bytes, token: str) -> User | None:
        if self._reviewers is None:
            raise ApiError(0, "", NO_API_SERVER)
        spec = TokenReviewSpec(token=token)
        review = TokenReview(apiVersion="authentication.k8s.io/v1", kind="TokenReview", spec=spec)
        reviewer = self._reviewers.access if self._users.has_stale(key) else self._reviewers.tokens
        status = (await _create(reviewer, TOKEN_REVIEWS, review, TokenReview)).status
        if status is None or not status.authenticated or status.user is None:
            self._unknown.put(key, True, self._rules.token_ttl_s)
            self._users.forget(key)
            return None
        user = user_of_review(status.user)
        self._users.put(key, user, self._rules.token_ttl_s)
        return user

    async def _forbid(self, user: User, wanted: Attributes) -> Response | None:
        for subresource in wanted.subresources:
            try:
                if await self._is_allowed(user, wanted.verb, subresource):
                    return None
            except ApiError as error:
                log.warning("SubjectAccessReview failed", user=user.name, error=error)
                request = f"user={user.name}, verb={wanted.verb}, resource=nodes, subresource={subresource}"
                return text(500, f"Authorization error ({request})")
        tried = " ".join(wanted.subresources)
        return text(
            403, f"Forbidden (user={user.name}, verb={wanted.verb}, resource=nodes, subresource(s)=[{tried}])\n"
        )

    async def _is_allowed(self, user: User, verb: str, subresource: str) -> bool:
        key = (user, verb, subresource)
        kept = self._allowed.get(key)
        if kept is not None:
            return kept
        return await self._access_reviews.call(key, lambda: self._review_access(user, verb, subresource))

    async def _review_access(self, user: User, verb: str, subresource: str) -> bool:
        if self._reviewers is None:
            raise ApiError(0, "", NO_API_SERVER)
        review, rules = review_of(user, verb, subresource, self._rules.node), self._rules
        status = (await _create(self._reviewers.access, ACCESS_REVIEWS, review, SubjectAccessReview)).status
        allowed = status is not None and status.allowed
        self._allowed.put((user, verb, subresource), allowed, rules.allowed_ttl_s if allowed else rules.denied_ttl_s)
        return allowed


async def _create(reviewer: Reviewer, path: str, review: object, kind: type[T]) -> T:
    """Create a review and return the answer. Transient errors are retried, TRIES times in total. Raises ApiError."""
    for failures in range(1, TRIES):
        try:
            return await reviewer.create(path, review, kind)
        except ApiError as error:
            if error.was_queue_full or not error.is_transient:
                raise
            await asyncio.sleep(error.retry_after_s or RETRY.delay_s(failures))
    return await reviewer.create(path, review, kind)


def auth_rules(node: str, config: KubeletConfiguration, authorization: AuthorizationRules) -> AuthRules:
    """The rules from the configuration and from the authorization that the endpoints declare."""
    authentication, webhook = config.authentication, config.authorization.webhook
    return AuthRules(
        node=node,
        anonymous=bool(authentication.anonymous.enabled),
        tokens=bool(authentication.webhook.enabled),
        token_ttl_s=authentication.webhook.cacheTTL.ns / 1e9,
        always_allow=config.authorization.mode == "AlwaysAllow",
        allowed_ttl_s=webhook.cacheAuthorizedTTL.ns / 1e9,
        denied_ttl_s=webhook.cacheUnauthorizedTTL.ns / 1e9,
        authorization=authorization,
    )
