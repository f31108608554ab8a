"""Whether what the agent does for a pod grows with the pod's size and not faster, by counted lines of Python. Usage: growth FOLDER

All lists and maps of a part of the API, such as `spec.containers[]`, have so many entries at once, and then twice as many. The products
of `products.py` have a small share of their largest size, and then twice as much. Prints one JSON object a line.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import msgspec
from hostile.specs.fields import Cls, Field, Kind
from hostile.specs.limits import superlinear
from hostile.specs.loop import MeasuredLoop
from hostile.specs.node import SpecNode
from hostile.specs.pods import (
    COLLECTIONS,
    Case,
    base_pod,
    object_fields,
    object_of,
    pod_fields,
    pod_referring,
    pod_with,
)
from hostile.specs.products import PRODUCTS, Spec

FEW, SHARE = 60, 1 / 100
#: The lines depend on how often loops are woken meanwhile: more than linear growth shows each time.
ATTEMPTS = 3
#: Of each part: its pod with this many times the entries.
Grown = Callable[[int], Case]


def parts() -> Iterator[tuple[str, Grown]]:
    """The parts of a pod, and of what it refers to, with their lists and maps."""
    for part, fields in _by_part(pod_fields(), {"volumes[]": 3}).items():
        yield f"pod {part}", partial(_pod, fields)
    for cls in COLLECTIONS:
        for part, fields in _by_part(object_fields(cls), {}).items():
            yield f"{cls.__name__} {part}", partial(_object, cls, fields)
    for name, made in PRODUCTS.items():
        yield name, partial(_product, made)


def _by_part(fields: list[Field], depths: dict[str, int]) -> dict[str, list[Field]]:
    """Lists and maps by the part that they are in and by their depth in other lists. `depths`: names in a part's path, if not 2."""
    found: dict[str, list[Field]] = {}
    for field in fields:
        names = field.parts
        if field.kind is not Kind.TEXT:
            part = ".".join(names[: depths.get(names[1], 2) if len(names) > 1 else 1])
            found.setdefault(f"{part} ({field.path.count('[]')})", []).append(field)
    return found


def _product(made: Spec, times: int) -> Case:
    return made(SHARE * times)


def _pod(fields: list[Field], times: int) -> Case:
    pod = base_pod()
    for field in fields:
        pod = pod_with(field, FEW * times, pod)
    return Case("", pod)


def _object(cls: Cls, fields: list[Field], times: int) -> Case:
    return Case("", pod_referring(cls), ((COLLECTIONS[cls], object_of(cls, fields, FEW * times)),))


async def run(folder: Path) -> None:
    async with SpecNode(folder).running() as node:
        small = (await node.lines(Case("", base_pod()))).lines
        for name, grown in parts():
            for _ in range(ATTEMPTS):
                few, more = [await node.lines(replace(grown(times), name=name)) for times in (1, 2)]
                counted = {"small": small, "few": asdict(few), "more": asdict(more)}
                if not superlinear(counted):
                    break
            print(msgspec.json.encode(counted).decode(), flush=True)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=MeasuredLoop) as runner:
        runner.run(run(Path(sys.argv[1])))
