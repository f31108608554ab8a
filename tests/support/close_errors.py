"""Sees descriptors that are closed twice, in this process and in the Python processes that it starts (`close_errors.c`).

A process reports to the file that its variable CLOSE_ERRORS names. Each process of pytest has one, and its children inherit the
variable: so a report belongs to the test that runs, or to one before it in the same process.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")
REPORTS, PRELOAD = "CLOSE_ERRORS", "LD_PRELOAD"
_PREFIX = "pykubelet-close-errors-"


class CloseErrors:
    """The reports of one process of pytest and its children. None are seen where no C compiler is installed."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self._reports = self._folder / "reports"
        self._read = 0
        self._preloaded = os.environ.get(PRELOAD, "")

    def start(self) -> None:
        """Watch this process, if it was started by one that does so, and all that it starts from now on."""
        os.environ[REPORTS] = str(self._reports)
        if _PREFIX in self._preloaded:
            return  # a worker of pytest-xdist, which has the library of its parent
        library = self._folder / f"{hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]}.so"
        if compile_library(library):
            os.environ[PRELOAD] = " ".join((self._preloaded, str(library))).strip()

    def stop(self) -> None:
        """Remove the files. Processes that still run report nothing more."""
        if self._preloaded:
            os.environ[PRELOAD] = self._preloaded
        else:
            os.environ.pop(PRELOAD, None)
        os.environ.pop(REPORTS, None)
        shutil.rmtree(self._folder, ignore_errors=True)

    def take(self) -> str:
        """The reports since the last call."""
        try:
            with self._reports.open("rb") as file:
                file.seek(self._read)
                found = file.read()
        except FileNotFoundError:
            return ""
        self._read += len(found)
        return found.decode(errors="replace")


def compile_library(path: Path) -> bool:
    """Compile the library. False without a C compiler or the headers of the C library."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        return False
    command = [compiler, "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", str(path), str(SOURCE), "-ldl"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if "No such file or directory" in done.stderr:
        return False
    assert done.returncode == 0, done.stderr
    return True
