"""Structured logging: one line per event, with `key=value` fields after the message, or JSON.

Owns: the format and the verbosity of the agent's log (standard error). Log changes (failed once, recovered once), not
iterations; pass `pod`, `uid` and `cause` wherever they are known. Levels and logger names are those of `logging`. The agent's
own lines go straight to the stream, because a record of `logging` costs more than the line itself. If the stream is the
systemd journal, each line begins with its priority, which the journal strips. Source: sd-daemon(3), systemd.exec(5).
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
        """Log a detail, shown from verbosity 4 on."""
        self._write(logging.DEBUG, message, fields)

    def info(self, message: str, **fields: Any) -> None:
        """Log a change in normal operation."""
        self._write(logging.INFO, message, fields)

    def warning(self, message: str, **fields: Any) -> None:
        """Log a failure that the agent deals with itself, for instance by trying again."""
        self._write(logging.WARNING, message, fields)

    def error(self, message: str, *, exc_info: BaseException | None = None, **fields: Any) -> None:
        """Log a failure that needs attention, with the traceback of `exc_info` if it is given."""
        self._write(logging.ERROR, message, fields, exc_info)

    def _write(self, level: int, message: str, fields: Fields, error: BaseException | None = None) -> None:
        if not self._logger.isEnabledFor(level):
            return
        for handler in _ROOT.handlers:
            if isinstance(handler, _Lines):
                handler.write(self._name, level, message, fields, error)
                return
        self._logger.log(level, message, extra={"fields": fields}, exc_info=error)


class _Lines(logging.Handler):
    """Writes lines to a stream. It is a handler so that records made by `logging` itself are written too."""

    def __init__(self, stream: TextIO, *, json_format: bool) -> None:
        super().__init__()
        self._stream = stream
        self._line = _json_line if json_format else _TextLine().line
        self._to_journal = _is_journal(stream)

    def write(self, name: str, level: int, message: str, fields: Fields, error: BaseException | None) -> None:
        """Write one line, followed by the traceback of `error` if there is one."""
        line = self._line(time.time(), name, level, message, fields, error)
        if self._to_journal:
            priority = _PRIORITIES.get(level, "<6>")
            line = priority + line.replace("\n", "\n" + priority)  # each line of a traceback is an entry of its own
        try:
            self._stream.write(line + "\n")
        except (OSError, ValueError):  # the log cannot be written; there is nothing else to report it to
            return

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        name = record.name.removeprefix("pykubelet.")
        self.write(name, record.levelno, record.getMessage(), getattr(record, "fields", {}), error)


def _is_journal(stream: TextIO) -> bool:
    """Whether systemd has connected the stream to the journal (JOURNAL_STREAM holds its device and inode)."""
    journal = os.environ.get("JOURNAL_STREAM")
    if not journal:
        return False
    try:
        found = os.fstat(stream.fileno())
    except (OSError, ValueError):  # no file behind it
        return False
    return journal == f"{found.st_dev}:{found.st_ino}"


class _TextLine:
    def __init__(self) -> None:
        self._second = (0, "")

    def line(self, at: float, name: str, level: int, message: str, fields: Fields, error: BaseException | None) -> str:
        second = int(at)
        if second != self._second[0]:
            self._second = (second, time.strftime("%m%d %H:%M:%S", time.localtime(second)))
        stamp = f"{self._second[1]}.{int((at - second) * 1000):03d}"
        tail = "".join(f" {key}={_quoted(value)}" for key, value in fields.items() if value is not None)
        text = f"{_LEVELS.get(level, 'I')}{stamp} [{name}] {escape_controls(encode_basestring(message))}{tail}"
        return text if error is None else f"{text}\n{escape_controls(_traceback(error))}"


def _json_line(at: float, name: str, level: int, message: str, fields: Fields, error: BaseException | None) -> str:
    entry: Fields = {
        "ts": round(at * 1000, 3),
        "level": logging.getLevelName(level).lower(),
        "logger": name,
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
    # no line shows these, so `logging` need not look them up for each record
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    _ROOT.handlers[:] = [_Lines(sys.stderr, json_format=json_format)]
    _ROOT.propagate = False
    _ROOT.setLevel(logging.DEBUG if verbosity >= 4 else logging.INFO)
