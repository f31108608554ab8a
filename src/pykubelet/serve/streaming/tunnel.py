"""Port-forward through a WebSocket: SPDY between client and runtime, of which nothing is looked at. Pure.

Source: KEP-4006 and KEP-4216.
"""

from __future__ import annotations

from pykubelet.net.websocket import frames
from pykubelet.serve.streaming.bridge import Step

_PREFIX, _SUFFIX = "SPDY/3.1+", ".k8s.io"


def tunnel_for(offered: list[str]) -> Tunnel | None:
    """None where no tunnel is offered."""
    for protocol in offered:
        if protocol.startswith(_PREFIX) and protocol.endswith(_SUFFIX):
            return Tunnel(protocol)
    return None


class Tunnel:
    """Binary messages, whose borders mean nothing, from and to one connection."""

    is_open = True

    def __init__(self, protocol: str) -> None:
        self.protocol = protocol
        self.runtime_protocol = protocol.removeprefix(_PREFIX)
        self._frames = frames.FrameReader()
        self._goodbye = b""

    def start(self) -> tuple[bytes, bytes]:
        return b"", b""

    def from_client(self, data: bytes) -> Step:
        received = self._frames.feed(data)
        self._goodbye = self._goodbye or received.goodbye
        return Step([piece.data for piece in received.pieces], received.pong, bool(self._goodbye))

    def from_runtime(self, data: bytes) -> Step:
        return Step([frames.head(frames.BINARY, len(data)), data])

    def farewell(self, trouble: str) -> bytes:
        return self._goodbye or frames.goodbye(frames.GOING_AWAY if trouble else frames.NORMAL, trouble)
