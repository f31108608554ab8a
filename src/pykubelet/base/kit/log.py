"""Structured logging: one line per event, with fields after the message. `log_lines.py` has the formats.

Owns: the streams and the verbosity of the agent's log. Log changes (failed once, recovered once), not iterations; pass `pod`,
`uid` and `cause` wherever they are known. Logger names are those of `logging`. The agent's own lines go straight to the
stream, because a record of `logging` costs more than the line itself. If the stream is the systemd journal, each line begins
with its priority, which the journal strips. Source: sd-daemon(3), systemd.exec(5).

Verbosity is that of Kubernetes: 0 is always shown; 3 adds served requests, 4 details, 6 requests to the API server, and 10 calls
to the container runtime. Contents of requests are never logged, because they may be secret.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterable
from fnmatch import fnmatchcase
from types import FrameType
from typing import Any, TextIO

from pykubelet.base.kit.log_lines import Fields, Line, LogNote, TextLines, json_line

_ROOT = logging.getLogger("pykubelet")
#: syslog's numbers
_PRIORITIES = {logging.DEBUG: "<7>", logging.INFO: "<6>", logging.WARNING: "<4>", logging.ERROR: "<3>"}
#: The verbosity from which `debug` is shown.
DETAILS = 4
MAX_BUFFER_BYTES = 2 << 30
Patterns = tuple[tuple[str, int], ...]


class _Verbosity:
    """The verbosity of the whole agent, and that of modules by patterns."""

    def __init__(self) -> None:
        self.level = 0
        self.patterns: Patterns = ()
        self.changes = 0

    def set(self, level: int, patterns: Patterns) -> None:
        self.level, self.patterns = level, patterns
        self.changes += 1
        _ROOT.setLevel(logging.DEBUG if level >= DETAILS or patterns else logging.INFO)

    def of(self, module: str) -> int:
        found = next((level for pattern, level in self.patterns if matches(pattern, module)), 0)
        return max(self.level, found)


_VERBOSITY = _Verbosity()


def matches(pattern: str, module: str) -> bool:
    """Whether a pattern of `--vmodule` names a module (with dots).

    A pattern with a slash is compared with the module's path below `pykubelet`; another one with the name of its file. Both are
    without a suffix and may have the wildcards `*` and `?`.
    """
    pattern = pattern.removesuffix(".py")
    path = module.replace(".", "/").removeprefix("pykubelet/")
    return fnmatchcase(path if "/" in pattern else path.rpartition("/")[2], pattern)


class Log:
    """A named logger. Its calls take fields as keyword arguments. Make one in each module that logs."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._logger = _ROOT.getChild(name)
        self._module = str(sys._getframe(1).f_globals.get("__name__", ""))
        self._known = (-1, 0)

    def shows(self, verbosity: int) -> bool:
        """Whether lines of this verbosity are shown, for lines that are expensive to make."""
        changes, level = self._known
        if changes != _VERBOSITY.changes:
            level = _VERBOSITY.of(self._module)
            self._known = (_VERBOSITY.changes, level)
        return verbosity <= level

    def at(self, verbosity: int, message: str, **fields: Any) -> None:
        """Log what is shown from this verbosity on."""
        if self.shows(verbosity) or not _ROOT.handlers:  # not set up: `logging` decides
            level = logging.DEBUG if verbosity >= DETAILS else logging.INFO
            self._write(level, verbosity, message, fields)

    def debug(self, message: str, **fields: Any) -> None:
        """Log a detail, shown from verbosity 4 on."""
        if self.shows(DETAILS) or not _ROOT.handlers:
            self._write(logging.DEBUG, DETAILS, message, fields)

    def info(self, message: str, **fields: Any) -> None:
        """Log a change in normal operation."""
        self._write(logging.INFO, 0, message, fields)

    def warning(self, message: str, **fields: Any) -> None:
        """Log a failure that the agent deals with itself, for instance by trying again."""
        self._write(logging.WARNING, 0, message, fields)

    def error(self, message: str, *, exc_info: BaseException | None = None, stack: str = "", **fields: Any) -> None:
        """Log a failure that needs attention, with the traceback of `exc_info` or the lines of `stack` if one is given."""
        self._write(logging.ERROR, 0, message, fields, exc_info, stack)

    def note(self, note: LogNote) -> None:
        """Log what a pure decision has noted."""
        self._write(logging.WARNING if note.is_problem else logging.INFO, 0, note.text, note.fields)

    def fatal(self, *problems: str) -> None:
        """Write why the process ends, as the last lines of the log: in JSON as lines like the others, in text as `Error: ...`."""
        flush_log()
        is_json = any(isinstance(handler, _Lines) and handler.is_json for handler in _ROOT.handlers)
        errors = _Stream(sys.stderr)
        for problem in problems:
            if is_json:
                self._write(logging.ERROR, 0, "command failed", {"error": problem})
            else:
                errors.write_lines(f"Error: {problem}", logging.ERROR)

    def _write(
        self,
        level: int,
        verbosity: int,
        message: str,
        fields: Fields,
        error: BaseException | None = None,
        stack: str = "",
    ) -> None:
        if not self._logger.isEnabledFor(level):
            return
        for handler in _ROOT.handlers:
            if isinstance(handler, _Lines):
                folder, file, number = _place(sys._getframe(2))
                line = Line(
                    time.time(), level, verbosity, self._name, folder, file, number, message, fields, error, stack
                )
                handler.write(line)
                return
        self._logger.log(level, message, extra={"fields": fields}, exc_info=error)


def _place(frame: FrameType) -> tuple[str, str, int]:
    path, _, file = frame.f_code.co_filename.rpartition("/")
    return path.rpartition("/")[2], file, frame.f_lineno


class _Stream:
    """A stream for lines. With `buffer_bytes`, it keeps lines until there are that many bytes or until `flush`."""

    def __init__(self, stream: TextIO, buffer_bytes: int = 0) -> None:
        self._stream = stream
        self._most = min(buffer_bytes, MAX_BUFFER_BYTES)
        self._kept: list[str] = []
        self._size = 0
        self._is_journal = _is_journal(stream)

    def write_lines(self, text: str, level: int) -> None:
        """Write lines, for the journal each with its priority, because each is an entry of its own there."""
        if self._is_journal:
            priority = _PRIORITIES.get(level, "<6>")
            text = priority + text.replace("\n", "\n" + priority)
        self.write(text + "\n")

    def write(self, text: str) -> None:
        self._kept.append(text)
        self._size += len(text)
        if self._size >= self._most:
            self.flush()

    def flush(self) -> None:
        kept, self._kept, self._size = self._kept, [], 0
        try:
            self._stream.write("".join(kept))
            self._stream.flush()
        except (OSError, ValueError):  # the log cannot be written; there is nothing else to report it to
            return


class _Lines(logging.Handler):
    """Writes lines to streams. It is a handler so that records made by `logging` itself are written too.

    `infos`: the stream of what is less severe than `split_at`.
    """

    def __init__(self, infos: _Stream, errors: _Stream, split_at: int, *, json_format: bool) -> None:
        super().__init__()
        self.infos = infos
        self._errors = errors
        self._split_at = split_at
        self.is_json = json_format
        self._render = json_line if json_format else TextLines(os.getpid()).render

    def write(self, line: Line) -> None:
        """Write one line, followed by the traceback of its error if there is one."""
        stream = self.infos if line.level < self._split_at else self._errors
        stream.write_lines(self._render(line), line.level)

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        name = record.name.removeprefix("pykubelet.")
        folder, _, file = record.pathname.rpartition("/")
        verbosity = DETAILS if record.levelno < logging.INFO else 0
        fields = getattr(record, "fields", {})
        folder, number, message = folder.rpartition("/")[2], record.lineno, record.getMessage()
        self.write(Line(record.created, record.levelno, verbosity, name, folder, file, number, message, fields, error))


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


def set_up_logging(
    verbosity: int,
    json_format: bool = False,
    *,
    split_stream: bool = False,
    buffer_bytes: int = 0,
    vmodule: Iterable[tuple[str, int]] = (),
) -> None:
    """Send the agent's log to standard error.

    `verbosity`: `-v`. `vmodule`: the verbosity of modules by pattern (see `matches`). `split_stream`: messages that are no
    failures go to standard output, up to `buffer_bytes` of them at a time. As in the reference, warnings are failures in text
    only.
    """
    # no line shows these, so `logging` need not look them up for each record
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    errors = _Stream(sys.stderr)
    infos = _Stream(sys.stdout, buffer_bytes) if split_stream else errors
    split_at = logging.ERROR if json_format else logging.WARNING
    _ROOT.handlers[:] = [_Lines(infos, errors, split_at, json_format=json_format)]
    _ROOT.propagate = False
    _VERBOSITY.set(verbosity, tuple(vmodule))


def set_verbosity(verbosity: int) -> None:
    """Change `-v` while the agent runs."""
    _VERBOSITY.set(verbosity, _VERBOSITY.patterns)


def flush_log() -> None:
    """Write the lines that a buffer holds."""
    for handler in _ROOT.handlers:
        if isinstance(handler, _Lines):
            handler.infos.flush()
