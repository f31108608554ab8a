"""Shares the API among its users, so that no pod with a token keeps the agent or the administrator waiting.

Three bounds: so many requests a second of one user, and further ones wait; so many watches and streams of one user, and further
ones are refused; and so many large bodies at once. Administrators and nodes have no bound but that of bodies, and have bodies of their
own. Source: the same purpose as Kubernetes documentation, "API Priority and Fairness".
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext

from pykubelet.base.kit.bucket import TokenBucket
from pykubelet.base.kit.text import parse_decimal
from pykubelet.base.kit.values import replace
from pykubelet.net.http.server import Answer, ServedConnection, StreamedResponse, Takeover
from pykubelet.net.http.wire import Request
from pykubelet_local_api.errors import StatusError
from pykubelet_local_api.view import RequestUser

#: Requests a second of one user, and how many may come at once after a pause.
RATE, BURST = 100.0, 200
#: A body counts as one more request for each so many bytes, and a list for each so many objects.
BYTES, OBJECTS = 64 << 10, 100
#: A request that would have to wait longer is refused.
LONGEST_S = 30.0
#: Watches and streams of one user at a time.
MAX_LONG = 100
#: So many users are remembered; then those that have paused are forgotten.
MAX_USERS = 1000
#: A body of more bytes is a large one, and so many may be received and worked on at a time.
LARGE_BODY, LARGE_AT_ONCE = 64 << 10, 4
_UNBOUND = frozenset({"system:masters", "system:nodes"})


class RequestFairness:
    """What each user has asked for."""

    def __init__(self) -> None:
        self._buckets: dict[str, TokenBucket] = {}
        self._long: Counter[str] = Counter()
        self._own_large = asyncio.Semaphore(LARGE_AT_ONCE)
        self._large = asyncio.Semaphore(LARGE_AT_ONCE)
        self._large_of: dict[str, asyncio.Lock] = {}

    async def wait(self, user: RequestUser, cost: int = 1) -> None:
        """Wait until the user may send a request. `cost`: so many usual ones. Raises StatusError 429."""
        if not _UNBOUND.isdisjoint(user.groups):
            return
        loop, cost = asyncio.get_running_loop(), min(cost, BURST)
        bucket = self._bucket(user.name, loop.time())
        while wait_s := bucket.wait_s(loop.time(), cost - 1):
            if wait_s > LONGEST_S:
                raise _too_many()
            await asyncio.sleep(wait_s)
        for _ in range(cost):
            bucket.take(loop.time())

    def _bucket(self, name: str, now: float) -> TokenBucket:
        if len(self._buckets) >= MAX_USERS and name not in self._buckets:
            full = [user for user, bucket in self._buckets.items() if not bucket.wait_s(now, BURST - 1)]
            for user in full or list(self._buckets)[:1]:
                del self._buckets[user]
        return self._buckets.setdefault(name, TokenBucket(RATE, BURST))

    def body(self, user: RequestUser, request: Request) -> AbstractAsyncContextManager[object]:
        """What a request holds while its body is received and worked on."""
        size = body_bytes(request)
        if size is not None and size <= LARGE_BODY:
            return nullcontext()
        return self._large_body(user)

    @asynccontextmanager
    async def _large_body(self, user: RequestUser) -> AsyncIterator[None]:
        if not _UNBOUND.isdisjoint(user.groups):
            async with self._own_large:
                yield
            return
        lock = self._large_of.setdefault(user.name, asyncio.Lock())
        try:
            async with lock, self._large:
                yield
        finally:
            if not lock.locked():
                self._large_of.pop(user.name, None)

    async def opened(self, user: RequestUser, opening: Callable[[], Awaitable[Answer]]) -> Answer:
        """Open a stream and count it until it ends. Raises StatusError 429 before anything is opened that would have to be closed."""
        if not _UNBOUND.isdisjoint(user.groups):
            return await opening()
        self._begin(user)
        try:
            answer = await opening()
        except BaseException:
            self.ended(user.name)
            raise
        if not isinstance(answer, StreamedResponse | Takeover):
            self.ended(user.name)
            return answer
        return self._counted(user, answer)

    def long(self, user: RequestUser, answer: StreamedResponse) -> Answer:
        """Count a watch until it ends. Raises StatusError 429."""
        if not _UNBOUND.isdisjoint(user.groups):
            return answer
        self._begin(user)
        return self._counted(user, answer)

    def _begin(self, user: RequestUser) -> None:
        if self._long[user.name] >= MAX_LONG:
            raise _too_many()
        self._long[user.name] += 1

    def _counted(self, user: RequestUser, answer: StreamedResponse | Takeover) -> Answer:
        if isinstance(answer, StreamedResponse):
            return replace(answer, chunks=_CountedChunks(self, user.name, answer.chunks))
        talk = answer.talk

        async def counted(connection: ServedConnection) -> None:
            try:
                await talk(connection)
            finally:
                self.ended(user.name)

        return Takeover(counted)

    def ended(self, name: str) -> None:
        """A watch or a stream has ended."""
        self._long[name] -= 1
        if not self._long[name]:
            del self._long[name]


class _CountedChunks:
    """The chunks of an answer that counts as long as it goes on."""

    def __init__(self, fairness: RequestFairness, name: str, chunks: AsyncIterator[bytes]) -> None:
        self._fairness = fairness
        self._name = name
        self._chunks = chunks
        self._is_open = True

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        return await anext(self._chunks)

    async def aclose(self) -> None:
        """End the answer."""
        if self._is_open:
            self._is_open = False
            self._fairness.ended(self._name)
        close = getattr(self._chunks, "aclose", None)
        if close is not None:
            await close()


def body_bytes(request: Request) -> int | None:
    """The size of the body, as the head states it; None if it does not."""
    if "transfer-encoding" in request.headers:
        return None
    return parse_decimal(request.headers.get("content-length", "0"))


def cost_of(request: Request, objects: int = 0) -> int:
    """How many usual requests a request counts as. `objects`: those that a list looks at."""
    return 1 + (body_bytes(request) or 0) // BYTES + objects // OBJECTS


def _too_many() -> StatusError:
    message = "Too many requests, please try again later."
    return StatusError(429, "TooManyRequests", message, retry_after_s=1)
