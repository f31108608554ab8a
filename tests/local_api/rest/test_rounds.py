"""A client with many requests at once begins a few of them in each round of the event loop."""

from __future__ import annotations

import asyncio
from collections import Counter

from pykubelet_local_api.rest.rounds import MOST_AT_ONCE, RequestRounds


async def test_others_do_not_wait_for_a_client_with_many_requests() -> None:
    rounds, now, begun = RequestRounds(), 0, Counter[int]()
    order: list[str] = []

    async def request(client: str, number: int) -> None:
        await rounds.begin(client)
        begun[now] += client == "many"
        order.append(f"{client} {number}")

    tasks = [asyncio.create_task(request("many", number)) for number in range(50)]
    tasks.append(asyncio.create_task(request("agent", 0)))
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0)
        now += 1
    assert max(begun.values()) <= MOST_AT_ONCE
    assert order.index("agent 0") <= MOST_AT_ONCE
    assert [name for name in order if name != "agent 0"] == [f"many {number}" for number in range(50)]


async def test_a_request_whose_connection_has_ended_takes_no_place() -> None:
    rounds = RequestRounds()
    tasks = [asyncio.create_task(rounds.begin("c")) for _ in range(MOST_AT_ONCE + 20)]
    await asyncio.sleep(0)
    for task in tasks[MOST_AT_ONCE : MOST_AT_ONCE + 16]:
        task.cancel()
    for _ in range(4):
        await asyncio.sleep(0)
    assert all(task.done() for task in tasks)
    for _ in range(3):
        await asyncio.sleep(0)
    assert rounds._clients == {}
