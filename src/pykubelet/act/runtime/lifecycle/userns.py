"""User namespaces of pods: the ranges of host ids they have, kept in a file in each pod's directory.

Owns: `pods/<uid>/userns`. Not here: which range (`decide_userns.py`), and whether the node's kernel can map it (the
runtime's affair). Nothing is read before the first pod asks for a user namespace.

After a restart the files of all pods tell what is taken. One that is missing or says nonsense is written again from
what the runtime tells of the pod's sandbox; only a pod without a running sandbox gets a new range in that case.
Source: KEP-127.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from pykubelet.act.runtime.lifecycle.decide_userns import (
    IdSlots,
    MappingError,
    format_mapping,
    make_namespace,
    parse_mapping,
)
from pykubelet.act.runtime.render.context import ConfigError, UserNamespace
from pykubelet.base.kit.log import Log
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.paths import Paths
from pykubelet.base.model.reasons import CREATE_POD_SANDBOX_ERROR
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.client import CriClient
from pykubelet.edges.cri.errors import CriError
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.files import list_dir, make_dirs, read_bytes, remove_file, write_atomic
from pykubelet.edges.host.proc.subids import IdRange, read_subids

log = Log("runtime")
FILE_LIMIT = 64 << 10

ReadRange = Callable[[int], Awaitable[IdRange]]


class UserNamespaces:
    """`ids_per_pod`: userNamespaces.idsPerPod. `read_range`: how the node's ids are found out."""

    def __init__(
        self, cri: CriClient, paths: Paths, ids_per_pod: int = 65536, read_range: ReadRange = read_subids
    ) -> None:
        self._cri = cri
        self._paths = paths
        self._ids_per_pod = ids_per_pod
        self._read_range = read_range
        self._slots: IdSlots | None = None
        self._lock = asyncio.Lock()

    async def allocate(self, uid: PodUID) -> UserNamespace | ConfigError:
        """The pod's range: the one it has, or a new one, which is on disk when this returns. Safe to repeat."""
        try:
            slots = await self._load()
            if (known := slots.namespace_of(uid)) is not None:
                return known
            return self._give(uid, await self._of_sandbox(uid))
        except MappingError as error:
            return ConfigError(f"create user namespace: {error}", CREATE_POD_SANDBOX_ERROR)
        except (HostError, CriError) as error:
            return ConfigError(f"user namespace: {error}", CREATE_POD_SANDBOX_ERROR)

    def release(self, uid: PodUID) -> None:
        """The pod has ended; its range is free. Safe to repeat, and for pods that never had one. HostError."""
        if remove_file(self._paths.user_namespace(uid)):
            log.debug("user namespace released", uid=uid)
        if self._slots is not None:
            self._slots = self._slots.free(uid)

    def _give(self, uid: PodUID, has: UserNamespace | None) -> UserNamespace:
        """Take the range that the pod has, or a free one, and write it down."""
        assert self._slots is not None
        slots = self._with_room(self._slots).take(uid) if has is None else self._slots.record(uid, has)
        given = slots.namespace_of(uid)
        assert given is not None
        make_dirs(self._paths.pod(uid))
        write_atomic(self._paths.user_namespace(uid), format_mapping(given), durable=True)
        self._slots = slots
        return given

    def _with_room(self, slots: IdSlots) -> IdSlots:
        """When all is taken: directories of pods that ended before a restart may have gone since, ranges and all."""
        if slots.is_full:
            for pod in slots.holders:
                if self._read(pod) is None:
                    slots = slots.free(pod)
        return slots

    # After a restart

    async def _load(self) -> IdSlots:
        async with self._lock:
            if self._slots is None:
                ids = await self._read_range(self._ids_per_pod)
                self._slots = await self._found(IdSlots(ids.first, self._ids_per_pod, ids.slots(self._ids_per_pod)))
            return self._slots

    async def _found(self, slots: IdSlots) -> IdSlots:
        """The slots with what the pods on disk have."""
        broken: list[PodUID] = []
        for uid in self._pods_on_disk():
            data = self._read(uid)
            if data is None:
                continue
            try:
                slots = slots.record(uid, parse_mapping(data))
            except MappingError as error:
                log.warning("a user namespace file cannot be used", uid=uid, error=error)
                broken.append(uid)
        for uid in broken:
            slots = await self._restored(slots, uid)
        return slots

    def _pods_on_disk(self) -> list[PodUID]:
        try:
            return [PodUID(entry.name) for entry in list_dir(self._paths.pods)]
        except HostError as error:
            if error.is_not_found:
                return []
            raise

    def _read(self, uid: PodUID) -> bytes | None:
        """The pod's file; None when it has none. What is no readable file counts as an empty one."""
        try:
            return read_bytes(self._paths.user_namespace(uid), FILE_LIMIT)
        except HostError as error:
            return None if error.is_not_found else b""

    async def _restored(self, slots: IdSlots, uid: PodUID) -> IdSlots:
        """Take what the sandbox of the pod has, so that nobody else gets it."""
        try:
            found = await self._of_sandbox(uid)
            if found is None:
                return slots
            slots = slots.record(uid, found)
            write_atomic(self._paths.user_namespace(uid), format_mapping(found), durable=True)
        except (MappingError, HostError) as error:
            log.warning("the user namespace of a running pod cannot be restored", uid=uid, error=error)
        else:
            log.info("user namespace restored from the runtime", uid=uid, first=found.uids[0].host_id)
        return slots

    async def _of_sandbox(self, uid: PodUID) -> UserNamespace | None:
        """What the running sandbox of a pod has; None when none runs. MappingError when the runtime does not tell."""
        running = await self._cri.list_pod_sandboxes(uid, state=pb.SANDBOX_READY)
        for sandbox in running:
            try:
                answer = await self._cri.pod_sandbox_status(sandbox.id, verbose=True)
            except CriError as error:
                if error.is_not_found:
                    continue
                raise
            return told_namespace(answer)
        return None


def told_namespace(answer: pb.PodSandboxStatusResponse) -> UserNamespace:
    """The ranges in a verbose status: in its own field, or in the OCI spec that runtimes add to it."""
    options = answer.status.linux.namespaces.options.userns_options
    if options.uids:
        return make_namespace(
            [(one.host_id, one.container_id, one.length) for one in options.uids],
            [(one.host_id, one.container_id, one.length) for one in options.gids],
        )
    try:
        linux = json.loads(answer.info["info"])["runtimeSpec"]["linux"]
        return make_namespace(_oci_ranges(linux["uidMappings"]), _oci_ranges(linux["gidMappings"]))
    except (ValueError, KeyError, TypeError) as error:
        raise MappingError(f"the runtime does not tell the ids of the sandbox {answer.status.id}") from error


def _oci_ranges(listed: list[dict[str, Any]]) -> list[tuple[int, int, int]]:
    return [(int(one["hostID"]), int(one["containerID"]), int(one["size"])) for one in listed]
