"""What is measured at the end of each day, and which of it may not grow."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import resource
from collections import Counter, deque
from dataclasses import dataclass, field

from longlife.machine import Lines, Node
from support.reachable import container_sizes, holders, open_descriptors, resident_bytes

from pykubelet.act.pods.worker import HISTORY_LINES
from pykubelet.base.kit import metrics
from pykubelet.base.kit.values import PART, VERSIONS
from pykubelet.provide.placement.recording import KEPT_STEPS
from pykubelet.report.events import correlate, loop, send

#: Containers that fill up once and then stay: their limits, by owner.
BOUNDED = {
    "Correlator._groups": correlate.MEMORY,
    "Correlator._known": correlate.MEMORY,
    "SpamFilter._buckets": correlate.MEMORY,
    "_Group.messages": correlate.MEMORY * correlate.SIMILAR_MAX,
    "EventSender._names": send.REMEMBERED,
    "EventsLoop._pods": loop.KEPT_PODS,
    "Recent.pods": loop.KEPT_PODS,
    "PodWorker._history": 3 * HISTORY_LINES,
    "PodLifecycle.timeline": 3 * HISTORY_LINES,
    "NativeCounts.positive": 100
    * metrics.MAX_NATIVE_BUCKETS,  # so many series; a new bucket comes with an unusual value
    "_Buckets.counts": 100 * 24,  # as many series, of the API server too: kinds of requests come one by one
    "_History.edits": 120 * VERSIONS,  # of each cell with all pods, with their keys
    "VersionedMap._places": 24 * 7 * PART,  # keys that are gone stay until there are too many
    "VersionedMap._own": 24 * 7,
    "Counter._values": 400,  # series of all counters together: status codes and error kinds come one by one
}
#: So many more entries than before are no leak.
SLACK = 4
#: What grows on this share of the days is a leak.
RISING = 0.7
#: Of a whole life of the agent: caches fill, memory is cut to pieces.
MORE_MEMORY, MORE_MEMORY_BYTES = 1.1, 12e6
MORE_OBJECTS, MORE_OBJECTS_AT_LEAST = 1.1, 4000
#: What the agent may log in a day, whoever is away.
LOG_BYTES = 1e6


@dataclass(frozen=True, slots=True)
class Sizes:
    """At one moment. `lines`, `requests`, `calls`: since the moment before. `sizes`: entries of containers by owner."""

    day: int
    life: int
    tasks: Counter[str]
    timers: int
    objects: int
    resident: int
    descriptors: Counter[str]
    files: int
    mounts: int
    lines: int
    log_bytes: int
    requests: int
    calls: int
    cpu_s: float
    sizes: Counter[str] = field(repr=False)

    @property
    def entries(self) -> int:
        return sum(self.sizes.values())


HEAD = "day life  tasks timers  entries  objects  RSS MB  fds files mounts  log lines  log KB  API req  CRI calls   CPU s\n"


def row(at: Sizes) -> str:
    return (
        f"{at.day:3d} {at.life:4d} {sum(at.tasks.values()):6d} {at.timers:6d} {at.entries:8d} {at.objects:8d}"
        f" {at.resident / 1e6:7.1f} {sum(at.descriptors.values()):4d} {at.files:5d} {at.mounts:6d} {at.lines:10d}"
        f" {at.log_bytes / 1e3:7.1f} {at.requests:8d} {at.calls:10d} {at.cpu_s:7.1f}\n"
    )


class Scale:
    """Measures. `doubles`: objects that are no part of the agent."""

    def __init__(self, node: Node, log: Lines, *doubles: object) -> None:
        self._node = node
        self._log = log
        self._doubles = doubles
        self._before = (0, 0, 0, 0, 0.0)

    def weigh(self, day: int) -> Sizes:
        node, log = self._node, self._log
        gc.collect()
        used = resource.getrusage(resource.RUSAGE_SELF)
        totals = (
            log.lines,
            log.bytes,
            sum(node.api.counted.values()),
            sum(node.runtime.counted.values()),
            used.ru_utime + used.ru_stime,
        )
        lines, log_bytes, requests, calls, cpu_s = (now - then for now, then in zip(totals, self._before, strict=True))
        self._before = totals
        return Sizes(
            day=day,
            life=node.lives,
            tasks=Counter(_kind(task.get_name()) for task in asyncio.all_tasks()),
            timers=node.loop.timers,
            objects=len(gc.get_objects()),
            resident=resident_bytes(),
            descriptors=Counter(open_descriptors()),
            files=_count_files(str(node.folder)),
            mounts=len(open("/proc/self/mountinfo", encoding="utf-8").read().splitlines()),
            lines=int(lines),
            log_bytes=int(log_bytes),
            requests=int(requests),
            calls=int(calls),
            cpu_s=cpu_s,
            sizes=container_sizes(*self._doubles, *_full_late()),
        )

    def holders(self, name: str) -> list[str]:
        """Who holds what is counted as `name`, which is an owner of `Sizes.sizes` or a type: `support.reachable.holders`."""
        return holders(name, *self._doubles, *_full_late())


def _full_late() -> list[object]:
    """Logs of a fixed number of steps, which take a month to be full."""
    return [log for log in gc.get_objects() if isinstance(log, deque) and log.maxlen == KEPT_STEPS]


def _count_files(folder: str) -> int:
    """Without those that stay as long as their pod (termination messages: one for each start of a container) or for ever
    (certificates before the present one)."""
    stays = ("/containers/", "/pki")
    return sum(
        len(names) + len(folders) for path, folders, names in os.walk(folder) if not any(part in path for part in stays)
    )


def _kind(name: str) -> str:
    """The name of a task without numbers and ids."""
    return "".join(char for char in name.split(":")[0] if not char.isdigit()).strip("-")


def grown(days: list[Sizes]) -> list[str]:
    """What has grown from day to day, of the days that ended with the same pods. In words; empty: nothing."""
    if len(days) < 4:
        return []
    found = []
    series: dict[str, list[int]] = {
        f"entries of {owner}": [day.sizes[owner] for day in days] for owner in {o for day in days for o in day.sizes}
    }
    series |= {f"tasks {name}": [d.tasks[name] for d in days] for name in {n for d in days for n in d.tasks}}
    series |= {
        f"descriptors {name}": [d.descriptors[name] for d in days] for name in {n for d in days for n in d.descriptors}
    }
    series["timers"] = [day.timers for day in days]
    series["files"] = [day.files for day in days]
    series["mounts"] = [day.mounts for day in days]
    for name, sizes in sorted(series.items()):
        owner = name.removeprefix("entries of ")
        rises = sum(after > before for before, after in itertools.pairwise(sizes))
        is_leak = sizes[-1] - sizes[0] >= SLACK and rises >= RISING * (len(sizes) - 1)
        if is_leak and sizes[-1] > BOUNDED.get(owner, 0):
            found.append(f"{name}: {sizes}")
    return found


def exceeded(days: list[Sizes]) -> list[str]:
    """Sums that are beyond their limits within one life. In words; empty: none."""
    found = [f"{day.log_bytes} bytes of log on day {day.day}" for day in days if day.log_bytes > LOG_BYTES]
    if len(days) < 2:
        return found
    first, last = days[0], days[-1]
    if last.resident > first.resident * MORE_MEMORY + MORE_MEMORY_BYTES:
        found.append(f"memory: {[day.resident for day in days]}")
    if last.objects > first.objects * MORE_OBJECTS + MORE_OBJECTS_AT_LEAST:
        found.append(f"objects: {[day.objects for day in days]}")
    return found
