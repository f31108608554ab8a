"""A reader whose limit changes: what was not read stays, in order, and each limit holds."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykubelet.net.http.staged_reader import StagedReader


class Link(asyncio.Transport):
    """A connection that counts whether it is asked to stop reading."""

    def __init__(self) -> None:
        super().__init__()
        self.paused = False

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


async def test_unread_data_goes_to_the_next_stage_before_what_arrives_later() -> None:
    reader = StagedReader(10)
    reader.feed_data(b"head\nbo")
    assert await reader.readuntil(b"\n") == b"head\n"
    await reader.change_limit(100)
    reader.feed_data(b"dy, and more")
    assert await reader.readexactly(4) == b"body"
    assert await reader.read(100) == b", and more"


async def test_a_larger_limit_lets_the_same_data_be_read() -> None:
    reader = StagedReader(8)
    reader.feed_data(b"x" * 20 + b"\n")
    with pytest.raises(asyncio.LimitOverrunError):
        await reader.readuntil(b"\n")
    await reader.change_limit(40)
    assert await reader.readuntil(b"\n") == b"x" * 20 + b"\n"


async def test_the_connection_is_read_no_further_than_twice_the_current_limit() -> None:
    reader, link, seen = StagedReader(10), Link(), []
    reader.set_transport(link)
    reader.feed_data(b"x" * 21)
    seen.append(link.paused)
    await reader.change_limit(100)
    seen.append(link.paused)
    reader.feed_data(b"x" * 180)
    seen.append(link.paused)
    assert len(await reader.read(1000)) == 201
    assert [*seen, link.paused] == [True, False, True, False]


async def test_the_end_of_the_connection_is_passed_on() -> None:
    reader = StagedReader(10)
    reader.feed_data(b"rest")
    reader.feed_eof()
    await reader.change_limit(100)
    assert await reader.read() == b"rest"
    assert await reader.read(10) == b"" and reader.at_eof()
    with pytest.raises(asyncio.IncompleteReadError):
        await reader.readexactly(1)


async def test_a_broken_connection_is_passed_on() -> None:
    reader = StagedReader(10)
    reader.feed_data(b"rest")
    reader.set_exception(ConnectionResetError("gone"))
    await reader.change_limit(100)
    assert isinstance(reader.exception(), ConnectionResetError)
    with pytest.raises(ConnectionResetError):
        await reader.read(1)


@given(st.lists(st.one_of(st.binary(min_size=1, max_size=30), st.integers(1, 50), st.just("read")), max_size=30))
def test_nothing_is_lost_or_reordered(steps: list[bytes | int | str]) -> None:
    async def run() -> None:
        reader, sent, got = StagedReader(4), b"", b""
        for step in steps:
            if isinstance(step, bytes):
                sent += step
                reader.feed_data(step)
            elif isinstance(step, int):
                await reader.change_limit(step)
            elif len(got) < len(sent):
                got += await reader.read(7)
        reader.feed_eof()
        assert got + await reader.read() == sent

    asyncio.run(run())
