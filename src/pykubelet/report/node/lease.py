"""Renews the node's Lease, the heartbeat of the node.

Owns: the object `kube-node-lease/<node>`, and the cell `ApiState`, because no other component calls the API server as
regularly. Reads: `ApiNode` for the Node's UID: the Node owns the Lease, so the Lease of an earlier Node is
garbage-collected. The loop shares a client only with the node's status, as in the reference kubelet, so that no other
request delays it. When the server has not answered twice in a row, all connections to it are closed and made again,
because half-open connections would not be noticed for longer.

Source: the Kubernetes documentation "Leases", section "Node heartbeats"; KEP-589.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

from pykubelet.base.api.core import Lease, LeaseSpec, ObjectMeta, OwnerReference
from pykubelet.base.api.times import format_micro_time
from pykubelet.base.kit.backoff import BackoffPolicy
from pykubelet.base.kit.cells import Cell, CellWriter, within
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.values import Value, replace
from pykubelet.base.model.node import ApiNode, ApiState
from pykubelet.edges.kubeapi.client import ApiClient
from pykubelet.edges.kubeapi.errors import ApiError

log = Log("node")
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
RENEWED_AFTER = 0.25
JITTER = 0.04
RETRY_S, RETRY_MAX_S = 0.1, 7.0
TRIES = 5
RECONNECT_AFTER = 2


class LeasePeriods(Value):
    """Seconds. `duration_s`: `nodeLeaseDurationSeconds`; the Lease is renewed after a quarter of it. `retry_max_s`: the longest
    pause after a failure."""

    duration_s: int = 40
    retry_max_s: float = RETRY_MAX_S


class LeaseLoop:
    """Renews the Lease. `run` never returns. `name`: the node's.
    `others`: the other clients with connections to the same server."""

    def __init__(
        self,
        client: ApiClient,
        name: str,
        node: Cell[ApiNode],
        state: CellWriter[ApiState],
        clock: Clock,
        periods: LeasePeriods,
        others: tuple[ApiClient, ...] = (),
    ) -> None:
        self._others = others
        self._client = client
        self._name = name
        self._node = node
        self._state = state
        self._clock = clock
        self._periods = periods
        self._backoff = BackoffPolicy(RETRY_S, periods.retry_max_s)
        self._lease: Lease | None = None
        self._failures = 0

    async def run(self) -> None:
        """Create and renew the node's Lease in `kube-node-lease`. Never returns."""
        while True:
            is_owner_known = bool(self._node.get().uid)
            error = await self._renew()
            pause = self._pause(error)
            self._publish_state(error, self._clock.wall() + pause)
            if error is not None and error.status == 0 and self._failures == RECONNECT_AFTER:
                for client in (self._client, *self._others):
                    await client.close()
            if error is None and (self._lease is None or not is_owner_known):
                await within(min(pause, RETRY_MAX_S), self._node.wait_for(lambda node: bool(node.uid)))
            else:
                await asyncio.sleep(pause)

    def _pause(self, error: ApiError | None) -> float:
        """The seconds until the next renewal: the period, or less while there is no Lease or tries are left."""
        period = self._periods.duration_s * RENEWED_AFTER * random.uniform(1.0, 1.0 + JITTER)
        if error is None:
            self._failures = 0
            return period
        self._failures += 1
        delay = max(error.retry_after_s or 0.0, self._backoff.delay_s(self._failures))
        return (
            delay
            if self._lease is None or self._failures < TRIES
            else min(period, max(delay, self._periods.retry_max_s))
        )

    async def _renew(self) -> ApiError | None:
        try:
            if self._lease is None:
                self._lease = await self._made()
            else:
                self._lease = await self._client.update(self._path(), self._renewed(self._lease), Lease)
        except ApiError as error:
            if error.is_conflict or error.is_not_found:
                self._lease = None  # another client has changed or deleted it: read it again
            return error
        return None

    async def _made(self) -> Lease | None:
        """Renew the existing Lease, or create one. None if there is no Node yet, because a new Lease would have no owner."""
        try:
            known = await self._client.get(self._path(), Lease)
        except ApiError as error:
            if not error.is_not_found:
                raise
            if not self._node.get().uid:
                return None
            fresh = Lease(
                apiVersion="coordination.k8s.io/v1",
                kind="Lease",
                metadata=ObjectMeta(name=self._name, namespace="kube-node-lease"),
            )
            return await self._client.create(LEASES, self._renewed(fresh), Lease)
        return await self._client.update(self._path(), self._renewed(known), Lease)

    def _renewed(self, lease: Lease) -> Lease:
        node = self._node.get()
        changed: dict[str, Any] = {
            "spec": replace(
                lease.spec or LeaseSpec(),
                holderIdentity=self._name,
                leaseDurationSeconds=self._periods.duration_s,
                renewTime=format_micro_time(self._clock.wall()),
            )
        }
        owners = lease.metadata.ownerReferences
        if node.uid and (len(owners) != 1 or owners[0].uid != node.uid):
            owner = OwnerReference(apiVersion="v1", kind="Node", name=self._name, uid=node.uid)
            changed["metadata"] = replace(lease.metadata, ownerReferences=(owner,))
        return replace(lease, **changed)

    def _path(self) -> str:
        return f"{LEASES}/{self._name}"

    def _publish_state(self, error: ApiError | None, next_at: float) -> None:
        known, now = self._state.get(), self._clock.wall()
        text = str(error) if error is not None and not error.is_conflict and not error.is_not_found else ""
        if text and not known.error:
            log.warning("API server unreachable", server=known.server, error=text)
        elif known.error and not text:
            log.info("API server reachable again", server=known.server, away_s=round(now - (known.since or now), 1))
        since = known.since if known.since is not None and bool(text) == bool(known.error) else now
        answered = error is None or error.status > 0
        ok_at = now if answered else known.ok_at
        self._state.publish(replace(known, error=text, ok_at=ok_at, since=since, next_at=next_at))
