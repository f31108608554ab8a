"""The CPUs, memory and devices of a container that admission has placed: its cpuset, and what its device plugins give it."""

from __future__ import annotations

from pykubelet.act.pods.need import PodNeed, SyncRun
from pykubelet.act.pods.tools import PodTools
from pykubelet.act.runtime.render.context import AnyContainer, ContainerContext
from pykubelet.act.runtime.start_error import ContainerStartError
from pykubelet.base.kit.values import replace
from pykubelet.base.model.ids import PodRef
from pykubelet.base.model.waits import Owner, Wait


class DevicesNeed(PodNeed):
    """The placement of one pod's containers, as `Placements` has it. Device plugins may demand a call before each start."""

    def __init__(self, tools: PodTools, ref: PodRef) -> None:
        self._cell = tools.cells.placements
        self._plugins = tools.devices
        self._uid = ref.uid

    async def before_container(self, run: SyncRun, container: AnyContainer, ctx: ContainerContext) -> ContainerContext:
        """Have the device plugins prepare the container's devices, and add them."""
        placed = self._cell.get().container(self._uid, container.name)
        if placed.devices and self._plugins is not None:
            resources = ", ".join(assigned.resource for assigned in placed.devices)
            detail, step = f"PreStartContainer of {resources}", "create the container"
            with run.waits.waiting(
                Wait("device plugin", Owner.POD_WORKER, 0.0, container.name, detail=detail, next_step=step)
            ):
                problem = await self._plugins.pre_start(placed.devices)
            if problem:
                raise ContainerStartError(problem)
        cpuset = self._cell.get().cpuset(self._uid, container.name)
        return replace(ctx, devices=placed.options, cpuset=cpuset)
