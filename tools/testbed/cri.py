"""The two questions the testbed asks a runtime over CRI, without a gRPC library: is it ready, has it this image.

One unary gRPC call is one HTTP/2 request; its messages are written by hand. The agent has a real client.
"""

from __future__ import annotations

import socket
import struct
from pathlib import Path

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY = 0, 1, 3, 4, 6, 7
_END_STREAM, _END_HEADERS, _ACK = 1, 4, 1


def call(endpoint: Path, method: str, message: bytes = b"", timeout_s: float = 2.0) -> bytes | None:
    """The encoded reply to `method` (package.Service/Method), or None when there is no answer or the call failed."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(timeout_s)
            connection.connect(str(endpoint))
            connection.sendall(_PREFACE + _frame(_SETTINGS, 0, 0, b"") + _request(method, message))
            return _read_reply(connection)
    except OSError:
        return None


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def _request(method: str, message: bytes) -> bytes:
    def text(value: str) -> bytes:
        return bytes((len(value),)) + value.encode()

    # HPACK literals without indexing: :method POST, :scheme http, :path, :authority, content-type, te
    headers = b"\x83\x86\x04" + text(f"/{method}") + b"\x01" + text("localhost")
    headers += b"\x0f\x10" + text("application/grpc") + b"\x00" + text("te") + text("trailers")
    body = b"\0" + struct.pack(">I", len(message)) + message
    return _frame(_HEADERS, _END_HEADERS, 1, headers) + _frame(_DATA, _END_STREAM, 1, body)


def _read_reply(connection: socket.socket) -> bytes | None:
    body = b""
    with connection.makefile("rb") as stream:
        while len(head := stream.read(9)) == 9:
            length, kind, flags = int.from_bytes(head[:3], "big"), head[3], head[4]
            payload = stream.read(length)
            if kind == _SETTINGS and not flags & _ACK:
                connection.sendall(_frame(_SETTINGS, _ACK, 0, b""))
            elif kind == _PING and not flags & _ACK:
                connection.sendall(_frame(_PING, _ACK, 0, payload))
            elif kind == _DATA:
                body += payload
            elif kind in (_RST_STREAM, _GOAWAY):
                return None
            if kind in (_DATA, _HEADERS) and flags & _END_STREAM:
                break
    return body[5:] if len(body) >= 5 else None  # a failed call has trailers only


def is_ready(endpoint: Path) -> bool:
    """Whether the runtime answers CRI's Status, which it does not before it has read its own state back."""
    reply = call(endpoint, "runtime.v1.RuntimeService/Status")
    return reply is not None and b"RuntimeReady" in reply


def has_image(endpoint: Path, name: str, image_id: str = "") -> bool:
    """Whether CRI knows the image `name` with the ID `image_id` (sha256:..., or empty for any)."""

    def field(data: bytes) -> bytes:  # field 1, length-delimited
        return b"\x0a" + bytes((len(data),)) + data

    reply = call(endpoint, "runtime.v1.ImageService/ImageStatus", field(field(name.encode())))
    if not reply:
        return False
    return image_id.removeprefix("sha256:").encode() in reply  # CRI-O's IDs have no algorithm in front
