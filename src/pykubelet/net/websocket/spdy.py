"""SPDY/3.1 frames, as a client that opens streams writes and reads them; `spdy_server.py` has the other side. Pure.

Owns: frame heads, the compression of headers, and the detection of violations. The runtime's headers contain nothing that is
needed, so they are not decompressed. Flow-control windows are not used: neither the runtimes' servers nor the cluster's
clients use them, and TCP itself slows down a fast sender. Data is returned in pieces as it arrives.
Source: draft-mbelshe-httpbis-spdy-00 and "SPDY Protocol - Draft 3.1".
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping

from pykubelet.base.kit.values import Value

SYN_STREAM, SYN_REPLY, RST_STREAM, SETTINGS, PING, GOAWAY, HEADERS, WINDOW_UPDATE = 1, 2, 3, 4, 6, 7, 8, 9
FIN = 1
#: No meaningful control frame is longer.
MAX_CONTROL = 64 * 1024
_VERSION = 0x8003
_HEAD = 8
_ID = 0x7FFFFFFF
#: The dictionary with which both sides start the compression of headers (the draft's section 2.6.10.1).
_WORDS = (
    "options head post put delete trace accept accept-charset accept-encoding accept-language accept-ranges age allow"
    " authorization cache-control connection content-base content-encoding content-language content-length"
    " content-location content-md5 content-range content-type date etag expect expires from host if-match"
    " if-modified-since if-none-match if-range if-unmodified-since last-modified location max-forwards pragma"
    " proxy-authenticate proxy-authorization range referer retry-after server te trailer transfer-encoding upgrade"
    " user-agent vary via warning www-authenticate method get status 200_OK version HTTP/1.1 url public set-cookie"
    " keep-alive origin"
)
_PHRASES = (
    "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505203 Non-Authoritative "
    "Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidden404 Not Found500 "
    "Internal Server Error501 Not Implemented503 Service UnavailableJan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec "
    "00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMTchunked,text/html,image/png,image/jpg,image/gif,application/xml,"
    "application/xhtml+xml,text/plain,text/javascript,publicprivatemax-age=gzip,deflate,sdchcharset=utf-8"
    "charset=iso-8859-1,utf-,*,enq=0."
)


def _counted(text: str) -> bytes:
    return len(text).to_bytes(4, "big") + text.encode("ascii")


DICTIONARY = b"".join(_counted(word.replace("_", " ")) for word in _WORDS.split()) + _PHRASES.encode()


class StreamOpener:
    """Writes the frames that open streams. Use one per connection, because all its headers share one compression state."""

    def __init__(self) -> None:
        self._packer = zlib.compressobj(wbits=11, memLevel=1, zdict=DICTIONARY)  # few headers need little memory

    def open(self, stream: int, headers: Mapping[str, str]) -> bytes:
        """The frame that opens a stream. `stream`: odd, and larger than the previous ones. `headers`: by lower-case name."""
        plain = len(headers).to_bytes(4, "big")
        plain += b"".join(_counted(name) + _counted(value) for name, value in headers.items())
        packed = self._packer.compress(plain) + self._packer.flush(zlib.Z_SYNC_FLUSH)
        return control(SYN_STREAM, stream.to_bytes(4, "big") + bytes(6) + packed)


def data_head(stream: int, size: int, *, last: bool = False) -> bytes:
    """The head of a frame with `size` bytes of a stream. `last`: the stream ends in this direction."""
    return stream.to_bytes(4, "big") + ((FIN if last else 0) << 24 | size).to_bytes(4, "big")


def pong(number: int) -> bytes:
    """The answer to the PING of that number."""
    return control(PING, number.to_bytes(4, "big"))


def control(kind: int, payload: bytes) -> bytes:
    """A control frame without flags."""
    return _VERSION.to_bytes(2, "big") + kind.to_bytes(2, "big") + len(payload).to_bytes(4, "big") + payload


class Replied(Value):
    """The other side has accepted the stream."""

    stream: int


class Data(Value):
    """Some bytes of a stream."""

    stream: int
    data: bytes


class StreamFinished(Value):
    """The other side has ended its direction of the stream."""

    stream: int


class Reset(Value):
    """The stream has ended in both directions."""

    stream: int


class Ping(Value):
    """A PING. `number`: even for a ping of the other side; odd for an answer."""

    number: int


class Broken(Value):
    """The bytes are not valid SPDY. No frames follow."""

    reason: str


class Opened(Value):
    """The client opens a stream. `headers`: by lower-case name."""

    stream: int
    headers: Mapping[str, str]


class GoneAway(Value):
    """The other side opens no more streams and accepts none."""


Frame = Replied | Data | StreamFinished | Reset | Ping | Broken | Opened | GoneAway


class SpdyFrameReader:
    """Decodes the frames that the runtime sends on one connection."""

    def __init__(self) -> None:
        self._unread = b""
        self._stream = 0
        self._left = 0
        self._last = False
        self._broken = False

    def feed(self, data: bytes) -> list[Frame]:
        """The frames in the next bytes, which may be split anywhere."""
        frames: list[Frame] = []
        if self._unread:
            data = self._unread + data
        at, size = 0, len(data)
        while not self._broken:
            if self._left:
                if at == size:
                    break
                piece = data[at : at + self._left]
                at += len(piece)
                self._left -= len(piece)
                frames.append(Data(self._stream, piece))
                if self._last and not self._left:
                    frames.append(StreamFinished(self._stream))
                continue
            if size - at < _HEAD:
                break
            flags, length = data[at + 4], int.from_bytes(data[at + 5 : at + 8], "big")
            if data[at] & 0x80:
                problem = _problem(data[at : at + 4], length)
                if problem:
                    self._broken = True
                    frames.append(Broken(problem))
                    break
                if size - at < _HEAD + length:
                    break
                self._read_control(data[at + 3], flags, data[at + _HEAD : at + _HEAD + length], frames)
                at += _HEAD + length
                continue
            self._stream = int.from_bytes(data[at : at + 4], "big")
            self._left, self._last = length, bool(flags & FIN)
            at += _HEAD
            if self._last and not length:
                frames.append(StreamFinished(self._stream))
        self._unread = data[at:]
        return frames

    def _read_control(self, kind: int, flags: int, payload: bytes, frames: list[Frame]) -> None:
        """Decode a control frame. Frames of unknown kinds, and those that need no reaction, are ignored."""
        number = int.from_bytes(payload[:4], "big") & _ID
        if kind == SYN_REPLY:
            frames.append(Replied(number))
            if flags & FIN:
                frames.append(StreamFinished(number))
        elif kind == RST_STREAM:
            frames.append(Reset(number))
        elif kind == PING:
            frames.append(Ping(int.from_bytes(payload[:4], "big")))


def _problem(start: bytes, length: int) -> str:
    """The violation in a control frame with this start; empty if there is none."""
    if int.from_bytes(start[:2], "big") != _VERSION:
        return "another version of SPDY"
    return "a control frame that is too long" if length > MAX_CONTROL else ""
