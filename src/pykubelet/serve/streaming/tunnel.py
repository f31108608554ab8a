"""Port-forward through a WebSocket: tunnels SPDY between client and runtime without interpreting it. Pure.

Source: KEP-4006 and KEP-4216.
"""

from __future__ import annotations

from pykubelet.net.websocket import frames
from pykubelet.serve.streaming.bridge import Step

_PREFIX, _SUFFIX = "SPDY/3.1+", ".k8s.io"


def tunnel_for(offered: list[str]) -> Tunnel | None:
    """The tunnel for the offered subprotocols; None if they include none."""
    for protocol in offered:
        if protocol.startswith(_PREFIX) and protocol.endswith(_SUFFIX):
            return Tunnel(protocol)
    return None


class Tunnel:
    """Converts between binary messages, whose boundaries have no meaning, and the bytes of one connection."""

    is_open = True

    def __init__(self, protocol: str) -> None:
        self.protocol = protocol
        self.runtime_protocol = protocol.removeprefix(_PREFIX)
        self._frames = frames.WebSocketReader()
        self._close_frame = b""

    def start(self) -> tuple[bytes, bytes]:
        """No bytes: nothing is sent before data."""
        return b"", b""

    def from_client(self, data: bytes) -> Step:
        """The content of the client's WebSocket messages, for the runtime."""
        received = self._frames.feed(data)
        self._close_frame = self._close_frame or received.close_frame
        return Step([piece.data for piece in received.pieces], received.pong, bool(self._close_frame))

    def from_runtime(self, data: bytes) -> Step:
        """Bytes of the runtime as one binary WebSocket message."""
        return Step([frames.head(frames.BINARY, len(data)), data])

    def close_message(self, error: str) -> bytes:
        """The WebSocket Close frame; `error`: why the stream ended early, empty if it did not."""
        return self._close_frame or frames.close_frame(frames.GOING_AWAY if error else frames.NORMAL, error)
