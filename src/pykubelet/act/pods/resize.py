"""Carries out a resize in place: widens the pod's cgroup, resizes the containers, then narrows the cgroup.

Owns: this order, so that a container never has a larger limit than its pod. Other packages of `act` implement the steps.
"""

from __future__ import annotations

from pykubelet.act.pods.model import Sync
from pykubelet.act.runtime.lifecycle.resize import ContainerResizer
from pykubelet.act.runtime.lifecycle.sandbox import Sandbox
from pykubelet.act.runtime.plan.plan import Applied
from pykubelet.act.runtime.render.context import RenderSettings
from pykubelet.base.api.core import Pod, ResourceRequirements
from pykubelet.base.api.quantity import Amount
from pykubelet.base.model.ids import ContainerID, PodUID
from pykubelet.base.model.placement import Placements
from pykubelet.base.model.sizing import PodSize, is_limited, pod_limits, resizable, size_of, with_size
from pykubelet.provide.cgroups.execute import PodCgroups


async def resize_pod(
    command: Sync,
    sandbox: Sandbox,
    cgroups: PodCgroups,
    resizer: ContainerResizer,
    settings: RenderSettings,
    placements: Placements,
) -> tuple[Applied | None, str]:
    """Resize the pod's cgroup and containers. Returns the resources that the runtime has applied (None: nothing), and the
    error, or an empty string."""
    pod, changes = command.pod, command.plan.resizes
    before = pod_before(command)
    limit = lowered_limit(before, pod)
    used = await cgroups.memory_used(pod) if limit is not None else None
    refusal = await resizer.refuse(changes, (limit, used) if limit is not None and used is not None else None)
    problem = refusal or await resizer.report_sandbox(pod, sandbox, settings)
    if problem:
        return None, problem
    exclusive = sandbox.context.exclusive_cpus
    if error := await cgroups.widen_pod(before, pod, exclusive_cpus=exclusive):
        return None, error.message
    given: dict[ContainerID, ResourceRequirements] = {}
    sizes, uid = size_of(pod).containers, PodUID(pod.metadata.uid)
    for change in changes:
        if problem := await resizer.resize(pod, change, settings, placements.cpuset(uid, change.name)):
            return Applied(given, command.applied.whole), problem
        given[change.instance] = sizes[change.name]
    if error := await cgroups.ensure_pod(pod, exclusive_cpus=exclusive):
        return Applied(given, command.applied.whole), error.message
    return Applied(given, pod.spec.resources), ""


def pod_before(command: Sync) -> Pod:
    """The pod with the size that its containers have now."""
    applied = command.applied
    sizes = {}
    for container in resizable(command.pod):
        newest = command.view.newest(container.name)
        if newest is not None and newest.id in applied.containers:
            sizes[container.name] = applied.containers[newest.id]
    return with_size(command.pod, PodSize(containers=sizes, whole=applied.whole))


def lowered_limit(before: Pod, after: Pod) -> int | None:
    """The pod's new memory limit in bytes if it is lower than the old one."""
    old, new = _memory_limit(before), _memory_limit(after)
    return new if new is not None and (old is None or new < old) else None


def _memory_limit(pod: Pod) -> int | None:
    return pod_limits(pod).get("memory", Amount(0)).value() if is_limited(pod, "memory") else None
