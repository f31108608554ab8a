"""Connections to the agent and to pods: one exchange of HTTP, or an upgrade.

Owns: TLS to the agent, the translation of failures to the API server's messages, and the lifetime of a connection whose answer is
streamed. Each failure is a `StatusError` with status 500.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
from collections.abc import Mapping
from pathlib import Path

from pykubelet.net.http.client_tls import ClientTls, UnverifiedTls
from pykubelet.net.http.dial import Destination, dial
from pykubelet.net.http.exchange import FAILURES, HttpConnection
from pykubelet.net.http.proxy import Backend, ask_upgrade
from pykubelet.net.http.response import BadResponse
from pykubelet.net.http.server import Response
from pykubelet_local_api.errors import StatusError
from pykubelet_local_api.streams.place import ServerPlace

#: The most seconds until a server answers a request. A pod may work on its answer for minutes.
ANSWER_S = 300.0
#: What an exchange raises.
UNREACHED = (*FAILURES, TimeoutError)


class Upstreams:
    """Opens the connections. Create it inside a running loop.

    `certificate`, `key`: PEM files, the client certificate that this API has for the agent. `authority`: the PEM file of the CA
    of this API; the agent's certificate is verified by it, except on this machine, where the agent may have a self-signed one.
    """

    def __init__(self, certificate: Path, key: Path, authority: Path) -> None:
        self._verified = ClientTls()
        self._verified.load_verify_locations(authority)
        self._unverified = _unverified()
        self.contexts = (self._verified, self._unverified)  # into which a renewed certificate is loaded
        for context in self.contexts:
            context.load_cert_chain(certificate, key)
        self._foreign = UnverifiedTls()

    async def exchange(self, place: ServerPlace, request: bytes, *, verify: bool = True) -> HttpConnection:
        """Send a request. Returns the connection once the head of the answer has arrived; the caller must `abort` it.

        Raises OSError, ssl.SSLError, BadResponse and TimeoutError (`failure_text` shows them).
        """
        tls = self._context(place, verify=verify)
        connection = await dial(Destination(place.host, place.port, place.is_tls, place.host), tls)
        try:
            async with asyncio.timeout(ANSWER_S):
                await connection.exchange(request)
        except BaseException:
            connection.abort()
            raise
        return connection

    async def upgrade(self, place: ServerPlace, request: bytes) -> tuple[Backend, bytes] | Response:
        """Ask for another protocol. Returns the connection and the head of the answer, or the answer that refuses.

        Raises StatusError.
        """
        try:
            return await ask_upgrade(place.host, place.port, request, self._context(place))
        except UNREACHED as error:
            raise StatusError(500, "", f"error dialing backend: {failure_text(place, error)}") from error

    def _context(self, place: ServerPlace, *, verify: bool = True) -> ssl.SSLContext | None:
        if not place.is_tls:
            return None
        if not place.is_agent:
            return self._foreign
        return self._verified if verify and not is_own_address(place.host) else self._unverified


def _unverified() -> ssl.SSLContext:
    context = ClientTls()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def is_own_address(host: str) -> bool:
    """Whether an IP address is one of this machine. Asks the kernel's routes only, so nothing is sent and nothing blocks."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.inet_pton(family, host)
        with socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as end:
            end.connect((host, 9))
            return bool(end.getsockname()[0] == host)
    except OSError:
        return False


def failure_text(place: ServerPlace, error: Exception) -> str:
    """A failed connection, as the API server shows it: `dial tcp 10.0.0.1:80: connect: connection refused`."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"tls: failed to verify certificate: x509: {error.verify_message}"
    if isinstance(error, (BadResponse, ssl.SSLError)):
        return str(error)
    if isinstance(error, TimeoutError):
        return "net/http: timeout awaiting response headers"
    code = error.errno if isinstance(error, OSError) else None
    if isinstance(error, socket.gaierror):
        return f"dial tcp: lookup {place.host}: no such host"
    if code in (errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EACCES):
        return f"dial tcp {place.netloc}: connect: {os.strerror(code).lower()}"
    if isinstance(error, ConnectionResetError):
        return "EOF"
    text = str(error) or type(error).__name__
    return f"dial tcp {place.netloc}: i/o timeout" if text.startswith("no connection to") else text


def request_head(method: str, target: str, headers: Mapping[str, str]) -> bytes:
    """The head of a request. `headers`: were parsed from a request, or are constants."""
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")


class BodyChunks:
    """The rest of an answer's body, as it arrives. Closes the connection at the end, and when it is closed.

    `begun`: what was read of the body before.
    """

    def __init__(self, connection: HttpConnection, begun: bytes = b"") -> None:
        self._connection = connection
        self._begun = begun

    def __aiter__(self) -> BodyChunks:
        return self

    async def __anext__(self) -> bytes:
        if self._begun:
            begun, self._begun = self._begun, b""
            return begun
        try:
            part = await self._connection.part()
        except FAILURES as error:
            self._connection.abort()
            raise ConnectionResetError(f"the answer is cut short: {error}") from None
        if part is None:
            self._connection.abort()
            raise StopAsyncIteration
        return part

    def close(self) -> None:
        """Close the connection."""
        self._connection.abort()

    async def aclose(self) -> None:
        """Close the connection."""
        self._connection.abort()
