"""What plugins and monitors send to the agent's gRPC servers on unix sockets."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest
from hostile.clients import Talk, attack_socket, flooding, saying
from hostile.servers import mutated
from hostile.test_grpc_answers import (
    BOMB,
    CONTINUATION,
    DATA,
    DYNAMIC,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PING,
    PRIORITY,
    RST,
    SETTINGS,
    WINDOW,
    block,
    frame,
    huffman,
    literal,
    message,
)
from support.cost import check_cost

from pykubelet.net.grpc.http2 import PREFACE
from pykubelet.net.grpc.server import RpcServer
from pykubelet.net.grpc.services import Services

START = PREFACE + frame(SETTINGS, 0, 0)
#: ":method: POST", ":scheme: http" and a literal ":path".
ASK = b"\x83\x86" + b"\x04\x07/t/Echo"


def requests(kind: str, count: int) -> bytes:
    """`count` streams: `reset` at once, `open` for ever, or each with a large body that has no end."""
    found = []
    for number in range(1, 2 * count, 2):
        found.append(frame(HEADERS, END_HEADERS, number, ASK))
        if kind == "reset":
            found.append(frame(RST, 0, number, b"\0\0\0\x08"))
        if kind == "large":
            found += [frame(DATA, 0, number, b"\0\x00\x3f\xff\xff" + b"x" * 16000)] * 4
    return b"".join(found)


def _settings(ids: range) -> list[bytes]:
    """Payloads of SETTINGS frames, of 2,000 settings each."""
    settings = [id.to_bytes(2, "big") + b"\0\0\0\1" for id in ids]
    return [b"".join(settings[at : at + 2000]) for at in range(0, len(settings), 2000)]


CALLS: dict[str, Talk] = {
    "a good call": saying(START + block(ASK) + message(b"hello")),
    "no preface": saying(b"GET / HTTP/1.1\r\n\r\n" * 1000),
    "streams that are reset at once": saying(START + requests("reset", 20_000)),
    "streams that stay open": saying(START + requests("open", 20_000)),
    "large requests without end": saying(START + requests("large", 500)),
    "a request of 16 MiB": saying(START + block(ASK) + message(b"x" * (16 << 20))),
    "a Huffman string of a mebibyte": saying(START + block(ASK + huffman(BOMB))),
    "one large entry named 16,000 times": saying(START + block(ASK + DYNAMIC)),
    "empty CONTINUATION frames": flooding(START + frame(HEADERS, 0, 1, ASK), frame(CONTINUATION, 0, 1)),
    "headers without end": flooding(START + frame(HEADERS, 0, 1, ASK), frame(CONTINUATION, 0, 1, b"\0\1a\1b" * 999)),
    "SETTINGS without end": flooding(START, frame(SETTINGS, 0, 0, b"\0\x03\0\0\0\x64" * 10)),
    "SETTINGS of all identifiers": saying(
        START + b"".join(frame(SETTINGS, 0, 0, ids) for ids in _settings(range(8, 65536)))
    ),
    "a frame of 16 MiB": flooding(START + b"\xff\xff\xff\x00\x00\x00\x00\x00\x01", b"x" * 65536),
    "PING without end": flooding(START, frame(PING, 0, 0, b"12345678")),
    "WINDOW_UPDATE without end": flooding(START, frame(WINDOW, 0, 0, b"\0\0\0\1")),
    "PRIORITY without end": flooding(START, frame(PRIORITY, 0, 3, b"\0\0\0\0\1")),
    "empty DATA without end": flooding(START + block(ASK), frame(DATA, 0, 1)),
    "unknown methods": saying(
        START + b"".join(frame(HEADERS, END_HEADERS | END_STREAM, n, ASK) for n in range(1, 999, 2))
    ),
    "a path of 60 KiB": saying(START + block(b"\x83\x86" + literal(b":path", b"/" * 60_000), END_STREAM)),
    "rubbish": flooding(START, b"\x00\x00\x01\x00\x00\x00\x00\x00\x01\xff"),
}


async def echo(request: bytes) -> bytes:
    return request


async def attacked(path: Path, talk: Talk, clients: int = 1) -> None:
    path.unlink(missing_ok=True)
    server = RpcServer(Services({"/t/Echo": echo}))
    async with await asyncio.start_unix_server(server.serve, str(path)) as listener:
        await attack_socket(str(path), talk, clients)
        listener.close()


@pytest.mark.parametrize("name", CALLS)
def test_no_call_costs_much(tmp_path: Path, name: str) -> None:
    path = tmp_path / "s.sock"
    check_cost(name, lambda: attacked(path, CALLS[name], 2))


def test_mutated_calls_cost_no_more(tmp_path: Path) -> None:
    good = START + block(ASK) + message(b"hello")

    numbers = iter(range(1_000_000))

    def talk(connection: socket.socket) -> None:
        connection.settimeout(0.1)
        saying(mutated(next(numbers), good))(connection)

    async def many() -> None:
        for _ in range(10):
            await attacked(tmp_path / "s.sock", talk, 10)

    check_cost("100 mutated calls", many)
