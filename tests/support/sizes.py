"""Sizes of containers in tests: as a pod requests them, as its status reports them, as the kernel keeps them."""

from __future__ import annotations

from support.agent import Agent, Json, container_status

MIB = 1 << 20
PENDING, IN_PROGRESS = "PodResizePending", "PodResizeInProgress"


def size(cpu: str, memory: str) -> Json:
    """Requests and limits alike."""
    return {"requests": {"cpu": cpu, "memory": memory}, "limits": {"cpu": cpu, "memory": memory}}


def has_size(pod: Json, resources: Json) -> bool:
    """The status reports that the container has it, and no part of the resize is pending."""
    status = container_status(pod)
    return bool(
        status.get("allocatedResources") == resources["requests"]
        and status.get("resources") == resources
        and not reported(pod, PENDING)
        and not reported(pod, IN_PROGRESS)
    )


def reported(pod: Json, kind: str) -> Json:
    return next((dict(c) for c in pod["status"].get("conditions", []) if c["type"] == kind), {})


def kernel_limits(agent: Agent, pod: Json, instance: str = "") -> tuple[float, int]:
    """What the kernel holds the pod to, or one of its containers: CPUs and bytes of memory. Of cgroup v1 or v2."""
    output: dict[str, str] = {}
    files = ("cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us", "memory.max", "memory.limit_in_bytes")
    for folder in agent.pod_cgroups():
        if pod["metadata"]["uid"] in folder.name:
            own = (at for at in folder.glob(f"*{instance}") if "conmon" not in at.name)  # CRI-O puts `crio-` in front
            at = next(own) if instance else folder
            output |= {f: (at / f).read_text() for f in files if (at / f).exists()}
    quota, period = output.get("cpu.max", "").split() or (output["cpu.cfs_quota_us"], output["cpu.cfs_period_us"])
    cpus = float("inf") if quota in ("max", "-1") else int(quota) / int(period)
    return cpus, int(output.get("memory.max") or output["memory.limit_in_bytes"])


def instance_of(pod: Json) -> str:
    return str(container_status(pod)["containerID"]).partition("://")[2]
