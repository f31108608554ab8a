"""Starts and ends plain pods one by one among others, and writes what the agent executes and copies for each of them, one JSON object a
line. Usage: among FOLDER COUNT..."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import asdict
from pathlib import Path

import msgspec
from hostile.specs.loop import MeasuredLoop
from hostile.specs.node import SpecNode


async def run(folder: Path, counts: list[int]) -> None:
    async with SpecNode(folder).running() as node:
        for count in counts:
            print(msgspec.json.encode(asdict(await node.among(count))).decode(), flush=True)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=MeasuredLoop) as runner:
        runner.run(run(Path(sys.argv[1]), [int(word) for word in sys.argv[2:]]))
