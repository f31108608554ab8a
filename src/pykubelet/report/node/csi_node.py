"""Keeps the node's CSINode object, and what the Node shows about CSI drivers.

Owns: the CSINode with its owner, annotation and drivers; of the Node, the annotation with the drivers' ids of this node, and
their topology labels. Reads: `ApiNode`, `Plugins`, the pods in `Mounts` that have met a limit, and how often drivers want to be asked
again (KEP-4876). Each change is sent at once (`plan_csi_node` decides what); a new
Node of the name gets all of it again.
Source: the Kubernetes documentation "CSINode"; KEP-625 (in-tree storage plugins to CSI) for the annotation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import aclosing
from typing import Any

from pykubelet.base.api.core import Node
from pykubelet.base.api.storage import CSIDriver, CSINode, CSINodeDriver
from pykubelet.base.kit.backoff import BackoffPolicy
from pykubelet.base.kit.cells import Cell, set_on_change
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.model.mounts import Mounts
from pykubelet.base.model.node import ApiNode
from pykubelet.base.model.plugins import CsiNodeInfo, Plugins
from pykubelet.edges.csi.node import CsiNode
from pykubelet.edges.kubeapi.client import ApiClient, PatchKind
from pykubelet.edges.kubeapi.errors import ApiError
from pykubelet.edges.kubeapi.listwatch import WatchPeriods, follow
from pykubelet.net.grpc.status import RpcError
from pykubelet.report.node.api_node import NODES
from pykubelet.report.node.plan_csi_node import (
    Drivers,
    NodeChange,
    csi_drivers,
    plan_entries,
    plan_kept,
    plan_node,
    plan_removal,
    refresh_period_s,
)

log = Log("node")
CSI_NODES = "/apis/storage.k8s.io/v1/csinodes"
CSI_DRIVERS = "/apis/storage.k8s.io/v1/csidrivers"
MIGRATED = "storage.alpha.kubernetes.io/migrated-plugins"
#: In-tree plugins whose volumes are now handled by CSI drivers.
MIGRATED_PLUGINS = (
    "kubernetes.io/aws-ebs",
    "kubernetes.io/azure-disk",
    "kubernetes.io/azure-file",
    "kubernetes.io/cinder",
    "kubernetes.io/gce-pd",
    "kubernetes.io/portworx-volume",
    "kubernetes.io/vsphere-volume",
)
_BACKOFF = BackoffPolicy(0.5, 30.0)
#: The API server does not accept what a driver reports: it is invalid, or a node may not have such a label.
_REFUSED = (400, 403, 422)
_INVALID = (400, 422)


class CsiNodeKeeper:
    """Keeps the CSINode of the node `name`. `watch`: the periods of the watch of CSIDrivers."""

    def __init__(
        self,
        client: ApiClient,
        name: str,
        node: Cell[ApiNode],
        plugins: Cell[Plugins],
        clock: Clock,
        watch: WatchPeriods | None = None,
        mounts: Cell[Mounts] | None = None,
    ) -> None:
        self._client = client
        self._name = name
        self._node = node
        self._plugins = plugins
        self._clock = clock
        self._watch = watch or WatchPeriods()
        self._mounts = mounts or Cell("mounts", Mounts())
        self._changed = asyncio.Event()
        self._answers: dict[str, tuple[float, CsiNodeInfo]] = {}
        self._refreshers: dict[str, tuple[float, asyncio.Task[None]]] = {}
        self._sent: tuple[str, Drivers] = ("", {})
        self._seen: set[str] = set()
        self._problems: Mapping[str, str] = {}

    async def run(self) -> None:
        """Send each change. Never returns."""
        async with Supervisor("csi-node") as tasks:
            tasks.start_root("csi-node changes", self._send_changes())
            tasks.start_root("csi-node refresh", self._refresh(tasks))
            tasks.start_root("csi-node limits", self._refresh_at_limit())
            raise await tasks.wait_failed()

    async def _send_changes(self) -> None:
        changed, failures = self._changed, 0
        with set_on_change(changed, self._node, self._plugins):
            while True:
                changed.clear()
                node, drivers = self._node.get(), self._drivers()
                if not node.registered or (node.uid, drivers) == self._sent:
                    await changed.wait()
                    continue
                self._seen.update(drivers)
                try:
                    await self._send(node.uid, drivers)
                except ApiError as error:
                    if not failures:
                        log.warning(
                            "the node's CSI drivers cannot be reported", error=error, status=error.status or None
                        )
                    failures += 1
                    await asyncio.sleep(max(_BACKOFF.delay_s(failures), error.retry_after_s or 0.0))
                else:
                    self._sent, failures = (node.uid, drivers), 0

    def _drivers(self) -> Drivers:
        """What the registered drivers report, with their newest answers."""
        plugins = self._plugins.get()
        found = dict(csi_drivers(plugins))
        for name, (since, info) in self._answers.items():
            plugin = plugins.csi_driver(name)
            if plugin is not None and plugin.registered_at == since:
                found[name] = info
        return found

    # Drivers that are asked again

    async def _refresh(self, tasks: Supervisor) -> None:
        """Ask each driver again after the period that its CSIDriver gives. Watches only once there is a driver."""
        await self._plugins.wait_for(lambda now: bool(csi_drivers(now)))
        listing = follow(self._client, CSI_DRIVERS, CSIDriver, self._clock, periods=self._watch)
        async with aclosing(listing) as listings:
            async for listed in listings:
                self._adjust({name: refresh_period_s(driver) for name, driver in listed.items.items()}, tasks)

    def _adjust(self, periods: Mapping[str, float], tasks: Supervisor) -> None:
        for name, (period, task) in list(self._refreshers.items()):
            if periods.get(name, 0.0) != period:
                task.cancel()
                del self._refreshers[name]
        for name, period in periods.items():
            if period and name not in self._refreshers:
                self._refreshers[name] = period, tasks.start_root(f"csi-node {name}", self._ask_again(name, period))

    async def _refresh_at_limit(self) -> None:
        """Ask drivers for their limits again if volumes cannot be attached because of a limit that the node did not know. Never returns."""
        known = self._mounts.get().at_limit
        async for mounts in self._mounts.changes():
            new = [limit for uid, limit in mounts.at_limit.items() if uid not in known]
            known = mounts.at_limit
            for name in sorted({driver for limit in new for driver in limit.drivers}):
                await self._ask(name)

    async def _ask_again(self, name: str, period: float) -> None:
        while True:
            await asyncio.sleep(period)
            await self._ask(name)

    async def _ask(self, name: str) -> None:
        """Take what the driver reports about the node now."""
        plugin = self._plugins.get().csi_driver(name)
        if plugin is None:
            return
        try:
            with CsiNode(plugin.name, plugin.endpoint) as driver:
                found = await driver.info()
        except RpcError as error:
            log.warning("a CSI driver does not report about the node", driver=name, error=error)
            return
        if found.node_id and (plugin.registered_at, found) != self._answers.get(name):
            self._answers[name] = plugin.registered_at, found
            self._changed.set()

    # Requests

    async def _send(self, uid: str, drivers: Drivers) -> None:
        gone = self._seen - drivers.keys()
        csi_node = await self._ensure(uid)
        if self._seen:
            problems = await self._update_node(drivers, gone)
            shown = {name: info for name, info in drivers.items() if name not in problems}
            problems |= await self._update_entries(csi_node, shown, gone | problems.keys())
            self._log_problems(problems)

    def _log_problems(self, problems: Mapping[str, str]) -> None:
        for name, problem in problems.items():
            if self._problems.get(name) != problem:
                log.warning("a CSI driver is left out of the Node or the CSINode", driver=name, reason=problem)
        self._problems = problems

    async def _update_node(self, drivers: Drivers, gone: set[str]) -> dict[str, str]:
        """Update annotation and labels of the Node, for each driver by itself. Returns why some are left out, by driver."""
        node = await self._client.get(f"{NODES}/{self._name}", Node)
        node = await self._patch_node(node, plan_removal(node, gone))
        problems: dict[str, str] = {}
        for name, info in sorted(drivers.items()):
            change = plan_node(node, name, info)
            try:
                node = await self._patch_node(node, change)
            except ApiError as error:
                if error.status not in _REFUSED or len(drivers) == 1:
                    raise
                change = NodeChange(problem=error.message)
            if change.problem:
                problems[name] = change.problem
        return problems

    async def _patch_node(self, node: Node, change: NodeChange) -> Node:
        if not change.patch:
            return node
        return await self._client.patch(f"{NODES}/{self._name}/status", change.patch, PatchKind.STRATEGIC, Node)

    async def _update_entries(self, csi_node: CSINode, drivers: Drivers, gone: set[str]) -> dict[str, str]:
        """Update the entries of the CSINode. Returns why some are missing, by driver."""
        wanted = plan_entries(csi_node.spec.drivers, drivers, gone)
        csi_node = await self._patch_entries(csi_node, plan_kept(csi_node.spec.drivers, wanted))
        try:
            await self._patch_entries(csi_node, wanted)
        except ApiError as error:
            if error.status not in _INVALID:
                raise
            return await self._update_each(csi_node, wanted)
        return {}

    async def _update_each(self, csi_node: CSINode, wanted: Iterable[CSINodeDriver]) -> dict[str, str]:
        """Replace the entries that differ one by one: one of them is refused. Before Kubernetes 1.34, no limit may be changed."""
        problems: dict[str, str] = {}
        for entry in wanted:
            if entry in csi_node.spec.drivers:
                continue
            others = tuple(driver for driver in csi_node.spec.drivers if driver.name != entry.name)
            csi_node = await self._patch_entries(csi_node, others)
            try:
                csi_node = await self._patch_entries(csi_node, (*others, entry))
            except ApiError as error:
                if error.status not in _INVALID:
                    raise
                problems[entry.name] = error.message
        return problems

    async def _patch_entries(self, csi_node: CSINode, entries: tuple[CSINodeDriver, ...]) -> CSINode:
        if entries == csi_node.spec.drivers:
            return csi_node
        version = {"resourceVersion": csi_node.metadata.resourceVersion}
        body = {"metadata": version, "spec": {"drivers": entries}}
        return await self._client.patch(f"{CSI_NODES}/{self._name}", body, PatchKind.MERGE, CSINode)

    async def _ensure(self, uid: str) -> CSINode:
        """The CSINode, made if it is missing, with the right owner and annotation."""
        owners = [{"apiVersion": "v1", "kind": "Node", "name": self._name, "uid": uid}]
        annotations = {MIGRATED: ",".join(MIGRATED_PLUGINS)}
        metadata: dict[str, Any] = {"name": self._name, "annotations": annotations, "ownerReferences": owners}
        body = {"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": metadata, "spec": {"drivers": []}}
        path = f"{CSI_NODES}/{self._name}"
        if self._sent[0] != uid:
            try:
                return await self._client.create(CSI_NODES, body, CSINode)
            except ApiError as error:
                if not error.already_exists:
                    raise
        try:
            found = await self._client.get(path, CSINode)
        except ApiError as error:
            if not error.is_not_found:
                raise
            return await self._client.create(CSI_NODES, body, CSINode)
        owned_by = [owner.uid for owner in found.metadata.ownerReferences]
        if owned_by and uid not in owned_by:  # of an earlier Node, whose drivers may not be here
            await self._client.delete(path, {"preconditions": {"uid": found.metadata.uid}})
            return await self._client.create(CSI_NODES, body, CSINode)
        if owned_by == [uid] and found.metadata.annotations.get(MIGRATED) == annotations[MIGRATED]:
            return found
        return await self._client.patch(path, {"metadata": metadata}, PatchKind.MERGE, CSINode)
