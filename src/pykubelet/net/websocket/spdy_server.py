"""SPDY/3.1 frames, as a server reads and writes them: the streams of a client, and their answers. Pure.

Owns: the headers of the client, which are inflated within limits. All headers of one direction share one compression state, so those
without a meaning are inflated too. A violation ends the connection, as the state cannot be continued after it.
Source: "SPDY Protocol - Draft 3.1", sections 2.6.1 to 2.6.10.
"""

from __future__ import annotations

import zlib

from pykubelet.net.websocket import spdy

#: The most bytes of the headers of one frame, inflated. Clients send less than a hundred.
MAX_HEADER_BYTES = 1024
#: The most headers of one frame. Clients send three.
MAX_HEADERS = 32
#: Why a stream is reset: it was refused, or is not needed any more.
REFUSED, CANCEL = 3, 5
_NUMBER = 4
_ID = 0x7FFFFFFF
_FIN = spdy.FIN
#: Where the headers begin in the frames that have some.
_HEADERS_AT = {spdy.SYN_STREAM: 10, spdy.SYN_REPLY: 4, spdy.HEADERS: 4}


class _Malformed(Exception):
    """The headers are not valid. The text is the reason."""


class ServedFrameReader(spdy.SpdyFrameReader):
    """Decodes the frames that a client sends on one connection. The number of a new stream is odd, and larger than the previous ones."""

    def __init__(self) -> None:
        super().__init__()
        self._unpacker = zlib.decompressobj(zdict=spdy.DICTIONARY)
        self._newest = 0

    def _read_control(self, kind: int, flags: int, payload: bytes, frames: list[spdy.Frame]) -> None:
        at = _HEADERS_AT.get(kind)
        if at is None:
            if kind == spdy.GOAWAY:
                frames.append(spdy.GoneAway())
            else:
                super()._read_control(kind, flags, payload, frames)
            return
        try:
            headers = self._inflate(payload[at:])
            if kind == spdy.SYN_STREAM:
                frames.append(spdy.Opened(self._open(payload), headers))
            if flags & _FIN:
                frames.append(spdy.StreamFinished(int.from_bytes(payload[:_NUMBER], "big") & _ID))
        except _Malformed as error:
            self._broken = True
            frames.append(spdy.Broken(str(error)))

    def _open(self, payload: bytes) -> int:
        stream = int.from_bytes(payload[:_NUMBER], "big") & _ID
        if stream <= self._newest or stream % 2 == 0:
            raise _Malformed("a stream with a number that is not free")
        self._newest = stream
        return stream

    def _inflate(self, packed: bytes) -> dict[str, str]:
        """The headers of a frame. No more than the limit is ever inflated."""
        try:
            plain = self._unpacker.decompress(packed, MAX_HEADER_BYTES + 1)
        except zlib.error as error:
            raise _Malformed("headers that cannot be inflated") from error
        if len(plain) > MAX_HEADER_BYTES:
            raise _Malformed("headers that are too long")
        if self._unpacker.eof:
            raise _Malformed("headers that end the compression")
        return _parse_headers(plain)


def _parse_headers(plain: bytes) -> dict[str, str]:
    """Headers by lower-case name; of several values, the first."""
    count, at = int.from_bytes(plain[:_NUMBER], "big"), _NUMBER
    if len(plain) < _NUMBER or count > MAX_HEADERS:
        raise _Malformed("headers that are not complete" if len(plain) < _NUMBER else "too many headers")
    headers: dict[str, str] = {}
    for _ in range(count):
        name, at = _read_text(plain, at)
        value, at = _read_text(plain, at)
        if name.lower() in headers:
            raise _Malformed("a header that is there twice")
        headers[name.lower()] = value.split("\0")[0]
    if at != len(plain):
        raise _Malformed("headers with a wrong length")
    return headers


def _read_text(plain: bytes, at: int) -> tuple[str, int]:
    """The text at this place, and the place after it."""
    start = at + _NUMBER
    end = start + int.from_bytes(plain[at:start], "big")
    if end > len(plain) or start > len(plain):
        raise _Malformed("headers that are not complete")
    return plain[start:end].decode("latin-1"), end


class StreamReplier:
    """Writes the frames that accept streams, without headers. Use one per connection, because they share one compression state."""

    def __init__(self) -> None:
        self._packer = zlib.compressobj(wbits=11, memLevel=1, zdict=spdy.DICTIONARY)

    def accept(self, stream: int) -> bytes:
        """The frame that accepts the stream."""
        packed = self._packer.compress(bytes(_NUMBER)) + self._packer.flush(zlib.Z_SYNC_FLUSH)
        return spdy.control(spdy.SYN_REPLY, stream.to_bytes(_NUMBER, "big") + packed)


def reset(stream: int, reason: int) -> bytes:
    """The frame that ends a stream in both directions."""
    return spdy.control(spdy.RST_STREAM, stream.to_bytes(_NUMBER, "big") + reason.to_bytes(_NUMBER, "big"))


def go_away(newest: int) -> bytes:
    """The frame that announces the end of the connection. `newest`: the newest stream that was accepted."""
    return spdy.control(spdy.GOAWAY, newest.to_bytes(_NUMBER, "big") + bytes(_NUMBER))
