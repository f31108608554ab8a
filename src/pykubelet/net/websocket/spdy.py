"""Frames of SPDY/3.1, as a client that opens streams writes and reads them. Pure.

Owns: heads, the packing of headers, and what is not allowed. The runtime's own headers say nothing that is needed, so they
are never unpacked. Windows are not kept: no runtime's server does (nor the cluster's clients); the connection itself holds
back who is too fast. Data is passed on in pieces as it comes.
Source: draft-mbelshe-httpbis-spdy-00 and "SPDY Protocol - Draft 3.1".
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping

from pykubelet.base.kit.values import Value

SYN_STREAM, SYN_REPLY, RST_STREAM, SETTINGS, PING, GOAWAY, HEADERS, WINDOW_UPDATE = 1, 2, 3, 4, 6, 7, 8, 9
FIN = 1
#: No control frame that has a sense is longer.
MAX_CONTROL = 64 * 1024
_VERSION = 0x8003
_HEAD = 8
_ID = 0x7FFFFFFF
#: Both sides begin the packing of headers with these words (the draft's section 2.6.10.1).
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
    """Writes the frames that open streams; all of a connection's go through one, for their headers are packed as one."""

    def __init__(self) -> None:
        self._packer = zlib.compressobj(wbits=11, memLevel=1, zdict=DICTIONARY)  # the small one: a few words in all

    def open(self, stream: int, headers: Mapping[str, str]) -> bytes:
        """`stream`: odd, and larger than those before. `headers`: lower-case names."""
        plain = len(headers).to_bytes(4, "big")
        plain += b"".join(_counted(name) + _counted(value) for name, value in headers.items())
        packed = self._packer.compress(plain) + self._packer.flush(zlib.Z_SYNC_FLUSH)
        return _control(SYN_STREAM, stream.to_bytes(4, "big") + bytes(6) + packed)


def data_head(stream: int, size: int, *, last: bool = False) -> bytes:
    """What goes before `size` bytes of a stream. `last`: no more will come in this direction."""
    return stream.to_bytes(4, "big") + ((FIN if last else 0) << 24 | size).to_bytes(4, "big")


def pong(number: int) -> bytes:
    return _control(PING, number.to_bytes(4, "big"))


def _control(kind: int, payload: bytes) -> bytes:
    return _VERSION.to_bytes(2, "big") + kind.to_bytes(2, "big") + len(payload).to_bytes(4, "big") + payload


class Replied(Value):
    """The other side has the stream."""

    stream: int


class Data(Value):
    """Some bytes of a stream."""

    stream: int
    data: bytes


class Finished(Value):
    """Nothing more comes of the stream."""

    stream: int


class Reset(Value):
    """The stream is over in both directions."""

    stream: int


class Ping(Value):
    """`number`: even, or it is an answer."""

    number: int


class Broken(Value):
    """This is no SPDY; nothing comes after it."""

    reason: str


Frame = Replied | Data | Finished | Reset | Ping | Broken


class FrameReader:
    """The runtime's half of one connection."""

    def __init__(self) -> None:
        self._unread = b""
        self._stream = 0
        self._left = 0
        self._last = False
        self._broken = False

    def feed(self, data: bytes) -> list[Frame]:
        """What the next bytes say, cut anywhere."""
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
                    frames.append(Finished(self._stream))
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
                _read_control(data[at + 3], flags, data[at + _HEAD : at + _HEAD + length], frames)
                at += _HEAD + length
                continue
            self._stream = int.from_bytes(data[at : at + 4], "big")
            self._left, self._last = length, bool(flags & FIN)
            at += _HEAD
            if self._last and not length:
                frames.append(Finished(self._stream))
        self._unread = data[at:]
        return frames


def _problem(start: bytes, length: int) -> str:
    """What is wrong with a control frame that begins like this."""
    if int.from_bytes(start[:2], "big") != _VERSION:
        return "another version of SPDY"
    return "a control frame that is too long" if length > MAX_CONTROL else ""


def _read_control(kind: int, flags: int, payload: bytes, frames: list[Frame]) -> None:
    """Kinds that are not known, or ask for nothing, are passed over."""
    number = int.from_bytes(payload[:4], "big") & _ID
    if kind == SYN_REPLY:
        frames.append(Replied(number))
        if flags & FIN:
            frames.append(Finished(number))
    elif kind == RST_STREAM:
        frames.append(Reset(number))
    elif kind == PING:
        frames.append(Ping(int.from_bytes(payload[:4], "big")))
