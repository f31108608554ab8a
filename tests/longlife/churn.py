"""Pods of all shapes that come and go, and what stays of them: `python -m longlife.churn FOLDER SEED COUNT...`, by `launch.sh`.

So many pods are made and deleted, fifty in eighteen seconds of virtual time, which is 10,000 in an hour, and a hundred are there at a
time at most. Then nothing happens for a quarter of an hour, and what the agent holds is measured; then the next ones come. Prints a row
for each time, and what has grown from the first to the last; the exit code is 1 if anything has.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import random
import resource
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longlife.churn_pods import Passing, passing
from longlife.cluster import NODE_NAME, Cluster, InPods, pod
from longlife.machine import USUAL, Lines, Node
from longlife.sizes import BOUNDED, Scale, Sizes
from support.allocator import Allocated, allocated, of_process, trim
from support.virtual_time import VirtualLoop

from pykubelet.app.run import GC_THRESHOLDS
from pykubelet.base.api.codec import from_object, to_object
from pykubelet.base.api.core import Pod
from pykubelet.base.kit.log import set_up_logging
from pykubelet.base.manifests.defaults import default_pod
from pykubelet.testing.cri.fake_state import FakeImage

DAY = 86400.0
WAVE, WAVE_S = 50, 18.0
#: How long pods are wanted, in seconds: some are deleted before they have started, or while they pull, wait or back off.
LIVES_S = (0.05, 1.0, 12.0, 25.0, 36.0, 36.0)
#: What is remembered for ten minutes is forgotten then.
REST_S = 900.0
GOES_S = 600.0
#: Images are collected and cpusets looked at within a rest.
CONFIGURATION = {"maxPods": 1000, "registryPullQPS": 0, "imageMaximumGCAge": "5m", "cpuManagerReconcilePeriod": "10s"}
#: Bytes by which the process may be larger after all pods than after the first ones.
MEMORY = 8 << 20
#: Of so many pods that have gone, one more thing of a kind may be there: each shape of pods is more frequent.
ONE_OF = 50
#: Beside the containers in `BOUNDED`: images of the Node's status, with two names each, and messages of containers.
#: Also what a dozen connections to the API server have of their last request: five to seven are open after a rest.
FULL_SOON = {
    "ContainerImage.names": 100,
    "NodeStatus.images": 50,
    "TerminationMessages.known": 64,
    **dict.fromkeys(("MemoryTransport._extra", "Request._cache", "ResponseParser._fields", "URL._cache"), 85),
}
#: Types of which more are there for a while: they are entries of what is in `BOUNDED`, or of the newest steps of placement, or of a cache.
BOUNDED_TYPES = (
    "kube_events.",
    "diagnostics.",
    "bucket.",
    "correlate.",
    "placement.",
    "records.",
    "values._Edit",
    "values._History",
    "quantity.Amount",
)
MOST = {**BOUNDED, **FULL_SOON}
AGENT = "pykubelet."
DOUBLES = ("pykubelet.testing.", "pykubelet.net.grpc.server_connection.")


@dataclass(frozen=True)
class Left:
    """What is there after `pods` pods. `resident`: bytes of the process, of which `mapped` are of files, programs above all; `trimmed`:
    after `malloc_trim`, which took `trim_ms` milliseconds. `types`: objects of the agent by type; `garbage`: of these, what only a garbage
    collection has freed."""

    pods: int
    sizes: Sizes
    resident: int
    mapped: int
    trimmed: int
    trim_ms: float
    memory: Allocated
    types: Counter[str]
    garbage: Counter[str]


HEAD = (
    "  pods  entries tasks fds files mounts  RSS MiB of files trimmed    ms   used   kept  Python uses  holds  malloc uses  holds arenas"
    "  CPU s"
)


def row(left: Left) -> str:
    """MiB. `kept`: what the allocators have of the machine's memory beside what is used."""
    sizes, memory = left.sizes, left.memory
    kept = left.resident - left.mapped - memory.used
    whole = (in_mib(size) for size in (left.resident, left.mapped, left.trimmed))
    parts = (in_mib(size) for size in (memory.small, memory.small_arenas, memory.malloc, memory.malloc_held))
    return (
        f"{left.pods:6d} {sizes.entries:8d} {sizes.tasks.total():5d} {sizes.descriptors.total():3d} {sizes.files:5d} {sizes.mounts:6d}"
        " {:8.1f} {:8.1f} {:7.1f}".format(*whole)
        + f" {left.trim_ms:5.1f} {in_mib(memory.used):6.1f} {in_mib(kept):6.1f}"
        + " {:12.1f} {:6.1f} {:12.1f} {:6.1f}".format(*parts)
        + f" {memory.heaps:6d} {sizes.cpu_s:6.1f}"
    )


def in_mib(size: int) -> float:
    return size / (1 << 20)


def stayed(first: Left, last: Left) -> list[str]:
    """What has grown with the pods that have come and gone in between, in words; empty: nothing."""
    return [*(words for _, words in grown(first, last)), *_larger(first, last)]


def grown(first: Left, last: Left) -> list[tuple[str, str]]:
    """What has grown in number: its name, and in words."""
    more = max(4, (last.pods - first.pods) // ONE_OF)
    before, after = first.sizes, last.sizes
    none: Counter[str] = Counter()
    counted = [
        ("entries of ", before.sizes, after.sizes),
        ("tasks ", before.tasks, after.tasks),
        ("descriptors ", before.descriptors, after.descriptors),
        ("objects ", first.types, last.types),
        ("left to the garbage collector: ", none, last.garbage),
        ("", Counter(timers=before.timers), Counter(timers=after.timers)),
        ("", Counter(files=before.files, mounts=before.mounts), Counter(files=after.files, mounts=after.mounts)),
    ]
    return [
        (name, f"{what}{name}: {then[name]} became {now[name]}")
        for what, then, now in counted
        for name in sorted(now)
        if now[name] - then[name] > more and now[name] > MOST.get(name, 0) and not _is_bounded_type(name)
    ]


def _is_bounded_type(name: str) -> bool:
    return name.startswith(AGENT) and any(part in name for part in BOUNDED_TYPES)


def _larger(first: Left, last: Left) -> list[str]:
    more = last.resident - first.resident
    return [f"memory: {in_mib(more):.1f} MiB more"] if more > MEMORY else []


class Churn:
    """The node and what comes and goes. `left`: what was there after each count of pods. `seen`: in which states pods were deleted."""

    def __init__(self, folder: Path, loop: VirtualLoop, seed: int) -> None:
        self._random = random.Random(seed)
        self._node = node = Node(folder, loop, time.time(), **CONFIGURATION)
        self._cluster = Cluster(node.api, node.clock)
        self._in_pods = InPods()
        self._log = Lines((folder / "agent.log").open("w", buffering=1), loop, loop.now)
        doubles = (self, node, node.api, node.api.store, node.runtime, node.runtime.state, node.cgroups, loop)
        self._scale = Scale(node, self._log, *doubles, self._log, self._cluster, self._in_pods)
        self._made = 0
        self.left: list[Left] = []
        self.seen: Counter[str] = Counter()

    async def live(self, counts: list[int]) -> list[str]:
        """All of it: so many pods, and then so many more. Returns what was not as it should be, in words."""
        with contextlib.redirect_stderr(self._log):
            set_up_logging(2)
        await self._node.start()
        await self._in_pods.start()
        self._cluster.settings("red")
        self._cluster.keys("key")
        self._node.runtime.registry["registry.test/app:1"] = FakeImage("registry.test/app:1")
        signing = asyncio.ensure_future(self._cluster.sign_for_ever())
        async with self._node.life(USUAL) as agent:
            failing = asyncio.ensure_future(agent.supervisor.wait_failed())
            passing_by = asyncio.ensure_future(self._pass_all(counts))
            await asyncio.wait((failing, passing_by), return_when=asyncio.FIRST_COMPLETED)
            if failing.done():
                passing_by.cancel()
                raise failing.result()
            failing.cancel()
            await passing_by
        signing.cancel()
        self._in_pods.stop()
        await self._node.api.stop()
        return [*(f"log: {line}" for line in self._log.errors if "crash" in line), *stayed(self.left[0], self.left[-1])]

    async def _pass_all(self, counts: list[int]) -> None:
        await asyncio.sleep(60)
        gc.set_threshold(*GC_THRESHOLDS)
        print(HEAD, row(self._weigh()), sep="\n", flush=True)
        for count in counts:
            await self._pass(count)
            self.left.append(self._weigh())
            print(row(self.left[-1]), flush=True)
            self._keep(self.left[-1])
        for name, _ in grown(self.left[0], self.left[-1]):
            print(f"{name}:", *self._scale.holders(name), sep="\n  ")

    def _keep(self, left: Left) -> None:
        """Add a line to the sizes by owner and type."""
        with (self._node.folder / "sizes.jsonl").open("a") as stream:
            owners = {**left.sizes.sizes, **left.types}
            stream.write(json.dumps({"pods": left.pods, **dict(sorted(owners.items()))}) + "\n")

    async def _pass(self, count: int) -> None:
        """So many pods come and go, and leave nothing at the API server and the runtime. At last one comes and goes alone: what waits
        for the next change still has the one before."""
        async with asyncio.TaskGroup() as lives:
            for _ in range(count):
                lives.create_task(self._live(passing(self._made, self._random), self._random.choice(LIVES_S)))
                self._made += 1
                if self._made % WAVE == 0:
                    await asyncio.sleep(WAVE_S)
                    self._forget()
        await self._wait_gone()
        await self._live(Passing(pod("last")), 20)
        await self._wait_gone()
        await asyncio.sleep(REST_S)

    async def _wait_gone(self) -> None:
        end = self._node.loop.now + GOES_S
        while (left := self._left()) and self._node.loop.now < end:  # noqa: ASYNC110 - nothing announces it
            await asyncio.sleep(5)
        assert not left, f"these pods do not go: {left}"

    def _left(self) -> list[str]:
        """The pods that the API server and the runtime have."""
        found = [str(item["metadata"]["name"]) for item in self._node.api.objects("pods")]
        return found + [sandbox.config.metadata.name for sandbox in self._node.runtime.state.sandboxes.values()]

    async def _live(self, what: Passing, lives_s: float) -> None:
        if what.is_static:
            manifest = self._node.manifests / f"{what.name}.json"
            manifest.write_text(json.dumps(what.manifest))
            await asyncio.sleep(lives_s)
            manifest.unlink()
            return
        api, pods = self._node.api, f"/api/v1/namespaces/{what.namespace}/pods"
        self._bring_objects(what)
        bound = what.manifest | {"spec": what.manifest["spec"] | {"nodeName": NODE_NAME}}
        api.create(pods, to_object(default_pod(from_object(Pod, bound))))
        await asyncio.sleep(lives_s)
        self.seen[in_short(api.get(f"{pods}/{what.name}"))] += 1
        api.delete(f"{pods}/{what.name}")
        await asyncio.sleep(1)
        for path, item in what.objects:
            api.delete(f"{path}/{item['metadata']['name']}")
        self._node.runtime.registry.pop(what.image, None)

    def _bring_objects(self, what: Passing) -> None:
        uid = ""
        for path, item in what.objects:
            if "claimRef" in item.get("spec", {}):
                item["spec"]["claimRef"]["uid"] = uid  # of the claim, which is made before its volume
            uid = self._node.api.create(path, item)["metadata"]["uid"]
        if what.image:
            self._node.runtime.registry[what.image] = FakeImage(what.image)

    def _weigh(self) -> Left:
        self._forget()
        resident, mapped = of_process("VmRSS"), of_process("RssFile")
        garbage = _garbage()
        memory = allocated()
        began = time.thread_time()
        trim()
        trim_ms = (time.thread_time() - began) * 1000
        trimmed = of_process("VmRSS")
        sizes = self._scale.weigh(self._made)
        return Left(self._made, sizes, resident, mapped, trimmed, trim_ms, memory, _by_type(gc.get_objects()), garbage)

    def _forget(self) -> None:
        """What the cluster forgets after a while, and what its double keeps for watches."""
        self._cluster.forget_events()
        api = self._node.api
        api.requests.clear()
        api.store.forget()


def in_short(pod: dict[str, Any]) -> str:
    """The phase of a pod, why, and the states of its first container."""
    status = pod.get("status", {})
    state = (status.get("containerStatuses") or [{}])[0].get("state", {})
    reasons = [str(at["reason"]) for at in (status, *state.values()) if at.get("reason")]
    return " ".join((str(status.get("phase")), *reasons))


def _garbage() -> Counter[str]:
    """Collect all garbage, and count the agent's by type."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    gc.set_debug(0)
    found = _by_type(gc.garbage)
    gc.garbage.clear()
    gc.collect()
    return found


def _by_type(objects: list[Any]) -> Counter[str]:
    names = Counter(f"{type(item).__module__}.{type(item).__qualname__}" for item in objects)
    return Counter({name: n for name, n in names.items() if name.startswith(AGENT) and not name.startswith(DOUBLES)})


def main(folder: str, seed: str, *counts: str) -> int:
    random.seed(int(seed))
    loop = VirtualLoop(lasts_s=DAY)
    churn = Churn(Path(folder), loop, int(seed))
    began = time.monotonic()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        problems = runner.run(churn.live([int(count) for count in counts]))
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(
        f"in {time.monotonic() - began:.0f} s, {used.ru_utime + used.ru_stime:.0f} s of CPU; pods were deleted when they were"
    )
    print("; ".join(f"{state} {count}" for state, count in churn.seen.most_common()))
    for problem in problems:
        print(f"PROBLEM: {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
