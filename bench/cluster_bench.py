"""A node in a private cluster, and what its scenarios share: pods are created at the API server and watched there."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.agent import NODE_NAME, manifest
from bench.api import STRATEGIC_MERGE, Api, Audit, PodWatch
from bench.baseline import NS_PER_MS, Made, Prepared, Template, read_template
from bench.cluster_figures import BaselineBurst, RoundTrips
from bench.runtime import BenchError
from bench.scenarios import Bench

SETTLE_S = 0.35
#: The name of a node that does not exist.
NOWHERE = "nowhere"
_NODES = "/api/v1/nodes"
_NODE = f"{_NODES}/{NODE_NAME}"
READY = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}


def cluster_pod(name: str, token: bool = False, node: str = NODE_NAME) -> dict[str, Any]:
    """A pod bound to the node; `token`: with the usual volume of a service account token."""
    return manifest(name, nodeName=node, automountServiceAccountToken=token)


@dataclass(slots=True)
class ClusterBench:
    """What the scenarios share. The templates are what the agent asked the runtime for, without and with a token."""

    bench: Bench
    api: Api
    watch: PodWatch
    audit: Audit
    templates: dict[bool, Template] = field(default_factory=dict)
    trips: int = 0
    sent: dict[str, list[tuple[str, str]]] = field(default_factory=dict)

    async def learn(self) -> None:
        """Run one pod of each kind to warm up, and take the agent's requests as the baseline's."""
        await self.node_ready_at()
        for token in (False, True):
            name = f"learn-{token}".lower()
            await self.api.create_pod(cluster_pod(name, token))
            await self.watch.ready_at(name)
            await asyncio.sleep(SETTLE_S)
            self.templates[token] = await read_template(self.bench.cri, name)
            await self.api.delete_pod(name, 1)
            await self.watch.gone_at(name)
        await self.bench.rest()

    async def mark_node_unknown(self) -> None:
        """Set the node's Ready condition to Unknown, as the node lifecycle controller does when an agent is away.

        What is read as Ready afterwards was written by the agent afterwards.
        """
        condition = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}
        await self.api.request("PATCH", f"{_NODE}/status", {"status": {"conditions": [condition]}}, STRATEGIC_MERGE)
        if await self._node_is_ready():
            raise BenchError("the node's Ready condition could not be set to Unknown")

    async def node_ready_at(self, timeout_s: float = 30.0) -> int:
        """When the node was first seen Ready."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if await self._node_is_ready():
                return time.time_ns()
            await asyncio.sleep(0.02)
        raise BenchError(f"the node does not become Ready within {timeout_s:.0f} s")

    async def _node_is_ready(self) -> bool:
        nodes = (await self.api.request("GET", _NODES))["items"]
        found = [c for n in nodes if n["metadata"]["name"] == NODE_NAME for c in n["status"].get("conditions", ())]
        return any(c["type"] == "Ready" and c["status"] == "True" for c in found)

    async def round_trips(self, trips: RoundTrips, count: int = 5) -> None:
        """What the API server needs, of a pod that no node takes."""
        for _ in range(count):
            self.trips += 1
            name = f"trip-{self.trips}"
            began = await self.api.create_pod(cluster_pod(name, node=NOWHERE))
            trips.created.append((await self.watch.seen_at(name) - began) / NS_PER_MS)
            began = await self.api.patch_status(name, READY)
            trips.patched.append((await self.watch.ready_at(name) - began) / NS_PER_MS)
            await self.api.delete_pod(name, 0)
            await self.watch.gone_at(name)

    async def baseline_burst(self, count: int, token: bool) -> BaselineBurst:
        """`count` pods at once, each with what cannot be left out: it is created and seen, made by the runtime calls,
        reported Ready and seen so. The API server knows them on a node that does not exist."""
        baseline, template, self.trips = self.bench.baseline, self.templates[token], self.trips + 1
        names = [f"baseline-{self.trips}-{i}" for i in range(count)]
        prepared = [baseline.prepare(template) for _ in names]

        async def make(name: str, pod: Prepared) -> Made:
            await self.api.create_pod(cluster_pod(name, token, NOWHERE))
            await self.watch.seen_at(name)
            made = await baseline.make(pod)
            await self.api.patch_status(name, READY)
            return made

        began = time.time_ns()
        made = await asyncio.gather(*(make(*pair) for pair in zip(names, prepared, strict=True)))
        ready = (await self.all_ready_at(names) - began) / NS_PER_MS
        gone = await baseline.remove_all(made)
        for name in names:
            await self.api.delete_pod(name, 0)
        await self.all_gone_at(names)
        return BaselineBurst(ready, gone)

    async def create_all(self, pods: Sequence[Mapping[str, Any]]) -> int:
        """All at once; when the first call began."""
        return min(await asyncio.gather(*(self.api.create_pod(pod) for pod in pods)))

    async def delete_all(self, names: Sequence[str]) -> int:
        """All at once, with a second's grace; when the first call began."""
        return min(await asyncio.gather(*(self.api.delete_pod(name, 1) for name in names)))

    async def all_gone_at(self, names: Sequence[str]) -> int:
        return max([await self.watch.gone_at(name) for name in names])

    async def all_ready_at(self, names: Sequence[str]) -> int:
        return max([await self.watch.ready_at(name) for name in names])

    def account(self) -> list[str]:
        """Lines: which requests the agent sent, by occasion."""
        return [
            f"requests {what}: "
            + ", ".join(f"{count} {verb} {resource}" for (verb, resource), count in Counter(sent).most_common())
            for what, sent in self.sent.items()
        ]
