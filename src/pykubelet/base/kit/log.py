"""Structured logging: one line an event, `key=value` behind the message, or JSON.

Owns: the format and the verbosity of the agent's log (standard error). Log changes (failed once, recovered once), not
iterations; give `pod`, `uid` and `cause` wherever there is one.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from typing import Any

_BREAKING = re.compile(r'[ "\n\t=]').search
_LEVELS = {"DEBUG": "D", "INFO": "I", "WARNING": "W", "ERROR": "E", "CRITICAL": "F"}


class Log:
    """A named logger whose calls take fields as keyword arguments."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger("pykubelet." + name)

    def debug(self, message: str, **fields: Any) -> None:
        if self._logger.isEnabledFor(logging.DEBUG):
            self._logger.debug(message, extra={"fields": fields})

    def info(self, message: str, **fields: Any) -> None:
        if self._logger.isEnabledFor(logging.INFO):
            self._logger.info(message, extra={"fields": fields})

    def warning(self, message: str, **fields: Any) -> None:
        self._logger.warning(message, extra={"fields": fields})

    def error(self, message: str, *, exc_info: BaseException | None = None, **fields: Any) -> None:
        self._logger.error(message, extra={"fields": fields}, exc_info=exc_info)


class _TextFormat(logging.Formatter):
    def __init__(self) -> None:
        super().__init__()
        self._second = (0, "")

    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, "fields", {})
        second = int(record.created)
        if second != self._second[0]:
            self._second = (second, self.formatTime(record, "%m%d %H:%M:%S"))
        stamp = self._second[1]
        tail = "".join(f" {key}={_quoted(value)}" for key, value in fields.items() if value is not None)
        room = record.name.removeprefix("pykubelet.")
        message = json.dumps(record.getMessage(), ensure_ascii=False)
        level = _LEVELS.get(record.levelname, "I")
        text = f"{level}{stamp}.{int(record.msecs):03d} [{room}] {message}{tail}"
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return text


class _JsonFormat(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "ts": round(record.created * 1000, 3),
            "level": record.levelname.lower(),
            "logger": record.name.removeprefix("pykubelet."),
            "msg": record.getMessage(),
        }
        entry.update({key: _plain(value) for key, value in getattr(record, "fields", {}).items() if value is not None})
        if record.exc_info:
            entry["stacktrace"] = self.formatException(record.exc_info)
        return json.dumps(entry)


def _plain(value: Any) -> Any:
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


def _quoted(value: Any) -> str:
    text = str(value)
    return json.dumps(text) if not text or _BREAKING(text) else text


def set_up_logging(verbosity: int, json_format: bool = False) -> None:
    """Send the agent's log to standard error. `verbosity` is `-v`: 0 to 3 logs changes, 4 and up also details."""
    # what no line shows need not be found out for each
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormat() if json_format else _TextFormat())
    root = logging.getLogger("pykubelet")
    root.handlers[:] = [handler]
    root.propagate = False
    root.setLevel(logging.DEBUG if verbosity >= 4 else logging.INFO)
