"""Authentication and authorization on the authenticated port."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest

from pykubelet.base.api.auth import (
    SubjectAccessReview,
    SubjectAccessReviewStatus,
    TokenReview,
    TokenReviewStatus,
    UserInfo,
)
from pykubelet.base.kit.clock import ManualClock
from pykubelet.base.kit.values import replace
from pykubelet.edges.kubeapi.errors import QUEUE_FULL, ApiError
from pykubelet.edges.kubeapi.limiter import Limiter, QueueFull
from pykubelet.net.http.server import Request, ServedConnection
from pykubelet.serve.auth.access import attributes_of, bearer_token
from pykubelet.serve.auth.auth_filter import AuthFilter, AuthRules, Reviewers
from pykubelet.serve.endpoints.endpoint import authorization_rules
from pykubelet.serve.endpoints.table import ENDPOINTS

T = TypeVar("T")
RULES = AuthRules(
    node="n1",
    anonymous=False,
    tokens=True,
    token_ttl_s=120.0,
    always_allow=False,
    allowed_ttl_s=300.0,
    denied_ttl_s=30.0,
    authorization=authorization_rules(ENDPOINTS),
)
ADMIN = {"subject": ((("organizationName", "system:masters"),), (("commonName", "admin"),))}


def both(cluster: Cluster) -> Reviewers:
    return Reviewers(cluster, cluster)


@dataclass
class Cluster:
    """An API server that knows tokens and permissions. `errors`: raised one by one before any answer."""

    tokens: Mapping[str, UserInfo] = field(default_factory=dict)
    allowed: frozenset[tuple[str, str, str]] = frozenset()
    errors: list[ApiError] = field(default_factory=list)
    asked: list[object] = field(default_factory=list)

    async def create(self, path: str, body: object, kind: type[T], query: Mapping[str, str] | None = None) -> T:
        self.asked.append(body)
        if self.errors:
            raise self.errors.pop(0)
        answer: Any
        if isinstance(body, TokenReview):
            user = self.tokens.get(body.spec.token)
            status = TokenReviewStatus(authenticated=user is not None, user=user)
            answer = TokenReview(status=status)
        else:
            assert isinstance(body, SubjectAccessReview)
            wanted = body.spec.resourceAttributes
            assert wanted is not None and (wanted.resource, wanted.name, wanted.version) == ("nodes", "n1", "v1")
            allowed = (body.spec.user, wanted.verb, wanted.subresource) in self.allowed
            answer = SubjectAccessReview(status=SubjectAccessReviewStatus(allowed=allowed))
        assert isinstance(answer, kind)
        return answer


def connection(certificate: Mapping[str, Any] | None = None) -> ServedConnection:
    reader: Any = asyncio.StreamReader()
    writer: Any = None
    return ServedConnection(reader, writer, "192.0.2.1", certificate)


def request(path: str, token: str = "", method: str = "GET") -> Request:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    return Request(method, path, headers=headers)


async def answer(auth: AuthFilter, asked: Request, certificate: Mapping[str, Any] | None = None) -> tuple[int, str]:
    refused = await auth.refuse(asked, connection(certificate))
    return (200, "") if refused is None else (refused.status, refused.body.decode())


async def test_unauthenticated_requests_are_refused() -> None:
    auth = AuthFilter(RULES, both(Cluster()), ManualClock())
    assert await answer(auth, request("/pods")) == (401, "Unauthorized")
    assert await answer(auth, request("/pods", "wrong")) == (401, "Unauthorized")
    assert await answer(AuthFilter(RULES, None, ManualClock()), request("/pods", "any")) == (401, "Unauthorized")


async def test_anonymous_requests_are_authorized_and_an_invalid_token_is_not_anonymous() -> None:
    cluster = Cluster(allowed=frozenset({("system:anonymous", "get", "healthz")}))
    auth = AuthFilter(replace(RULES, anonymous=True), both(cluster), ManualClock())
    assert await answer(auth, request("/healthz")) == (200, "")
    assert await answer(auth, request("/metrics")) == (
        403,
        "Forbidden (user=system:anonymous, verb=get, resource=nodes, subresource(s)=[metrics])\n",
    )
    assert await answer(auth, request("/healthz", "wrong")) == (401, "Unauthorized")


async def test_a_certificate_names_user_and_groups() -> None:
    cluster = Cluster(allowed=frozenset({("admin", "create", "proxy")}))
    auth = AuthFilter(RULES, both(cluster), ManualClock())
    assert await answer(auth, request("/exec/a/b/c", method="POST"), ADMIN) == (200, "")
    [review] = cluster.asked
    assert isinstance(review, SubjectAccessReview)
    assert review.spec.groups == ("system:masters", "system:authenticated")


async def test_reviews_are_cached_for_their_time_to_live() -> None:
    user = UserInfo(username="bob", uid="7", groups=("dev",), extra={"scopes": ("a", "b")})
    cluster = Cluster({"t": user}, frozenset({("bob", "get", "proxy")}))
    clock = ManualClock()
    auth = AuthFilter(RULES, both(cluster), clock)
    for _ in range(3):
        assert await answer(auth, request("/pods", "t")) == (200, "")
    kinds = [type(asked).__name__ for asked in cluster.asked]
    assert kinds == ["TokenReview", "SubjectAccessReview", "SubjectAccessReview"]  # nodes/pods, then nodes/proxy
    last = cluster.asked[-1]
    assert isinstance(last, SubjectAccessReview) and last.spec.extra == {"scopes": ("a", "b")}
    clock.advance(31)
    await answer(auth, request("/pods", "t"))
    assert len(cluster.asked) == 4  # what was refused is asked again sooner than what was allowed
    cluster.tokens = {}
    clock.advance(121)
    assert await answer(auth, request("/pods", "t")) == (401, "Unauthorized")


class Slow(Cluster):
    """Answers once `go` is set."""

    go: asyncio.Event

    async def create(self, path: str, body: object, kind: type[T], query: Mapping[str, str] | None = None) -> T:
        self.asked.append(body)
        await self.go.wait()
        self.asked.pop()
        return await super().create(path, body, kind, query)


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_concurrent_requests_with_one_token_share_a_review_even_if_the_first_is_cancelled() -> None:
    cluster = Slow()
    cluster.go = asyncio.Event()
    auth = AuthFilter(RULES, both(cluster), ManualClock())
    async with asyncio.TaskGroup() as group:
        first = group.create_task(answer(auth, request("/pods", "bogus")))
        others = [group.create_task(answer(auth, request("/pods", "bogus"))) for _ in range(20)]
        await settled()
        assert len(cluster.asked) == 1
        first.cancel()
        await settled()
        cluster.go.set()
        assert [await reply for reply in others] == [(401, "Unauthorized")] * 20
    assert [type(review).__name__ for review in cluster.asked] == [
        "TokenReview"
    ] * 2  # the first one's, and the others'


async def test_a_flood_of_unknown_tokens_delays_no_client_and_evicts_no_user() -> None:
    stuck, cluster = Slow(), Cluster({"t": UserInfo(username="bob")}, frozenset({("bob", "get", "proxy")}))
    stuck.go = asyncio.Event()
    auth = AuthFilter(RULES, Reviewers(cluster, cluster), ManualClock())
    assert await answer(auth, request("/x", "t")) == (200, "")
    for number in range(5000):
        await answer(auth, request("/x", f"bogus-{number}"))
    cluster.asked.clear()
    assert await answer(auth, request("/x", "t")) == (200, "")
    assert cluster.asked == []
    flooded = AuthFilter(
        RULES, Reviewers(stuck, replaced := Cluster(allowed=frozenset({("admin", "get", "proxy")}))), ManualClock()
    )
    async with asyncio.TaskGroup() as group:
        waiting = [group.create_task(answer(flooded, request("/x", f"bogus-{number}"))) for number in range(20)]
        await settled()
        assert await answer(flooded, request("/x"), ADMIN) == (200, "")
        assert len(replaced.asked) == 1
        for task in waiting:
            task.cancel()


async def test_transient_errors_are_retried_and_others_are_reported() -> None:
    cluster = Cluster(allowed=frozenset({("admin", "get", "stats")}), errors=[ApiError(503, "", "busy", 0.01)])
    auth = AuthFilter(RULES, both(cluster), ManualClock())
    assert await answer(auth, request("/stats/summary"), ADMIN) == (200, "")
    cluster.errors = [ApiError(403, "Forbidden", "no")]
    assert await answer(auth, request("/logs/"), ADMIN) == (
        500,
        "Authorization error (user=admin, verb=get, resource=nodes, subresource=log)",
    )


async def test_a_review_that_fails_leaves_nothing_that_only_a_garbage_collection_frees(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("CRITICAL", "pykubelet.server")  # a record has the error
    errors = [ApiError(403, "Forbidden", "no reviews for this node")]
    kept = weakref.ref(errors[0])
    auth = AuthFilter(RULES, both(Cluster(errors=errors)), ManualClock())
    gc.disable()
    try:
        callers = [asyncio.ensure_future(answer(auth, request("/pods", "t"))) for _ in range(2)]
        statuses = {(await caller)[0] for caller in callers}
        del callers
        assert statuses == {401} and kept() is None
    finally:
        gc.enable()


async def test_always_allow_needs_authentication_and_no_review() -> None:
    auth = AuthFilter(replace(RULES, always_allow=True), None, ManualClock())
    assert await answer(auth, request("/exec/a/b/c"), ADMIN) == (200, "")
    assert await answer(auth, request("/exec/a/b/c")) == (401, "Unauthorized")


@pytest.mark.parametrize(
    ("method", "path", "verb", "subresources"),
    [
        ("GET", "/pods", "get", ("pods", "proxy")),
        ("GET", "/runningpods/", "get", ("pods", "proxy")),
        ("GET", "/podsx", "get", ("proxy",)),
        ("GET", "/metrics/cadvisor", "get", ("metrics",)),
        ("GET", "/logs/a/../b", "get", ("log",)),
        ("POST", "/exec/a/b/c", "create", ("proxy",)),
        ("PUT", "/debug/flags/v", "update", ("proxy",)),
        ("OPTIONS", "/checkpoint/a/b/c", "", ("checkpoint",)),
        ("GET", "/configz", "get", ("configz", "proxy")),
        ("GET", "/statusz", "get", ("statusz",)),
        ("GET", "/", "get", ("proxy",)),
    ],
)
def test_attributes_of_a_request(method: str, path: str, verb: str, subresources: tuple[str, ...]) -> None:
    found = attributes_of(method, path, RULES.authorization)
    assert (found.verb, found.subresources) == (verb, subresources)


@pytest.mark.parametrize(
    ("header", "token"),
    [("Bearer abc", "abc"), ("bearer  abc ", "abc"), ("Basic abc", ""), ("Bearer", ""), ("Bearer a b", ""), ("", "")],
)
def test_tokens_of_headers(header: str, token: str) -> None:
    assert bearer_token(header) == token


class Limited(Cluster):
    """With the queue of the client for reviews."""

    def __init__(self, tokens: Mapping[str, UserInfo]) -> None:
        super().__init__(tokens, frozenset({("bob", "get", "proxy")}))
        self._limiter = Limiter(50, 100, longest_s=2.0)

    async def create(self, path: str, body: object, kind: type[T], query: Mapping[str, str] | None = None) -> T:
        try:
            await self._limiter.take()
        except QueueFull as error:
            raise ApiError(0, QUEUE_FULL, "too many are waiting") from error
        return await super().create(path, body, kind, query)


async def flood(auth: AuthFilter, seconds: float) -> None:
    """Unknown tokens, 200 a second; a request without an answer within half a second is cancelled."""

    async def unauthenticated(token: str) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(0.5):
                await answer(auth, request("/x", token))

    async with asyncio.TaskGroup() as group:
        for number in range(int(seconds * 200)):
            group.create_task(unauthenticated(f"bogus-{number}"))
            await asyncio.sleep(1 / 200)


@pytest.mark.looptime
async def test_a_flood_of_unknown_tokens_is_over_when_it_ends() -> None:
    cluster, loop = Limited({"new": UserInfo(username="bob")}), asyncio.get_running_loop()
    auth = AuthFilter(RULES, both(cluster), ManualClock())
    await flood(auth, 60)
    began = loop.time()
    assert await answer(auth, request("/x", "new")) == (200, "")
    assert loop.time() - began <= 2.1


@pytest.mark.looptime
async def test_a_client_authenticated_before_waits_for_no_unknown_token() -> None:
    tokens, loop, clock = {"t": UserInfo(username="bob")}, asyncio.get_running_loop(), ManualClock()
    auth = AuthFilter(RULES, Reviewers(Limited(tokens), Limited(tokens)), clock)
    assert await answer(auth, request("/x", "t")) == (200, "")
    async with asyncio.TaskGroup() as group:
        flooding = group.create_task(flood(auth, 30))
        await asyncio.sleep(20)
        clock.advance(RULES.token_ttl_s + 1)
        began = loop.time()
        assert await answer(auth, request("/x", "t")) == (200, "")
        assert loop.time() - began <= 0.1
        assert not flooding.done()


@pytest.mark.looptime
async def test_beyond_a_bound_tokens_are_refused_at_once() -> None:
    auth, loop = AuthFilter(RULES, both(Limited({})), ManualClock()), asyncio.get_running_loop()
    async with asyncio.TaskGroup() as group:
        waiting = [group.create_task(answer(auth, request("/x", f"bogus-{number}"))) for number in range(1000)]
        await asyncio.sleep(0.01)
        assert sum(task.done() for task in waiting) >= 850
        assert {task.result() for task in waiting if task.done()} == {(401, "Unauthorized")}
    assert loop.time() <= 2.1
