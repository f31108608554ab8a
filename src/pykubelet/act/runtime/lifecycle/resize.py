"""Changes CPU and memory of running containers and their sandbox.

Owns: the requests to the runtime, and the check of the used memory before a memory limit is lowered, because the kernel
would refuse the limit or kill a process. `plan_resize` decides what to change; `provide/cgroups` changes the pod's cgroup.
Source: KEP-1287 (in-place update of pod resources), "Atomic resizes" and "Memory limit decreases".
"""

from __future__ import annotations

from collections.abc import Sequence

from pykubelet.act.runtime.lifecycle.sandbox import Sandbox
from pykubelet.act.runtime.plan.plan import ContainerResize
from pykubelet.act.runtime.render.container_resources import container_resources, sandbox_resources
from pykubelet.act.runtime.render.container_values import GiveRealtime, ask_extensions
from pykubelet.act.runtime.render.context import ContainerContext, RenderSettings
from pykubelet.base.api.core import Pod
from pykubelet.base.kit.cells import Cell
from pykubelet.base.model.node import RuntimeReady
from pykubelet.base.model.placement import CpuSet
from pykubelet.base.model.sizing import resizable
from pykubelet.edges.cri.client import CriClient
from pykubelet.edges.cri.errors import CriError

#: The cpuset of a container that is not restricted.
ANY_CPU = CpuSet()


class ContainerResizer:
    """Resizes containers. Each call returns the error, or an empty string."""

    def __init__(self, cri: CriClient, runtime: Cell[RuntimeReady], give_realtime: GiveRealtime | None = None) -> None:
        self._cri = cri
        self._runtime = runtime
        self._give_realtime = give_realtime
        self._lacks_in: int | None = None  # the epoch in which the runtime was found to lack UpdatePodSandboxResources

    async def refuse(self, changes: Sequence[ContainerResize], pod: tuple[int, int] | None) -> str:
        """Why memory limits cannot be lowered now; an empty string if they can. `pod`: the pod's new limit and its usage, in
        bytes, if its limit is lowered."""
        problems: list[str] = []
        if pod is not None and pod[1] >= pod[0]:
            problems.append(f"attempting to set pod memory limit ({pod[0]}) below current usage ({pod[1]})")
        try:
            for change in changes:
                limit = change.after.memory_limit
                if not 0 < limit < (change.before.memory_limit or limit + 1):
                    continue
                used = (await self._cri.container_stats(change.instance)).memory.usage_bytes.value
                if used >= limit:
                    text = f"memory limit ({limit}) below current usage ({used})"
                    problems.append(f'attempting to set container "{change.name}" {text}')
        except CriError as error:
            problems.append(error.message)
        if not problems:
            return ""
        text = problems[0] if len(problems) == 1 else f"[{', '.join(problems)}]"
        return f"cannot decrease memory limits: {text}"

    async def report_sandbox(self, pod: Pod, sandbox: Sandbox, settings: RenderSettings) -> str:
        """Report the pod's new resources to the runtime (UpdatePodSandboxResources). Older runtimes do not have this call, and are not
        asked again until they have been restarted."""
        epoch = self._runtime.get().epoch
        if epoch == self._lacks_in:
            return ""
        together, overhead = sandbox_resources(pod, settings, sandbox.context)
        try:
            await self._cri.update_pod_sandbox_resources(sandbox.id, overhead, together)
        except CriError as error:
            if error.is_unimplemented:
                self._lacks_in = epoch
                return ""
            return f"failed to notify runtime for UpdatePodSandboxResources; resize rejected: {error}"
        return ""

    async def resize(
        self, pod: Pod, change: ContainerResize, settings: RenderSettings, cpuset: CpuSet = ANY_CPU
    ) -> str:
        """Set the resources of one running container to those of the pod's spec. `cpuset`: of the container, as it stays."""
        container = next(c for c in resizable(pod) if c.name == change.name)
        wanted = container_resources(pod, container, settings, ContainerContext(cpuset=cpuset))
        realtime_us = ask_extensions(wanted, pod, container, settings)
        try:
            await self._cri.update_container_resources(change.instance, wanted)
        except CriError as error:
            return str(error)
        if realtime_us is not None and self._give_realtime is not None:
            return await self._give_realtime(pod, change.instance, realtime_us)
        return ""
