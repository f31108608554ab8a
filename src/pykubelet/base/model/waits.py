"""Waits: everything that the agent waits for on behalf of a pod, with a name, a start and an owner.

They answer "why is my pod not starting?" in `pykubelet explain`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum
from typing import Final, Protocol

from pykubelet.base.kit.values import Value


class Owner(StrEnum):
    """The party that ends a wait by its answer or work, named as users know it: a part of the agent or an external party."""

    POD_WORKER = "pod worker"
    RUNTIME_MANAGER = "runtime manager"
    IMAGE_MANAGER = "image manager"
    VOLUME_MANAGER = "volume manager"
    TOPOLOGY_MANAGER = "topology manager"
    CLAIM_MANAGER = "DRA manager"
    PROBER = "prober"
    PLEG = "PLEG"
    RUNTIME_STATUS = "runtime status"
    POD_ADMISSION = "pod admission"
    POD_SOURCES = "pod sources"
    OBJECT_CACHE = "API object cache"
    NODE_STATUS = "node status"
    STATUS_MANAGER = "status manager"
    CERTIFICATE_MANAGER = "certificate manager"
    CONTAINER_RUNTIME = "container runtime"
    API_SERVER = "API server"
    CONTAINER = "container"
    SIGNER = "signer"
    EXTENSION = "extension"


#: The package behind each owner; for an external party, the package that waits for it.
MODULES: Final = {
    Owner.POD_WORKER: "act/pods",
    Owner.RUNTIME_MANAGER: "act/runtime",
    Owner.IMAGE_MANAGER: "provide/images",
    Owner.VOLUME_MANAGER: "provide/volumes",
    Owner.TOPOLOGY_MANAGER: "provide/placement",
    Owner.CLAIM_MANAGER: "provide/claims",
    Owner.PROBER: "observe/probes",
    Owner.PLEG: "observe/pleg",
    Owner.RUNTIME_STATUS: "observe/node",
    Owner.POD_ADMISSION: "desired/roster",
    Owner.POD_SOURCES: "desired/sources",
    Owner.OBJECT_CACHE: "provide/objects",
    Owner.NODE_STATUS: "report/node",
    Owner.STATUS_MANAGER: "report/status",
    Owner.CERTIFICATE_MANAGER: "edges/identity",
    Owner.CONTAINER_RUNTIME: "act/runtime",
    Owner.API_SERVER: "report/status",
    Owner.CONTAINER: "act/pods",
    Owner.SIGNER: "provide/objects",
    Owner.EXTENSION: "desired/roster",
}


class Wait(Value):
    """One wait: `what` the pod waits for, `since` when (wall seconds), and which `owner` ends the wait.

    `subject` narrows it down (a container, a volume, an image). `reason` and `detail` give the cause, in Kubernetes' terms
    where they exist. `next_step` is what the agent does next by itself, `next_at` (wall seconds) when; None if only another
    party can end the wait.
    """

    what: str
    owner: Owner
    since: float
    subject: str = ""
    reason: str = ""
    detail: str = ""
    next_step: str = ""
    next_at: float | None = None


#: What a pod waits for while the runtime makes it.
SANDBOX, CONTAINER_START = "sandbox", "container start"
#: What a pod waits for while drivers prepare or unprepare its claims.
CLAIMS_PREPARED, CLAIMS_UNPREPARED = "resource claims", "resource claims to be unprepared"


class Waits(Protocol):
    """Records what a piece of work waits for."""

    def waiting(self, wait: Wait) -> AbstractContextManager[object]:
        """A context manager for a block that waits for `wait`; `since` is set when the block begins."""
        ...


class UnrecordedWaits:
    """Records no waits, for work without shown waits."""

    def waiting(self, wait: Wait) -> AbstractContextManager[None]:  # noqa: ARG002 - not recorded
        """A context manager that records nothing."""
        return nullcontext()


UNRECORDED = UnrecordedWaits()


class TimelineEntry(Value):
    """One transition or Event of a pod: when (wall seconds), what, and what caused it."""

    at: float
    what: str
    cause: str = ""
