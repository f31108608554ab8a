"""The output of a process without a terminal: stdout and stderr in one stream, each piece behind a head of eight bytes. Pure.

Source: the Docker Engine API reference, "Attach to a container".
"""

from __future__ import annotations

import struct

_HEAD = struct.Struct(">BxxxL")
_STDERR = 2


class OutputReader:
    """Takes the stream as it comes. Keeps nothing but the beginning of a head."""

    def __init__(self) -> None:
        self._head = b""
        self._left = 0
        self._is_stderr = False

    def feed(self, data: bytes) -> list[tuple[bool, bytes]]:
        """Pieces of output, each with whether it is of stderr."""
        pieces: list[tuple[bool, bytes]] = []
        at = 0
        while at < len(data):
            if self._left:
                piece = data[at : at + self._left]
                pieces.append((self._is_stderr, piece))
                self._left -= len(piece)
                at += len(piece)
                continue
            part = data[at : at + _HEAD.size - len(self._head)]
            self._head += part
            at += len(part)
            if len(self._head) == _HEAD.size:
                source, self._left = _HEAD.unpack(self._head)
                self._is_stderr, self._head = source == _STDERR, b""
        return pieces
