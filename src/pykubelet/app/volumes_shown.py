"""Prints the volumes of a pod: where each stands, what works on it, and who keeps it from being unmounted.

The documents come from `serve/explain/volumes.py`. Imports only little, because `pykubelet explain` must answer within a tenth
of a second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

Document = Mapping[str, Any]


def volume_lines(volumes: list[Document], now: float, age: Callable[[float], str]) -> Iterator[str]:
    """A block of lines for each volume. `now`: wall seconds. `age`: renders seconds."""
    for volume in volumes:
        label = f" ({volume['kind']})" if volume["kind"] else ""
        yield f"{volume['name']}{label}: {volume['state']}{_since(volume, now, age)}"
        yield from _claim_lines(volume)
        if volume["error"]:
            yield f"  why   {volume['error'].strip()}"
        yield from _device_lines(volume["device"], now, age)
        if volume["program"] is not None:
            program = volume["program"]
            yield f"  runs  {program['name']}, pid {program['pid']}, for {age(program['seconds'])}"
        for call in volume["calls"]:
            what = f"{call['name']} of {call['driver']}, for {age(call['seconds'])}"
            yield f"  calls {what}; given up in {age(call['left'])}"
        for note in volume["notes"]:
            yield f"  note  {note}"
        yield from _holder_lines(volume)
        if volume["next_step"]:
            yield f"  next  {volume['next_step']}{_until(volume['next_at'], now, age)}"


def claim_lines(claims: Sequence[Document]) -> Iterator[str]:
    """A line for each claim of a manifest, and for each volume without one."""
    for claim in claims:
        what = f"PersistentVolume {claim['volume']}, {claim['size']}"
        if not claim["claim"]:
            yield f"  {what}: no claim has it"
        else:
            yield f"  {claim['claim']}: {claim['problem'] or what}"


def _claim_lines(volume: Document) -> Iterator[str]:
    """The claim and its PersistentVolume. Without a claim, the name is that of a directory."""
    if volume["claim"]:
        name = f", PersistentVolume {volume['spec_name']}" if volume["spec_name"] != volume["name"] else ""
        yield f"  claim {volume['claim']}{name}"
    elif volume["spec_name"] != volume["name"]:
        yield f"  named {volume['spec_name']}"


def _until(at: float | None, now: float, age: Callable[[float], str]) -> str:
    if at is None:
        return ""
    return f" in {age(at - now)}" if at - now >= 1 else " now"


def _since(state: Document, now: float, age: Callable[[float], str]) -> str:
    return f", for {age(now - state['since'])}" if state["since"] else ""


def _device_lines(device: Document | None, now: float, age: Callable[[float], str]) -> Iterator[str]:
    if device is None:
        return
    yield f"  device {device['name']}: {device['state']}{_since(device, now, age)}"
    yield f"    at    {device['directory']}"
    if device["error"]:
        yield f"    why   {device['error'].strip()}"
    if device["next_at"] is not None:
        yield f"    next  try again{_until(device['next_at'], now, age)}"


def _holder_lines(volume: Document) -> Iterator[str]:
    for holder in volume["holders"]:
        user = f"process {holder['pid']} ({holder['name']})" if holder["pid"] else f"the {holder['name']}"
        pod = f" of pod {holder['pod']}" if holder["pod"] else ""
        yield f"  held by {user}{pod}: {holder['use']} {holder['path']}"
    for mount in volume["mounts"]:
        if mount["pid"]:
            yield f"  also mounted at {mount['target']} for process {mount['pid']} ({mount['name']}), in its mount namespace"
        else:
            yield f"  held by the mount at {mount['target']}: unmount that first"
    if not volume["is_search_complete"]:
        yield "  not all processes could be looked at in time"
