"""Writes and rotates a json-file log as Docker does."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

#: As much of a container's line is in one entry.
PIECE = 16 << 10
ID = "0123456789ab"


def entry(text: str, stream: str = "stdout", time: str = "2026-01-02T03:04:05.123456789Z") -> bytes:
    """One entry, spelled as Docker's."""
    return json.dumps({"log": text, "stream": stream, "time": time}, separators=(",", ":")).encode() + b"\n"


class DockerFile:
    """The log of a container below `top`. `lines`: the CRI lines that all of it gives."""

    def __init__(self, top: Path) -> None:
        self.path = top / "docker" / "containers" / ID / f"{ID}-json.log"
        self.path.parent.mkdir(parents=True)
        self.path.touch()
        self.lines = bytearray()
        self._number = 0

    def write(self, text: str, stream: str = "stdout") -> None:
        """Add what the container has written to a stream."""
        with self.path.open("ab") as file:
            for line in text.splitlines(keepends=True):
                for at in range(0, len(line), PIECE):
                    piece = line[at : at + PIECE]
                    self._number += 1
                    time = f"2026-01-02T03:04:05.{self._number:09}Z"
                    file.write(entry(piece, stream, time))
                    tag = "F" if piece.endswith("\n") else "P"
                    self.lines += f"{time} {stream} {tag} {piece.removesuffix(chr(10))}\n".encode()

    def write_raw(self, data: bytes) -> None:
        """Add what another program, or an interrupted write, has left."""
        with self.path.open("ab") as file:
            file.write(data)

    def part(self, number: int) -> Path:
        """A rotated file."""
        return self.path.with_name(f"{self.path.name}.{number}")

    def rotate(self, keep: int = 3, *, compress: bool = False) -> None:
        """Begin a new file. `keep`: the number of files."""
        for number in range(keep - 1, 1, -1):
            for suffix in ("", ".gz"):
                older = Path(f"{self.part(number - 1)}{suffix}")
                if older.exists():
                    os.replace(older, f"{self.part(number)}{suffix}")
        if keep > 1:
            os.replace(self.path, self.part(1))
        self.path.write_bytes(b"")
        if compress:
            Path(f"{self.part(1)}.gz").write_bytes(gzip.compress(self.part(1).read_bytes()))
            self.part(1).unlink()
