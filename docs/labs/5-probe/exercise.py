#!/usr/bin/env python3
from collections.abc import Sequence
from typing import Any

from pykubelet.extension.process import Process, serve


class Heartbeat(Process):
    def probe(self, pod: dict[str, Any], container: dict[str, Any], args: Sequence[str]) -> tuple[bool, str]:
        # pod["metadata"]["namespace"], pod["metadata"]["name"]; self.settings["folder"]
        return True, "it is always ready"


if __name__ == "__main__":
    serve(Heartbeat())
