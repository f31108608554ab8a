"""Answers of HTTP/1.1 as they arrive in pieces. Pure.

Owns: heads, bodies by length, in chunks or up to the end of the connection. Strict: what is ambiguous is an error.
Source: RFC 9112.
"""

from __future__ import annotations

from enum import Enum, auto

from pykubelet.base.kit.digits import parse_decimal

HEAD_LIMIT = 64 * 1024
LINE_LIMIT = 4096


class BadAnswer(ValueError):
    """The peer does not speak HTTP as it should; the connection is of no more use."""


class _Stage(Enum):
    HEAD = auto()
    LENGTH = auto()
    CHUNK_SIZE = auto()
    CHUNK = auto()
    CHUNK_END = auto()
    TRAILER = auto()
    TO_THE_END = auto()
    DONE = auto()


class Answer:
    """One answer. `feed` what arrives; `parts`: pieces of the body that nobody has taken yet."""

    def __init__(self, *, has_body: bool = True) -> None:
        """`has_body`: False for the answer to CONNECT, which ends with its head."""
        self.status = 0
        self.headers: dict[str, str] = {}
        self.parts: list[bytes] = []
        self.keeps_alive = True
        self._has_body = has_body
        self._stage = _Stage.HEAD
        self._rest = b""
        self._left = 0

    @property
    def begun(self) -> bool:
        """The head has arrived."""
        return self.status > 0

    @property
    def heard(self) -> bool:
        """Anything at all has arrived."""
        return self.begun or bool(self._rest)

    @property
    def complete(self) -> bool:
        return self._stage is _Stage.DONE

    def take(self) -> bytes:
        """What has arrived of the body since the last call."""
        taken = self.parts[0] if len(self.parts) == 1 else b"".join(self.parts)
        self.parts = []
        return taken

    def feed(self, data: bytes) -> None:
        """Raises BadAnswer."""
        if self._rest:
            data, self._rest = self._rest + data, b""
        at = 0
        while at < len(data):
            match self._stage:
                case _Stage.HEAD:
                    next_at = self._take_head(data, at)
                case _Stage.LENGTH | _Stage.CHUNK:
                    next_at = self._take_bytes(data, at)
                case _Stage.CHUNK_SIZE | _Stage.CHUNK_END | _Stage.TRAILER:
                    next_at = self._take_line(data, at)
                case _Stage.TO_THE_END:
                    self.parts.append(data[at:])
                    return
                case _Stage.DONE:
                    self.keeps_alive = False  # nobody asked for more
                    return
            if next_at < 0:
                self._rest = data[at:]
                return
            at = next_at

    def end(self) -> None:
        """The peer has closed the connection. BadAnswer where the answer is not all there."""
        self.keeps_alive = False
        if self._stage is _Stage.TO_THE_END:
            self._stage = _Stage.DONE
        elif self._stage is not _Stage.DONE:
            raise BadAnswer("the connection ended in the middle of an answer" if self.begun else "no answer came")

    def _take_head(self, data: bytes, at: int) -> int:
        end = data.find(b"\r\n\r\n", at)
        if end < 0:
            if len(data) - at > HEAD_LIMIT:
                raise BadAnswer("the head of the answer is too large")
            if not b"HTTP/1.".startswith(data[at : at + 7]):
                raise BadAnswer("the answer is not HTTP/1.1")
            return -1
        first, *lines = data[at:end].decode("latin-1").split("\r\n")
        version, _, rest = first.partition(" ")
        code = rest[:3]
        if version not in ("HTTP/1.1", "HTTP/1.0") or not (code.isascii() and code.isdigit() and len(code) == 3):
            raise BadAnswer("the answer is not HTTP/1.1")
        if 100 <= int(code) < 200:
            return end + 4
        self.headers = dict(_header(line) for line in lines)
        self.status = int(code)
        close = "close" in self.headers.get("connection", "").lower()
        self.keeps_alive = version == "HTTP/1.1" and not close
        self._begin_body()
        return end + 4

    def _begin_body(self) -> None:
        length, coding = self.headers.get("content-length"), self.headers.get("transfer-encoding")
        if not self._has_body or self.status in (204, 304):
            self._stage = _Stage.DONE
        elif coding is not None:
            if coding.strip().lower() != "chunked" or length is not None:
                raise BadAnswer(f"a body in the coding {coding!r} cannot be read")
            self._stage = _Stage.CHUNK_SIZE
        elif length is not None:
            size = parse_decimal(length)
            if size is None:
                raise BadAnswer(f"bad Content-Length {length[:40]!r}")
            self._left = size
            self._stage = _Stage.LENGTH if self._left else _Stage.DONE
        else:
            self.keeps_alive = False
            self._stage = _Stage.TO_THE_END

    def _take_bytes(self, data: bytes, at: int) -> int:
        end = min(len(data), at + self._left)
        self.parts.append(data[at:end] if at or end < len(data) else data)
        self._left -= end - at
        if not self._left:
            self._stage = _Stage.CHUNK_END if self._stage is _Stage.CHUNK else _Stage.DONE
        return end

    def _take_line(self, data: bytes, at: int) -> int:
        end = data.find(b"\r\n", at)
        if end < 0:
            if len(data) - at > LINE_LIMIT:
                raise BadAnswer("a line between chunks is too long")
            return -1
        line = data[at:end]
        if self._stage is _Stage.CHUNK_SIZE:
            self._left = _chunk_size(line)
            self._stage = _Stage.CHUNK if self._left else _Stage.TRAILER
        elif self._stage is _Stage.CHUNK_END:
            if line:
                raise BadAnswer("a chunk is longer than it says")
            self._stage = _Stage.CHUNK_SIZE
        elif not line:
            self._stage = _Stage.DONE
        return end + 2


def _header(line: str) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    if not colon or not name or name != name.strip():
        raise BadAnswer("a header of the answer has no name")
    return name.lower(), value.strip()


def _chunk_size(line: bytes) -> int:
    digits = line.partition(b";")[0].strip()
    try:
        if not digits.isalnum() or len(digits) > 15:
            raise ValueError
        return int(digits, 16)
    except ValueError:
        raise BadAnswer("a chunk has no size") from None
