"""Containers with a deadline: a budget of CPU time in each period, granted only if the node has it.

A pod asks for a budget with annotations, and requests at least that share of a CPU, so that schedulers count it:

    metadata:
      annotations:
        deadline.example.com/runtime-us: "2000"       # of CPU time
        deadline.example.com/period-us: "10000"       # in every period of this length
    spec:
      containers: [{..., resources: {requests: {cpu: 200m}}}]

Admission keeps a part of the CPUs free of such promises, as the kernel does for SCHED_DEADLINE (sched_rt_runtime_us, 95 % by default). The
cgroup gets the period of the task as the period of its quota, so that a throttled container runs again within one period; with the
kubelet's 100 ms it could miss ten deadlines in a row. The program itself sets SCHED_DEADLINE with sched_setattr(2).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pykubelet.extension import Admission, Container, Extension, Node, Pod, Reject

RUNTIME, PERIOD = "deadline.example.com/runtime-us", "deadline.example.com/period-us"
LEAST_US, MOST_US = 1000, 1_000_000


@dataclass(frozen=True)
class DeadlineSettings:
    """`bound`: the share of the CPUs that may be promised. `margin`: the quota beyond the budget, for the kernel's bookkeeping."""

    bound: float = 0.95
    margin: float = 0.05


class DeadlineAdmission(Extension):
    name, api, version, Settings = "deadline-admission", "1.0", "1", DeadlineSettings
    annotation = "deadline.example.com/"

    def admit(self, pod: Pod, node: Node) -> Admission:
        if RUNTIME not in pod.annotations and PERIOD not in pod.annotations:
            return None
        budget = _budget(pod)
        if budget is None:
            text = f"{RUNTIME} and {PERIOD} must be whole numbers from {LEAST_US} to {MOST_US}, the first at most the second"
            return Reject("InvalidDeadline", text)
        runtime_us, period_us = budget
        needed, requested = -(-1000 * runtime_us // period_us), pod.requests.get("cpu", 0)
        if requested < needed:
            return Reject(
                "InvalidDeadline", f"the pod must request {needed}m CPU for its budget, and requests {requested}m"
            )
        most = int(self.settings.bound * node.allocatable.get("cpu", 0))
        if node.requested.get("cpu", 0) + requested > most:
            return Reject("OutOfDeadlineBandwidth", f"pods with and without deadlines may request {most}m CPU together")
        return None

    def cgroup(self, pod: Pod, container: Container | None, values: Mapping[str, str]) -> Mapping[str, str] | None:
        budget = _budget(pod)
        if budget is None:
            return None
        runtime_us, period_us = budget
        quota_us = max(LEAST_US, min(period_us, int(runtime_us * (1 + self.settings.margin))))
        return {"cpu.max": f"{quota_us} {period_us}"}


def _budget(pod: Pod) -> tuple[int, int] | None:
    """Runtime and period in microseconds; None without a valid budget."""
    try:
        runtime_us, period_us = int(pod.annotations[RUNTIME]), int(pod.annotations[PERIOD])
    except (KeyError, ValueError):
        return None
    return (runtime_us, period_us) if LEAST_US <= runtime_us <= period_us <= MOST_US else None
