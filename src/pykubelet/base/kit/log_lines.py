"""The text of log lines, in the formats of Kubernetes components: klog's text, and JSON.

Text: `I0102 15:04:05.000000     123 loop.py:9] "message" logger="pods" pod="ns/name" podUID="..." key="value"`. The letter is the
severity (I, W or E), the number is the process. JSON: an object with `ts` (milliseconds), `logger`, `caller`, `msg` and `v`; a
failure has no `v` and has `err`. A pod is shown as `namespace/name` in text and as an object in JSON, with its UID in `podUID`.
What is long is cut: a message, a field and a line of a traceback have at most `MAX_FIELD` characters before they are quoted.
Source: the Kubernetes documentation "System Logs", and KEP-1602.
"""

from __future__ import annotations

import json
import logging
import time
import traceback
from collections.abc import Iterator, Mapping
from json.encoder import encode_basestring
from typing import Any

from pykubelet.base.kit.text import escape_controls
from pykubelet.base.kit.values import Value

_LETTERS = {logging.WARNING: "W", logging.ERROR: "E", logging.CRITICAL: "E"}
#: The keys that the kubelet uses for fields with a shorter name here.
_KEYS = {"error": "err", "uid": "podUID", "container": "containerName"}
#: The longest text of one field, in characters. How much of a longer one is left out follows it.
MAX_FIELD = 4096
Fields = Mapping[str, Any]


class Line(Value):
    """One event. `at`: wall seconds. `level`: a number of `logging`. `verbosity`: the `-v` from which it is shown.

    `file`, `line`: the place in the code; `folder`: the last directory of its path. `stack`: lines that follow, in the place of the
    traceback of an error.
    """

    at: float
    level: int
    verbosity: int
    logger: str
    folder: str
    file: str
    line: int
    message: str
    fields: Fields
    error: BaseException | None = None
    stack: str = ""


class LogNote(Value):
    """A line that a pure decision has logged by its caller. `is_problem`: it is a warning."""

    text: str
    fields: Fields
    is_problem: bool = False


class TextLines:
    """Renders lines as text. It keeps the text of the current second."""

    def __init__(self, pid: int) -> None:
        self._pid = f"{pid:7d}"
        self._second = (0, "")

    def render(self, line: Line) -> str:
        """The text of a line, without a line feed, followed by the traceback of its error."""
        second = int(line.at)
        if second != self._second[0]:
            self._second = (second, time.strftime("%m%d %H:%M:%S", time.localtime(second)))
        stamp = f"{self._second[1]}.{int((line.at - second) * 1e6):06d}"
        head = f"{_LETTERS.get(line.level, 'I')}{stamp} {self._pid} {line.file}:{line.line}]"
        tail = "".join(f" {key}={_text(value)}" for key, value in _pairs(line.fields))
        text = f'{head} {_quoted(_cut(line.message))} logger="{line.logger}"{tail}'
        stack = _cut_lines(line.stack) if line.error is None else _traceback(line.error)
        return f"{text}\n{escape_controls(stack)}" if stack else text


def json_line(line: Line) -> str:
    """A line as a JSON object, without a line feed."""
    entry: dict[str, Any] = {
        "ts": round(line.at * 1000, 4),
        "logger": line.logger,
        "caller": f"{line.folder}/{line.file}:{line.line}",
        "msg": _cut(line.message),
    }
    if line.level < logging.ERROR:
        entry["v"] = line.verbosity
    if line.level == logging.WARNING:
        entry["level"] = "warning"
    entry.update((key, _plain(value)) for key, value in _pairs(line.fields))
    if line.error is not None:
        entry.setdefault("err", _cut(str(line.error)))
        entry["stacktrace"] = _traceback(line.error)
    elif line.stack:
        entry["stacktrace"] = _cut_lines(line.stack)
    return json.dumps(entry)


class _Pod(Value):
    namespace: str
    name: str


def _pairs(fields: Fields) -> Iterator[tuple[str, Any]]:
    """The fields by the keys that they are shown with; an object as `pod` becomes its name and its UID."""
    for key, value in fields.items():
        if value is None:
            continue
        if key == "pod" and hasattr(value, "namespace"):
            yield key, _Pod(value.namespace, value.name)
            if "uid" not in fields:
                yield "podUID", str(value.uid)
        else:
            yield _KEYS.get(key, key), value


def _cut(text: str) -> str:
    """The beginning of a text that is too long, with the number of characters that are left out."""
    return text if len(text) <= MAX_FIELD else f"{text[:MAX_FIELD]}... ({len(text) - MAX_FIELD} more characters)"


def _cut_lines(text: str) -> str:
    return text if len(text) <= MAX_FIELD else "\n".join(map(_cut, text.split("\n")))


def _text(value: Any) -> str:
    if isinstance(value, str):
        return _quoted(_cut(value))
    if isinstance(value, (bool, int, float)):
        return str(value).lower() if isinstance(value, bool) else str(value)
    if isinstance(value, _Pod):
        return _quoted(f"{value.namespace}/{value.name}")
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return escape_controls(_cut(json.dumps(value, default=str, ensure_ascii=False)))
    return _quoted(_cut(str(value)))


def _quoted(text: str) -> str:
    return escape_controls(encode_basestring(text))


def _plain(value: Any) -> Any:
    if isinstance(value, _Pod):
        return {"name": value.name, "namespace": value.namespace}
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        text = json.dumps(value, default=str, ensure_ascii=False)
        return _cut(text) if len(text) > MAX_FIELD else [_plain(item) for item in value]
    return value if isinstance(value, (int, float, bool, type(None))) else _cut(str(value))


def _traceback(error: BaseException) -> str:
    return _cut_lines("".join(traceback.format_exception(error)).rstrip("\n"))
