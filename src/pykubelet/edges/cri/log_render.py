"""Renders the lines of a container's log file as a client requested them. Pure.

Owns: the selection of lines by stream and time, the leading time stamps, and the limit of bytes. It reads two formats: CRI's
and Docker's JSON lines; the first line determines which. A line in neither format is skipped.
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
_FRACTION = re.compile(rb"(T\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?([+-]00:00)?")
_WIDTH = len("2006-01-02T15:04:05.000000000Z")


class LogStream(StrEnum):
    """The wanted streams of a container (`PodLogOptions.stream`)."""

    ALL = "All"
    STDOUT = "Stdout"
    STDERR = "Stderr"


class LogOptions(Value):
    """The options of a request. `since_ns`: nanoseconds since the epoch. `tail_lines`: raw lines of the file; parts count."""

    follow: bool = False
    timestamps: bool = False
    tail_lines: int | None = None
    limit_bytes: int | None = None
    since_ns: int | None = None
    stream: LogStream = LogStream.ALL


class _WholeLines:
    """The fast path for text in which every line is whole (tag F), as nearly all lines are. Pure.

    Starting a match costs more than continuing one, so one match covers many lines. The pattern never backtracks, and each of
    its parts is bounded or ends with the line, so that no content of a file makes it slow.
    """

    def __init__(self, line: re.Pattern[bytes], lines: re.Pattern[bytes]) -> None:
        """`line`: the pattern of a line with its newline. Its groups are the wanted parts of a line. `lines`: that of some lines."""
        self._line = line
        self._lines = lines

    def find(self, text: bytes) -> list[bytes] | None:
        """The groups of all lines, in order; None if the text contains anything but such lines."""
        found = self._lines.split(text)
        last = self._line.split(found.pop())
        between, between_last = slice(None, None, self._lines.groups + 1), slice(None, None, self._line.groups + 1)
        if any(found[between]) or any(last[between_last]):
            return None
        del found[between], last[between_last]
        found += last
        return found


# Without time stamps, a line of junk without a space may be matched together with the head of the next line, and is skipped
# with it. With time stamps it must not be, because the head is returned.
# A pattern begins at the start of a line: otherwise a search in other text would try every byte, while all threads wait.
_AT_ONCE = 16
_CONTENT = rb"^[^ ]{20,35}+ std(?:out|err) F (.*+\n)"
_STAMP = rb"^([^ \n]{20,35}+ )std(?:out|err) F (.*+\n)"
_CONTENTS = _WholeLines(re.compile(_CONTENT, re.MULTILINE), re.compile(_CONTENT * _AT_ONCE, re.MULTILINE))
_STAMPED = _WholeLines(re.compile(_STAMP, re.MULTILINE), re.compile(_STAMP * _AT_ONCE, re.MULTILINE))


class LogRenderer:
    """Renders the lines of one container's log in order. Pass it whole lines until `is_full`."""

    def __init__(self, options: LogOptions) -> None:
        self._options = options
        self._left = options.limit_bytes
        self._is_json: bool | None = None
        self._in_line: dict[bytes, bool] = {}

    @property
    def is_full(self) -> bool:
        """Whether `limit_bytes` is reached, so that no further line is rendered."""
        return self._left is not None and self._left <= 0

    def render(self, lines: bytes) -> bytes:
        """Render `lines` under the options. They end with a newline, unless they are the end of a file without one."""
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
        """As `render`, for lines that are all whole and all wanted; None if they are not."""
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
    """The time stamp with a nine-digit fraction of a second, and `Z` where CRI-O writes UTC as an offset of zero."""

    def padded(match: re.Match[bytes]) -> bytes:
        return match[1] + b"." + (match[2] or b"").ljust(9, b"0") + (b"Z" if match[3] else b"")

    return _FRACTION.sub(padded, stamp, count=1)
