"""The same measures for a node without an API server: one manifest has the pod and what it refers to, as documents.

Usage: alone FOLDER [FILTER]. Writes what each case costs, one JSON object a line.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import msgspec
from hostile.specs.fields import Cls
from hostile.specs.loop import MeasuredLoop
from hostile.specs.node import GOES_S, SpecNode, as_manifest, stored
from hostile.specs.pods import COLLECTIONS, Case, base_pod, pod_referring, raw
from hostile.specs.products import PRODUCTS
from hostile.specs.structs import IMAGE, Json
from longlife.machine import NODE_NAME, USUAL, Node

from pykubelet.app.flags import parse_command_line
from pykubelet.app.load import load
from pykubelet.app.run import GC_THRESHOLDS
from pykubelet.base.api import core
from pykubelet.base.api.codec import to_object
from pykubelet.base.kit.log import set_up_logging
from pykubelet.base.manifests.validation.data import MAX_DATA_KEYS
from pykubelet.config.settings import Settings
from pykubelet.testing.cri.fake_state import FakeImage

_KINDS = {COLLECTIONS[core.ConfigMap]: "ConfigMap", COLLECTIONS[core.Secret]: "Secret"}
#: The products of pods that refer to ConfigMaps and Secrets.
REFERRING = (
    *("env from with prefixes", "items of one key of a config map", "items of one key of a secret"),
    *("sources of one config map", "images with pull secrets", "secrets of volumes"),
    *("env of many objects", "init containers with env of one object"),
)


def cases() -> dict[str, Callable[[], Case]]:
    """All cases by name; each is made when it is run."""
    found: dict[str, Callable[[], Case]] = {name: partial(_product, name) for name in REFERRING}
    for cls, field, value in (
        (core.ConfigMap, "data", "v"),
        (core.ConfigMap, "binaryData", "MQ=="),
        (core.Secret, "data", "MQ=="),
        (core.Secret, "stringData", "v"),
    ):
        found[f"{cls.__name__} {field} of many keys"] = partial(_keys, cls, field, value)
    return {**found, "thousand config maps": _thousand, "config maps of 9 MiB": _large}


def _product(name: str) -> Case:
    return PRODUCTS[name](1.0)


def _keys(cls: Cls, field: str, value: str) -> Case:
    """As many keys as a ConfigMap or Secret may have, all in a volume."""
    name = "settings" if cls is core.ConfigMap else "keys"
    item = {"metadata": {"name": name}, field: raw("{%s}", f'"k%d":"{value}"', MAX_DATA_KEYS)}
    return Case("", pod_referring(cls), ((COLLECTIONS[cls], item),))


def _pod(*names: str) -> Json:
    volumes = [{"name": "v", "projected": {"sources": [{"configMap": {"name": name}} for name in names]}}]
    return base_pod(volumes=volumes)


def _config_map(name: str, data: object) -> tuple[str, Json]:
    return COLLECTIONS[core.ConfigMap], {"metadata": {"name": name}, "data": data}


def _thousand() -> Case:
    names = [f"m{number}" for number in range(990)]
    return Case("", _pod(*names), tuple(_config_map(name, {name: "x"}) for name in names))


def _large() -> Case:
    names = [f"m{number}" for number in range(9)]
    values = {name: raw("{%s}", f'"{name}-%d":"{"x" * 1000}"', 1000) for name in names}
    return Case("", _pod(names[0]), tuple(_config_map(name, data) for name, data in values.items()))


class LoneMachine(Node):
    """The machine, without an API server."""

    async def start(self) -> None:
        self.runtime.start()

    def settings(self) -> Settings:
        folder = self.folder
        words = ["--config", f"{folder}/kubelet.json", "--root-dir", f"{folder}/root", "--cert-dir", f"{folder}/pki"]
        return load(parse_command_line([*words, "--hostname-override", NODE_NAME, "--node-ip", "192.0.2.10"]))


class AloneNode(SpecNode):
    """The agent without a cluster around it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        own = {"rotateCertificates": False, "serverTLSBootstrap": False, "maxPods": 3000}
        self._node = LoneMachine(folder, self._loop, time.time(), **own)
        self._node.runtime.registry[IMAGE] = FakeImage(IMAGE)
        self._documents: tuple[bytes, ...] = ()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[AloneNode]:
        self._log = (self._folder / "agent.log").open("w", buffering=1)
        with self._log, contextlib.redirect_stderr(self._log):
            set_up_logging(0)
            await self._node.start()
            async with self._node.life(USUAL):
                await asyncio.sleep(60)
                await self._run_small()
                gc.collect()
                gc.freeze()
                gc.set_threshold(*GC_THRESHOLDS)
                yield self

    def _begin(self, case: Case, text: bytes) -> None:
        made = self._folder / "made"
        made.write_bytes(b"\n---\n".join((*self._documents, as_manifest(text))))
        made.rename(self._manifest)

    def _end(self, case: Case) -> None:
        agent = self._node.agent
        assert agent is not None
        problems = agent.cells.roster.cell.get().problems
        assert not problems, f"{case.name}: what is refused costs nothing: {problems[0]}"
        super()._end(case)

    @contextlib.contextmanager
    def _objects(self, objects: tuple[tuple[str, Json], ...]) -> Iterator[None]:
        heads = ({"apiVersion": "v1", "kind": _KINDS[path], **item} for path, item in objects)
        self._documents = tuple(msgspec.json.encode(item) for item in heads)
        yield
        self._documents = ()

    def _shown(self, case: Case) -> Json:
        agent = self._node.agent
        assert agent is not None
        statuses = agent.cells.statuses.cell.get().pods
        for uid, desired in agent.cells.roster.cell.get().pods.items():
            if uid in statuses:
                found: Json = to_object(core.Pod(metadata=desired.pod.metadata, status=statuses[uid]))
                return found
        return {}

    async def _run_small(self) -> None:
        pod = base_pod()
        pod["metadata"]["name"] = "small"
        self._begin(Case("", pod), stored(pod))
        await asyncio.sleep(20)
        self._manifest.unlink()
        assert await self._wait_gone()

    async def _wait_gone(self) -> bool:
        agent = self._node.agent
        assert agent is not None
        for _ in range(int(GOES_S)):
            if not agent.cells.roster.cell.get().pods and not self._node.runtime.state.sandboxes:
                return True
            await asyncio.sleep(1)
        return False


async def run(folder: Path, wanted: str) -> None:
    async with AloneNode(folder).running() as node:
        for name, made in cases().items():
            if wanted in name:
                case = replace(made(), name=f"alone {name}", is_static=True)
                print(msgspec.json.encode(asdict(await node.cost(case))).decode(), flush=True)


if __name__ == "__main__":
    folder, *more = sys.argv[1:]
    with asyncio.Runner(loop_factory=MeasuredLoop) as runner:
        runner.run(run(Path(folder), "".join(more)))
