"""A wall clock of its own for one process, that a test can set: Debian's libfaketime. The monotonic clock is left alone."""

from __future__ import annotations

import os
from pathlib import Path

LIBRARY = "/usr/$LIB/faketime/libfaketimeMT.so.1"  # the dynamic linker knows what $LIB is


class WallClock:
    """Begins as the machine's. `environment`: what the process must be started with; `file` has how far it is off."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.set(0)

    @property
    def environment(self) -> dict[str, str]:
        return {
            "LD_PRELOAD": f"{LIBRARY} {os.environ.get('LD_PRELOAD', '')}".strip(),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
            "NO_FAKE_STAT": "1",
        }

    def set(self, off_s: int) -> None:
        """From the next second on it shows this many seconds more, or less, than the machine's."""
        part = self._file.with_suffix(".part")
        part.write_text(f"{off_s:+d}\n")
        part.replace(self._file)
