"""Connections: used again, replaced when they are stale, through proxies, and gone when they are closed."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import uvloop
from support.api_server import FakeApiServer
from support.pki import Authority

from pykubelet.base.api.core import ConfigMap, Node
from pykubelet.base.kit.clock import SystemClock
from pykubelet.base.kit.values import replace
from pykubelet.edges.kubeapi.client import ApiClient, ClientLimits
from pykubelet.edges.kubeapi.connection import answer_error
from pykubelet.edges.kubeapi.errors import ApiError
from pykubelet.edges.kubeapi.kubeconfig import ClusterAccess, Pem

pytestmark = pytest.mark.virtual_time

NODES = "/api/v1/nodes"
ANSWER = b'{"metadata":{"name":"n"}}'
GOOD = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(ANSWER), ANSWER)


@dataclass
class Scripted:
    """A server that answers each request by the script: bytes to send; None closes the connection."""

    answers: list[bytes | None]
    connections: int = 0
    requests: list[bytes] = field(default_factory=list)
    port: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                self.requests.append(head)
                answer = self.answers.pop(0) if self.answers else None
                if answer is None:
                    break
                writer.write(answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def scripted(*answers: bytes | None) -> AsyncIterator[tuple[Scripted, ApiClient]]:
    script = Scripted(list(answers))
    server = await asyncio.start_server(script.serve, "127.0.0.1", 0)
    script.port = server.sockets[0].getsockname()[1]
    client = ApiClient(
        ClusterAccess(server=f"http://127.0.0.1:{script.port}/base"), SystemClock(), ClientLimits(deadline_s=5)
    )
    try:
        yield script, client
    finally:
        await client.close()
        server.close()
        await asyncio.sleep(0.01)


async def get(client: ApiClient) -> str:
    return (await client.get(f"{NODES}/n", Node)).metadata.name


async def test_one_connection_serves_many_requests() -> None:
    async with scripted(*[GOOD] * 5) as (script, client):
        for _ in range(5):
            assert await get(client) == "n"
    assert script.connections == 1
    assert script.requests[0].startswith(b"GET /base/api/v1/nodes/n HTTP/1.1\r\nHost: 127.0.0.1:")


async def test_a_connection_that_went_stale_is_replaced_without_a_word() -> None:
    async with scripted(GOOD, None, GOOD) as (script, client):
        assert await get(client) == "n"
        assert await get(client) == "n"
    assert script.connections == 2


async def test_a_new_connection_that_ends_at_once_is_an_error() -> None:
    async with scripted(None, GOOD) as (script, client):
        with pytest.raises(ApiError):
            await get(client)
    assert script.connections == 1


async def test_half_an_answer_is_not_asked_for_again() -> None:
    async with scripted(GOOD, GOOD[:20], GOOD) as (script, client):
        await get(client)
        asking = asyncio.ensure_future(get(client))
        await asyncio.sleep(0.05)
        await client.close()
        with pytest.raises(ApiError) as caught:
            await asking
    assert caught.value.status == 0 and len(script.requests) == 2


@pytest.mark.parametrize("bad", [b"\x15\x03\x01\x00\x02", b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n"])
async def test_a_server_that_speaks_something_else(bad: bytes) -> None:
    async with scripted(bad) as (_, client):
        with pytest.raises(ApiError) as caught:
            await get(client)
    assert (caught.value.status, caught.value.reason) == (0, "Unreachable")


async def test_a_connection_that_is_to_be_closed_is_not_used_again() -> None:
    closing = GOOD.replace(b"OK\r\n", b"OK\r\nConnection: close\r\n")
    async with scripted(closing, GOOD) as (script, client):
        await get(client)
        await get(client)
    assert script.connections == 2


async def test_a_token_with_a_line_end_in_it_is_not_sent(server: FakeApiServer) -> None:
    client = ApiClient(replace(server.access(), token="a\r\nX-Other: b"), SystemClock())
    with pytest.raises(ApiError) as caught:
        await get(client)
    assert caught.value.reason == "Credentials" and "X-Other" not in caught.value.message
    await client.close()


@dataclass
class Proxy:
    """An HTTP proxy: tunnels for CONNECT, else it passes on what it is asked for."""

    status: int = 200
    heads: list[bytes] = field(default_factory=list)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.heads.append(head)
        method, target, _ = head.split(b" ", 2)
        place = target if method == b"CONNECT" else target.split(b"/")[2]
        host, _, port = place.decode().partition(":")
        if self.status != 200:
            writer.write(b"HTTP/1.1 %d No\r\n\r\n" % self.status)
            writer.close()
            return
        there = await asyncio.open_connection(host, int(port))
        if method == b"CONNECT":
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            there[1].write(head)
        await asyncio.gather(pump(reader, there[1]), pump(there[0], writer))


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
    except ConnectionError:
        pass
    writer.close()


@dataclass
class SocksProxy:
    """A SOCKS5 proxy that wants a login; `refusal` instead of a connection."""

    refusal: int = 0
    received: list[bytes] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        greeting = await reader.readexactly(4)
        writer.write(b"\x05\x02")
        login = await reader.readexactly(2 + 2 + 1 + 4)
        writer.write(b"\x01\x00")
        asked = await reader.readexactly(4 + 4 + 2)
        self.received += [greeting, login, asked]
        writer.write(bytes((5, self.refusal, 0, 1)) + bytes(6))
        if self.refusal:
            writer.close()
            return
        there = await asyncio.open_connection("127.0.0.1", int.from_bytes(asked[-2:], "big"))
        await asyncio.gather(pump(reader, there[1]), pump(there[0], writer))


@asynccontextmanager
async def proxied(
    access: ClusterAccess, proxy: Proxy | SocksProxy, scheme: str = "http", tls: ssl.SSLContext | None = None
) -> AsyncIterator[ApiClient]:
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    client = ApiClient(replace(access, proxy=f"{scheme}://us:p%40ss@127.0.0.1:{port}"), SystemClock())
    try:
        yield client
    finally:
        await client.close()
        server.close()
        await asyncio.sleep(0.02)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture
async def secured(authority: Authority) -> AsyncIterator[FakeApiServer]:
    own = authority.sign("server", "/CN=server")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own.cert, own.key)
    async with FakeApiServer(tls=context, ca=authority.cert.read_bytes()) as server:
        server.create(NODES, {"metadata": {"name": "n"}})
        yield server


async def test_tls_goes_through_a_proxys_tunnel(secured: FakeApiServer) -> None:
    proxy = Proxy()
    async with proxied(secured.access(), proxy) as client:
        assert await get(client) == "n"
        assert await get(client) == "n"
    (head,) = proxy.heads
    assert head.startswith(f"CONNECT 127.0.0.1:{secured.port} HTTP/1.1\r\n".encode())
    assert b"Proxy-Authorization: Basic dXM6cEBzcw==\r\n" in head


async def test_tls_goes_through_the_tunnel_of_a_proxy_that_speaks_tls_itself(
    secured: FakeApiServer, authority: Authority
) -> None:
    own = authority.sign("proxy", "/CN=proxy")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own.cert, own.key)
    proxy = Proxy()
    async with proxied(secured.access(), proxy, "https", context) as client:
        assert await get(client) == "n"
    assert proxy.heads[0].startswith(b"CONNECT 127.0.0.1:")


async def test_a_socks_proxy_leads_to_the_server_and_is_given_the_login(secured: FakeApiServer) -> None:
    proxy = SocksProxy()
    async with proxied(secured.access(), proxy, "socks5") as client:
        assert await get(client) == "n"
        assert await get(client) == "n"
    assert proxy.received[1] == b"\x01\x02us\x04p@ss"
    assert proxy.received[2] == b"\x05\x01\x00\x01\x7f\x00\x00\x01" + secured.port.to_bytes(2, "big")


async def test_a_socks_proxy_that_refuses(secured: FakeApiServer) -> None:
    async with proxied(secured.access(), SocksProxy(refusal=2), "socks5") as client:
        with pytest.raises(ApiError) as caught:
            await get(client)
    assert "the proxy refuses to connect: its rules do not allow it" in caught.value.message


async def test_plain_requests_go_through_a_socks_proxy_as_they_are(server: FakeApiServer) -> None:
    server.create(NODES, {"metadata": {"name": "n"}})
    async with proxied(server.access(), SocksProxy(), "socks5") as client:
        assert await get(client) == "n"


async def test_a_proxy_that_refuses(secured: FakeApiServer) -> None:
    async with proxied(secured.access(), Proxy(status=407)) as client:
        with pytest.raises(ApiError) as caught:
            await get(client)
    assert "the proxy refuses to connect: status 407" in caught.value.message


async def test_plain_requests_are_passed_on_by_a_proxy(server: FakeApiServer) -> None:
    server.create(NODES, {"metadata": {"name": "n"}})
    proxy = Proxy()
    async with proxied(server.access(), proxy) as client:
        assert await get(client) == "n"
    assert proxy.heads[0].startswith(f"GET {server.url}/api/v1/nodes/n HTTP/1.1".encode())


def test_both_event_loops_do(authority: Authority, tmp_path: Path) -> None:
    """TLS, a large body both ways, and a clean end, on uvloop and on asyncio's own loop."""

    async def talk() -> None:
        own = authority.sign("loop", "/CN=server")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(own.cert, own.key)
        async with FakeApiServer(tls=context) as server:
            client = ApiClient(ClusterAccess(server=server.url, ca=Pem(str(authority.cert))), SystemClock())
            large = {"metadata": {"name": "large"}, "data": {"x": "y" * 1_400_000}}
            made = await client.create("/api/v1/namespaces/a/configmaps", large, ConfigMap)
            assert len(made.data["x"]) == 1_400_000
            await client.close()

    for factory in (uvloop.new_event_loop, asyncio.new_event_loop):
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(talk())


@pytest.mark.parametrize(
    ("header", "seconds", "asked"),
    [
        ("3", 0, 3.0),
        ("", 7, 7.0),
        ("86400", 0, 60.0),
        ("9" * 5000, 0, None),
        ("inf", 0, None),
        ("nan", 5, 5.0),
        ("", 10**9, 60.0),
    ],
)
def test_retry_after_is_limited(header: str, seconds: int, asked: float | None) -> None:
    """A node that does not renew its lease because a proxy asks for a day is a lost node."""
    body = f'{{"kind":"Status","message":"busy","details":{{"retryAfterSeconds":{seconds}}}}}'.encode()
    assert answer_error(429, body, {"retry-after": header}).retry_after_s == asked
