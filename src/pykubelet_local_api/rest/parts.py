"""The parts of an answer: each user has one made in a round of the event loop, and few large ones that are not sent yet.

Without this, a hundred watches of one client that see a large object change would hold the event loop for a hundred of its texts, and
keep them in memory for as long as the client does not read.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager

import msgspec

from pykubelet.base.kit.values import replace
from pykubelet.net.http.server import Answer, Closable, Response, StreamedResponse
from pykubelet_local_api.rest.rounds import RequestRounds

#: A part of more bytes is a large one. It is sent in pieces of so many bytes.
LARGE_PART = 64 << 10
#: So many large parts of one user are made and not sent yet.
LARGE_OF_USER = 2
#: A client that takes longer for a large part is disconnected.
SEND_S = 30.0
#: So long may a client take for a list at a former version.
FORMER_S = 120.0


class _Slots(msgspec.Struct):
    free: asyncio.Semaphore
    users: int = 0


class PartsOfUsers:
    """What is made and not sent yet of all users."""

    def __init__(self) -> None:
        self._rounds = RequestRounds(1)
        self._slots: dict[tuple[str, bool], _Slots] = {}

    async def next_round(self, user: str) -> None:
        """Wait until a part may be made, or a part of a list be looked at."""
        await self._rounds.begin(user)

    @asynccontextmanager
    async def slot(self, user: str, *, is_former: bool = False) -> AsyncGenerator[None, None]:
        """Hold one of the user's places for large parts, or for lists of former objects."""
        slots = self._slots.setdefault((user, is_former), _Slots(asyncio.Semaphore(LARGE_OF_USER)))
        slots.users += 1
        try:
            async with slots.free:
                yield
        finally:
            slots.users -= 1
            if not slots.users:
                self._slots.pop((user, is_former), None)


class AnswerParts:
    """The parts of one user's answers on one connection, which `abort` closes."""

    def __init__(self, shared: PartsOfUsers, user: str, abort: Callable[[], None]) -> None:
        self._shared = shared
        self._user = user
        self._abort = abort

    async def next_round(self) -> None:
        """Wait until the user may have a part made, or a part of a list looked at."""
        await self._shared.next_round(self._user)

    async def pieces(self, make: Callable[[], bytes], is_large: bool) -> AsyncGenerator[bytes, None]:
        """A part, in pieces if it is a large one. Close it if it is not read to its end."""
        if not is_large:
            await self.next_round()
            yield make()
            return
        async with aclosing(self.large(make)) as pieces:
            async for piece in pieces:
                yield piece

    async def large(self, make: Callable[[], bytes | Awaitable[bytes]]) -> AsyncGenerator[bytes, None]:
        """A part in pieces. The user's other large parts wait until it is sent; close it if it is not read to its end."""
        async with self._shared.slot(self._user):
            await self.next_round()
            made = make()
            data = made if isinstance(made, bytes) else await made
            limit = asyncio.get_running_loop().call_later(SEND_S, self._abort)
            try:
                for piece in _pieces(data):
                    yield piece
            finally:
                limit.cancel()

    async def whole(self, make: Callable[[], Awaitable[Answer]]) -> Answer:
        """An answer that may be large, made while a place for it is held. Raises the error of `make`."""
        async with AsyncExitStack() as held:
            await held.enter_async_context(self._shared.slot(self._user))
            await self.next_round()
            found = await make()
            if not isinstance(found, Response) or len(found.body) <= LARGE_PART:
                return found
            return self._held(
                held, SEND_S, StreamedResponse(found.status, _sent(found), found.content_type, found.headers)
            )

    async def former(self, make: Callable[[], Awaitable[Answer]]) -> Answer:
        """The answer with a list at a former version, whose objects are kept for it alone. Raises the error of `make`."""
        async with AsyncExitStack() as held:
            await held.enter_async_context(self._shared.slot(self._user, is_former=True))
            found = await make()
            return self._held(held, FORMER_S, found) if isinstance(found, StreamedResponse) else found

    def _held(self, held: AsyncExitStack, limit_s: float, found: StreamedResponse) -> Answer:
        """The answer, with a place held until it is sent or the client is disconnected."""
        held.callback(asyncio.get_running_loop().call_later(limit_s, self._abort).cancel)
        return replace(found, chunks=_HeldChunks(found.chunks, held.pop_all()))


class _HeldChunks:
    """The chunks of an answer for which a place is held until they are sent."""

    def __init__(self, chunks: AsyncIterator[bytes], held: AsyncExitStack) -> None:
        self._chunks = chunks
        self._held = held

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        return await anext(self._chunks)

    async def aclose(self) -> None:
        """End the answer, and give the place back."""
        async with self._held:
            if isinstance(self._chunks, Closable):
                await self._chunks.aclose()


async def _sent(found: Response) -> AsyncGenerator[bytes, None]:
    for piece in _pieces(found.body):
        yield piece


def _pieces(data: bytes) -> Iterator[bytes]:
    return (data[start : start + LARGE_PART] for start in range(0, len(data), LARGE_PART))
