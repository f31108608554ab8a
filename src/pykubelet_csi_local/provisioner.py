"""Provisions and expands volumes for the claims of a cluster of one machine: watches claims, persistent volumes and StorageClasses.

Owns: three list-watches, and the pace of retries. What there is to do is decided again after each change and after each retry
period, so that nothing is remembered over a restart. Volumes are created, expanded and deleted by the driver's own Controller service.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import Any, TypeVar, assert_never

from msgspec import Struct

from pykubelet.base.api import core
from pykubelet.base.api.quantity import QuantityError
from pykubelet.base.api.storage import PersistentVolume, PersistentVolumeClaim, StorageClass
from pykubelet.base.api.times import format_time
from pykubelet.base.kit.backoff import BackoffPolicy
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import Value
from pykubelet.base.model.claim_sizes import requested_size, volume_size
from pykubelet.edges.csi import csi_pb2 as pb
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.kubeapi.client import ApiClient, PatchKind
from pykubelet.edges.kubeapi.errors import ApiError
from pykubelet.edges.kubeapi.listwatch import WatchPeriods, follow
from pykubelet.net.grpc.status import RpcError
from pykubelet_csi_local.controller import ControllerService
from pykubelet_csi_local.provision import Provision, Remove, creation, persistent_volume, tasks
from pykubelet_csi_local.resize import (
    INFEASIBLE_CODES,
    Resize,
    begun_patch,
    ended_patch,
    expansion,
    failed_patch,
    resizes,
    volume_patch,
)

log = Log("csi-local")
CLAIMS, VOLUMES = "/api/v1/persistentvolumeclaims", "/api/v1/persistentvolumes"
CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
RETRY = BackoffPolicy(initial_s=1.0, cap_s=60.0)
#: An API server that starts again is asked about once a second for each collection, at first.
WATCH = WatchPeriods(retry=1.0, retry_max=30.0)
T = TypeVar("T", bound=Struct)
Task = Provision | Remove | Resize


class _Failure(Value):
    """The last failure of a task. `retry_at`: monotonic seconds."""

    error: str
    count: int
    retry_at: float


class Provisioner:
    """Serves the claims whose StorageClass names `driver`. `node_name`: that of this machine's Node. `run` never returns."""

    def __init__(
        self, client: ApiClient, controller: ControllerService, driver: str, node_name: str, clock: Clock
    ) -> None:
        self._client = client
        self._controller = controller
        self._driver = driver
        self._node_name = node_name
        self._clock = clock
        self._wakeup = asyncio.Event()
        self._claims: Mapping[str, PersistentVolumeClaim] | None = None
        self._volumes: Mapping[str, PersistentVolume] | None = None
        self._classes: Mapping[str, StorageClass] | None = None
        self._failures: dict[str, _Failure] = {}
        self._unread: dict[str, str] = {}  # why a collection cannot be read, by its path

    async def run(self) -> None:
        """Follow the cluster and do what there is to do."""
        async with Supervisor("provisioner") as watches:
            watches.start_root("claims", self._follow(CLAIMS, PersistentVolumeClaim, self._take_claims))
            watches.start_root("volumes", self._follow(VOLUMES, PersistentVolume, self._take_volumes))
            watches.start_root("classes", self._follow(CLASSES, StorageClass, self._take_classes))
            watches.start_root("provisioner", self._work())
            raise await watches.wait_failed()

    async def _follow(self, path: str, kind: type[T], take: Callable[[Mapping[str, Any]], None]) -> None:
        async with aclosing(follow(self._client, path, kind, self._clock, periods=WATCH)) as listings:
            async for listed in listings:
                self._note_error(path, listed.error)
                if listed.synced:
                    take(listed.items)
                    self._wakeup.set()

    def _note_error(self, path: str, error: ApiError | None) -> None:
        """Log the beginning and the end of an outage: not each retry, nor each collection that fails for the same reason."""
        if error is None:
            if self._unread.pop(path, None) is not None and not self._unread:
                log.info("the cluster can be read again")
            return
        reason = str(error)
        if path not in self._unread and reason not in self._unread.values():
            log.warning("the cluster cannot be read", path=path, error=reason)
        self._unread[path] = reason

    def _take_claims(self, items: Mapping[str, PersistentVolumeClaim]) -> None:
        self._claims = items

    def _take_volumes(self, items: Mapping[str, PersistentVolume]) -> None:
        self._volumes = items

    def _take_classes(self, items: Mapping[str, StorageClass]) -> None:
        self._classes = items

    async def _work(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._next_s()):
                    await self._wakeup.wait()
            except TimeoutError:
                pass
            self._wakeup.clear()
            wanted = {_key(task): task for task in self._tasks()}
            self._failures = {key: failure for key, failure in self._failures.items() if key in wanted}
            for key, task in wanted.items():
                failure = self._failures.get(key)
                if failure is None or failure.retry_at <= self._clock.monotonic():
                    await self._try(key, task)

    def _tasks(self) -> list[Task]:
        if self._claims is None or self._volumes is None or self._classes is None:
            return []
        have = set(self._volumes)
        found = tasks(self._claims.values(), self._volumes.values(), self._classes, self._driver, self._node_name)
        new = [task for task in found if isinstance(task, Remove) or task.name not in have]
        return [*new, *resizes(self._claims.values(), self._volumes, self._driver)]

    def _next_s(self) -> float | None:
        """Seconds until the next retry; None: there is none."""
        due = min((failure.retry_at for failure in self._failures.values()), default=None)
        return None if due is None else max(0.0, due - self._clock.monotonic())

    async def _try(self, key: str, task: Task) -> None:
        try:
            match task:
                case Provision():
                    await self._provision(task)
                case Remove():
                    await self._remove(task)
                case Resize():
                    await self._resize(task)
                case _:
                    assert_never(task)
        except (ApiError, RpcError, HostError, QuantityError) as error:
            if not (isinstance(error, ApiError) and error.is_conflict):  # the watch brings what was changed meanwhile
                await self._failed(key, task, error)
        else:
            self._failures.pop(key, None)

    async def _provision(self, task: Provision) -> None:
        made = (await self._controller.create(creation(task))).volume
        volume = persistent_volume(task, made, self._driver)
        try:
            await self._client.create(VOLUMES, volume, PersistentVolume)
        except ApiError as error:
            if not error.already_exists:
                raise
            return
        log.info("volume created", volume=task.name, claim=_claim_name(task.claim))
        await self._report(
            task.claim, "Normal", "ProvisioningSucceeded", f"Successfully provisioned volume {task.name}"
        )

    async def _remove(self, task: Remove) -> None:
        name, source = task.volume.metadata.name, task.volume.spec.csi
        assert source is not None
        await self._controller.delete(pb.DeleteVolumeRequest(volume_id=source.volumeHandle))
        try:
            await self._client.delete(f"{VOLUMES}/{name}")
        except ApiError as error:
            if not error.is_not_found:
                raise
        log.info("volume deleted", volume=name)

    async def _resize(self, task: Resize) -> None:
        claim = task.claim
        if (begun := begun_patch(claim, self._now())) is not None:
            claim = await self._patch_status(claim, begun)
            await self._report(claim, "Normal", "Resizing", f"External resizer is resizing volume {task.name}")
        made = await self._controller.expand(expansion(task))
        if made.capacity_bytes > volume_size(task.volume.spec):
            patch = volume_patch(made.capacity_bytes)
            await self._client.patch(f"{VOLUMES}/{task.name}", patch, PatchKind.MERGE, PersistentVolume)
        needs_node = made.node_expansion_required
        await self._patch_status(claim, ended_patch(claim, made.capacity_bytes, self._now(), needs_node=needs_node))
        log.info("volume expanded", volume=task.name, claim=_claim_name(claim), size=made.capacity_bytes)
        if needs_node:
            await self._report(
                claim, "Normal", "FileSystemResizeRequired", "Require file system resize of volume on node"
            )
        else:
            await self._report(claim, "Normal", "VolumeResizeSuccessful", "Resize volume succeeded")

    async def _patch_status(self, claim: PersistentVolumeClaim, body: Mapping[str, Any]) -> PersistentVolumeClaim:
        meta = claim.metadata
        path = f"/api/v1/namespaces/{meta.namespace}/persistentvolumeclaims/{meta.name}/status"
        return await self._client.patch(path, body, PatchKind.MERGE, PersistentVolumeClaim)

    def _now(self) -> str:
        return format_time(self._clock.wall())

    async def _failed(self, key: str, task: Task, failure: Exception) -> None:
        before, error = self._failures.get(key), str(failure)
        count = before.count + 1 if before is not None else 1
        self._failures[key] = _Failure(error, count, self._clock.monotonic() + RETRY.delay_s(count))
        if before is not None and before.error == error:
            return
        if isinstance(task, Provision):
            log.warning("volume not created", volume=task.name, claim=_claim_name(task.claim), error=error)
            words = f'failed to provision volume with StorageClass "{task.storage_class.metadata.name}": {error}'
            await self._report(task.claim, "Warning", "ProvisioningFailed", words)
        elif isinstance(task, Resize):
            log.warning("volume not expanded", volume=task.name, claim=_claim_name(task.claim), error=error)
            await self._resize_failed(task, error, is_infeasible=_is_infeasible(failure))
        else:
            log.warning("volume not deleted", volume=task.volume.metadata.name, error=error)
            await self._report_volume(task.volume, "VolumeFailedDelete", error)

    async def _resize_failed(self, task: Resize, failure: str, *, is_infeasible: bool) -> None:
        words = f'resize volume "{task.name}" by resizer "{self._driver}" failed: {failure}'
        await self._report(task.claim, "Warning", "VolumeResizeFailed", words)
        meta = task.claim.metadata
        path = f"/api/v1/namespaces/{meta.namespace}/persistentvolumeclaims/{meta.name}"
        try:
            claim = await self._client.get(path, PersistentVolumeClaim)
            await self._patch_status(claim, failed_patch(claim, words, self._now(), is_infeasible=is_infeasible))
        except ApiError as error:
            log.info("a failed expansion is not reported in the claim", claim=_claim_name(task.claim), error=error)

    async def _report(self, claim: PersistentVolumeClaim, kind: str, reason: str, message: str) -> None:
        """Record an Event of the claim."""
        meta = claim.metadata
        about = core.ObjectReference(
            apiVersion="v1", kind="PersistentVolumeClaim", namespace=meta.namespace, name=meta.name, uid=meta.uid
        )
        await self._record(about, kind, reason, message)

    async def _report_volume(self, volume: PersistentVolume, reason: str, message: str) -> None:
        """Record a warning about the PersistentVolume."""
        meta = volume.metadata
        about = core.ObjectReference(apiVersion="v1", kind="PersistentVolume", name=meta.name, uid=meta.uid)
        await self._record(about, "Warning", reason, message)

    async def _record(self, about: core.ObjectReference, kind: str, reason: str, message: str) -> None:
        """Record an Event. One that cannot be recorded is lost."""
        now, namespace = self._now(), about.namespace or "default"
        event = core.Event(
            metadata=core.ObjectMeta(namespace=namespace, name=f"{about.name}.{self._clock.wall() * 1e6:.0f}"),
            involvedObject=about,
            type=kind,
            reason=reason,
            message=message[:1024],
            source=core.EventSource(component=self._driver),
            count=1,
            firstTimestamp=now,
            lastTimestamp=now,
        )
        try:
            await self._client.create(f"/api/v1/namespaces/{namespace}/events", event, core.Event)
        except ApiError as error:
            log.info("an Event was lost", reason=reason, error=error)


def _key(task: Task) -> str:
    """What identifies a task. The size belongs to it, so that a claim that asks for another one is tried at once."""
    match task:
        case Provision():
            return task.name
        case Remove(volume):
            return volume.metadata.name
        case Resize(claim):
            return f"{task.name} {requested_size(claim)}"
    assert_never(task)


def _is_infeasible(failure: Exception) -> bool:
    return isinstance(failure, RpcError) and failure.code in INFEASIBLE_CODES


def _claim_name(claim: PersistentVolumeClaim) -> str:
    return f"{claim.metadata.namespace}/{claim.metadata.name}"
