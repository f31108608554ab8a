"""Giving running containers and their sandbox other CPU and memory.

Owns: the requests to the runtime, and the look at what is used before a memory limit is lowered (the kernel would refuse
it, or kill). Not here: what to change (`plan_resize`), the pod's own cgroup (act/resources).
Source: KEP-1287 (in-place update of pod resources), "Atomic resizes" and "Memory limit decreases".
"""

from __future__ import annotations

from collections.abc import Sequence

from pykubelet.act.runtime.lifecycle.sandbox import Sandbox
from pykubelet.act.runtime.plan.plan_resize import ContainerResize
from pykubelet.act.runtime.render.container_resources import container_resources, sandbox_resources
from pykubelet.act.runtime.render.context import ContainerContext, RenderSettings
from pykubelet.base.api.core import Pod
from pykubelet.base.model.sizing import resizable
from pykubelet.edges.cri.client import CriClient
from pykubelet.edges.cri.errors import CriError


class ContainerResizer:
    """Each call tells what went wrong, or an empty string."""

    def __init__(self, cri: CriClient) -> None:
        self._cri = cri

    async def refuse(self, changes: Sequence[ContainerResize], pod: tuple[int, int] | None) -> str:
        """Why memory limits cannot be lowered as far now. `pod`: the pod's new limit and what it uses, both in bytes, if
        its limit goes down."""
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
        told = problems[0] if len(problems) == 1 else f"[{', '.join(problems)}]"
        return f"cannot decrease memory limits: {told}"

    async def report_sandbox(self, pod: Pod, sandbox: Sandbox, settings: RenderSettings) -> str:
        """What all containers may use together from now on; older runtimes do not want to know."""
        together, overhead = sandbox_resources(pod, settings, sandbox.context)
        try:
            await self._cri.update_pod_sandbox_resources(sandbox.id, overhead, together)
        except CriError as error:
            refused = "failed to notify runtime for UpdatePodSandboxResources; resize rejected"
            return "" if error.is_unimplemented else f"{refused}: {error}"
        return ""

    async def resize(self, pod: Pod, change: ContainerResize, settings: RenderSettings) -> str:
        """Give one running container what the pod's spec says."""
        container = next(c for c in resizable(pod) if c.name == change.name)
        wanted = container_resources(pod, container, settings, ContainerContext())
        try:
            await self._cri.update_container_resources(change.instance, wanted)
        except CriError as error:
            return str(error)
        return ""
