"""Structured logging: one line an event, `key=value` behind the message, or JSON.

Owns: the format and the verbosity of the agent's log (standard error). Log changes (failed once, recovered once), not
iterations; give `pod`, `uid` and `cause` wherever there is one. Levels and names are those of `logging`; the agent's own
lines go straight to the stream, because a record of `logging` costs more than the line itself. Where the stream is the
journal of systemd, each line begins with its priority, which the journal takes off. Source: sd-daemon(3), systemd.exec(5).
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import time
import traceback
from json.encoder import encode_basestring
from typing import Any, TextIO

from pykubelet.base.kit.terminal import escape_controls, has_controls

_ROOT = logging.getLogger("pykubelet")
_BREAKING = re.compile(r'[ "\n\t=]').search
#: syslog's numbers
_PRIORITIES = {logging.DEBUG: "<7>", logging.INFO: "<6>", logging.WARNING: "<4>", logging.ERROR: "<3>"}
_LEVELS = {logging.DEBUG: "D", logging.INFO: "I", logging.WARNING: "W", logging.ERROR: "E"}
Fields = dict[str, Any]


class Log:
    """A named logger whose calls take fields as keyword arguments."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._logger = _ROOT.getChild(name)

    def debug(self, message: str, **fields: Any) -> None:
        self._say(logging.DEBUG, message, fields)

    def info(self, message: str, **fields: Any) -> None:
        self._say(logging.INFO, message, fields)

    def warning(self, message: str, **fields: Any) -> None:
        self._say(logging.WARNING, message, fields)

    def error(self, message: str, *, exc_info: BaseException | None = None, **fields: Any) -> None:
        self._say(logging.ERROR, message, fields, exc_info)

    def _say(self, level: int, message: str, fields: Fields, error: BaseException | None = None) -> None:
        if not self._logger.isEnabledFor(level):
            return
        for handler in _ROOT.handlers:
            if isinstance(handler, _Lines):
                handler.write(self._name, level, message, fields, error)
                return
        self._logger.log(level, message, extra={"fields": fields}, exc_info=error)


class _Lines(logging.Handler):
    """Writes lines to a stream. As a handler it is there for whoever logs by `logging` itself."""

    def __init__(self, stream: TextIO, *, json_format: bool) -> None:
        super().__init__()
        self._stream = stream
        self._line = _json_line if json_format else _TextLine().line
        self._to_journal = _is_journal(stream)

    def write(self, room: str, level: int, message: str, fields: Fields, error: BaseException | None) -> None:
        """One line, with the traceback of an error behind it."""
        line = self._line(time.time(), room, level, message, fields, error)
        if self._to_journal:
            priority = _PRIORITIES.get(level, "<6>")
            line = priority + line.replace("\n", "\n" + priority)  # the lines of a traceback are entries too
        try:
            self._stream.write(line + "\n")
        except (OSError, ValueError):  # nobody reads the log any more, and there is nobody else to tell
            return

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        room = record.name.removeprefix("pykubelet.")
        self.write(room, record.levelno, record.getMessage(), getattr(record, "fields", {}), error)


def _is_journal(stream: TextIO) -> bool:
    """Whether the stream is the one that systemd has connected with the journal (JOURNAL_STREAM, device and inode)."""
    told = os.environ.get("JOURNAL_STREAM")
    if not told:
        return False
    try:
        found = os.fstat(stream.fileno())
    except (OSError, ValueError):  # no file behind it
        return False
    return told == f"{found.st_dev}:{found.st_ino}"


class _TextLine:
    def __init__(self) -> None:
        self._second = (0, "")

    def line(self, at: float, room: str, level: int, message: str, fields: Fields, error: BaseException | None) -> str:
        second = int(at)
        if second != self._second[0]:
            self._second = (second, time.strftime("%m%d %H:%M:%S", time.localtime(second)))
        stamp = f"{self._second[1]}.{int((at - second) * 1000):03d}"
        tail = "".join(f" {key}={_quoted(value)}" for key, value in fields.items() if value is not None)
        text = f"{_LEVELS.get(level, 'I')}{stamp} [{room}] {escape_controls(encode_basestring(message))}{tail}"
        return text if error is None else f"{text}\n{escape_controls(_traceback(error))}"


def _json_line(at: float, room: str, level: int, message: str, fields: Fields, error: BaseException | None) -> str:
    entry: Fields = {
        "ts": round(at * 1000, 3),
        "level": logging.getLevelName(level).lower(),
        "logger": room,
        "msg": message,
    }
    entry.update({key: _plain(value) for key, value in fields.items() if value is not None})
    if error is not None:
        entry["stacktrace"] = _traceback(error)
    return json.dumps(entry)


def _traceback(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)).rstrip("\n")


def _plain(value: Any) -> Any:
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


def _quoted(value: Any) -> str:
    text = str(value)
    return escape_controls(json.dumps(text)) if not text or _BREAKING(text) or has_controls(text) else text


def set_up_logging(verbosity: int, json_format: bool = False) -> None:
    """Send the agent's log to standard error. `verbosity` is `-v`: 0 to 3 logs changes, 4 and up also details."""
    # what no line shows need not be found out for each
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    _ROOT.handlers[:] = [_Lines(sys.stderr, json_format=json_format)]
    _ROOT.propagate = False
    _ROOT.setLevel(logging.DEBUG if verbosity >= 4 else logging.INFO)
