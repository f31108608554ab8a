"""JSON arrays that Docker Engine answers, item by item: a long one is never whole in memory. Pure.

Source: RFC 8259.
"""

from __future__ import annotations

import re

#: Bytes of an item, such as a container or an image with its labels.
MAX_ITEM = 8 << 20
#: The rest of a string as far as it has arrived, without its end; and what is before the next bracket, with whole strings.
_INSIDE = re.compile(rb'(?:[^"\\]|\\.)*+', re.DOTALL)
_OUTSIDE = re.compile(rb'(?:[^"\[\]{}]|"(?:[^"\\]|\\.)*+")*+', re.DOTALL)


class ArrayItems:
    """Finds the objects of an array as its bytes arrive. `skipped`: those that had more than `most` bytes.

    What is no array of objects gives no items, or items that cannot be decoded.
    """

    def __init__(self, most: int = MAX_ITEM) -> None:
        self.skipped = 0
        self._most = most
        self._data = bytearray()
        self._at = 0
        self._depth = 0
        self._in_string = False
        self._is_skipping = False

    def feed(self, data: bytes) -> list[bytes]:
        """Process bytes; returns the items that are complete now."""
        self._data += data
        items: list[bytes] = []
        while True:
            held, at = self._data, self._at
            found = _INSIDE.match(held, at) if self._in_string else _OUTSIDE.match(held, at)
            self._at = self._at if found is None else found.end()
            del found  # it would keep the buffer from changing
            mark = bytes(self._data[self._at : self._at + 1])
            if mark in (b"", b"\\"):  # the end of what has arrived
                break
            self._at += 1
            if mark == b'"':
                self._in_string = not self._in_string
            elif mark in b"[{":
                self._depth += 1
                if self._depth == 2:
                    self._drop(self._at - 1)
            else:
                self._depth -= 1
                if self._depth == 1:
                    self._complete(items)
        self._forget()
        return items

    def _complete(self, items: list[bytes]) -> None:
        if self._is_skipping or self._at > self._most:
            self.skipped += 1
        else:
            items.append(bytes(self._data[: self._at]))
        self._is_skipping = False
        self._drop(self._at)

    def _forget(self) -> None:
        """Drop what is between items, and of an item that is too large."""
        if self._depth < 2 or self._is_skipping:
            self._drop(self._at)
        elif len(self._data) > self._most:
            self._is_skipping = True
            self._drop(self._at)

    def _drop(self, count: int) -> None:
        del self._data[:count]
        self._at -= count
