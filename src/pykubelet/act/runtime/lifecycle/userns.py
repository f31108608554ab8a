"""Allocates user namespaces to pods: the range of host IDs of each pod is kept in a file in the pod's directory.

Owns: `pods/<uid>/userns`. `decide_userns.py` chooses the range; the runtime decides whether the kernel can map it. No file
is read before the first pod requests a user namespace.

After a restart, the files of all pods show which ranges are taken. A missing or malformed file is written again from the
runtime's report on the pod's sandbox. Only a pod without a running sandbox then gets a new range. So the files need not survive a power
cut, which no sandbox does.
Source: KEP-127.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from pykubelet.act.runtime.lifecycle.decide_userns import (
    IdSlots,
    MappingError,
    format_mapping,
    make_namespace,
    parse_mapping,
)
from pykubelet.act.runtime.render.context import UserNamespace
from pykubelet.act.runtime.start_error import ContainerStartError
from pykubelet.base.kit.flight import SingleFlight, value_of
from pykubelet.base.kit.log import Log
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.paths import Beneath, Paths
from pykubelet.base.model.reasons import CREATE_POD_SANDBOX_ERROR
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.client import CriClient
from pykubelet.edges.cri.errors import CriError
from pykubelet.edges.host.fs.beneath import list_entries, make_dirs, read_bytes, remove_file, write_atomic
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.proc.subids import IdRange, read_subids

log = Log("runtime")
FILE_LIMIT = 64 << 10
FILES_DEADLINE_S = 30.0

T = TypeVar("T")
ReadRange = Callable[[int], Awaitable[IdRange]]


class UserNamespaceManager:
    """Allocates user namespaces to pods. `ids_per_pod`: userNamespaces.idsPerPod. `read_range`: reads the node's range of IDs."""

    def __init__(
        self,
        cri: CriClient,
        flight: SingleFlight,
        paths: Paths,
        ids_per_pod: int = 65536,
        read_range: ReadRange = read_subids,
    ) -> None:
        self._cri = cri
        self._flight = flight
        self._paths = paths
        self._ids_per_pod = ids_per_pod
        self._read_range = read_range
        self._slots: IdSlots | None = None
        self._lock = asyncio.Lock()

    async def allocate(self, uid: PodUID) -> UserNamespace:
        """The pod's range: its existing range, or a new one that is on disk when this returns. May be repeated.

        Raises ContainerStartError.
        """
        try:
            slots = await self._load()
            if (known := slots.namespace_of(uid)) is not None:
                return known
            return await self._give(uid, await self._of_sandbox(uid))
        except MappingError as error:
            raise ContainerStartError(f"create user namespace: {error}", CREATE_POD_SANDBOX_ERROR) from error
        except (HostError, CriError) as error:
            raise ContainerStartError(f"user namespace: {error}", CREATE_POD_SANDBOX_ERROR) from error

    async def release(self, uid: PodUID) -> None:
        """Free the range of a pod that has ended. May be repeated, and called for pods without a range. Raises HostError."""
        async with self._lock:
            if await self._files(uid, lambda: remove_file(self._paths.user_namespace(uid))):
                log.debug("user namespace released", uid=uid)
            if self._slots is not None:
                self._slots = self._slots.free(uid)

    async def _give(self, uid: PodUID, has: UserNamespace | None) -> UserNamespace:
        """Take the range that the pod has, or a free one, and write it to the pod's file."""
        async with self._lock:
            assert self._slots is not None
            slots = (await self._with_free_slot(self._slots)).take(uid) if has is None else self._slots.record(uid, has)
            given = slots.namespace_of(uid)
            assert given is not None
            mapping = format_mapping(given)
            await self._files(uid, lambda: self._write(uid, mapping))
            self._slots = slots
            return given

    def _write(self, uid: PodUID, mapping: bytes) -> None:
        make_dirs(self._paths.pod(uid))
        write_atomic(self._paths.user_namespace(uid), mapping)

    async def _with_free_slot(self, slots: IdSlots) -> IdSlots:
        """The slots; if all are taken, without those of pods whose file is gone."""
        if slots.is_full:
            holders = tuple(slots.holders)
            for uid in await self._files("", lambda: [pod for pod in holders if self._read(pod) is None]):
                slots = slots.free(uid)
        return slots

    async def _files(self, uid: str, work: Callable[[], T]) -> T:
        """The result of blocking work; HostError if it fails or does not end."""
        return value_of(
            await self._flight.run_next(f"userns:{uid}", work, FILES_DEADLINE_S),
            lambda _: HostError("open", self._paths.pods, "ETIMEDOUT", "the directory of the pods does not answer"),
        )

    # After a restart

    async def _load(self) -> IdSlots:
        async with self._lock:
            if self._slots is None:
                ids = await self._read_range(self._ids_per_pod)
                self._slots = await self._found(IdSlots(ids.first, self._ids_per_pod, ids.slots(self._ids_per_pod)))
            return self._slots

    async def _found(self, slots: IdSlots) -> IdSlots:
        """The slots with the ranges of the pods on disk."""
        broken: list[PodUID] = []
        for uid, data in await self._files("", self._read_all):
            try:
                slots = slots.record(uid, parse_mapping(data))
            except MappingError as error:
                log.warning("a user namespace file cannot be used", uid=uid, error=error)
                broken.append(uid)
        for uid in broken:
            slots = await self._restored(slots, uid)
        return slots

    def _read_all(self) -> list[tuple[PodUID, bytes]]:
        """The files of the pods on disk."""
        pods = (PodUID(entry.name) for entry in list_entries(Beneath(self._paths.pods, "")))
        return [(uid, data) for uid in pods if (data := self._read(uid)) is not None]

    def _read(self, uid: PodUID) -> bytes | None:
        """The content of the pod's file; None if there is no file, empty if it cannot be read."""
        try:
            return read_bytes(self._paths.user_namespace(uid), FILE_LIMIT)
        except HostError as error:
            return None if error.is_not_found else b""

    async def _restored(self, slots: IdSlots, uid: PodUID) -> IdSlots:
        """Take the range of the pod's sandbox, so that no other pod gets it."""
        try:
            found = await self._of_sandbox(uid)
            if found is None:
                return slots
            slots = slots.record(uid, found)
            mapping = format_mapping(found)
            await self._files(uid, lambda: self._write(uid, mapping))
        except (MappingError, HostError) as error:
            log.warning("the user namespace of a running pod cannot be restored", uid=uid, error=error)
        else:
            log.info("user namespace restored from the runtime", uid=uid, first=found.uids[0].host_id)
        return slots

    async def _of_sandbox(self, uid: PodUID) -> UserNamespace | None:
        """The ranges of the pod's running sandbox; None if none runs. MappingError if the runtime does not report them."""
        running = await self._cri.list_pod_sandboxes(uid, state=pb.SANDBOX_READY)
        for sandbox in running:
            try:
                answer = await self._cri.pod_sandbox_status(sandbox.id, verbose=True)
            except CriError as error:
                if error.is_not_found:
                    continue
                raise
            return reported_namespace(answer)
        return None


def reported_namespace(answer: pb.PodSandboxStatusResponse) -> UserNamespace:
    """The ranges in a verbose sandbox status: from its own field, or from the OCI spec that runtimes add to it."""
    options = answer.status.linux.namespaces.options.userns_options
    if options.uids:
        return make_namespace(
            [(mapping.host_id, mapping.container_id, mapping.length) for mapping in options.uids],
            [(mapping.host_id, mapping.container_id, mapping.length) for mapping in options.gids],
        )
    try:
        linux = json.loads(answer.info["info"])["runtimeSpec"]["linux"]
        return make_namespace(_oci_ranges(linux["uidMappings"]), _oci_ranges(linux["gidMappings"]))
    except (ValueError, KeyError, TypeError) as error:
        raise MappingError(
            f"the runtime does not report the user namespace mappings of the sandbox {answer.status.id}"
        ) from error


def _oci_ranges(listed: list[dict[str, Any]]) -> list[tuple[int, int, int]]:
    return [(int(mapping["hostID"]), int(mapping["containerID"]), int(mapping["size"])) for mapping in listed]
