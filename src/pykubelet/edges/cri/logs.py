"""Parses the CRI log format, and reads the end of a container's log.

Owns: the parser of one line, and the bounded read for `terminationMessagePolicy: FallbackToLogsOnError`. Logs are followed,
filtered and rotated elsewhere.

A line has the form `2016-10-06T00:17:09.669794202Z stdout F content`. The tag is `F` for a full line, and `P` for a part that
continues with the next line of the same stream. Source: the CRI log format proposal (kubelet-cri-logging).
"""

from __future__ import annotations

import os
import re
from datetime import MINYEAR, date

from pykubelet.base.kit.values import Value
from pykubelet.base.model.paths import Beneath
from pykubelet.edges.cri.log_files import find_log
from pykubelet.edges.host.fs.beneath import list_dir, open_regular
from pykubelet.edges.host.fs.errors import HostError, Translating
from pykubelet.edges.host.fs.files import FileKind, OpenDescriptor

FALLBACK_LINES = 80
FALLBACK_BYTES = 2048
#: The ordinal of 1970-01-01.
_EPOCH = date(1970, 1, 1).toordinal()

# Bytes of a line's timestamp (at most 35 bytes), stream, tags and separators.
_MAX_HEADER_BYTES = 64
#: The longest line whose beginning is looked for. Runtimes cut lines at 16 KiB, unless configured otherwise.
MAX_LINE = 1 << 20
_BLOCK = 1 << 14
_STAMP = re.compile(
    rb"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?(?:Z|([+-])(\d\d):(\d\d))",
)


class LogLine(Value):
    """One line of a log file: `timestamp_ns` since the epoch, the stream, and the content without its line end."""

    timestamp_ns: int
    stream: str
    is_partial: bool
    content: bytes


def parse_line(line: bytes) -> LogLine | None:
    """Parse a line (with or without its line end). None if it is not in CRI format."""
    fields = line.removesuffix(b"\n").split(b" ", 3)
    if len(fields) < 3 or fields[1] not in (b"stdout", b"stderr"):
        return None
    stamp = parse_timestamp_ns(fields[0])
    if stamp is None:
        return None
    is_partial = fields[2].split(b":", 1)[0] == b"P"
    return LogLine(stamp, fields[1].decode(), is_partial, fields[3] if len(fields) == 4 else b"")


def parse_timestamp_ns(text: bytes) -> int | None:
    """Parse an RFC 3339 time with a fraction of up to nine digits to nanoseconds since the epoch. None if it is not one."""
    match = _STAMP.fullmatch(text)
    if match is None:
        return None
    year, month, day, hour, minute, second = (int(part) for part in match.groups()[:6])
    if not (year >= MINYEAR and 1 <= month <= 12 and 1 <= day <= 31 and hour < 24 and minute < 60 and second <= 60):
        return None
    days = date(year, month, 1).toordinal() - _EPOCH + day - 1
    seconds = ((days * 24 + hour) * 60 + minute) * 60 + second
    if match[8]:
        offset = int(match[9]) * 3600 + int(match[10]) * 60
        seconds += -offset if match[8] == b"+" else offset
    return seconds * 1_000_000_000 + int((match[7] or b"0").ljust(9, b"0"))


def read_log_tail(
    path: str, container: str = "", max_lines: int = FALLBACK_LINES, max_bytes: int = FALLBACK_BYTES
) -> str:
    """The content of the last `max_lines` lines of a CRI log, both streams, cut to their last `max_bytes` bytes.

    `container`: the container's ID. Reads only the necessary part of the file's end (about 7 KiB by default), however long the file
    is. Lines that are not in CRI's format are left out. If the log was just rotated and is missing or empty, reads the newest rotated
    file. Raises HostError if the log cannot be read.
    """
    log = find_log(path, container)
    try:
        text = _read_tail(log, max_lines, max_bytes)
    except HostError as error:
        if not error.is_not_found or (rotated := _newest_rotated(log)) is None:
            raise
        return _read_tail(rotated, max_lines, max_bytes)
    if not text and (rotated := _newest_rotated(log)) is not None:
        return _read_tail(rotated, max_lines, max_bytes)
    return text


def _newest_rotated(log: Beneath) -> Beneath | None:
    """The newest file `<log>.<time stamp>` that is not compressed yet."""
    try:
        names = [entry.name for entry in list_dir(log.parent) if entry.kind is FileKind.FILE]
    except HostError:
        return None
    stamps = [name.removeprefix(f"{log.name}.") for name in names if name.startswith(f"{log.name}.")]
    plain = [stamp for stamp in stamps if stamp.replace("-", "").isdigit()]
    return log.suffixed(f".{max(plain)}") if plain else None


def _read_tail(log: Beneath, max_lines: int, max_bytes: int) -> str:
    window = max_bytes + max_lines * _MAX_HEADER_BYTES
    with OpenDescriptor(open_regular(log)) as descriptor, Translating("read", log):
        start = max(0, os.fstat(descriptor).st_size - window)
        data = _with_header(descriptor, start, os.pread(descriptor, window, start))
    return tail_of(data, max_lines, max_bytes).decode(errors="replace")


def _with_header(descriptor: int, start: int, data: bytes) -> bytes:
    """The bytes at `start`, with the header of the line that they begin in the middle of; without that line if it has none."""
    begin = _line_start(descriptor, start)
    if begin == start:
        return data
    first, newline, rest = data.partition(b"\n")
    head = os.pread(descriptor, min(_MAX_HEADER_BYTES, start - begin + len(first)), begin) if begin is not None else b""
    parsed = parse_line(head)
    if begin is None or parsed is None:
        return rest
    header = head[: len(head) - len(parsed.content)]
    return header + first[max(0, begin + len(header) - start) :] + newline + rest


def _line_start(descriptor: int, at: int) -> int | None:
    """Where the line begins that the byte at `at` is in. None if that is too far away for a line of a log."""
    end, limit = at, max(0, at - MAX_LINE)
    while end > limit:
        block = os.pread(descriptor, min(_BLOCK, end - limit), max(limit, end - _BLOCK))
        found = block.rfind(b"\n")
        if found >= 0:
            return end - len(block) + found + 1
        end -= len(block)
        if not block:
            return None
    return 0 if end == 0 else None


def tail_of(data: bytes, max_lines: int, max_bytes: int) -> bytes:
    """As `read_log_tail`, for bytes that begin with a line."""
    lines = data.split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    content = bytearray()
    for line in lines[-max_lines:] if max_lines > 0 else []:
        parsed = parse_line(line)
        if parsed is not None:
            content += parsed.content if parsed.is_partial else parsed.content + b"\n"
    return bytes(content[-max_bytes:]) if max_bytes > 0 else b""
