"""Streams through the API to an agent over TLS: what is passed on, what is not, and what a client sees if it fails."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from local_api.streams.objects import Objects, node, pod
from support.pki import Authority

from pykubelet.net.http.server import (
    Answer,
    HttpServer,
    Request,
    Response,
    ServedConnection,
    StreamedResponse,
    Takeover,
    text,
)
from pykubelet_local_api.errors import StatusError
from pykubelet_local_api.kinds.table import BY_PATH
from pykubelet_local_api.streams.answer import StreamPath, answer_stream, rest_of
from pykubelet_local_api.streams.transport import Upstreams

pytestmark = pytest.mark.virtual_time
POD = "/api/v1/namespaces/default/pods/x"
UPGRADE = "Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\n"
SOCKET = (
    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    authority = Authority(tmp_path_factory.mktemp("pki"))
    authority.sign("api", "/O=system:masters/CN=kube-apiserver-kubelet-client")
    authority.sign("agent", "/CN=agent", addresses="IP:192.0.2.77")  # does not matter on one machine
    return authority


class AgentDouble:
    """Answers as the agent does, and keeps what it was asked."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.users: list[str] = []
        self.body = b""
        self.more = asyncio.Event()
        self.is_left = asyncio.Event()

    async def handle(self, request: Request, connection: ServedConnection) -> Answer:
        self.requests.append(request)
        [[(_, organization)], [(_, name)]] = (connection.certificate or {})["subject"]
        self.users.append(f"{organization} {name}")
        self.body = await connection.read_body()
        match request.path.split("/")[1]:
            case "containerLogs" if "follow" in request.raw_query:
                return StreamedResponse(200, self._lines(), "text/plain")
            case "containerLogs" if "previous" in request.raw_query:
                return text(400, 'previous terminated container "app" in pod "x" not found')
            case "containerLogs":
                return Response(200, b"one\ntwo\n", "text/plain")
            case "exec" if "command=missing" in request.raw_query:
                return text(404, "pod does not exist")
            case "exec" | "attach" | "portForward":
                return Takeover(self._echo)
            case "page":
                return Response(200, b'<a href="/next">', "text/html", {"Set-Cookie": "a=b"})
            case "moved":
                return Response(302, b"", headers={"Location": "/elsewhere"})
            case "large":
                return Response(200, b"x" * 300_000, "application/octet-stream")
        return text(200, f"{request.method} {request.target} {self.body.decode()}")

    async def _lines(self) -> AsyncIterator[bytes]:
        try:
            yield b"one\n"
            await self.more.wait()
            yield b"two\n"
        finally:
            self.is_left.set()

    async def _echo(self, connection: ServedConnection) -> None:
        upgraded = self.requests[-1].headers["upgrade"]
        connection.writer.write(
            f"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: {upgraded}\r\n\r\nhello ".encode()
        )
        while data := await connection.reader.read(1 << 16):
            connection.writer.write(data.upper())
            if data.endswith(b"."):
                return


class Api:
    """The API in front of the agent, with a port for plain clients."""

    def __init__(self, port: int, agent: AgentDouble) -> None:
        self.port = port
        self.agent = agent

    async def raw(self, method: str, target: str, headers: str = "", more: bytes = b"") -> bytes:
        reader, writer = await self.open(method, target, headers, more)
        async with asyncio.timeout(60):
            answer = await reader.read()
        writer.close()
        return answer

    async def open(
        self, method: str, target: str, headers: str = "", more: bytes = b""
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        closing = "" if "Upgrade" in headers else "Connection: close\r\n"
        writer.write(f"{method} {target} HTTP/1.1\r\nHost: api\r\n{closing}{headers}\r\n".encode() + more)
        return reader, writer

    async def ask(self, target: str, method: str = "GET", headers: str = "", more: bytes = b"") -> tuple[int, str]:
        """Status and body. A chunked body stays as it is."""
        head, _, body = (await self.raw(method, target, headers, more)).partition(b"\r\n\r\n")
        return int(head.split()[1]), body.decode()

    async def message(self, target: str, **more: Any) -> tuple[int, str]:
        """Code and message of a Status."""
        status, body = await self.ask(target, **more)
        return status, json.loads(body)["message"]


def path_of(request: Request) -> StreamPath:
    """What the API's routing finds."""
    parts = request.path.split("/")[3:]
    namespace = parts[1] if parts[0] == "namespaces" else ""
    plural, name, subresource = parts[2:5] if namespace else parts[:3]
    found = StreamPath(BY_PATH["", "v1", plural], namespace, name, subresource)
    return StreamPath(found.kind, namespace, name, subresource, rest_of(request, found))


@asynccontextmanager
async def serving(pki: Authority, *more: dict[str, Any], is_down: bool = False) -> AsyncIterator[Api]:
    folder = Path(pki.folder)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(pki.cert))
    tls.verify_mode = ssl.CERT_REQUIRED
    tls.load_cert_chain(folder / "agent.pem", folder / "agent.key")
    agent = AgentDouble()
    behind = HttpServer(agent.handle)
    upstreams = Upstreams(folder / "api.pem", folder / "api.key", pki.cert)
    async with await asyncio.start_server(behind.serve, "127.0.0.1", 0, ssl=tls) as listener:
        port = listener.sockets[0].getsockname()[1]
        if is_down:
            listener.close()
            await listener.wait_closed()
        view = Objects(node(port), pod(), *more)

        async def handle(request: Request, connection: ServedConnection) -> Answer:
            try:
                return await answer_stream(request, connection, path_of(request), view, upstreams)
            except StatusError as error:
                return Response(error.code, json.dumps(error.status()).encode(), "application/json")

        front = HttpServer(handle)
        async with await asyncio.start_server(front.serve, "127.0.0.1", 0) as entry:
            yield Api(entry.sockets[0].getsockname()[1], agent)
            front.close()
            behind.close()
            await asyncio.sleep(0.1)


async def test_a_log_comes_from_the_agent(pki: Authority) -> None:
    async with serving(pki) as api:
        status, body = await api.ask(f"{POD}/log?tailLines=5", headers="Authorization: Bearer secret\r\n")
        assert (status, body) == (200, "8\r\none\ntwo\n\r\n0\r\n\r\n")
        [asked] = api.agent.requests
        assert asked.target == "/containerLogs/default/x/app?tailLines=5&stream=All"
        assert "authorization" not in asked.headers
        assert api.agent.users == ["system:masters kube-apiserver-kubelet-client"]


async def test_a_followed_log_arrives_line_by_line_and_ends_with_the_client(pki: Authority) -> None:
    async with serving(pki) as api:
        reader, writer = await api.open("GET", f"{POD}/log?follow=true")
        await reader.readuntil(b"one\n")
        api.agent.more.set()
        assert b"two\n" in await reader.read()
        writer.close()
    async with serving(pki) as api:
        reader, writer = await api.open("GET", f"{POD}/log?follow=true")
        await reader.readuntil(b"one\n")
        writer.close()
        async with asyncio.timeout(60):
            await api.agent.is_left.wait()


async def test_the_agents_refusal_of_a_log_is_shown(pki: Authority) -> None:
    async with serving(pki) as api:
        expected = (400, 'previous terminated container "app" in pod "x" not found')
        assert await api.message(f"{POD}/log?previous=true") == expected


async def test_a_pod_without_a_node_has_an_empty_log(pki: Authority) -> None:
    waiting = pod("waiting", nodeName="")
    async with serving(pki, waiting) as api:
        assert await api.ask("/api/v1/namespaces/default/pods/waiting/log") == (204, "")


@pytest.mark.parametrize(
    ("protocol", "expected"),
    [
        ("", b"\x82\x00\x82\x08one\ntwo\n\x88\x02\x03\xe8"),
        ("Sec-WebSocket-Protocol: base64url.bearer.authorization.k8s.io.c2VjcmV0, base64.binary.k8s.io\r\n",
         b"\x81\x00\x81\x0c" + base64.b64encode(b"one\ntwo\n") + b"\x88\x02\x03\xe8"),
    ],
)  # fmt: skip
async def test_a_log_over_websocket(pki: Authority, protocol: str, expected: bytes) -> None:
    async with serving(pki) as api:
        answer = await api.raw("GET", f"{POD}/log", SOCKET + protocol)
        head, _, frames = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101 ") and b"c2VjcmV0" not in head
        assert frames == expected


async def test_a_client_of_a_followed_log_may_close_its_websocket(pki: Authority) -> None:
    async with serving(pki) as api:
        reader, writer = await api.open("GET", f"{POD}/log?follow=true", SOCKET)
        await reader.readuntil(b"one\n")
        writer.write(b"\x88\x82\x00\x00\x00\x00\x03\xe8")
        async with asyncio.timeout(60):
            assert (await reader.read()).startswith(b"\x88\x02\x03\xe8")
            await api.agent.is_left.wait()
        writer.close()


async def test_an_unknown_subprotocol_for_a_log_is_refused(pki: Authority) -> None:
    async with serving(pki) as api:
        status, body = await api.ask(f"{POD}/log", headers=f"{SOCKET}Sec-WebSocket-Protocol: v9\r\n")
        assert (status, body) == (403, "requested protocol(s) are not supported: [v9]")


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize(
    ("wanted", "behind"),
    [
        ("exec?command=sh&stdin=1&stdout=true", "/exec/default/x/app?input=1&output=1&command=sh"),
        ("attach?stdout=true", "/attach/default/x/app?output=1"),
        ("portforward", "/portForward/default/x"),
    ],
)
async def test_streams_are_passed_through_as_bytes(pki: Authority, method: str, wanted: str, behind: str) -> None:
    """Also what the client has sent before the answer."""
    async with serving(pki) as api:
        secret = (
            "Authorization: Bearer secret\r\nImpersonate-User: root\r\nX-Stream-Protocol-Version: v4.channel.k8s.io\r\n"
        )
        answer = await api.raw(method, f"{POD}/{wanted}", UPGRADE + secret, b"early \x00\xff.")
        head, _, data = answer.partition(b"\r\n\r\n")
        assert head.split(b"\r\n")[0] == b"HTTP/1.1 101 Switching Protocols"
        assert data == b"hello EARLY \x00\xff."
        [asked] = api.agent.requests
        assert (asked.method, asked.target) == (method, behind)
        assert asked.headers["x-stream-protocol-version"] == "v4.channel.k8s.io"
        assert not {"authorization", "impersonate-user"} & asked.headers.keys()
        assert asked.headers["x-forwarded-for"] == "127.0.0.1"


async def test_a_browsers_token_is_not_passed_on(pki: Authority) -> None:
    async with serving(pki) as api:
        offered = "base64url.bearer.authorization.k8s.io.c2VjcmV0, v5.channel.k8s.io"
        await api.raw("GET", f"{POD}/exec?stdout=1", f"{SOCKET}Sec-WebSocket-Protocol: {offered}\r\n", b".")
        assert api.agent.requests[0].headers["sec-websocket-protocol"] == "v5.channel.k8s.io"


async def test_the_agents_refusal_of_a_stream_is_its_answer(pki: Authority) -> None:
    async with serving(pki) as api:
        assert await api.ask(f"{POD}/exec?command=missing&stdout=1", "POST", UPGRADE) == (404, "pod does not exist")


@pytest.mark.parametrize(
    ("target", "method", "headers", "expected"),
    [
        (f"{POD}/exec?stdout=1", "POST", "", (400, "Upgrade request required")),
        (f"{POD}/exec?container=b", "POST", UPGRADE, (400, "container b is not valid for pod x")),
        ("/api/v1/namespaces/default/pods/y/exec", "POST", UPGRADE, (404, 'pods "y" not found')),
        (f"{POD}/log", "POST", "", (405, "the server does not allow this method on the requested resource")),
        ("/api/v1/nodes/n2/proxy/", "GET", "", (404, 'nodes "n2" not found')),
        (f"{POD}:80/proxy/", "TRACE", "", (405, "the server does not allow this method on the requested resource")),
    ],
)
async def test_what_is_refused(
    pki: Authority, target: str, method: str, headers: str, expected: tuple[int, str]
) -> None:
    async with serving(pki) as api:
        assert await api.message(target, method=method, headers=headers) == expected
        assert api.agent.requests == []


async def test_an_agent_that_is_down_is_named(pki: Authority) -> None:
    async with serving(pki, is_down=True) as api:
        code, message = await api.message(f"{POD}/log")
        assert code == 500 and message.startswith('Get "https://127.0.0.1:')
        assert '/containerLogs/default/x/app?stream=All": dial tcp 127.0.0.1:' in message
        assert message.endswith(": connect: connection refused")
        code, message = await api.message(f"{POD}/exec?stdout=1", method="POST", headers=UPGRADE)
        assert code == 500 and message.startswith("error dialing backend: dial tcp 127.0.0.1:")
        code, message = await api.message("/api/v1/nodes/n1/proxy/stats/summary")
        assert code == 503 and message.startswith("error trying to reach service: dial tcp 127.0.0.1:")


async def test_a_node_is_proxied_to_its_agent(pki: Authority) -> None:
    async with serving(pki) as api:
        raw = quote("a b", safe="") + "%2Fc"
        sent = "Content-Length: 4\r\nCookie: c=d\r\nConnection: X-Hop\r\nX-Hop: 1\r\n"
        status, body = await api.ask(f"/api/v1/nodes/n1/proxy/{raw}/?e=f", "POST", sent, b"body")
        assert (status, body) == (200, f"POST /{raw}/?e=f body")
        [asked] = api.agent.requests
        assert asked.headers["cookie"] == "c=d" and "x-hop" not in asked.headers
        assert asked.headers["x-forwarded-uri"] == f"/api/v1/nodes/n1/proxy/{raw}/"


async def test_a_proxied_page_leads_through_the_proxy(pki: Authority) -> None:
    async with serving(pki) as api:
        answer = await api.raw("GET", "/api/v1/nodes/n1/proxy/page")
        assert b"Set-Cookie: a=b\r\n" in answer
        assert answer.endswith(b'<a href="/api/v1/nodes/n1/proxy/next">')
        moved = await api.raw("GET", "/api/v1/nodes/n1/proxy/moved")
        assert b"\r\nLocation: /api/v1/nodes/n1/proxy/elsewhere\r\n" in moved
        root = await api.raw("GET", "/api/v1/nodes/n1/proxy?a=b")
        assert root.startswith(b"HTTP/1.1 301 ") and b"\r\nLocation: /api/v1/nodes/n1/proxy/?a=b\r\n" in root


async def test_a_large_answer_is_streamed_and_a_head_has_none(pki: Authority) -> None:
    async with serving(pki) as api:
        whole = await api.raw("GET", "/api/v1/nodes/n1/proxy/large")
        assert whole.count(b"x") >= 300_000 and whole.endswith(b"0\r\n\r\n")
        head = await api.raw("HEAD", "/api/v1/nodes/n1/proxy/large")
        assert b"\r\nContent-Length: 300000\r\n" in head and head.endswith(b"\r\n\r\n")


async def test_the_agents_certificate_is_verified_on_another_machine(pki: Authority) -> None:
    """Only an address of this machine is trusted without it."""
    from pykubelet_local_api.streams.transport import is_own_address

    assert is_own_address("127.0.0.1")
    assert not is_own_address("192.0.2.1")
    assert not is_own_address("localhost")
