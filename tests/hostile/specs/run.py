"""Runs the pods of one suite, and writes what each of them costs, one JSON object a line. Usage: run FOLDER SUITE [START STEP [FILTER]]"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import asdict
from itertools import islice
from pathlib import Path

import msgspec
from hostile.specs.loop import MeasuredLoop
from hostile.specs.node import SpecNode
from hostile.specs.suites import SUITES


async def run(folder: Path, suite: str, start: int, step: int, wanted: str) -> None:
    cases = [case for name, case in islice(SUITES[suite].items(), start, None, step) if wanted in name]
    async with SpecNode(folder).running() as node:
        for case in cases:
            print(msgspec.json.encode(asdict(await node.cost(case()))).decode(), flush=True)


if __name__ == "__main__":
    folder, suite, *more = sys.argv[1:]
    start, step = (int(word) for word in more[:2]) if more else (0, 1)
    with asyncio.Runner(loop_factory=MeasuredLoop) as runner:
        runner.run(run(Path(folder), suite, start, step, "".join(more[2:])))
