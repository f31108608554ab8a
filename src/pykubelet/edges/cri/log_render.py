"""From the lines of a container's log file to what people asked for. Pure.

Owns: the choice of lines by stream and time, the time stamps in front, and the cut at a number of bytes. Two formats are
read: CRI's, and Docker's JSON lines; the first line tells which. A line that is in neither is passed over.
Source: PodLogOptions in the Kubernetes API reference.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Any

import msgspec

from pykubelet.base.kit.values import Value
from pykubelet.edges.cri.logs import parse_timestamp_ns

_LINE = re.compile(rb"([^ \n]+) (stdout|stderr) ([PF])(?::[^ \n]*)? ?(.*)", re.DOTALL)
_FRACTION = re.compile(rb"(T\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?")
_WIDTH = len("2006-01-02T15:04:05.000000000Z")


class LogStream(StrEnum):
    ALL = "All"
    STDOUT = "Stdout"
    STDERR = "Stderr"


class LogOptions(Value):
    """What is asked for. `since_ns`: nanoseconds since the epoch; `tail_lines`: raw lines of the file, partial ones too."""

    follow: bool = False
    timestamps: bool = False
    tail_lines: int | None = None
    limit_bytes: int | None = None
    since_ns: int | None = None
    stream: LogStream = LogStream.ALL


class _WholeLines:
    """Lines that are all whole, as nearly all are: this is what a large log spends its time in. Pure.

    To begin a match costs more than to go on with one, so one match takes many lines. Nothing in it ever goes back, and
    what it looks through is bounded or ends with the line, so that no file makes it look far in vain.
    """

    _AT_ONCE = 16

    def __init__(self, line: bytes) -> None:
        """`line`: a pattern of a line with its end; its groups are what is wanted of it."""
        line = b"^" + line  # else the search for one would try every byte of what is none, with all threads waiting
        self._one = re.compile(line, re.MULTILINE)
        self._many = re.compile(line * self._AT_ONCE, re.MULTILINE)

    def find(self, text: bytes) -> list[bytes] | None:
        """What the groups found, line by line; None where there is anything else between the lines or after them."""
        found = self._many.split(text)
        last = self._one.split(found.pop())
        between, between_last = slice(None, None, self._many.groups + 1), slice(None, None, self._one.groups + 1)
        if any(found[between]) or any(last[between_last]):
            return None
        del found[between], last[between_last]
        found += last
        return found


# A line without a space in front of a head goes with it, and is passed over; where the head is wanted, it must not.
_CONTENTS = _WholeLines(rb"[^ ]{20,35}+ std(?:out|err) F (.*+\n)")
_STAMPED = _WholeLines(rb"([^ \n]{20,35}+ )std(?:out|err) F (.*+\n)")


class LogRenderer:
    """Renders the lines of one container's log in their order. Feed it whole lines; `is_full`: nothing more is wanted."""

    def __init__(self, options: LogOptions) -> None:
        self._options = options
        self._left = options.limit_bytes
        self._is_json: bool | None = None
        self._in_line: dict[bytes, bool] = {}

    @property
    def is_full(self) -> bool:
        return self._left is not None and self._left <= 0

    def render(self, lines: bytes) -> bytes:
        """What these lines say, under the options; `lines` ends with a line's end unless the file does not."""
        if self._is_json is None:
            self._is_json = lines.startswith(b"{")
        out = self._all_whole(lines) if not self._is_json else None
        if out is None:
            out = b"".join([self._line(line) for line in lines.split(b"\n")])
        if self._left is not None:
            out = out[: self._left]
            self._left -= len(out)
        return out

    def _all_whole(self, lines: bytes) -> bytes | None:
        """The same for lines that are all whole and all wanted; None when they are not."""
        options = self._options
        if options.since_ns is not None or options.stream is not LogStream.ALL or any(self._in_line.values()):
            return None
        parts = (_STAMPED if options.timestamps else _CONTENTS).find(lines)
        if parts and options.timestamps:
            parts[::2] = [s if len(s) == _WIDTH + 1 else fixed_width(s) for s in parts[::2]]
        return b"".join(parts) if parts else None

    def _line(self, line: bytes) -> bytes:
        if not line:
            return b""
        return self._from_json(line) if self._is_json else self._from_cri(line)

    def _from_cri(self, line: bytes) -> bytes:
        match = _LINE.fullmatch(line)
        if match is None:
            return b""
        stamp, stream, tag, content = match.groups()
        is_part = tag == b"P"
        return self._chosen(stamp, stream, content if is_part else content + b"\n", is_part=is_part)

    def _from_json(self, line: bytes) -> bytes:
        try:
            found: Any = msgspec.json.decode(line)
            content, stream, stamp = found["log"].encode(), found["stream"].encode(), found["time"].encode()
        except (msgspec.DecodeError, UnicodeError, RecursionError, KeyError, TypeError, AttributeError):
            return b""
        return self._chosen(stamp, stream, content, is_part=not content.endswith(b"\n"))

    def _chosen(self, stamp: bytes, stream: bytes, content: bytes, *, is_part: bool) -> bytes:
        options = self._options
        continues = self._in_line.get(stream, False)
        self._in_line[stream] = is_part
        if options.stream is not LogStream.ALL and stream != options.stream.lower().encode():
            return b""
        if options.since_ns is not None:
            at = parse_timestamp_ns(stamp)
            if at is None or at < options.since_ns:
                return b""
        if options.timestamps and not continues:
            return fixed_width(stamp) + b" " + content
        return content


def fixed_width(stamp: bytes) -> bytes:
    """A time stamp with nine digits of a second."""

    def padded(match: re.Match[bytes]) -> bytes:
        return match[1] + b"." + (match[2] or b"").ljust(9, b"0")

    return _FRACTION.sub(padded, stamp, count=1)
