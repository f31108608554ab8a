"""A client of the agent's authenticated port, as plain as can be: requests over TLS, and WebSocket streams."""

from __future__ import annotations

import base64
import http.client
import os
import socket
import ssl
import struct
import time
from collections.abc import Iterator, Mapping
from urllib.parse import quote, urlencode

from pykubelet.serve.endpoints.table import ENDPOINTS


def tls_context(certificate: str = "", key: str = "") -> ssl.SSLContext:
    """Trusts every server, as tests do; with a client certificate where one is given."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if certificate:
        context.load_cert_chain(certificate, key)
    return context


def endpoint_requests(pod: str) -> list[tuple[str, str]]:
    """Method and path of requests to every endpoint, with methods that are allowed and one that is not; and to paths that do
    not exist. `pod` is in the namespace default. No HEAD: its answers have no body."""
    requests = [("GET", "/"), ("GET", "/nothing")]
    for endpoint in ENDPOINTS:
        methods = sorted((endpoint.methods or {"GET", "POST"}) - {"HEAD"} | {"DELETE"})
        paths = [endpoint.path]
        if endpoint.below:
            paths.append(f"{endpoint.path.rstrip('/')}/default/{pod}/talk?command=id&cmd=id&output=1&port=80")
        requests += [(method, path) for path in paths for method in methods]
    return requests


class NodeApi:
    """The authenticated port on loopback."""

    def __init__(self, port: int, token: str = "", certificate: tuple[str, str] = ("", "")) -> None:
        self._port = port
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._tls = tls_context(*certificate)

    def wait_listening(self, within_s: float = 60.0) -> NodeApi:
        """The port opens when the agent has its certificate."""
        deadline = time.monotonic() + within_s
        while True:
            try:
                socket.create_connection(("127.0.0.1", self._port), timeout=5).close()
                return self
            except ConnectionRefusedError:
                assert time.monotonic() < deadline, "the authenticated port does not open"
                time.sleep(0.05)

    def ask(self, path: str, method: str = "GET", body: bytes | None = None) -> tuple[int, str]:
        """Status and body; `path` with its query."""
        connection = http.client.HTTPSConnection("127.0.0.1", self._port, timeout=60, context=self._tls)
        try:
            connection.request(method, path, body, self._headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode(errors="replace")
        finally:
            connection.close()

    def exec(self, pod: str, container: str, *command: str, stdin: bytes | None = None) -> WebSocket:
        query = [("command", word) for word in command] + [("output", "1"), ("error", "1")]
        if stdin is not None:
            query.append(("input", "1"))
        return self.stream(f"/exec/default/{pod}/{container}?{urlencode(query, quote_via=quote)}")

    def stream(self, path: str, protocol: str = "v4.channel.k8s.io") -> WebSocket:
        """An upgraded connection. Raises ConnectionError with the answer when the server does not upgrade."""
        plain = socket.create_connection(("127.0.0.1", self._port), timeout=60)
        connection = self._tls.wrap_socket(plain)
        headers = {
            "Host": "node",
            "Connection": "Upgrade",
            "Upgrade": "websocket",
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": base64.b64encode(os.urandom(16)).decode(),
            "Sec-WebSocket-Protocol": protocol,
            **self._headers,
        }
        lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        connection.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
        return WebSocket(connection)


class WebSocket:
    """Frames of binary channels: stdin 0, stdout 1, stderr 2, the result 3."""

    def __init__(self, connection: ssl.SSLSocket) -> None:
        self._connection = connection
        self._file = connection.makefile("rb")
        try:
            self.head = self._read_head()
        except OSError:
            self.close()
            raise

    def _read_head(self) -> str:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            line = self._file.readline()
            if not line:
                break
            head += line
        if b" 101 " not in head.split(b"\r\n")[0]:
            rest = self._file.read(500) if head else b""
            raise ConnectionError((head + rest).decode(errors="replace"))
        return head.decode()

    def __enter__(self) -> WebSocket:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()
        self._connection.close()

    def send(self, channel: int, data: bytes) -> None:
        self.send_frame(2, bytes([channel]) + data)

    def end(self, channel: int) -> None:
        """No more will come on it; only `v5.channel.k8s.io` can say so."""
        self.send_frame(2, bytes([255, channel]))

    def send_frame(self, opcode: int, payload: bytes) -> None:
        """A whole message, or a control frame."""
        size = len(payload)
        if size < 126:
            length = struct.pack("!B", 0x80 | size)
        elif size < 1 << 16:
            length = struct.pack("!BH", 0x80 | 126, size)
        else:
            length = struct.pack("!BQ", 0x80 | 127, size)
        mask = b"\0\0\0\0"  # a mask of zeros leaves the payload as it is
        self._connection.sendall(bytes([0x80 | opcode]) + length + mask + payload)

    def send_raw(self, data: bytes) -> None:
        self._connection.sendall(data)

    def raw_frames(self) -> Iterator[tuple[int, bytes]]:
        """Opcode and payload, until the other side ends."""
        while len(start := self._file.read(2)) == 2:
            size = start[1] & 0x7F
            if size == 126:
                (size,) = struct.unpack("!H", self._file.read(2))
            elif size == 127:
                (size,) = struct.unpack("!Q", self._file.read(8))
            yield start[0] & 0x0F, self._file.read(size)

    def frames(self) -> Iterator[tuple[int, bytes]]:
        """Channel and data, until the other side ends."""
        for opcode, payload in self.raw_frames():
            if opcode == 8:
                return
            if opcode in (1, 2) and payload:
                yield payload[0], payload[1:]

    def all(self) -> Mapping[int, bytes]:
        """All data received, by channel."""
        output: dict[int, bytearray] = {}
        for channel, data in self.frames():
            output.setdefault(channel, bytearray()).extend(data)
        return {channel: bytes(data) for channel, data in output.items()}
