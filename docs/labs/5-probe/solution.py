#!/usr/bin/env python3
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pykubelet.extension.process import Process, serve


class Heartbeat(Process):
    def probe(self, pod: dict[str, Any], container: dict[str, Any], args: Sequence[str]) -> tuple[bool, str]:
        if len(args) != 2:
            raise ValueError("the arguments are a file and an age in seconds")
        name, most_s = args[0], float(args[1])
        if name in ("", ".", "..") or "/" in name or "\0" in name:
            raise ValueError(f"{name!r} is no name of a file")
        path = Path(self.settings["folder"], pod["metadata"]["namespace"], pod["metadata"]["name"], name)
        try:
            age_s = max(0.0, time.time() - os.stat(path, follow_symlinks=False).st_mtime)
        except FileNotFoundError:
            return False, f"{name} does not exist yet"
        return age_s < most_s, f"{name} was written {age_s:.0f} s ago"


if __name__ == "__main__":
    serve(Heartbeat())
