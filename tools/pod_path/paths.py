"""What of the recorded work lies on the way of the pod, and how large it is. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from pod_path.recording import Kind, Segment, file_of

#: The file that gets the kernel's events about manifests.
BEGINS_IN = "desired/sources/file.py"


@dataclass(frozen=True)
class Switch:
    """A task that another one has woken. `waited_in`: the function that waited."""

    woken_by: str
    task: str
    waited_in: str


@dataclass(frozen=True)
class Size:
    """How much code a piece of work visits. `files`: below `src/pykubelet`, with the number of their functions that were called.
    `functions`: without lambdas and comprehensions. `calls`: of functions, and continuations of coroutines."""

    files: dict[str, int]
    functions: int
    calls: int
    tasks: tuple[str, ...]
    threads: tuple[str, ...]
    switches: tuple[Switch, ...]


def causal_path(segments: Collection[Segment], last: Segment) -> list[Segment]:
    """The segments to which the first event about the manifest has led, and which have led to `last`."""
    later: set[Segment] = set()
    for segment in segments:
        is_first = not later and any(file_of(code) == BEGINS_IN for code in segment.calls)
        if is_first or any(cause in later for cause in (*segment.causes, *segment.read)):
            later.add(segment)
    needed, left = {last}, [last]
    while left:
        segment = left.pop()
        new = {*segment.causes, *segment.read} - needed
        needed |= new
        left += new
    return [segment for segment in segments if segment in later and segment in needed]


def size_of(segments: Collection[Segment]) -> Size:
    """The size of this work."""
    calls = Counter(code for segment in segments for code in segment.calls.elements())
    named = [code for code in calls if not code.co_name.startswith("<")]
    files = Counter(map(file_of, named))
    files.update({file_of(code): 0 for code in calls})
    own = [segment for segment in segments if not segment.is_double and segment.calls]
    tasks = {segment.part_of: segment.owner for segment in own if segment.kind is Kind.TASK}
    return Size(
        dict(sorted(files.items())),
        len(named),
        calls.total(),
        tuple(tasks.values()),
        tuple(segment.owner for segment in own if segment.kind is Kind.THREAD),
        tuple(_switches(segments, own)),
    )


def _switches(segments: Collection[Segment], own: Iterable[Segment]) -> list[Switch]:
    """A step of a task is a switch if another task of the agent has led to it, directly, by callbacks, threads or other programs."""
    known, steps = set(segments), dict.fromkeys(segment for segment in own if segment.kind is Kind.TASK)
    found = []
    for step in steps:
        others = [waker for waker in _wakers(step, known, steps) if waker.part_of is not step.part_of]
        if others:
            waker = max(others, key=lambda waker: waker.number)
            found.append(Switch(waker.owner, step.owner, step.waited_in))
    return found


def _wakers(step: Segment, known: Collection[Segment], steps: Collection[Segment]) -> set[Segment]:
    """The nearest steps of tasks, this one's or others', that have led to a step."""
    found: set[Segment] = set()
    seen, left = {step}, [step]
    while left:
        for cause in left.pop().causes:
            if cause in seen or cause not in known:
                continue
            seen.add(cause)
            if cause in steps:
                found.add(cause)
            else:
                left.append(cause)
    return found
