"""The interface of the translations between a client's connection and the streams of a process. Pure."""

from __future__ import annotations

import json
from typing import Protocol

from pykubelet.base.kit.values import Value, field
from pykubelet_cri_docker.streaming.status import StreamResult

#: The most bytes that are kept of a size that is not complete.
MAX_SIZE_BYTES = 256
_MAX_EDGE = 65535


class TerminalSize(Value):
    """The size of a terminal in characters."""

    width: int
    height: int


class Received(Value):
    """What bytes of the client mean. `answer`: what the protocol sends back. `is_over`: the client ends the connection, or has violated
    the protocol."""

    stdin: list[bytes] = field(default_factory=list)
    stdin_ended: bool = False
    size: TerminalSize | None = None
    answer: bytes = b""
    is_over: bool = False


class Channels(Protocol):
    """The translation of one exec or attach."""

    @property
    def is_open(self) -> bool:
        """Whether the client has opened all streams that were requested."""
        ...

    def start(self) -> bytes:
        """The first bytes for the client."""
        ...

    def feed(self, data: bytes) -> Received:
        """Translate bytes of the client, which may be split anywhere."""
        ...

    def output(self, data: bytes, *, is_stderr: bool) -> bytes:
        """The frame for the client with some output; empty if the client does not want it."""
        ...

    def finish(self, status: StreamResult) -> bytes:
        """The last bytes for the client: the end of the output, and the result."""
        ...


class SizeReader:
    """Reads the sizes of a terminal: JSON objects in a row, such as `{"Width":80,"Height":24}`. Only the newest one matters."""

    def __init__(self) -> None:
        self._unread = b""

    def feed(self, data: bytes) -> TerminalSize | None:
        """The newest size in the next bytes. What is no size is passed over."""
        complete, end, rest = (self._unread + data).rpartition(b"}")
        self._unread = rest if len(rest) <= MAX_SIZE_BYTES else b""
        start = complete.rpartition(b"}")[2]
        return _parse_size(start + end) if end and len(start) <= MAX_SIZE_BYTES else None


def _parse_size(text: bytes) -> TerminalSize | None:
    try:
        parsed = json.loads(text)
    except ValueError:
        return None
    if not isinstance(parsed, dict):
        return None
    edges = {name.lower(): value for name, value in parsed.items()}
    width, height = _edge(edges.get("width")), _edge(edges.get("height"))
    return TerminalSize(width, height) if width is not None and height is not None else None


def _edge(value: object) -> int | None:
    return value if type(value) is int and 0 <= value <= _MAX_EDGE else None
