"""The gate of the authenticated port: lets a request through, or answers it.

Owns: the order of authenticators (client certificate, bearer token, anonymous), the questions to the API server
(TokenReview, SubjectAccessReview) with their retries, and the caches of the answers, bounded in number and time.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from typing import Generic, Protocol, TypeVar

from pykubelet.base.api.auth import SubjectAccessReview, TokenReview, TokenReviewSpec
from pykubelet.base.config.kubelet import KubeletConfiguration
from pykubelet.base.kit.backoff import BackoffPolicy
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.values import Value
from pykubelet.edges.kubeapi.errors import ApiError
from pykubelet.report.server.access import (
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
from pykubelet.report.server.http.server import Connection, Request, Response, text

log = Log("server")
T = TypeVar("T")
KEPT = 4096
TRIES = 5
RETRY = BackoffPolicy(initial_s=0.5, cap_s=float("inf"), factor=1.5)
TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


class Reviewer(Protocol):
    """The part of the API client that the gate asks. Raises ApiError."""

    async def create(self, path: str, body: object, kind: type[T], query: Mapping[str, str] | None = None) -> T: ...


class Reviewers(Value):
    """`tokens` is asked about tokens that were never good, `access` about all others and about rights. They are two, so
    that a flood of unknown tokens holds up no client that was authenticated before."""

    tokens: Reviewer
    access: Reviewer


class GateRules(Value):
    """From the configuration: `authentication` and `authorization`, times in seconds; and `authorization` of the endpoints."""

    node: str
    anonymous: bool
    tokens: bool
    token_ttl_s: float
    always_allow: bool
    allowed_ttl_s: float
    denied_ttl_s: float
    authorization: AuthorizationRules


class _Remembered(Generic[T]):
    """Answers by key, each until its time; the oldest go when there are too many."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kept: OrderedDict[object, tuple[float, T]] = OrderedDict()

    def get(self, key: object) -> T | None:
        found = self._kept.get(key)
        if found is None or found[0] <= self._clock.monotonic():
            return None
        return found[1]

    def knew(self, key: object) -> bool:
        """Whether there is an answer, or was one whose time is over."""
        return key in self._kept

    def forget(self, key: object) -> None:
        self._kept.pop(key, None)

    def put(self, key: object, value: T, ttl_s: float) -> None:
        self._kept[key] = (self._clock.monotonic() + ttl_s, value)
        self._kept.move_to_end(key)
        if len(self._kept) > KEPT:
            self._kept.popitem(last=False)


class _Together(Generic[T]):
    """Who asks what is just being asked waits for that answer."""

    def __init__(self) -> None:
        self._asking: dict[object, asyncio.Future[T]] = {}

    async def ask(self, key: object, ask: Callable[[], Awaitable[T]]) -> T:
        """The answer, or the ApiError that the others get as well."""
        while (asking := self._asking.get(key)) is not None:
            await asyncio.wait((asking,))
            if not asking.cancelled():
                return asking.result()
            # whoever asked has left
        asking = self._asking[key] = asyncio.get_running_loop().create_future()
        try:
            answer = await ask()
            asking.set_result(answer)
            return answer
        except ApiError as error:
            asking.set_exception(error)
            asking.exception()  # it is told here, whether others wait or not
            raise
        finally:
            del self._asking[key]
            asking.cancel()


class Gate:
    """`refuse` answers None for a request that may pass. `reviewers` None: there is no API server to ask."""

    def __init__(self, rules: GateRules, reviewers: Reviewers | None, clock: Clock) -> None:
        self._rules = rules
        self._reviewers = reviewers
        self._users: _Remembered[User] = _Remembered(clock)
        self._unknown: _Remembered[bool] = _Remembered(clock)
        self._allowed: _Remembered[bool] = _Remembered(clock)
        self._reviews: _Together[User | None] = _Together()
        self._questions: _Together[bool] = _Together()

    async def refuse(self, request: Request, connection: Connection) -> Response | None:
        try:
            user = await self._user(request, connection)
        except ApiError as error:
            log.warning("cannot ask who a token belongs to", error=error)
            user = None
        if user is None:
            return text(401, "Unauthorized")
        if self._rules.always_allow:
            return None
        wanted = attributes_of(request.method, request.path, self._rules.authorization)
        return await self._forbid(user, wanted)

    async def _user(self, request: Request, connection: Connection) -> User | None:
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
        return self._users.get(key) or await self._reviews.ask(key, lambda: self._user_of_token(key, token))

    async def _user_of_token(self, key: bytes, token: str) -> User | None:
        if self._reviewers is None:
            raise ApiError(0, "", "there is no API server to ask")
        spec = TokenReviewSpec(token=token)
        review = TokenReview(apiVersion="authentication.k8s.io/v1", kind="TokenReview", spec=spec)
        reviewer = self._reviewers.access if self._users.knew(key) else self._reviewers.tokens
        status = (await _ask(reviewer, TOKEN_REVIEWS, review, TokenReview)).status
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
                log.warning("cannot ask whether a request is allowed", user=user.name, error=error)
                who = f"user={user.name}, verb={wanted.verb}, resource=nodes, subresource={subresource}"
                return text(500, f"Authorization error ({who})")
        tried = " ".join(wanted.subresources)
        return text(
            403, f"Forbidden (user={user.name}, verb={wanted.verb}, resource=nodes, subresource(s)=[{tried}])\n"
        )

    async def _is_allowed(self, user: User, verb: str, subresource: str) -> bool:
        key = (user, verb, subresource)
        kept = self._allowed.get(key)
        if kept is not None:
            return kept
        return await self._questions.ask(key, lambda: self._review_access(user, verb, subresource))

    async def _review_access(self, user: User, verb: str, subresource: str) -> bool:
        if self._reviewers is None:
            raise ApiError(0, "", "there is no API server to ask")
        review, rules = review_of(user, verb, subresource, self._rules.node), self._rules
        status = (await _ask(self._reviewers.access, ACCESS_REVIEWS, review, SubjectAccessReview)).status
        allowed = status is not None and status.allowed
        self._allowed.put((user, verb, subresource), allowed, rules.allowed_ttl_s if allowed else rules.denied_ttl_s)
        return allowed


async def _ask(reviewer: Reviewer, path: str, review: object, kind: type[T]) -> T:
    """The API server's answer; asked again while it is in trouble, a few times."""
    for failures in range(1, TRIES):
        try:
            return await reviewer.create(path, review, kind)
        except ApiError as error:
            if error.was_queue_full or not error.is_transient:
                raise
            await asyncio.sleep(error.retry_after_s or RETRY.delay_s(failures))
    return await reviewer.create(path, review, kind)


def gate_rules(node: str, config: KubeletConfiguration, authorization: AuthorizationRules) -> GateRules:
    """From `authentication` and `authorization` of the configuration, and the rules that the endpoints declare."""
    authentication, webhook = config.authentication, config.authorization.webhook
    return GateRules(
        node=node,
        anonymous=bool(authentication.anonymous.enabled),
        tokens=bool(authentication.webhook.enabled),
        token_ttl_s=authentication.webhook.cacheTTL.ns / 1e9,
        always_allow=config.authorization.mode == "AlwaysAllow",
        allowed_ttl_s=webhook.cacheAuthorizedTTL.ns / 1e9,
        denied_ttl_s=webhook.cacheUnauthorizedTTL.ns / 1e9,
        authorization=authorization,
    )
