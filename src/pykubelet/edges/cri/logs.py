"""Parses the CRI log format, and reads the end of a container's log.

Owns: the parser of one line, and the bounded read for `terminationMessagePolicy: FallbackToLogsOnError`. Logs are followed,
filtered and rotated elsewhere.

A line has the form `2016-10-06T00:17:09.669794202Z stdout F content`. The tag is `F` for a full line, and `P` for a part that
continues with the next line of the same stream. Source: the CRI log format proposal (kubelet-cri-logging).
"""

from __future__ import annotations

import calendar
import os
import re

from pykubelet.base.kit.values import Value

FALLBACK_LINES = 80
FALLBACK_BYTES = 2048

# Bytes of a line's timestamp (at most 35 bytes), stream, tags and separators.
_MAX_HEADER_BYTES = 64
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
    if not (1 <= month <= 12 and 1 <= day <= 31 and hour < 24 and minute < 60 and second <= 60):
        return None
    seconds = calendar.timegm((year, month, day, hour, minute, second))
    if match[8]:
        offset = int(match[9]) * 3600 + int(match[10]) * 60
        seconds += -offset if match[8] == b"+" else offset
    return seconds * 1_000_000_000 + int((match[7] or b"0").ljust(9, b"0"))


def read_log_tail(path: str, max_lines: int = FALLBACK_LINES, max_bytes: int = FALLBACK_BYTES) -> str:
    """The content of the last `max_lines` lines of a CRI log, both streams, cut to their last `max_bytes` bytes.

    Reads only the necessary part of the file's end (about 7 KiB by default), however long the file or its lines are. If the log
    was just rotated and is missing or empty, reads the newest rotated file. Raises OSError if the log cannot be read.
    """
    try:
        text = _read_tail(path, max_lines, max_bytes)
    except FileNotFoundError:
        if (rotated := _newest_rotated(path)) is None:
            raise
        return _read_tail(rotated, max_lines, max_bytes)
    if not text and (rotated := _newest_rotated(path)) is not None:
        return _read_tail(rotated, max_lines, max_bytes)
    return text


def _newest_rotated(path: str) -> str | None:
    """The newest file `<path>.<time stamp>` that is not compressed yet."""
    directory, name = os.path.split(path)
    try:
        names = [other for other in os.listdir(directory) if other.startswith(f"{name}.")]
    except OSError:
        return None
    plain = [other for other in names if other.removeprefix(f"{name}.").replace("-", "").isdigit()]
    return os.path.join(directory, max(plain)) if plain else None


def _read_tail(path: str, max_lines: int, max_bytes: int) -> str:
    window = max_bytes + max_lines * _MAX_HEADER_BYTES
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        start = max(0, os.fstat(descriptor).st_size - window)
        data = os.pread(descriptor, window, start)
    finally:
        os.close(descriptor)
    return tail_of(data, max_lines, max_bytes, is_cut=start > 0).decode(errors="replace")


def tail_of(data: bytes, max_lines: int, max_bytes: int, *, is_cut: bool) -> bytes:
    """As `read_log_tail`, for bytes from the end of a file. `is_cut`: the first line may lack its beginning."""
    lines = data.split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    tail = lines[-max_lines:] if max_lines > 0 else []
    starts_cut = is_cut and len(tail) == len(lines)
    content = bytearray()
    for number, line in enumerate(tail):
        parsed = parse_line(line)
        if parsed is not None:
            content += parsed.content if parsed.is_partial else parsed.content + b"\n"
        elif number == 0 and starts_cut:
            content += line + b"\n"  # the end of a line that is too long to find its beginning
    return bytes(content[-max_bytes:]) if max_bytes > 0 else b""
