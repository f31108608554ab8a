"""Translates entries of Docker's json-file log to lines of a CRI log. Pure.

An entry is a line such as `{"log":"text\\n","stream":"stdout","time":"2026-01-02T03:04:05.123456789Z"}`. Docker cuts a line of the
container after 16 KiB: only its last entry ends with a newline, and becomes a full line (`F`), all others parts (`P`). So each entry is
translated by itself, which also keeps apart the parts of both streams: what was written before makes no difference, and the same
bytes give the same lines after a restart. The end of an output without a newline is a part, as containerd writes it.

Podman's log (`k8s-file`) has the format of the CRI already: such lines stay as they are.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from pykubelet.base.kit.values import Value

_START = b'{"log":'
#: To compare all times of many entries at once: each digit becomes a zero, then only few shapes are left.
_ZEROS = bytes.maketrans(b"123456789", b"000000000")
_SHAPE = re.compile(rb"0000-00-00T00:00:00(\.0{1,9})?(Z|[+-]00:00)")
_CRI_LINE = re.compile(rb"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]{8,18}(Z|[+-][0-9]{2}:[0-9]{2}) std(out|err) [FP] ")


class _Entry(msgspec.Struct, gc=False):
    """One entry. Docker leaves an empty `log` out, and may add `attrs`."""

    stream: Literal["stdout", "stderr"]
    time: str
    log: str = ""


class Lines(Value):
    """Lines of a CRI log. `skipped`: the number of entries that cannot be read."""

    text: bytes
    skipped: int = 0


_DECODER = msgspec.json.Decoder(_Entry)


def render(entries: bytes) -> Lines:
    """The CRI lines of whole entries, each with its line end."""
    try:
        return Lines(_render(_DECODER.decode_lines(entries)))
    except (ValueError, RecursionError):
        return _render_each(entries)


def _render_each(entries: bytes) -> Lines:
    lines, skipped = [], 0
    for entry in entries.split(b"\n"):
        if entry:
            line = entry + b"\n" if _CRI_LINE.match(entry) else _render_damaged(entry)
            lines.append(line or b"")
            skipped += line is None
    return Lines(b"".join(lines), skipped)


def _render_damaged(entry: bytes) -> bytes | None:
    """The lines of an entry, which may follow the rest of another one, or NULs: Docker or the machine came down while it wrote that.

    The beginning of an entry cannot occur within one, where quotation marks are escaped.
    """
    try:
        return _render([_DECODER.decode(entry[max(0, entry.rfind(_START)) :])])
    except (ValueError, RecursionError):
        return None


def _render(entries: list[_Entry]) -> bytes:
    """Raises ValueError if any time is none."""
    times = "\n".join([entry.time for entry in entries]).encode().translate(_ZEROS).split(b"\n") if entries else []
    if len(times) != len(entries) or not all(map(_SHAPE.fullmatch, set(times))):
        raise ValueError("a time is not in RFC 3339 format")
    return "".join(
        [
            f"{entry.time} {entry.stream} F {entry.log}"
            if 0 <= entry.log.find("\n") == len(entry.log) - 1
            else _odd_lines(entry)
            for entry in entries
        ]
    ).encode()


def _odd_lines(entry: _Entry) -> str:
    """The lines of an entry without a newline at its end, or with others, which Docker does not write."""
    *full, rest = entry.log.split("\n")
    head = f"{entry.time} {entry.stream}"
    return "".join([*(f"{head} F {line}\n" for line in full), f"{head} P {rest}\n" if rest or not full else ""])
