"""Provisions volumes for the claims of a cluster of one machine: watches claims, persistent volumes and StorageClasses.

Owns: three list-watches, and the pace of retries. What there is to do is decided again after each change and after each retry
period, so that nothing is remembered over a restart. Volumes are created and deleted by the driver's own Controller service.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import Any, TypeVar

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
from pykubelet.csi_local.controller import ControllerService
from pykubelet.csi_local.provision import Provision, Remove, Task, creation, persistent_volume, tasks
from pykubelet.edges.csi import csi_pb2 as pb
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.kubeapi.client import ApiClient
from pykubelet.edges.kubeapi.errors import ApiError
from pykubelet.edges.kubeapi.listwatch import follow
from pykubelet.net.grpc.status import RpcError

log = Log("csi-local")
CLAIMS, VOLUMES = "/api/v1/persistentvolumeclaims", "/api/v1/persistentvolumes"
CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
RETRY = BackoffPolicy(initial_s=1.0, cap_s=60.0)
T = TypeVar("T", bound=Struct)


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

    async def run(self) -> None:
        """Follow the cluster and do what there is to do."""
        async with Supervisor("provisioner") as watches:
            watches.start_root("claims", self._follow(CLAIMS, PersistentVolumeClaim, self._take_claims))
            watches.start_root("volumes", self._follow(VOLUMES, PersistentVolume, self._take_volumes))
            watches.start_root("classes", self._follow(CLASSES, StorageClass, self._take_classes))
            watches.start_root("provisioner", self._work())
            raise await watches.wait_failed()

    async def _follow(self, path: str, kind: type[T], take: Callable[[Mapping[str, Any]], None]) -> None:
        async with aclosing(follow(self._client, path, kind, self._clock)) as listings:
            async for listed in listings:
                if listed.error is not None:
                    log.warning("the cluster cannot be read", path=path, error=listed.error)
                if listed.synced:
                    take(listed.items)
                    self._wakeup.set()

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
            wanted = {_name(task): task for task in self._tasks()}
            self._failures = {name: failure for name, failure in self._failures.items() if name in wanted}
            for name, task in wanted.items():
                failure = self._failures.get(name)
                if failure is None or failure.retry_at <= self._clock.monotonic():
                    await self._try(name, task)

    def _tasks(self) -> list[Task]:
        if self._claims is None or self._volumes is None or self._classes is None:
            return []
        have = set(self._volumes)
        found = tasks(self._claims.values(), self._volumes.values(), self._classes, self._driver, self._node_name)
        return [task for task in found if isinstance(task, Remove) or task.name not in have]

    def _next_s(self) -> float | None:
        """Seconds until the next retry; None: there is none."""
        due = min((failure.retry_at for failure in self._failures.values()), default=None)
        return None if due is None else max(0.0, due - self._clock.monotonic())

    async def _try(self, name: str, task: Task) -> None:
        try:
            if isinstance(task, Provision):
                await self._provision(task)
            else:
                await self._remove(task)
        except (ApiError, RpcError, HostError, QuantityError) as error:
            await self._failed(name, task, str(error))
        else:
            self._failures.pop(name, None)

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

    async def _failed(self, name: str, task: Task, error: str) -> None:
        before = self._failures.get(name)
        count = before.count + 1 if before is not None else 1
        self._failures[name] = _Failure(error, count, self._clock.monotonic() + RETRY.delay_s(count))
        if before is not None and before.error == error:
            return
        log.warning("a volume cannot be provisioned or deleted", volume=name, error=error)
        if isinstance(task, Provision):
            words = f'failed to provision volume with StorageClass "{task.storage_class.metadata.name}": {error}'
            await self._report(task.claim, "Warning", "ProvisioningFailed", words)

    async def _report(self, claim: PersistentVolumeClaim, kind: str, reason: str, message: str) -> None:
        """Record an Event of the claim. One that cannot be recorded is lost."""
        meta = claim.metadata
        now = format_time(self._clock.wall())
        event = core.Event(
            metadata=core.ObjectMeta(namespace=meta.namespace, name=f"{meta.name}.{self._clock.wall() * 1e6:.0f}"),
            involvedObject=core.ObjectReference(
                apiVersion="v1", kind="PersistentVolumeClaim", namespace=meta.namespace, name=meta.name, uid=meta.uid
            ),
            type=kind,
            reason=reason,
            message=message[:1024],
            source=core.EventSource(component=self._driver),
            count=1,
            firstTimestamp=now,
            lastTimestamp=now,
        )
        try:
            await self._client.create(f"/api/v1/namespaces/{meta.namespace}/events", event, core.Event)
        except ApiError as error:
            log.info("an Event was lost", reason=reason, error=error)


def _name(task: Task) -> str:
    return task.name if isinstance(task, Provision) else task.volume.metadata.name


def _claim_name(claim: PersistentVolumeClaim) -> str:
    return f"{claim.metadata.namespace}/{claim.metadata.name}"
