"""`/debug/...` and `/checkpoint/...`: profiles, tasks and heap of the agent, its log verbosity, and checkpoints of containers.

Owns: their texts. `/debug/pprof/profile?seconds=N` samples where CPU is spent, as folded stacks for flame graph programs;
`/debug/pprof/trace?seconds=N` returns the same samples by time, in the Trace Event Format; `/debug/pprof/goroutine` lists
tasks; `/debug/pprof/heap` counts objects by type; `/debug/pprof/block` shows what held up the event loop.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections import Counter
from collections.abc import Callable
from typing import Protocol

from pykubelet.base.api.codec import encode
from pykubelet.base.api.times import format_time
from pykubelet.base.kit import log
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.exposition import render_metrics
from pykubelet.base.kit.flight import Done, SingleFlight
from pykubelet.base.kit.lag import LAG
from pykubelet.base.kit.text import parse_decimal
from pykubelet.base.kit.values import replace
from pykubelet.edges.cri.errors import CriError
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.files import make_dirs
from pykubelet.net.http.server import JSON, Answer, Request, Response, text
from pykubelet.serve.endpoints.contention import Contention
from pykubelet.serve.endpoints.endpoint import EndpointHandler
from pykubelet.serve.endpoints.known_pods import KnownPods, container_spec
from pykubelet.serve.endpoints.profile import CpuSamples, Samples, TraceSamples, sampling
from pykubelet.serve.explain.documents import ExplainRoute
from pykubelet.serve.streaming.streams import container_target

MAX_PROFILE_S = 120
#: The highest verbosity, and the longest timeout of a checkpoint in seconds.
MAX_INT32 = 2**31 - 1
HEAP_LINES = 60


class CheckpointRuntime(Protocol):
    """The part of the CRI client used here. Raises CriError."""

    async def checkpoint_container(self, container_id: str, location: str, timeout_s: int = 0) -> None:
        """Write a checkpoint of the container to the file `location`. Raises CriError."""
        ...


class Profiles:
    """`/debug/pprof/`. Only one profile is taken at a time. `contention`: None if `enableContentionProfiling` is off."""

    def __init__(self, contention: Contention | None = None) -> None:
        self._contention = contention
        self._is_profiling = False

    async def answer(self, request: Request) -> Answer:
        """A profile, a trace or the list of tasks; 404 for other names."""
        match request.path.removeprefix("/debug/pprof").strip("/"):
            case "profile":
                return await self._sampled(request, CpuSamples)
            case "trace":
                return await self._sampled(request, TraceSamples)
            case "symbol":
                return text(200, "num_symbols: 0\n")  # no symbols are needed, because profiles contain names
            case "goroutine" | "tasks":
                return text(200, tasks_text())
            case "heap":
                return text(200, heap_text())
            case "block":
                return text(200, self._contention.text() if self._contention is not None else "")
            case "cmdline":
                return text(200, "\0".join(sys.argv))
            case "lag":
                return Response(200, render_metrics([LAG.family()]))
            case "":
                return text(200, "profile?seconds=N\ntrace?seconds=N\nblock\ngoroutine\nheap\nlag\ncmdline\n")
            case _:
                return text(404, "Unknown profile\n")

    async def _sampled(self, request: Request, kind: Callable[[], Samples]) -> Answer:
        given = request.first("seconds") or ("30" if kind is CpuSamples else "1")
        seconds = parse_decimal(given, MAX_PROFILE_S)
        if not seconds:
            return text(400, f"seconds: must be from 1 to {MAX_PROFILE_S}\n")
        if self._is_profiling:
            return text(500, "Could not enable CPU profiling: cpu profiling already in use\n")
        self._is_profiling = True
        try:
            with sampling(kind()) as samples:
                await asyncio.sleep(seconds)
        finally:
            self._is_profiling = False
        return samples.answer()


async def set_verbosity(request: Request) -> Answer:
    """`PUT /debug/flags/v`."""
    given = request.body.decode("ascii", "replace").strip()
    verbosity = parse_decimal(given, MAX_INT32)
    if verbosity is None:
        return text(400, f"failed to set the verbosity: must be from 0 to {MAX_INT32}, not {given[:64]!r}\n")
    log.set_verbosity(verbosity)
    return text(200, f"successfully set klog.logging.verbosity to {verbosity}")


def explain_handler(route: ExplainRoute, pods: KnownPods) -> EndpointHandler:
    """Serve the documents of `route`, which `pykubelet pods` and `pykubelet explain` print, on the authenticated port.

    Paths: `/debug/pods`, `/debug/pods/<namespace>/<name>` or `/debug/pods/<uid>`, `/debug/node`, and
    `/debug/pods/<namespace>/<name>/recording` for `pykubelet replay`.
    """

    async def handle(request: Request) -> Answer:
        path = request.path.removeprefix("/debug").rstrip("/")
        parts = path.split("/")
        if len(parts) == 4 or (len(parts) == 5 and parts[4] == "recording"):
            pod = pods.find(parts[2], parts[3])
            if pod is None:
                return text(404, "pod does not exist\n")
            path = "/".join(["/pods", pod.metadata.uid, *parts[4:]])
        return await route(replace(request, path=path))

    return handle


def tasks_text() -> str:
    """Every task with the place at which it waits."""
    lines = []
    for task in sorted(asyncio.all_tasks(), key=lambda t: t.get_name()):
        stack = task.get_stack(limit=1)
        where = f"{stack[0].f_code.co_filename}:{stack[0].f_lineno}" if stack else "?"
        lines.append(f"{task.get_name()}  {where}")
    return f"{len(lines)} tasks\n" + "\n".join(lines) + "\n"


def heap_text() -> str:
    """The number of objects by type that the garbage collector tracks. Blocks the loop for about 0.1 s on a full node."""
    counts = Counter(type(value).__qualname__ for value in gc.get_objects())
    lines = [f"{number:9d} {name}" for name, number in counts.most_common(HEAP_LINES)]
    return f"{sum(counts.values())} objects, collections {gc.get_count()}\n" + "\n".join(lines) + "\n"


class Checkpoints:
    """`POST /checkpoint/<namespace>/<pod>/<container>`. Source: KEP-2008. `root`: the agent's root directory."""

    def __init__(
        self, pods: KnownPods, runtime: CheckpointRuntime, root: str, flight: SingleFlight, clock: Clock
    ) -> None:
        self._pods = pods
        self._runtime = runtime
        self._folder = f"{root}/checkpoints"
        self._flight = flight
        self._clock = clock

    async def answer(self, request: Request) -> Answer:
        """The path of the checkpoint as JSON; 404 for an unknown pod or container, 500 if the runtime fails."""
        target = container_target(request.path)
        pod = self._pods.find(target.namespace, target.pod) if target is not None else None
        if target is None or pod is None:
            return text(404, "pod does not exist")
        if container_spec(pod, target.container) is None:
            return text(404, f"container {target.container} does not exist")
        timeout_s = parse_decimal(request.query.get("timeout", ["0"])[-1], MAX_INT32)
        if timeout_s is None:
            return text(404, "cannot parse value of timeout parameter")
        where = f"{target.namespace}/{target.pod}/{target.container}"
        container = self._pods.running(pod, target.container)
        if container is None:
            return text(500, f"checkpointing of {where} failed (container {target.container} not found)")
        stamp = format_time(self._clock.wall())
        name = f"checkpoint-{pod.metadata.name}_{pod.metadata.namespace}-{target.container}-{stamp}.tar"
        path = f"{self._folder}/{name}"
        made = await self._flight.run("checkpoints", lambda: make_dirs(self._folder, 0o700), 10.0)
        try:
            if not isinstance(made, Done):
                raise HostError("mkdir", self._folder, "EIO", "cannot be made")
            await self._runtime.checkpoint_container(container.id, path, timeout_s)
        except (CriError, HostError) as error:
            return text(500, f"checkpointing of {where} failed ({error})")
        return Response(200, encode({"items": [path]}), JSON)
