"""Starts and ends crowds of plain pods at once, and writes how many lines of Python the agent executes for each of them, one JSON object
a line. Usage: crowd FOLDER together|apart COUNT..."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import asdict
from pathlib import Path

import msgspec
from hostile.specs.loop import MeasuredLoop
from hostile.specs.node import SpecNode


async def run(folder: Path, threads: str, counts: list[int]) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, MeasuredLoop)
    loop.apart = threads == "apart"
    async with SpecNode(folder).running() as node:
        for count in counts:
            print(msgspec.json.encode(asdict(await node.crowd(count))).decode(), flush=True)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=MeasuredLoop) as runner:
        runner.run(run(Path(sys.argv[1]), sys.argv[2], [int(word) for word in sys.argv[3:]]))
