"""The end of a chunked answer is a TLS record of its own.

An API server that passes a log on over WebSocket drops what it reads together with the end (`Read` of an `io.Reader` in Go may return
both), and Go reads one record at a time.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable

import pytest
import uvloop
from support.pki import Authority

from pykubelet.net.http.server import Answer, HttpServer, Request, Response, ServedConnection, StreamedResponse

ASK = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
END = b"0\r\n\r\n"
LINE = b"container is alive\n"


def whole(body: bytes) -> Answer:
    return Response(200, body, is_chunked=True)


def streamed(body: bytes) -> Answer:
    async def chunks() -> AsyncIterator[bytes]:
        yield body

    return StreamedResponse(200, chunks())


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    own = Authority(tmp_path_factory.mktemp("ca")).sign("server", "/CN=server")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own.cert, own.key)
    return context


@pytest.mark.parametrize("factory", [uvloop.new_event_loop, asyncio.new_event_loop])
@pytest.mark.parametrize("answer", [whole, streamed])
@pytest.mark.parametrize("body", [LINE, LINE * 1000], ids=["short", "long"])
def test_what_is_sent_and_its_end_are_read_apart(
    factory: Callable[[], asyncio.AbstractEventLoop],
    answer: Callable[[bytes], Answer],
    body: bytes,
    tls: ssl.SSLContext,
) -> None:
    async def handle(_: Request, __: ServedConnection) -> Answer:
        return answer(body)

    async def run() -> list[bytes]:
        server = HttpServer(handle)
        async with await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=tls) as listener:
            records = await asyncio.to_thread(records_of_answer, listener.sockets[0].getsockname()[1])
            server.close()
        return records

    with asyncio.Runner(loop_factory=factory) as runner:
        *content, end = runner.run(run())
    assert end == END
    assert b"".join(content).partition(b"\r\n\r\n")[2] == b"%x\r\n%b\r\n" % (len(body), body)


def records_of_answer(port: int) -> list[bytes]:
    """What each record of an answer has. `recv` never returns more than one. Blocks."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection(("127.0.0.1", port), 60) as plain, context.wrap_socket(plain) as secured:
        secured.sendall(ASK)
        return [*iter(lambda: secured.recv(1 << 20), b"")]
