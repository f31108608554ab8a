"""The cgroup of a pod: made before its sandbox, while its volumes are being mounted; removed after them, as it is charged for their
memory.
"""

from __future__ import annotations

from pykubelet.act.pods.need import PodNeed, SyncRun
from pykubelet.act.pods.resize import pod_before
from pykubelet.act.pods.tools import PodTools
from pykubelet.act.pods.waitbook import WaitBook
from pykubelet.act.runtime.start_error import ContainerStartError
from pykubelet.base.model.ids import PodRef
from pykubelet.base.model.kube_events import warning
from pykubelet.base.model.reasons import EVENT_FAILED_CREATE_POD_CONTAINER


class CgroupNeed(PodNeed):
    """The cgroup of one pod."""

    def __init__(self, tools: PodTools, ref: PodRef) -> None:
        self._cgroups = tools.cgroups
        self._placements = tools.cells.placements
        self._recorder = tools.recorder
        self._ref = ref

    async def before_sandbox(self, run: SyncRun) -> None:
        """Make the cgroup, with the limits that the pod's containers have now."""
        size_now = pod_before(run.command) if run.command.plan.resize_pod else run.pod
        exclusive = not self._placements.get().has_quota(self._ref.uid)
        error = await self._cgroups.ensure_pod(size_now, exclusive_cpus=exclusive)
        if error is not None:
            message = f"unable to ensure pod container exists: {error.message}"
            self._recorder.post(warning(EVENT_FAILED_CREATE_POD_CONTAINER, message, self._ref))
            raise ContainerStartError(message, EVENT_FAILED_CREATE_POD_CONTAINER)

    async def release(self, waits: WaitBook) -> str:
        """Remove the cgroup."""
        return "" if await self._cgroups.remove_pod(self._ref.uid) else "the pod's cgroup is still in use"
