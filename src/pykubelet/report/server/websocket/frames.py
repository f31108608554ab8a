"""Frames of WebSocket, as a server reads and writes them. Pure.

Owns: heads, masks, fragments, the answers to pings and to a goodbye, and what is not allowed. A message is passed on in
pieces as they come, so nothing is kept but an unfinished head and no message is too long. What messages say is for others.
Source: RFC 6455.
"""

from __future__ import annotations

from functools import cache

from pykubelet.base.kit.values import Value, field

TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
NORMAL, GOING_AWAY, PROTOCOL_ERROR, POLICY = 1000, 1001, 1002, 1008
#: A client that sends more of them at a time than any that works is sent away.
MAX_PINGS = 1000
_CONTINUATION = 0
_MAX_CONTROL = 125
_LARGEST = 1 << 63


def head(opcode: int, size: int) -> bytes:
    """The head of a frame that is a whole message of `size` bytes."""
    if size < 126:
        return bytes((0x80 | opcode, size))
    if size < 1 << 16:
        return bytes((0x80 | opcode, 126)) + size.to_bytes(2, "big")
    return bytes((0x80 | opcode, 127)) + size.to_bytes(8, "big")


def goodbye(code: int, reason: str = "") -> bytes:
    """The last frame."""
    payload = code.to_bytes(2, "big") + reason.encode()[: _MAX_CONTROL - 2]
    return head(CLOSE, len(payload)) + payload


class Piece(Value):
    """Some bytes of a message. `first`: a message begins here; one that has not begun ends the one before."""

    data: bytearray
    first: bool


class Received(Value):
    """What came: pieces in order, what is to be answered to a ping, and to the last frame. After a goodbye nothing comes."""

    pieces: list[Piece] = field(default_factory=list)
    pong: bytes = b""
    goodbye: bytes = b""


class _Head(Value):
    final: bool
    opcode: int
    size: int
    mask: bytes
    end: int


class _Refused(Exception):
    """The client does what it must not; the text is for it."""


class FrameReader:
    """The client's half of one connection."""

    def __init__(self) -> None:
        self._unread = b""
        self._left = 0
        self._mask = b""
        self._first = False
        self._in_message = False
        self._ended = False

    def feed(self, data: bytes) -> Received:
        """The next bytes, cut anywhere. Of several pings the last is answered."""
        pieces: list[Piece] = []
        if self._ended:
            return Received(pieces)
        try:
            pong, farewell = self._read(self._unread + data if self._unread else data, pieces)
        except _Refused as error:
            pong, farewell = b"", goodbye(PROTOCOL_ERROR, str(error))
        self._ended = bool(farewell)
        return Received(pieces, pong, farewell)

    def _read(self, data: bytes, pieces: list[Piece]) -> tuple[bytes, bytes]:
        """The answers: to a ping, and to the last frame."""
        view = memoryview(data)
        at = pings = 0
        pong = farewell = b""
        while not farewell:
            if self._left:
                if at == len(data):
                    break
                at += self._take_piece(view[at : at + self._left], pieces)
                continue
            found = _read_head(data, at)
            if found is None or (found.opcode >= CLOSE and len(data) < found.end + found.size):
                break
            at = found.end
            if found.opcode < CLOSE:
                self._begin_frame(found, pieces)
                continue
            payload = _unmasked(view[at : at + found.size], found.mask)
            at += found.size
            if found.opcode == CLOSE:
                farewell = _answer_goodbye(payload)
            elif found.opcode == PING:
                pings += 1
                pong = head(PONG, len(payload)) + payload
                if pings > MAX_PINGS:
                    farewell = goodbye(POLICY, "too many pings")
        self._unread = data[at:]
        return pong, farewell

    def _begin_frame(self, found: _Head, pieces: list[Piece]) -> None:
        if self._in_message != (found.opcode == _CONTINUATION):
            raise _Refused("a message begins within another" if self._in_message else "nothing to continue")
        self._first = not self._in_message
        self._in_message = not found.final
        self._left, self._mask = found.size, found.mask
        if not found.size and self._first:
            pieces.append(Piece(bytearray(), first=True))

    def _take_piece(self, masked: memoryview, pieces: list[Piece]) -> int:
        size = len(masked)
        pieces.append(Piece(_unmasked(masked, self._mask), self._first))
        self._first = False
        self._left -= size
        turn = size % 4
        self._mask = self._mask[turn:] + self._mask[:turn]
        return size


def _read_head(data: bytes, at: int) -> _Head | None:
    """None while it is not complete."""
    if len(data) < at + 2:
        return None
    flags, size = data[at], data[at + 1]
    opcode = flags & 0x0F
    if flags & 0x70:
        raise _Refused("an extension that was not agreed on")
    if not size & 0x80:
        raise _Refused("a frame without a mask")
    if opcode not in (_CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG):
        raise _Refused("an unknown kind of frame")
    size &= 0x7F
    if opcode >= CLOSE and (size > _MAX_CONTROL or not flags & 0x80):
        raise _Refused("a control frame that is too long")
    at += 2
    width = {126: 2, 127: 8}.get(size, 0)
    end = at + width + 4
    if len(data) < end:
        return None
    if width:
        size = int.from_bytes(data[at : at + width], "big")
        if size >= _LARGEST:
            raise _Refused("a frame of an impossible size")
    return _Head(bool(flags & 0x80), opcode, size, data[end - 4 : end], end)


def _unmasked(data: memoryview, mask: bytes) -> bytearray:
    plain = bytearray(data)
    if mask == b"\0\0\0\0":
        return plain
    for lane, key in enumerate(mask):
        plain[lane::4] = plain[lane::4].translate(_unmasking(key))
    return plain


@cache
def _unmasking(key: int) -> bytes:
    """Every byte, unmasked."""
    return bytes(value ^ key for value in range(256))


def _answer_goodbye(payload: bytearray) -> bytes:
    """The same code, as far as one was given that may be given."""
    if not payload:
        return goodbye(NORMAL)
    code = int.from_bytes(payload[:2], "big")
    may_be_sent = len(payload) > 1 and (1000 <= code <= 1014 or 3000 <= code <= 4999) and code not in (1004, 1005, 1006)
    return goodbye(code if may_be_sent else PROTOCOL_ERROR)
