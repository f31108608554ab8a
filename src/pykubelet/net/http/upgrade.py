"""The answer to a request that asks for another protocol on its connection. Source: RFC 9110, "Upgrade"."""

from __future__ import annotations

import asyncio
import contextlib

from pykubelet.net.http.response import BadResponse, ResponseParser

_PIECE = 64 * 1024
#: Bytes of the body of a refusal, and the seconds that it may take.
ANSWER_BYTES, ANSWER_S = 64 * 1024, 1.0


async def read_head(reader: asyncio.StreamReader) -> tuple[ResponseParser, bytes, bytes]:
    """Read a head. Returns it parsed and as it was sent, and what follows it if the server switches protocols.

    Raises BadResponse.
    """
    response, received, rest = ResponseParser(upgrades=True), b"", b""
    while not response.begun:
        data = await reader.read(_PIECE)
        if not data:
            response.end()
        received += data
        rest = response.feed(data)
    return response, received[: len(received) - len(rest)], rest


async def read_refusal(reader: asyncio.StreamReader, response: ResponseParser) -> bytes:
    """The beginning of the body of an answer that does not switch, as far as it comes in time."""
    body = b""
    with contextlib.suppress(TimeoutError, OSError, BadResponse):
        async with asyncio.timeout(ANSWER_S):
            while len(body := body + response.take()) < ANSWER_BYTES and not response.complete:
                data = await reader.read(ANSWER_BYTES)
                if not data:
                    break
                response.feed(data)
    return body[:ANSWER_BYTES]
