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
    for one in volumes:
        label = f" ({one['kind']})" if one["kind"] else ""
        yield f"{one['name']}{label}: {one['state']}{_since(one, now, age)}"
        yield from _claim_lines(one)
        if one["error"]:
            yield f"  why   {one['error'].strip()}"
        yield from _device_lines(one["device"], now, age)
        if one["program"] is not None:
            program = one["program"]
            yield f"  runs  {program['name']}, pid {program['pid']}, for {age(program['seconds'])}"
        for call in one["calls"]:
            what = f"{call['name']} of {call['driver']}, for {age(call['seconds'])}"
            yield f"  calls {what}; given up in {age(call['left'])}"
        for note in one["notes"]:
            yield f"  note  {note}"
        yield from _holder_lines(one)
        if one["next_step"]:
            yield f"  next  {one['next_step']}{_until(one['next_at'], now, age)}"


def claim_lines(claims: Sequence[Document]) -> Iterator[str]:
    """A line for each claim of a manifest, and for each volume without one."""
    for one in claims:
        what = f"PersistentVolume {one['volume']}, {one['size']}"
        if not one["claim"]:
            yield f"  {what}: no claim has it"
        else:
            yield f"  {one['claim']}: {one['problem'] or what}"


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
    for one in volume["holders"]:
        who = f"process {one['pid']} ({one['name']})" if one["pid"] else f"the {one['name']}"
        pod = f" of pod {one['pod']}" if one["pod"] else ""
        yield f"  held by {who}{pod}: {one['use']} {one['path']}"
    for one in volume["mounts"]:
        if one["pid"]:
            yield f"  also mounted at {one['target']} for process {one['pid']} ({one['name']}), in its mount namespace"
        else:
            yield f"  held by the mount at {one['target']}: unmount that first"
    if not volume["is_search_complete"]:
        yield "  not all processes could be looked at in time"
