"""A whole agent between doubles that starts one pod after the other, and what each of them costs.

The fake API server keeps what it needs not read as text, so that the memory of the process is the agent's.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import re
import sys
import time
import tracemalloc
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web
from hostile.specs.fields import Cls
from hostile.specs.limits import own_peak
from hostile.specs.loop import MeasuredLoop
from hostile.specs.memory import OwnMemory
from hostile.specs.pods import COLLECTIONS, IN_DEFAULT, Case, base_pod, stored_pod, usual_objects
from hostile.specs.structs import IMAGE, Json
from longlife.machine import NODE_NAME, USUAL, Node
from support.allocator import of_process, trim
from support.api_objects import ResourcePath, parse_resource_path
from support.api_server import Sent
from support.cost import bytes_in_use, pause_limit_s
from support.memory_api import MemoryApiServer

from pykubelet.app.run import GC_THRESHOLDS
from pykubelet.base.api.core import Pod
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.log import set_up_logging
from pykubelet.base.kit.values import replace
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.labels import CONFIG_HASH
from pykubelet.edges.host.fs.quotas import VolumeQuotas
from pykubelet.edges.kubeapi.errors import ApiError
from pykubelet.net.http.server import Answer, Response
from pykubelet.observe.stats.sizes import read_log_sizes, read_volume_sizes
from pykubelet.provide.objects.decide import pem_text
from pykubelet.testing.cri.fake_state import FakeImage
from pykubelet_local_api.kinds.schema import schema_of
from pykubelet_local_api.patch.strategic import strategic_patch

PODS = f"{IN_DEFAULT}/pods"
TRIES = 3
#: Seconds of virtual time for a pod: to start, and to go.
RUNS_S, GOES_S = 30.0, 300.0
#: Seconds of virtual time, after it has started or failed to, in which the log of a pod is measured: what is tried again is tried in it.
LATER_S = 60.0
#: Seconds of virtual time for a pod whose lines are counted.
COUNTED_S = 5.0
#: Pods that start or end one by one, and seconds of virtual time for each: in all as long as `syncFrequency`, once in which all pods are
#: looked at.
SINGLES, SINGLE_S = 12, 25.0
#: Of the node. Pods tolerate all of them, except those whose tolerations are measured.
TAINTS = [{"key": f"k{number:06}", "value": "v", "effect": "NoExecute"} for number in range(100)]
NO_QUOTAS = VolumeQuotas(is_on=False)
#: A small pod takes the places in caches for one pod if so much is kept, and after it nothing may be.
KEPT_BYTES = 1 << 20
POD_STATUS = schema_of("io.k8s.api.core.v1.PodStatus")
#: Of a pod's certificate: 100 KiB, as much as an API server admits.
CHAIN = pem_text(["A" * 4096] * 24)


@dataclass
class Cost:
    """What a pod has cost. `held_s`: the longest iteration of the loop, of which `limit_s` is allowed on this machine now. `work_s`:
    CPU time of all threads without the doubles. Bytes: `size` of what the API server has stored of the pod and its objects, `forms` of
    both as text and as the agent's form, the pod with its status, `peak` and `kept` of memory, `disk` and `memory` of files, `charged`
    of those to the pod's ephemeral storage, `sent` to the API server and `logged`, without the minute in which `logged_later`
    is. `traced`: the peak of the agent alone, of which `by_line` has the largest parts; measured only if the process may have needed
    more than the agent may.
    """

    name: str
    size: int = 0
    forms: int = 0
    phase: str = ""
    reason: str = ""
    held_s: float = 0.0
    held_by: str = ""
    limit_s: float = 0.0
    work_s: float = 0.0
    peak: int = 0
    traced: int = 0
    by_line: list[tuple[str, int]] = field(default_factory=list)
    kept: int = 0
    disk: int = 0
    charged: int = 0
    memory: int = 0
    sent: int = 0
    logged: int = 0
    logged_later: int = 0
    is_static: bool = False
    is_text: bool = False
    is_gone: bool = False
    crashes: list[str] = field(default_factory=list)
    busiest: list[tuple[str, float]] = field(default_factory=list)


@dataclass
class Lines:
    """The lines of Python that the agent's loop executes for a pod, in all and by task, and the bytes that it sends."""

    name: str
    size: int
    lines: int
    by_name: dict[str, int]
    sent: int
    is_gone: bool


@dataclass
class CrowdLines:
    """The lines of Python that the agent's loop executes by pod, for pods that start together, rest for a minute, and end together."""

    count: int
    start: float
    rest: float
    end: float
    by_name: dict[str, dict[str, float]]


@dataclass
class AmongLines:
    """The lines of Python that the agent's loop executes by pod, and the bytes that it copies, for pods that start and end one by one
    among `count` others, beside what it does at rest."""

    count: int
    start: float
    end: float
    copied_start: float
    copied_end: float
    by_name: dict[str, dict[str, float]]


class CountingApiServer(MemoryApiServer):
    """`received`: bytes of all requests."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.received = 0

    async def answer(self, sent: Sent, raw: bytes) -> Answer:
        """Of pods, only the status is read, which takes the time and memory of the doubles as little as possible.

        Each request for a certificate is answered at once, with a chain that is as long as it may be.
        """
        place = parse_resource_path(sent.path)
        match sent.method, place:
            case "POST", ResourcePath(plural="pods", sub=""):
                return _answer(self.store.create(place, _in_parts(raw)), 201)
            case "PATCH", ResourcePath(plural="pods", sub="status"):
                return _answer(self._with_status(place, sent.body), 200)
        answer = await super().answer(sent, raw)
        if place is not None and place.plural == "podcertificaterequests" and sent.method == "POST":
            assert isinstance(answer, Response)
            made = msgspec.json.decode(answer.body)
            return _answer(self._signed(replace(place, name=made["metadata"]["name"], sub="status"), made), 201)
        return answer

    def _with_status(self, place: ResourcePath, patch: Json) -> Json:
        old = self.store.get(place)
        if patch["metadata"]["uid"] != old["metadata"]["uid"]:
            raise ApiError(409, "Conflict", "this is another pod")
        status = strategic_patch(old.get("status") or {}, patch.get("status") or {}, POD_STATUS)
        return self.store.put(place, {**old, "metadata": {**old["metadata"]}, "status": status})

    def _signed(self, place: ResourcePath, made: Json) -> Json:
        condition = {"type": "Issued", "status": "True", "reason": "Signed"}
        times = {"beginRefreshAt": "2099-01-01T00:00:00Z", "notAfter": "2099-01-02T00:00:00Z"}
        status = {"conditions": [condition], "certificateChain": CHAIN, **times}
        return self.store.update(place, {**made, "status": status})

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        self.received += len(request.raw_path) + (request.content_length or 0)
        return await super()._serve(request)


class SpecNode:
    """The agent, and the cluster around it."""

    def __init__(self, folder: Path) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, MeasuredLoop)
        self._loop = loop
        self._folder = folder
        self._free, self._unused = 0, sys.maxsize
        self._node = Node(folder, loop, time.time(), registerWithTaints=TAINTS, maxPods=3000)
        self._api = CountingApiServer(self._node.clock)
        self._api.served["certificates.k8s.io/v1"] = ("podcertificaterequests",)
        self._node.api = self._api
        self._node.runtime.registry[IMAGE] = FakeImage(IMAGE)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[SpecNode]:
        self._log = (self._folder / "agent.log").open("w", buffering=1)
        with self._log, contextlib.redirect_stderr(self._log):
            set_up_logging(0)
            await self._node.start()
            for path, item in usual_objects():
                self._api.create(path, item)
            self._api.create(f"{IN_DEFAULT}/serviceaccounts", {"metadata": {"name": "s"}})
            async with self._node.life(USUAL):
                await asyncio.sleep(60)
                await self._run_small()
                gc.collect()
                gc.freeze()
                gc.set_threshold(*GC_THRESHOLDS)
                yield self
            await self._api.stop()

    async def cost(self, case: Case) -> Cost:
        """Start the pod, let it run, delete it and let it go; again if an iteration was too long, since CPU time has noise upward only."""
        found = await self._once(case)
        for _ in range(TRIES - 1):
            if found.held_s <= found.limit_s:
                break
            again = await self._once(case)
            found = again if again.held_s / again.limit_s < found.held_s / found.limit_s else found
        if found.peak + self._free > own_peak(asdict(found)):
            await self._trace(case, found)
        return found

    def _note_free(self, unused: int) -> None:
        """`unused`: bytes of the process that are no allocated memory. What is more than for the first pod was freed by the ones before:
        it is used again, and no peak of the process shows that."""
        self._unused = min(self._unused, unused)
        self._free = unused - self._unused

    async def _trace(self, case: Case, found: Cost) -> None:
        """The pod once more, for the peak of the agent without the doubles."""
        with self._objects(case.objects):
            gc.collect()
            self._loop.memory = memory = OwnMemory()
            with memory.traced():
                self._begin(case, stored(case.pod))
                await asyncio.sleep(RUNS_S)
                self._end(case)
                await self._wait_gone()
            self._loop.memory = None
        self._forget()
        found.traced, found.by_line = memory.highest, memory.by_line.most_common(8)

    async def lines(self, case: Case) -> Lines:
        """What the agent's loop executes for the pod, from its start until it is gone."""
        text = stored(case.pod)
        with self._objects(case.objects):
            self._loop.reset()
            self._loop.counts = True
            before = self._api.received
            self._api.create(PODS, _in_parts(text))
            await asyncio.sleep(COUNTED_S)
            self._api.delete(f"{PODS}/{case.pod['metadata']['name']}", {"gracePeriodSeconds": 2})
            is_gone = await self._wait_gone()
            self._loop.counts = False
        self._forget()
        return Lines(
            case.name,
            len(text),
            sum(self._loop.lines.values()),
            dict(self._loop.lines),
            self._api.received - before,
            is_gone,
        )

    async def crowd(self, count: int) -> CrowdLines:
        """What the agent's loop executes for so many pods."""
        names, lines = [f"crowd-{number}" for number in range(count)], []
        for name in names:
            self._create_small(name)
        lines.append(await self._counted(self._all_running(count)))
        await asyncio.sleep(RUNS_S)
        lines.append(await self._counted(asyncio.sleep(60)))
        for name in names:
            self._delete(name)
        lines.append(await self._counted(self._wait_gone()))
        self._forget()
        parts = {
            stage: {name: round(number / count, 1) for name, number in of_stage.most_common(20)}
            for stage, of_stage in zip(("start", "rest", "end"), lines, strict=True)
        }
        start, rest, end = (sum(of_stage.values()) / count for of_stage in lines)
        return CrowdLines(count, start, rest, end, parts)

    async def among(self, count: int) -> AmongLines:
        """What the agent's loop executes and copies for each of some pods that start and end one by one among `count` others."""
        others, names = [f"other-{number}" for number in range(count)], [f"one-{number}" for number in range(SINGLES)]
        for name in others:
            self._create_small(name)
        await self._all_running(count)
        await self._one_by_one(
            ["first"], self._create_small
        )  # as so many have just started, it is compared with all of them
        await self._one_by_one(["first"], self._delete)
        found: dict[str, tuple[Counter[str], Counter[str]]] = {}
        for stage, act in (("rest", None), ("start", self._create_small), ("end", self._delete)):
            tracemalloc.start()
            lines = await self._counted(self._one_by_one(names, act))
            found[stage] = Counter(lines), Counter(self._loop.copied)
            tracemalloc.stop()
        for name in others:
            self._delete(name)
        await self._wait_gone()
        self._forget()
        (start, copied_start), (end, copied_end) = (
            tuple(
                {name: (of[name] - rest[name]) / SINGLES for name in of}
                for of, rest in zip(found[stage], found["rest"], strict=True)
            )
            for stage in ("start", "end")
        )
        parts = {"start": start, "end": end, "copied_start": copied_start, "copied_end": copied_end}
        return AmongLines(count, **{name: sum(of.values()) for name, of in parts.items()}, by_name=parts)

    async def _one_by_one(self, names: list[str], act: Callable[[str], None] | None) -> None:
        for name in names:
            if act is not None:
                act(name)
            await asyncio.sleep(SINGLE_S)

    def _create_small(self, name: str) -> None:
        pod = base_pod()
        pod["metadata"]["name"] = name
        self._api.create(PODS, _in_parts(stored(pod)))

    def _delete(self, name: str) -> None:
        self._api.delete(f"{PODS}/{name}", {"gracePeriodSeconds": 1})

    async def _counted(self, work: Awaitable[object]) -> Counter[str]:
        self._loop.reset()
        self._loop.counts = True
        await work
        self._loop.counts = False
        return self._loop.lines

    async def _all_running(self, count: int) -> None:
        while sum(pod["status"].get("phase") == "Running" for pod in self._api.objects("pods")) < count:  # noqa: ASYNC110 - the double has no event for it
            await asyncio.sleep(0.1)

    async def _once(self, case: Case) -> Cost:
        text = stored(case.pod)
        found = Cost(
            case.name,
            len(text) + sum(len(_raw(item)) for _, item in case.objects),
            limit_s=pause_limit_s(),
            is_static=case.is_static,
            is_text=case.is_text,
        )
        with self._objects(case.objects):
            kept, resident = bytes_in_use(), _forget_peak()
            self._note_free(resident - kept)
            before = self._files(), *self._sent_and_logged()
            began = time.process_time()
            self._loop.reset()
            self._begin(case, text)
            await asyncio.sleep(RUNS_S)
            shown = self._shown(case)
            status, reported = shown.get("status", {}), _raw(shown) if shown else text
            found.phase, found.reason = str(status.get("phase")), _reason(status)
            found.disk, found.memory = (now - then for now, then in zip(self._files(), before[0], strict=True))
            found.charged = self._charged(_uid(shown, case)) if shown else 0
            then = self._sent_and_logged()
            await asyncio.sleep(LATER_S)
            later = [now - before for now, before in zip(self._sent_and_logged(), then, strict=True)]
            self._end(case)
            found.is_gone = await self._wait_gone()
            found.peak = of_process("VmHWM") - resident
            found.work_s = time.process_time() - began - self._loop.doubles_s
            found.held_s, found.held_by = self._loop.longest_s, self._loop.longest
            found.busiest = [*self._loop.by_name.most_common(6)]
            found.sent = self._sent_and_logged()[0] - before[1] - later[0]
        kinds = {path: cls for cls, path in COLLECTIONS.items()}
        found.forms = _forms(reported, Pod) + sum(_forms(_raw(item), kinds[path]) for path, item in case.objects)
        del shown, status, reported
        found.kept = await self._kept(kept)
        found.logged, found.logged_later = self._sent_and_logged()[1] - before[2] - later[1], later[1]
        found.crashes = self._crashes(before[2])
        return found

    def _sent_and_logged(self) -> tuple[int, int]:
        """Bytes that the API server has received, and those of the agent's log."""
        return self._api.received, os.stat(self._log.fileno()).st_size

    def _begin(self, case: Case, text: bytes) -> None:
        """Let the pod be wanted. A manifest is there at once, as a rename makes it."""
        if not case.is_static:
            self._api.create(PODS, _in_parts(text))
            return
        made = self._folder / "made"
        made.write_bytes(as_manifest(text))
        made.rename(self._manifest)

    def _end(self, case: Case) -> None:
        if case.is_static:
            self._manifest.unlink()
        else:
            self._api.delete(f"{PODS}/{case.pod['metadata']['name']}", {"gracePeriodSeconds": 2})

    @property
    def _manifest(self) -> Path:
        return self._node.manifests / "big.json"

    def _shown(self, case: Case) -> Json:
        """The pod as the API server has it; of a static one, its mirror pod. Empty for a manifest that is refused."""
        name = case.pod["metadata"]["name"] + (f"-{NODE_NAME}" if case.is_static else "")
        shown = (pod for pod in self._api.objects("pods") if pod["metadata"]["name"] == name)
        return next(shown, {})

    @contextlib.contextmanager
    def _objects(self, objects: tuple[tuple[str, Json], ...]) -> Iterator[None]:
        """With these objects, some of which replace usual ones."""
        usual = {(path, item["metadata"]["name"]): item for path, item in usual_objects()}
        for path, item in objects:
            where = path, item["metadata"]["name"]
            if where in usual:
                self._api.delete("/".join(where))
            self._api.create(path, item)
        yield
        for path, item in objects:
            where = path, item["metadata"]["name"]
            self._api.delete("/".join(where))
            if where in usual:
                self._api.create(path, usual[where])

    async def _kept(self, before: int) -> int:
        self._forget()
        await asyncio.sleep(200)
        kept = bytes_in_use() - before
        if kept > KEPT_BYTES:
            await self._run_small()
            self._forget()
            await asyncio.sleep(200)
            kept = bytes_in_use() - before
        return kept

    async def _run_small(self) -> None:
        self._create_small("small")
        await asyncio.sleep(20)
        self._delete("small")
        assert await self._wait_gone()

    def _collect(self) -> None:
        """Remove the requests for certificates of pods that are gone, as the garbage collector of a control plane does."""
        for place in [place for place in self._api.store.objects if place.plural == "podcertificaterequests"]:
            self._api.store.remove(place)

    async def _wait_gone(self) -> bool:
        """Whether the pod goes; the API server is without it in any case."""
        for _ in range(int(GOES_S)):
            pods = [pod for pod in self._api.objects("pods") if not pod["metadata"].get("finalizers")]
            if not pods and not self._node.runtime.state.sandboxes:
                break
            await asyncio.sleep(1)
        self._collect()
        for place in [place for place in self._api.store.objects if place.plural == "pods"]:
            is_kept = bool(self._api.store.get(place)["metadata"].get("finalizers"))
            self._api.store.remove(place)
            if not is_kept:
                return False
        return not self._node.runtime.state.sandboxes

    def _forget(self) -> None:
        """What the cluster forgets after an hour, and what the doubles keep."""
        store = self._api.store
        for place in [place for place in store.objects if place.plural in ("events", "certificatesigningrequests")]:
            store.remove(place)
        self._api.requests.clear()
        store.forget()

    def _files(self) -> tuple[int, int]:
        """The bytes of files on disk, which is a mount of memory in these tests, and in the mounts of memory that the agent made."""
        disk = memory = 0
        seen: set[str] = set()
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            left, _, right = line.partition(" - ")
            _, _, device, _, place, *_ = left.split()
            is_here = place == "/var/log" or place.startswith(str(self._folder))
            if right.startswith("tmpfs ") and is_here and device not in seen:
                seen.add(device)
                stat = os.statvfs(place)
                used = (stat.f_blocks - stat.f_bfree) * stat.f_frsize
                if place in ("/var/log", str(self._folder)):
                    disk += used
                else:
                    memory += used
        return disk - os.stat(self._log.fileno()).st_size, memory

    def _charged(self, uid: PodUID) -> int:
        """The bytes on disk that the agent charges to the pod's ephemeral storage. The doubles' containers have no writable layers."""
        agent = self._node.agent
        assert agent is not None
        paths, at = self._node.settings().paths, self._node.clock.wall()
        view, mounts = agent.cells.observed.cell.get().pods.get(uid), agent.cells.mounts.cell.get().pods.get(uid)
        logs = read_log_sizes(paths, [view], at).values() if view is not None else ()
        found = sum(log.own[0] + sum(used for used, _ in log.logs.values()) for log in logs)
        sizes = read_volume_sizes(paths.pods, mounts.volumes if mounts is not None else {}, NO_QUOTAS, at)
        return found + sum(volume.fs.used or 0 for volume in sizes.volumes if volume.is_local)

    def _crashes(self, since: int) -> list[str]:
        with (self._folder / "agent.log").open() as log:
            log.seek(since)
            return [line[:400] for line in log if re.search(r"crash|Traceback|unexpected", line)]


def _answer(found: Json, code: int) -> Response:
    return Response(code, _raw(found), "application/json")


def stored(pod: Json) -> bytes:
    """The pod as an API server with its defaults sends it."""
    return msgspec.json.encode(stored_pod(pod))


def _in_parts(text: bytes) -> Json:
    """The object for the fake API server: only what it looks at is parsed."""
    parts = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    spec = msgspec.json.decode(parts["spec"], type=dict[str, msgspec.Raw])
    about = msgspec.json.decode(parts["metadata"], type=dict[str, msgspec.Raw])
    for name in ("uid", "resourceVersion", "deletionTimestamp", "creationTimestamp", "generation"):
        about.pop(name, None)
    for part, read in (
        (spec, ("terminationGracePeriodSeconds",)),
        (about, ("name", "namespace", "annotations", "finalizers")),
    ):
        part.update({name: msgspec.json.decode(part[name]) for name in read if name in part})
    return {"metadata": about, "spec": {**spec, "nodeName": "node"}}


def as_manifest(text: bytes) -> bytes:
    """The pod as a manifest: a static pod refers to no service account."""
    parts = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    spec = msgspec.json.decode(parts["spec"], type=dict[str, msgspec.Raw])
    for name in ("serviceAccountName", "serviceAccount"):
        spec.pop(name, None)
    return msgspec.json.encode({"apiVersion": "v1", "kind": "Pod", "metadata": parts["metadata"], "spec": spec})


def _uid(stored: Json, case: Case) -> PodUID:
    """As the agent knows the pod: a mirror pod names the static one's."""
    about = stored["metadata"]
    return PodUID(about["annotations"][CONFIG_HASH] if case.is_static else about["uid"])


def _raw(item: Json) -> bytes:
    return msgspec.json.encode(item)


def _forms(text: bytes, cls: Cls) -> int:
    """The bytes that the object takes as text and as the agent's form."""
    before = bytes_in_use()
    item = msgspec.json.decode(text, type=cls)
    after = bytes_in_use()
    del item
    return len(text) + after - before


def _reason(status: Any) -> str:
    for container in (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())):
        if waiting := container.get("state", {}).get("waiting"):
            return f"{waiting.get('reason')}: {waiting.get('message', '')}"[:200]
    return f"{status.get('reason', '')}: {status.get('message', '')}"[:200].removeprefix(": ")


def _forget_peak() -> int:
    """Let the highest use of memory count from now on. Returns the present one."""
    gc.collect()
    trim()
    Path("/proc/self/clear_refs").write_text("5")
    return of_process("VmRSS")
