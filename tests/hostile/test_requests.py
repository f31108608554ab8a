"""What clients send to the authenticated port, most of them before anything is known of them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from hostile.clients import Talk, attack_port, flooding, saying
from hostile.servers import mutated
from support.cost import check_cost

from pykubelet.base.kit.supervise import Supervisor
from pykubelet.edges.identity.keys import make_self_signed
from pykubelet.net.http.accept import AdmissionLimits, serve_connections
from pykubelet.net.http.checked_tls import CheckedTls
from pykubelet.net.http.server import Answer, HttpServer, Request, ServedConnection, ServerLimits, text
from pykubelet.serve.listen import open_port

LINE, HOST = b"GET / HTTP/1.1\r\n", b"Host: node\r\n"
POST = b"POST /run/a/b/c HTTP/1.1\r\n" + HOST
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
GOOD = b"POST /exec/a/b/c?command=ls&output=1 HTTP/1.1\r\n" + HOST + b"Content-Length: 4\r\n\r\nbody"

REQUESTS: dict[str, Talk] = {
    "a query of 500,000 fields": saying(b"GET /?" + b"a&" * 500_000 + b" HTTP/1.1\r\n" + HOST + b"\r\n"),
    "a query of 60 KiB": saying(b"GET /?" + b"a=%41&" * 10_000 + b" HTTP/1.1\r\n" + HOST + b"\r\n"),
    "a path of escapes": saying(b"GET /" + b"%2e%2e/" * 9_000 + b" HTTP/1.1\r\n" + HOST + b"\r\n"),
    "a request line without end": flooding(b"GET /", b"a"),
    "a header without end": flooding(LINE + HOST + b"Authorization: Bearer ", b"x"),
    "headers without end": flooding(LINE + HOST, b"a:\r\n"),
    "100,000 headers": saying(LINE + HOST + b"a: b\r\n" * 100_000 + b"\r\n"),
    "a token of 900 KiB": saying(LINE + HOST + b"Authorization: Bearer " + b"x" * 900_000 + b"\r\n\r\n"),
    "a length of 5,000 digits": saying(POST + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n"),
    "chunks of one byte": flooding(CHUNKED, b"1\r\nx\r\n"),
    "65,000 chunks and an end": saying(CHUNKED + b"1\r\nx\r\n" * 65_000 + b"0\r\n\r\n"),
    "chunk extensions": flooding(CHUNKED, b"1;" + b"a=b;" * 4000 + b"\r\nx\r\n"),
    "trailers without end": flooding(CHUNKED + b"0\r\n", b"a: b\r\n"),
    "10,000 requests at once": saying((LINE + HOST + b"\r\n") * 10_000),
    "requests without end": flooding(b"", LINE + HOST + b"\r\n"),
    "an upgrade and rubbish": saying(
        LINE + HOST + b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\n\r\n" + b"\xff" * 100_000
    ),
    "line ends without end": flooding(b"", b"\r\n"),
    "rubbish without end": flooding(b"", b"\x00\xff"),
}


async def answer(request: Request, connection: ServedConnection) -> Answer:
    """/known is asked by a client that is authenticated; all others are not, and get 401."""
    if request.path != "/known":
        return text(401, "Unauthorized")
    await connection.admit()
    return text(200, "ok")


@pytest.fixture(scope="module")
def server_tls(tmp_path_factory: pytest.TempPathFactory) -> CheckedTls:
    made = asyncio.run(make_self_signed("node", ("node",), ("127.0.0.1",)))
    folder = tmp_path_factory.mktemp("tls")
    files = folder / "crt", folder / "key"
    files[0].write_text(made.certificate)
    files[1].write_text(made.key)
    context = CheckedTls(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*files)
    return context


class Port:
    """The authenticated port with everything before its handlers."""

    def __init__(self, tls: CheckedTls) -> None:
        self.tls = tls

    @asynccontextmanager
    async def open(self) -> AsyncIterator[int]:
        server = HttpServer(answer, limits=ServerLimits(connections=100))
        with open_port("127.0.0.1", 0) as listening:
            async with Supervisor("test") as supervisor:
                task = supervisor.start_root("port", serve_connections(listening, self.tls, server, AdmissionLimits()))
                yield listening.getsockname()[1]
                task.cancel()

    async def attacked(self, talk: Talk, clients: int = 1) -> None:
        async with self.open() as port:
            await attack_port(port, talk, clients)


@pytest.fixture
def port(server_tls: CheckedTls) -> Port:
    return Port(server_tls)


@pytest.mark.parametrize("name", REQUESTS)
def test_no_request_costs_much(port: Port, name: str) -> None:
    check_cost(name, lambda: port.attacked(REQUESTS[name], 4))


def test_mutated_requests_cost_no_more(port: Port) -> None:
    numbers = iter(range(1_000_000))

    def talk(connection: socket.socket) -> None:
        connection.settimeout(0.1)
        with contextlib.suppress(OSError):
            saying(mutated(next(numbers), GOOD))(connection)

    async def many() -> None:
        async with port.open() as number:
            for _ in range(15):
                await attack_port(number, talk, 10)

    check_cost("150 mutated requests", many)
