"""A flexVolume driver as an executable script: it notes its calls, and does as the files beside it say."""

from __future__ import annotations

import json
from pathlib import Path

VENDOR, NAME = "example.com", "dummy"
DRIVER = f"{VENDOR}/{NAME}"
_SCRIPT = """#!/bin/sh
cd "$(dirname "$0")" || exit 1
printf '%s\\n' "$*" >> calls
[ -e "say-$1" ] && { cat "say-$1"; exit 0; }
[ -e "hang-$1" ] && exec sleep 600
case "$1" in
mount) mount -t tmpfs -o size=1m tmpfs "$2" && printf '%s' "$3" > "$2/options" ;;
mountdevice) mount -t tmpfs -o size=1m tmpfs "$2" && printf '%s' "$3" > "$2/device" ;;
unmount|unmountdevice) ! mountpoint -q "$2" || umount "$2" ;;
init) echo '{"status": "Success", "capabilities": {"attach": ATTACH}}'; exit 0 ;;
waitforattach) printf '{"status": "Success", "device": "%s"}' "$2"; exit 0 ;;
*) echo '{"status": "Not supported"}'; exit 1 ;;
esac || { echo '{"status": "Failure", "message": "the script failed"}'; exit 1; }
echo '{"status": "Success"}'
"""
NOT_SUPPORTED = {"status": "Not supported"}


class FlexScript:
    """The driver `example.com/dummy` in the drivers' directory `root`."""

    def __init__(self, root: Path, *, attaches: bool = False) -> None:
        self.root = root
        self.folder = root / f"{VENDOR}~{NAME}"
        self.program = self.folder / NAME
        self.folder.mkdir(parents=True)
        part = self.folder / ".new"
        part.write_text(_SCRIPT.replace("ATTACH", str(attaches).lower()))
        part.chmod(0o755)
        part.rename(self.program)

    def say(self, command: str, answer: dict[str, object] | str) -> None:
        """Let the driver print this, and do nothing else, when it gets the command."""
        (self.folder / f"say-{command}").write_text(answer if isinstance(answer, str) else json.dumps(answer))

    def obey(self, command: str) -> None:
        """Let the driver do its work again."""
        (self.folder / f"say-{command}").unlink()

    def hang(self, command: str) -> None:
        """Let the driver not end when it gets the command."""
        (self.folder / f"hang-{command}").touch()

    def calls(self) -> list[str]:
        """The commands of all calls, in order."""
        return [line.split(" ")[0] for line in self.lines()]

    def lines(self) -> list[str]:
        """All calls with their arguments, in order."""
        calls = self.folder / "calls"
        return calls.read_text().splitlines() if calls.exists() else []
