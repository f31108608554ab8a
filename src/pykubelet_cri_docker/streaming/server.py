"""The HTTP server of streams: issues their URLs, and negotiates the protocol with the client of each.

Owns: the tokens and the connections. A URL works once and for a minute; what is behind it starts when the client has connected.
Source: the streaming server of the kubelet's CRI library.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence

from pykubelet.base.kit.log import Log
from pykubelet.edges.host.services.unix_socket import until_the_end
from pykubelet.net.http.server import (
    HEAD_BYTES,
    Answer,
    HttpServer,
    Request,
    Response,
    ServedConnection,
    ServerLimits,
    Takeover,
    text,
)
from pykubelet.net.http.wire import render_head
from pykubelet.net.websocket.handshake import offered, upgrade_response
from pykubelet_cri_docker.streaming import spdy_channels, spdy_forward, websocket_channels, websocket_forward
from pykubelet_cri_docker.streaming.backend import AttachTarget, ExecTarget, PortForwardTarget, StreamBackend, StreamSet
from pykubelet_cri_docker.streaming.channels import Channels
from pykubelet_cri_docker.streaming.client import Client, TunneledClient
from pykubelet_cri_docker.streaming.session import Job, ProcessSession, StreamLimits
from pykubelet_cri_docker.streaming.tokens import Tokens

log = Log("streaming")
#: The most streams that are open at once.
MAX_CONNECTIONS = 256
Target = ExecTarget | AttachTarget | PortForwardTarget
_KINDS: dict[str, type[Target]] = {"exec": ExecTarget, "attach": AttachTarget, "portforward": PortForwardTarget}
_VERSION, _ACCEPTED = "X-Stream-Protocol-Version", "X-Accepted-Stream-Protocol-Versions"
_NOT_FOUND = text(404, "404 page not found")
Session = Callable[[ServedConnection], Awaitable[None]]


class InvalidTarget(Exception):
    """The CRI call for a stream is not valid; its code is INVALID_ARGUMENT."""


def listen(address: str = "127.0.0.1", port: int = 0) -> socket.socket:
    """Open the port of the server. `port` 0: a free one. Raises OSError."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    # asyncio sends small frames at once only if the socket names its protocol
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((address, port))
        listening.listen()
    except OSError:
        listening.close()
        raise
    return listening


class StreamingServer:
    """The server on a listening socket, of which it also takes the address of its URLs."""

    def __init__(self, backend: StreamBackend, listening: socket.socket, limits: StreamLimits | None = None) -> None:
        self._backend = backend
        self._listening = listening
        self._limits = limits or StreamLimits()
        self._tokens = Tokens[Target]()
        address, port = listening.getsockname()[:2]
        self._base = f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"

    def exec_url(self, target: ExecTarget) -> str:
        """A URL for the exec. Raises InvalidTarget and TooManyTokens."""
        _check(target.container_id, target.streams)
        return self._url("exec", target)

    def attach_url(self, target: AttachTarget) -> str:
        """A URL for the attach. Raises InvalidTarget and TooManyTokens."""
        _check(target.container_id, target.streams)
        return self._url("attach", target)

    def port_forward_url(self, target: PortForwardTarget) -> str:
        """A URL for the port-forward. Raises InvalidTarget and TooManyTokens."""
        if not target.sandbox_id:
            raise InvalidTarget("missing required pod_sandbox_id")
        if len(target.ports) > websocket_forward.MAX_PORTS:
            raise InvalidTarget("too many ports")
        if not all(0 < port < 1 << 16 for port in target.ports):
            raise InvalidTarget("a port must be from 1 to 65535")
        return self._url("portforward", target)

    def _url(self, kind: str, target: Target) -> str:
        return f"{self._base}/{kind}/{self._tokens.issue(target, asyncio.get_running_loop().time())}"

    async def serve(self) -> None:
        """Serve until cancelled, and close the socket at the end."""
        server = HttpServer(self.handle, limits=ServerLimits(connections=MAX_CONNECTIONS))
        with self._listening:
            listener = await asyncio.start_server(until_the_end(server.serve), sock=self._listening, limit=HEAD_BYTES)
            log.info("serving streams", url=self._base)
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                listener.close()
                server.close()

    async def handle(self, request: Request, connection: ServedConnection) -> Answer:  # noqa: ARG002
        """Answer the request of a client that has a URL."""
        if request.method not in ("GET", "POST"):
            return text(405, "405: Method Not Allowed")
        kind, _, token = request.path.removeprefix("/").partition("/")
        target = self._tokens.take(token, asyncio.get_running_loop().time())
        if target is None or kind not in _KINDS or type(target) is not _KINDS[kind]:
            return _NOT_FOUND
        if request.headers.get("upgrade", "").lower() == "websocket" and request.is_upgrade:
            return self._over_websocket(request, target)
        return self._over_spdy(request, target)

    def _over_spdy(self, request: Request, target: Target) -> Answer:
        forwards = isinstance(target, PortForwardTarget)
        protocol = _negotiate(request, (spdy_forward.PROTOCOL,) if forwards else spdy_channels.PROTOCOLS)
        if isinstance(protocol, Response):
            return protocol
        head = render_head(101, {"Connection": "Upgrade", "Upgrade": "SPDY/3.1", _VERSION: protocol})
        if isinstance(target, PortForwardTarget):
            return _take_over(head, self._spdy_forward(target, Client))
        return _take_over(head, self._process(target, spdy_channels.SpdyChannels(target.streams, protocol)))

    def _over_websocket(self, request: Request, target: Target) -> Answer:
        forwards = isinstance(target, PortForwardTarget)
        known = (spdy_forward.TUNNEL, *websocket_forward.PROTOCOLS) if forwards else websocket_channels.PROTOCOLS
        protocol = next((protocol for protocol in offered(request) if protocol in known), None)
        if protocol is None:
            return text(403, "none of the offered WebSocket protocols is supported")
        head = upgrade_response(request, protocol)
        if isinstance(head, Response):
            return head
        if isinstance(target, PortForwardTarget):
            tunneled = protocol == spdy_forward.TUNNEL
            session = (
                self._spdy_forward(target, TunneledClient) if tunneled else self._channel_forward(target, protocol)
            )
            return _take_over(head, session)
        return _take_over(head, self._process(target, websocket_channels.WebSocketChannels(target.streams, protocol)))

    def _process(self, target: ExecTarget | AttachTarget, channels: Channels) -> Session:
        if isinstance(target, ExecTarget):
            job = Job(lambda: self._backend.exec(target), True, "executing command in container")
        else:
            job = Job(lambda: self._backend.attach(target), False, "attaching to container")
        return lambda connection: ProcessSession(Client(connection), channels, job, self._limits).run()

    def _spdy_forward(self, target: PortForwardTarget, kind: type[Client]) -> Session:
        sandbox = target.sandbox_id
        return lambda connection: spdy_forward.SpdyForwardSession(
            kind(connection), self._backend, sandbox, self._limits
        ).run()

    def _channel_forward(self, target: PortForwardTarget, protocol: str) -> Session:
        return lambda connection: websocket_forward.WebSocketForwardSession(
            Client(connection), self._backend, target, self._limits, protocol
        ).run()


def _check(container_id: str, streams: StreamSet) -> None:
    if not container_id:
        raise InvalidTarget("missing required container_id")
    if streams.tty and streams.stderr:
        raise InvalidTarget("tty and stderr cannot both be true")
    if not (streams.stdin or streams.stdout or streams.stderr):
        raise InvalidTarget("one of stdin, stdout, or stderr must be set")


def _negotiate(request: Request, known: Sequence[str]) -> str | Response:
    """The version of the protocol over SPDY, or the answer that refuses the request."""
    if not request.is_upgrade or "spdy/3.1" not in request.headers["upgrade"].lower():
        return text(400, "unable to upgrade: missing upgrade headers in request")
    wanted = [word.strip() for word in request.headers.get(_VERSION.lower(), "").split(",")]
    if not any(wanted):
        return text(400, f"unable to upgrade: header {_VERSION} does not exist in request")
    protocol = next((protocol for protocol in wanted if protocol in known), None)
    if protocol is None:
        return Response(403, b"unable to upgrade: unable to negotiate protocol", headers={_ACCEPTED: ", ".join(known)})
    return protocol


def _take_over(head: bytes, session: Session) -> Takeover:
    async def talk(connection: ServedConnection) -> None:
        connection.writer.write(head)
        await session(connection)

    return Takeover(talk)
