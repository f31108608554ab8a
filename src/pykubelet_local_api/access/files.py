"""Private files: read whole or not at all, replaced atomically. Blocks."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

#: No file of this package is larger: bytes.
LARGEST = 256 << 10


class AccessError(Exception):
    """Certificates or keys cannot be used; the text names the file, and what to do."""


def read_file(path: Path) -> bytes | None:
    """The content, or the beginning of a file that is too large; None if there is no file. Raises AccessError."""
    try:
        with path.open("rb") as file:
            return file.read(LARGEST)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise AccessError(f"cannot read {path}: {error.strerror}") from error


def write_file(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Replace the file: after a power cut, it has the old content or the new one. Raises AccessError."""
    import tempfile  # only the process that makes files needs it

    try:
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fchmod(file.fileno(), mode)
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        _sync_names(path.parent)
    except OSError as error:
        raise AccessError(f"cannot write {path}: {error.strerror}") from error


def make_folder(folder: Path) -> None:
    """Make a directory that only its owner may enter. Raises AccessError."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise AccessError(f"cannot make the directory {folder}: {error.strerror}") from error


def _sync_names(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
