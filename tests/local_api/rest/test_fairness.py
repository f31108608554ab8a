"""What one user may ask of the API at a time, and who has no bound."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from pykubelet.net.http.server import Answer, Response, StreamedResponse
from pykubelet.net.http.wire import Request
from pykubelet_local_api.errors import StatusError
from pykubelet_local_api.rest.fairness import BURST, BYTES, MAX_LONG, MAX_USERS, RATE, RequestFairness, cost_of
from pykubelet_local_api.view import RequestUser

pytestmark = pytest.mark.virtual_time
POD = RequestUser("system:serviceaccount:default:app", ("system:serviceaccounts", "system:authenticated"))
OTHER = RequestUser("system:serviceaccount:default:other", ("system:authenticated",))
NODE = RequestUser("system:node:n", ("system:nodes", "system:authenticated"))


def request(size: int = 0, **headers: str) -> Request:
    return Request("POST", "/", "", {"content-length": str(size), **headers})


async def chunks() -> AsyncIterator[bytes]:
    yield b""


async def took(fairness: RequestFairness, user: RequestUser, number: int, cost: int = 1) -> float:
    """The seconds that so many requests of a user wait, one after the other."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    for _ in range(number):
        await fairness.wait(user, cost)
    return loop.time() - began


async def test_requests_of_one_user_above_the_rate_wait() -> None:
    fairness = RequestFairness()
    assert await took(fairness, POD, BURST) == 0
    assert await took(fairness, POD, 100) == pytest.approx(100 / RATE, rel=0.05)


async def test_other_users_and_nodes_do_not_wait_for_it() -> None:
    fairness = RequestFairness()
    await took(fairness, POD, BURST)
    assert await took(fairness, OTHER, BURST) == 0
    assert await took(fairness, NODE, 10 * BURST) == 0


async def test_large_bodies_and_long_lists_cost_more() -> None:
    fairness = RequestFairness()
    assert cost_of(request(10 * BYTES)) == 11
    assert cost_of(request(), 5_000) == 51
    assert await took(fairness, POD, 2, BURST) == pytest.approx(BURST / RATE, rel=0.05)


async def test_a_user_that_would_wait_for_long_is_refused() -> None:
    fairness = RequestFairness()
    waiting = [asyncio.ensure_future(fairness.wait(POD, BURST)) for _ in range(100)]
    done = await asyncio.gather(*waiting, return_exceptions=True)
    assert sum(isinstance(error, StatusError) and error.code == 429 for error in done) == 0
    assert all(error is None for error in done)


async def test_streams_of_one_user_have_a_bound_until_they_end() -> None:
    fairness = RequestFairness()
    held = [fairness.long(POD, StreamedResponse(200, chunks())) for _ in range(MAX_LONG)]
    with pytest.raises(StatusError) as caught:
        fairness.long(POD, StreamedResponse(200, chunks()))
    assert (caught.value.code, caught.value.reason) == (429, "TooManyRequests")
    fairness.long(NODE, StreamedResponse(200, chunks()))
    assert isinstance(held[0], StreamedResponse)
    await held[0].chunks.aclose()  # type: ignore[attr-defined]
    await held[0].chunks.aclose()  # type: ignore[attr-defined]
    fairness.long(POD, StreamedResponse(200, chunks()))
    with pytest.raises(StatusError):
        fairness.long(POD, StreamedResponse(200, chunks()))


async def test_large_bodies_of_one_user_come_one_after_the_other() -> None:
    fairness = RequestFairness()
    running = most = 0

    async def body(user: RequestUser, **headers: str) -> None:
        nonlocal running, most
        async with fairness.body(user, request(10 * BYTES, **headers)):
            running += 1
            most = max(most, running)
            await asyncio.sleep(1)
            running -= 1

    await asyncio.gather(*(body(POD) for _ in range(5)))
    assert most == 1
    await asyncio.gather(*(body(RequestUser(f"u{number}")) for number in range(10)))
    assert most == 4
    await asyncio.gather(*(body(RequestUser(f"u{number}")) for number in range(10)), body(NODE))
    assert most == 5


async def test_not_all_users_are_remembered() -> None:
    fairness = RequestFairness()
    for number in range(2 * MAX_USERS):
        await fairness.wait(RequestUser(f"u{number}"))
    assert len(fairness._buckets) <= MAX_USERS


async def test_a_stream_that_is_refused_is_not_opened() -> None:
    """A connection to the agent, or a command in a container, would go on without a client."""
    fairness, opened = RequestFairness(), 0

    async def opening() -> Answer:
        nonlocal opened
        opened += 1
        await asyncio.sleep(1)
        return StreamedResponse(200, chunks())

    async def failing() -> Answer:
        raise StatusError(500, "", "no agent")

    async def whole() -> Answer:
        return Response(200, b"")

    for _ in range(2 * MAX_LONG):  # what has ended at once does not count
        await fairness.opened(POD, whole)
        with pytest.raises(StatusError, match="no agent"):
            await fairness.opened(POD, failing)
    results = await asyncio.gather(
        *(fairness.opened(POD, opening) for _ in range(MAX_LONG + 50)), return_exceptions=True
    )
    assert opened == MAX_LONG
    assert sum(isinstance(found, StatusError) for found in results) == 50
    for found in results:
        if isinstance(found, StreamedResponse):
            await found.chunks.aclose()  # type: ignore[attr-defined]
    await fairness.opened(POD, opening)
    assert opened == MAX_LONG + 1
