"""`/debug/...`, `/flagz`, `/statusz`, `/checkpoint/...`: the agent about itself, and a container frozen into a file.

Owns: their texts. `/debug/pprof/profile?seconds=N` samples the stacks of all threads and answers in folded lines, which
flame graph programs read; `/debug/pprof/goroutine` lists tasks, `/debug/pprof/heap` what the heap is made of.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import time
import traceback
from collections import Counter
from collections.abc import Mapping
from types import FrameType
from typing import Protocol

from pykubelet.base.api.codec import encode
from pykubelet.base.api.times import format_time
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.flight import Done, Flight
from pykubelet.base.kit.lag import LAG
from pykubelet.base.kit.values import Value
from pykubelet.edges.cri.errors import CriError
from pykubelet.edges.host.errors import HostError
from pykubelet.edges.host.files import make_dirs
from pykubelet.report.server.http.server import JSON, Answer, Request, Response, text
from pykubelet.report.server.known_pods import KnownPods, container_spec
from pykubelet.report.server.metrics.exposition import render_metrics
from pykubelet.report.server.streams import container_target

NO_PROFILING = text(405, "profiling endpoint is disabled.\n")
NO_FLAGS = text(405, "flags endpoint is disabled.\n")
MAX_PROFILE_S = 120
SAMPLE_S = 0.01
HEAP_LINES = 60


class DebugSettings(Value):
    """`enableProfilingHandler`, `enableDebugFlagsHandler`; flags by name as given; versions; paths this port has."""

    profiling: bool
    flags_handler: bool
    flags: Mapping[str, str]
    version: str
    started_at: float
    paths: tuple[str, ...]


class CheckpointRuntime(Protocol):
    """The part of the CRI client used here. Raises CriError."""

    async def checkpoint_container(self, container_id: str, location: str, timeout_s: int = 0) -> None: ...


class Debugging:
    """The handlers."""

    def __init__(self, settings: DebugSettings, flight: Flight, clock: Clock) -> None:
        self._settings = settings
        self._flight = flight
        self._clock = clock

    async def pprof(self, request: Request) -> Answer:
        if not self._settings.profiling:
            return NO_PROFILING
        match request.path.removeprefix("/debug/pprof").strip("/"):
            case "profile":
                return await self._profile(request)
            case "goroutine" | "tasks":
                return text(200, tasks_text())
            case "heap":
                return text(200, heap_text())
            case "cmdline":
                return text(200, "\0".join(sys.argv))
            case "lag":
                return Response(200, render_metrics([LAG.family()]))
            case "":
                return text(200, "profile?seconds=N\ngoroutine\nheap\nlag\ncmdline\n")
            case _:
                return text(404, "Unknown profile\n")

    async def _profile(self, request: Request) -> Answer:
        given = request.first("seconds") or "30"
        if not given.isdigit() or not 1 <= int(given) <= MAX_PROFILE_S:
            return text(400, f"seconds: must be from 1 to {MAX_PROFILE_S}\n")
        seconds = int(given)
        outcome = await self._flight.run("profile", lambda: sample_stacks(seconds), seconds + 10.0)
        if not isinstance(outcome, Done):
            return text(500, "Could not enable CPU profiling: cpu profiling already in use\n")
        return text(200, outcome.value)

    async def verbosity(self, request: Request) -> Answer:
        """PUT /debug/flags/v."""
        if not self._settings.flags_handler:
            return NO_FLAGS
        given = request.body.decode("ascii", "replace").strip()
        if not given.isdigit():
            return text(400, f"failed to set the verbosity: {given!r} is no number\n")
        logging.getLogger("pykubelet").setLevel(logging.DEBUG if int(given) >= 4 else logging.INFO)
        return text(200, f"successfully set klog.logging.verbosity to {int(given)}")

    async def flagz(self, _: Request) -> Answer:
        lines = [f"{name}={value}" for name, value in sorted(self._settings.flags.items())]
        warning = (
            "Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees"
        )
        return text(
            200, f"\nkubelet flagz\n{warning} and is for debugging purposes only.\n\n" + "\n".join(lines) + "\n"
        )

    async def statusz(self, _: Request) -> Answer:
        settings, now = self._settings, self._clock.wall()
        up = int(now - settings.started_at)
        warning = (
            "Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees"
        )
        lines = (
            "",
            "kubelet statusz",
            f"{warning} and is for debugging purposes only.",
            "",
            f"Started: {format_time(settings.started_at)}",
            f"Up: {up // 3600} hr {up // 60 % 60:02d} min {up % 60:02d} sec",
            f"Go version: python{sys.version.split()[0]}",
            f"Binary version: {settings.version.removeprefix('v')}",
            f"Emulation version: {'.'.join(settings.version.removeprefix('v').split('.')[:2])}",
            f"Paths: {' '.join(settings.paths)}",
        )
        return text(200, "\n".join(lines) + "\n")


def tasks_text() -> str:
    """Every task, and where it waits."""
    lines = []
    for task in sorted(asyncio.all_tasks(), key=lambda one: one.get_name()):
        stack = task.get_stack(limit=1)
        where = f"{stack[0].f_code.co_filename}:{stack[0].f_lineno}" if stack else "?"
        lines.append(f"{task.get_name()}  {where}")
    return f"{len(lines)} tasks\n" + "\n".join(lines) + "\n"


def heap_text() -> str:
    """How many objects of each type the collector knows. Takes about a tenth of a second of the loop on a full node."""
    counts = Counter(type(one).__qualname__ for one in gc.get_objects())
    lines = [f"{number:9d} {name}" for name, number in counts.most_common(HEAP_LINES)]
    return f"{sum(counts.values())} objects, collections {gc.get_count()}\n" + "\n".join(lines) + "\n"


def sample_stacks(seconds: int) -> str:
    """Folded stacks of all other threads, sampled a hundred times a second. Blocks."""
    counts: Counter[str] = Counter()
    end = time.monotonic() + seconds
    own = sys._getframe()
    while time.monotonic() < end:
        for frame in sys._current_frames().values():
            if frame is not own and not _is_own(frame):
                counts[_folded(frame)] += 1
        time.sleep(SAMPLE_S)  # noqa: TID251 - in a thread of its own
    return "".join(f"{stack} {number}\n" for stack, number in counts.most_common())


def _is_own(frame: FrameType) -> bool:
    return frame.f_code is sample_stacks.__code__


def _folded(frame: FrameType) -> str:
    found = traceback.extract_stack(frame, limit=40)
    return ";".join(f"{one.name} ({one.filename.rpartition('/')[2]}:{one.lineno})" for one in found)


class Checkpoints:
    """`POST /checkpoint/<namespace>/<pod>/<container>`. Source: KEP-2008. `root`: the agent's root directory."""

    def __init__(self, pods: KnownPods, runtime: CheckpointRuntime, root: str, flight: Flight, clock: Clock) -> None:
        self._pods = pods
        self._runtime = runtime
        self._folder = f"{root}/checkpoints"
        self._flight = flight
        self._clock = clock

    async def answer(self, request: Request) -> Answer:
        target = container_target(request.path)
        pod = self._pods.find(target.namespace, target.pod) if target is not None else None
        if target is None or pod is None:
            return text(404, "pod does not exist")
        if container_spec(pod, target.container) is None:
            return text(404, f"container {target.container} does not exist")
        given = request.query.get("timeout", ["0"])[-1]
        if not given.isdigit():
            return text(404, "cannot parse value of timeout parameter")
        where = f"{target.namespace}/{target.pod}/{target.container}"
        container = self._pods.running(pod, target.container)
        if container is None:
            return text(500, f"checkpointing of {where} failed (container not found)")
        stamp = format_time(self._clock.wall())
        name = f"checkpoint-{pod.metadata.name}_{pod.metadata.namespace}-{target.container}-{stamp}.tar"
        path = f"{self._folder}/{name}"
        made = await self._flight.run("checkpoints", lambda: make_dirs(self._folder, 0o700), 10.0)
        try:
            if not isinstance(made, Done):
                raise HostError("mkdir", self._folder, "EIO", "cannot be made")
            await self._runtime.checkpoint_container(container.id, path, int(given))
        except (CriError, HostError) as error:
            return text(500, f"checkpointing of {where} failed ({error})")
        return Response(200, encode({"items": [path]}), JSON)
