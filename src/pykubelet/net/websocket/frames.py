"""WebSocket frames, as a server reads and writes them. Pure.

Owns: the limits for a client, and the heads of frames for it. The library `websockets` handles masks, order and sizes of
frames, pings and the closing handshake. The library holds a frame until it is complete, so a frame larger than FRAGMENT is
split into fragments first (RFC 6455, section 5.4): clients send a message of any size in one frame, and the reference accepts
it. Fragments are returned as they arrive, so a message may have any size and any number of fragments. The content of messages
is not interpreted here. The library is imported with the first reader, because most nodes never need it.
Source: RFC 6455.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, cast

from pykubelet.base.kit.values import Value, field

if TYPE_CHECKING:
    from websockets.frames import Frame

TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
NORMAL, GOING_AWAY, POLICY = 1000, 1001, 1008
#: A client that sends more pings than this at a time is disconnected; no well-behaved client does.
MAX_PINGS = 1000
#: The most bytes of a frame that are held. A multiple of four, so that each fragment begins with the mask's first byte.
FRAGMENT = 64 * 1024
_FINAL, _MASKED = 0x80, 0x80
_CONTINUATION = 0
_MAX_CONTROL = 125
_LARGEST = 1 << 63
_PONG_HEAD = bytes((_FINAL | PONG,))
#: At level DEBUG the library logs parts of every frame, which may be secrets.
_LOGGER = logging.getLogger("websockets.server")
_LOGGER.setLevel(logging.WARNING)


def head(opcode: int, size: int) -> bytes:
    """The head of a server's frame that contains a whole message of `size` bytes."""
    return _head(_FINAL | opcode, size)


def _head(first: int, size: int, masked: int = 0) -> bytes:
    if size < 126:
        return bytes((first, masked | size))
    if size < 1 << 16:
        return bytes((first, masked | 126)) + size.to_bytes(2, "big")
    return bytes((first, masked | 127)) + size.to_bytes(8, "big")


def close_frame(code: int, reason: str = "") -> bytes:
    """The close frame, which is the last one."""
    payload = code.to_bytes(2, "big") + reason.encode()[: _MAX_CONTROL - 2]
    return head(CLOSE, len(payload)) + payload


class Piece(Value):
    """Some bytes of a message. `first`: a message begins here, so the previous one is complete."""

    data: bytes
    first: bool


class ReceivedFrames(Value):
    """Frames of a client: pieces of messages in order, the answer to a ping, and the close frame to send.

    The close frame answers that of the client or a protocol violation. Nothing comes after it.
    """

    pieces: list[Piece] = field(default_factory=list)
    pong: bytes = b""
    close_frame: bytes = b""


class WebSocketReader:
    """Decodes the frames that the client sends on one connection."""

    def __init__(self) -> None:
        from websockets.protocol import OPEN
        from websockets.server import ServerProtocol

        self._protocol = ServerProtocol(state=OPEN, max_size=(None, FRAGMENT), logger=_LOGGER)
        self._fragmenter = _Fragmenter()
        self._ended = False

    def feed(self, data: bytes) -> ReceivedFrames:
        """Process the next bytes, which may be split anywhere. Of several pings, only the last is answered."""
        if self._ended:
            return ReceivedFrames()
        self._protocol.receive_data(self._fragmenter.feed(data))
        pieces: list[Piece] = []
        pings = 0
        for frame in cast("list[Frame]", self._protocol.events_received()):
            if frame.opcode == PING:
                pings += 1
            elif frame.opcode < CLOSE:
                pieces.append(Piece(bytes(frame.data), frame.opcode != _CONTINUATION))
        if pings > MAX_PINGS:
            self._protocol.fail(POLICY, "too many pings")
        pong = close_message = b""
        for answer in self._protocol.data_to_send():
            if answer[:1] == _PONG_HEAD:
                pong = answer
            else:
                close_message += answer
        self._ended = bool(close_message)
        return ReceivedFrames(pieces, pong, close_message)


class _Fragmenter:
    """Splits data frames larger than FRAGMENT into fragments with the same mask. Other frames stay as they are."""

    def __init__(self) -> None:
        self._unread = b""
        #: The remaining bytes of the current fragment, and of its frame after that fragment.
        self._left = 0
        self._rest = 0
        self._final = 0
        self._mask = b""

    def feed(self, data: bytes) -> bytes:
        """Process the next bytes. An incomplete head is held back."""
        if self._unread:
            data = self._unread + data
        parts: list[bytes] = []
        kept = at = 0
        while True:
            if self._left:
                taken = min(self._left, len(data) - at)
                at += taken
                self._left -= taken
                if self._left:
                    break
            elif self._rest:
                parts += (data[kept:at], self._next(_CONTINUATION, self._rest))
                kept = at
            else:
                end, size = _read_head(data, at)
                if end > len(data):
                    break
                if FRAGMENT < size < _LARGEST and data[at + 1] & _MASKED and data[at] & 0x0F < CLOSE:
                    self._final, self._mask = data[at] & _FINAL, data[end - 4 : end]
                    parts += (data[kept:at], self._next(data[at] & ~_FINAL, size))
                    kept = end
                else:
                    self._left = size
                at = end
        self._unread = data[at:]
        parts.append(data[kept:at])
        return b"".join(parts) if len(parts) > 1 else parts[0]

    def _next(self, first: int, size: int) -> bytes:
        """The head of the next fragment of a frame with `size` remaining bytes."""
        self._left = min(size, FRAGMENT)
        self._rest = size - self._left
        return _head(first if self._rest else first | self._final, self._left, _MASKED) + self._mask


def _read_head(data: bytes, at: int) -> tuple[int, int]:
    """The end of a frame's head, and the size of its payload. If the end is after that of `data`, the head is not complete."""
    if len(data) < at + 2:
        return at + 2, 0
    masked, size = data[at + 1] & _MASKED, data[at + 1] & 0x7F
    width = {126: 2, 127: 8}.get(size, 0)
    if width:
        size = int.from_bytes(data[at + 2 : at + 2 + width], "big")
    return at + 2 + width + (4 if masked else 0), size
