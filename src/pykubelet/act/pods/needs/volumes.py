"""The volumes of a pod: mounted before its containers, unmounted after them.

`provide/volumes` mounts and unmounts them. A sandbox is made while they are being mounted.
"""

from __future__ import annotations

from collections.abc import Callable

from pykubelet.act.pods.need import PodNeed, SyncRun
from pykubelet.act.pods.tools import PodTools
from pykubelet.act.pods.waitbook import WaitBook
from pykubelet.act.runtime.render.context import AnyContainer, ContainerContext
from pykubelet.act.runtime.render.render_mounts import relative_sub_paths
from pykubelet.act.runtime.start_error import ContainerStartError
from pykubelet.base.kit.values import replace
from pykubelet.base.model.ids import PodRef
from pykubelet.base.model.mounts import Mounts, PodMounts
from pykubelet.base.model.waits import Owner, Wait
from pykubelet.provide.volumes.subpath import SubPathError


class VolumesNeed(PodNeed):
    """The volumes of one pod, as `Mounts` has them, and what its containers mount of them."""

    def __init__(self, tools: PodTools, ref: PodRef) -> None:
        self._cell = tools.cells.mounts
        self._subpaths = tools.subpaths
        self._starter = tools.starter
        self._sandboxes = tools.sandboxes
        self._uid = ref.uid

    async def before_sandbox(self, run: SyncRun) -> None:
        """Wait until the volumes are mounted, or are being mounted."""
        await self._mounted(run, lambda mounts: mounts.ready or mounts.mounting, "create the sandbox")

    async def before_containers(self, run: SyncRun) -> None:
        """Wait until all volumes are mounted."""
        await self._mounted(run, lambda mounts: mounts.ready, "start the containers")

    async def _mounted(self, run: SyncRun, enough: Callable[[PodMounts], bool], next_step: str) -> None:
        """Wait until enough volumes are mounted. When one has failed, the wait has its reason."""

        def unmounted(now: Mounts) -> Wait | None:
            entry = now.pods.get(self._uid, PodMounts())
            if self._uid in now.pods and enough(entry):
                return None
            wait = Wait("volumes", Owner.VOLUME_MANAGER, 0.0, next_step=next_step)
            failed = next((mount for mount in entry.waits if mount.reason), wait)
            return replace(wait, reason=failed.reason, detail=failed.detail)

        await run.until(self._cell, unmounted)

    async def before_container(self, run: SyncRun, container: AnyContainer, ctx: ContainerContext) -> ContainerContext:
        """Add the volumes, the environment files that are in them, and the directories of sub-paths."""
        mounts = self._cell.get().pods.get(self._uid, PodMounts()).volumes
        files = await self._starter.read_env_files(run.pod, container, mounts)
        return await self._with_subpaths(run, container, replace(ctx, mounts=mounts, env_files=files))

    async def _with_subpaths(self, run: SyncRun, container: AnyContainer, ctx: ContainerContext) -> ContainerContext:
        volumes = [mount.name for mount in container.volumeMounts]
        changed = await self._subpaths.check_host_paths(self._uid, container.name, volumes)
        if changed is not None:
            raise ContainerStartError(str(changed))
        wanted = relative_sub_paths(run.pod, container, self._sandboxes.settings(), ctx)
        if not wanted:
            return ctx
        paths: dict[int, str] = {}
        for index, sub_path in wanted.items():
            volume = container.volumeMounts[index].name
            path = await self._subpaths.prepare_subpath(self._uid, volume, container.name, index, sub_path)
            if isinstance(path, SubPathError):
                raise ContainerStartError(str(path))
            paths[index] = path
        return replace(ctx, subpaths=paths)

    @property
    def is_held(self) -> bool:
        """Whether volumes of the pod are mounted, or may be."""
        return self._holds(self._cell.get())

    async def release(self, waits: WaitBook) -> str:
        """Wait until the volumes are unmounted."""
        wait = Wait("volumes to be unmounted", Owner.VOLUME_MANAGER, 0.0, next_step="remove the cgroup")
        await waits.until(self._cell, lambda now: wait if self._holds(now) else None)
        return ""

    def _holds(self, mounts: Mounts) -> bool:
        """Whether the pod has volumes to be unmounted. One of the host has nothing to unmount, though containers use it."""
        entry = mounts.pods.get(self._uid)
        return entry is not None and entry.holds
