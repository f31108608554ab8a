"""Expands a mounted volume: reads its claim, calls the driver or tool, and reports the result in the claim's status.

Owns: the requests about claims. Every step may be repeated: the claim's status shows how far an earlier agent has come, and
drivers and tools leave a volume alone that has its size.
Source: KEP-284, KEP-1790; `expansion.py` decides.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol

from pykubelet.base.api.storage import PersistentVolumeClaim, VolumeAttachment
from pykubelet.base.kit.cells import Post
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.values import replace
from pykubelet.base.model import reasons
from pykubelet.base.model.claim_sizes import IN_PROGRESS, done_patch, resize_state
from pykubelet.base.model.kube_events import EventObject, KubeEvent, normal, warning
from pykubelet.edges.kubeapi.errors import ApiError
from pykubelet.provide.volumes.expansion import (
    Expand,
    ExpandError,
    ExpandFault,
    Expansion,
    Skip,
    begun_patch,
    decide_expansion,
    failed_patch,
)
from pykubelet.provide.volumes.kind import VolumesError

if TYPE_CHECKING:  # a node that stands alone does not need it
    from pykubelet.edges.kubeapi.client import ApiClient

log = Log("provide.volumes")
CONFLICTS = 5


class ClaimRequests(Protocol):
    """The requests about PersistentVolumeClaims. Both raise ApiError."""

    async def get(self, namespace: str, name: str) -> PersistentVolumeClaim:
        """The claim as it is now."""
        ...

    async def patch_status(self, claim: PersistentVolumeClaim, body: dict[str, Any]) -> PersistentVolumeClaim:
        """Apply a JSON merge patch to the claim's status."""
        ...


class ApiClaims:
    """The requests about claims, sent to the API server."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client

    async def get(self, namespace: str, name: str) -> PersistentVolumeClaim:
        """The claim as it is now. ApiError."""
        return await self._client.get(_path(namespace, name), PersistentVolumeClaim)

    async def patch_status(self, claim: PersistentVolumeClaim, body: dict[str, Any]) -> PersistentVolumeClaim:
        """Apply a JSON merge patch to the claim's status. ApiError."""
        from pykubelet.edges.kubeapi.client import PatchKind

        path = f"{_path(claim.metadata.namespace, claim.metadata.name)}/status"
        return await self._client.patch(path, body, PatchKind.MERGE, PersistentVolumeClaim)


class ApiAttachments:
    """The requests about VolumeAttachments, sent to the API server."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client

    async def get(self, name: str) -> VolumeAttachment:
        """The VolumeAttachment as it is now. ApiError."""
        return await self._client.get(f"/apis/storage.k8s.io/v1/volumeattachments/{name}", VolumeAttachment)


def _path(namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}"


class Expander:
    """Expands volumes. `node`: the node's name, for Events. Without `claims` the node has no API server and expands nothing."""

    def __init__(self, claims: ClaimRequests | None, node: str, clock: Clock, events: Post[KubeEvent]) -> None:
        self._claims = claims
        self._node = node
        self._clock = clock
        self._events = events

    async def expand(self, expansion: Expansion, grow: Callable[[int], Awaitable[int]]) -> int:
        """Expand a mounted volume. Returns the bytes that now count as its size, 0 if it is to be looked at again later.

        `grow`: has the driver or tool grow the volume to at least so many bytes. VolumesError, or what `grow` raises.
        """
        if self._claims is None:
            return expansion.size
        try:
            for _ in range(CONFLICTS):
                claim = await self._claims.get(*expansion.claim)
                decided = decide_expansion(claim, expansion)
                if isinstance(decided, Skip):
                    return expansion.size if decided.is_known else 0
                if expansion.read_only:
                    self._report_read_only(expansion)
                    return expansion.size
                begun = await self._begin(self._claims, claim, decided)
                if begun is not None:
                    return await self._grow(self._claims, begun, decided, expansion, grow)
        except ApiError as error:
            raise VolumesError(f"the claim {'/'.join(expansion.claim)} cannot be read or changed: {error}") from error
        raise VolumesError(f"the claim {'/'.join(expansion.claim)} is changed too often")

    async def _begin(
        self, claims: ClaimRequests, claim: PersistentVolumeClaim, decided: Expand
    ) -> PersistentVolumeClaim | None:
        """The claim that reports the expansion as begun; None if it has changed meanwhile."""
        if not decided.is_recovery or decided.is_already or resize_state(claim) == IN_PROGRESS:
            return claim
        try:
            return await claims.patch_status(claim, begun_patch(claim))
        except ApiError as error:
            if error.is_conflict:
                return None
            raise

    async def _grow(
        self,
        claims: ClaimRequests,
        claim: PersistentVolumeClaim,
        decided: Expand,
        expansion: Expansion,
        grow: Callable[[int], Awaitable[int]],
    ) -> int:
        try:
            await grow(decided.size)
        except ExpandError as error:
            if error.fault is ExpandFault.NOT_SUPPORTED and (decided.is_already or not decided.is_recovery):
                return expansion.size
            await self._report_failure(claims, claim, decided, error)
            if error.fault is ExpandFault.IN_USE:
                return expansion.size
            raise
        if decided.is_already:
            return expansion.size
        self._report_success(expansion)
        try:
            await claims.patch_status(claim, done_patch(claim, decided.text))
        except ApiError as error:
            text = f"mountVolume.NodeExpandVolume update pvc status failed: {error}"
            raise VolumesError(text) from error
        return decided.size

    async def _report_failure(
        self, claims: ClaimRequests, claim: PersistentVolumeClaim, decided: Expand, error: ExpandError
    ) -> None:
        """Set the condition of the claim. If that fails too, the next try reports it."""
        try:
            body = failed_patch(claim, str(error), error.fault, decided.size, self._clock.wall())
            await claims.patch_status(claim, body)
        except ApiError as failed:
            about = f"{claim.metadata.namespace}/{claim.metadata.name}"
            log.warning("a failed expansion cannot be reported in the claim", claim=about, error=failed)

    # Events

    def _report_success(self, expansion: Expansion) -> None:
        text = f'MountVolume.NodeExpandVolume succeeded for volume "{expansion.volume}" {self._node}'
        self._report(normal(reasons.EVENT_FILE_SYSTEM_RESIZED, text, expansion.pod), expansion)

    def _report_read_only(self, expansion: Expansion) -> None:
        text = f'MountVolume.NodeExpandVolume failed for volume "{expansion.volume}" requested read-only file system'
        self._report(warning(reasons.EVENT_FILE_SYSTEM_RESIZE_FAILED, text, expansion.pod), expansion)

    def _report(self, kube_event: KubeEvent, expansion: Expansion) -> None:
        """Record an Event of the pod and of the claim."""
        if kube_event.pod is not None:
            self._events.post(kube_event)
        about = EventObject("PersistentVolumeClaim", *expansion.claim, expansion.uid)
        self._events.post(replace(kube_event, about=about))
