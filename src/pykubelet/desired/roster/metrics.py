"""Metrics of admission, preemption and resizes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pykubelet.base.api.core import Pod
from pykubelet.base.kit.metrics import Counter, Histogram
from pykubelet.base.kit.values import changed_keys
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.reasons import (
    APP_ARMOR,
    INVALID_NODE_INFO,
    POD_FEATURE_UNSUPPORTED,
    POD_LEVEL_RESOURCES_NOT_SUPPORTED,
    POD_OS_NOT_SUPPORTED,
    POD_OS_SELECTOR_MISMATCH,
    PREEMPTING,
    RESIZE_DEFERRED,
    RESIZE_INFEASIBLE,
    SUPPLEMENTAL_GROUPS_POLICY_NOT_SUPPORTED,
    SYSCTL_FORBIDDEN,
    TOPOLOGY_AFFINITY,
    UNEXPECTED_ADMISSION_ERROR,
    VOLUME_ATTACHMENT_LIMIT_EXCEEDED,
)
from pykubelet.base.model.roster import priority_bucket
from pykubelet.base.model.sizing import Amounts, qos_class, same_size, size_of
from pykubelet.desired.roster.model import AdmissionVerdict, Entry

REJECTIONS = Counter(
    "kubelet_admission_rejections_total", "Cumulative number pod admission rejections by the Kubelet.", ("reason",)
)
PREEMPTIONS = Counter(
    "kubelet_preemptions",
    "Cumulative number of pod preemptions by preemption resource",
    ("preemption_signal",),
)
RESIZES = Counter(
    "kubelet_container_requested_resizes_total",
    "Number of requested resizes, counted at the container level. Different resources on the same container are counted"
    " separately. The 'requirement' label refers to 'memory' or 'limits'; the 'operation' label can be one of 'add',"
    " 'remove', 'increase' or 'decrease'.",
    ("resource", "requirement", "operation"),
)
DEFERRED_FOR = Histogram(
    "kubelet_pod_deferred_resize_duration_seconds",
    "How long resizes of pods were deferred, by how that ended.",
    ("priority_bucket", "resolution"),
    (5, 10, 15, 20, 30, 45, 60, 90, 120, 150, 180, 300, 600, 1200, 1800, 3600),
)
SIZED = Counter(
    "kubelet_pod_level_resources_admission_total",
    "Number of admitted pods by the level at which they have resources.",
    ("config_mode", "qos_class"),
)
INFEASIBLE = Counter(
    "kubelet_pod_infeasible_resizes_total",
    "Number of infeasible resizes for pods.",
    ("reason_detail",),
)
_OUT_OF = "OutOf"
#: Reasons that are used as labels. The number of other reasons is not bounded.
_METRIC_REASONS = frozenset(
    {
        APP_ARMOR,
        INVALID_NODE_INFO,
        POD_FEATURE_UNSUPPORTED,
        POD_LEVEL_RESOURCES_NOT_SUPPORTED,
        POD_OS_NOT_SUPPORTED,
        POD_OS_SELECTOR_MISMATCH,
        SUPPLEMENTAL_GROUPS_POLICY_NOT_SUPPORTED,
        SYSCTL_FORBIDDEN,
        TOPOLOGY_AFFINITY,
        UNEXPECTED_ADMISSION_ERROR,
        VOLUME_ATTACHMENT_LIMIT_EXCEEDED,
        *(f"{_OUT_OF}{name}" for name in ("cpu", "memory", "ephemeral-storage", "pods")),
    }
)
_DETAILS = (
    ("is disabled", "feature_gate_off"),
    ("swap", "swap_limitation"),
    ("CPU Manager", "guaranteed_pod_cpu_manager_static_policy"),
    ("Memory Manager", "guaranteed_pod_memory_manager_static_policy"),
)
_FIELDS = tuple(
    (resource, requirement, f"{resource}_{requirement[:-1]}")
    for resource in ("cpu", "memory")
    for requirement in ("limits", "requests")
)


def count_rejection(reason: str) -> None:
    """Count a pod that the node did not admit. Preempted pods are not counted, because they had been admitted."""
    if reason != PREEMPTING:
        REJECTIONS.inc(metric_reason(reason))


def metric_reason(reason: str) -> str:
    """The label `reason` of a rejection. Pure."""
    if reason in _METRIC_REASONS:
        return reason
    return "OutOfExtendedResources" if reason.startswith(_OUT_OF) else "Other"


def count_preemptions(before: Mapping[PodUID, Entry], now: Mapping[PodUID, Entry]) -> None:
    """Count the victims of each pod that has begun to preempt, by the first resource that was short."""
    for uid, entry in now.items():
        old = before.get(uid)
        if entry.verdict is AdmissionVerdict.PREEMPTING and (
            old is None or old.verdict is not AdmissionVerdict.PREEMPTING
        ):
            PREEMPTIONS.inc(entry.short_of, by=len(entry.victims))


def count_resizes(before: Mapping[PodUID, Entry], now: Mapping[PodUID, Entry]) -> None:
    """Count each requested resize once, when it is first allocated, deferred or found infeasible."""
    for uid in changed_keys(before, now):
        old, entry = before.get(uid), now.get(uid)
        if old is None or entry is None:
            continue
        wanted = entry.wanted if entry.item.pending is not None else entry.item.pod
        reported = old.item.pending
        generation = wanted.metadata.generation if wanted is not None else None
        is_known = reported is not None and reported.generation == generation
        if wanted is not None and not is_known:
            for labels in resized_fields(old.item.pod, wanted):
                RESIZES.inc(*labels)
        pending = entry.item.pending
        if pending is not None and pending != reported and pending.reason == RESIZE_INFEASIBLE:
            INFEASIBLE.inc(detail_of(pending.message))


def time_deferred_resizes(before: Mapping[PodUID, Entry], now: Mapping[PodUID, Entry], wall: float) -> None:
    """Observe how long each resize was deferred that is deferred no more: it was accepted or taken back, or the pod is gone."""
    for uid, old in before.items():
        entry, pending = now.get(uid), old.item.pending
        if entry is old or pending is None or pending.reason != RESIZE_DEFERRED:
            continue
        if entry is not None and entry.item.pending is not None:
            continue
        is_same = entry is not None and same_size(size_of(entry.item.pod), size_of(old.item.pod))
        resolution = "terminated" if entry is None else "reverted" if is_same else "accepted"
        DEFERRED_FOR.observe(max(0.0, wall - pending.since), priority_bucket(old.item.pod), resolution)


def count_admission(pod: Pod) -> None:
    """Count an admitted pod by the level at which it has resources, and its QoS class."""
    SIZED.inc(resource_level(pod), qos_class(pod).value)


def resource_level(pod: Pod) -> str:
    """The label `config_mode`: the level of the pod's requests and limits. Pure."""
    whole = pod.spec.resources
    of_pod = whole is not None and bool(whole.requests or whole.limits)
    of_containers = any(
        c.resources is not None and bool(c.resources.requests or c.resources.limits)
        for c in (*pod.spec.containers, *pod.spec.initContainers)
    )
    return {
        (True, True): "pod_and_container_level",
        (True, False): "pod_level",
        (False, True): "container_level",
        (False, False): "",
    }[of_pod, of_containers]


def detail_of(message: str) -> str:
    """The label `reason_detail` of an infeasible resize. Pure."""
    return next((detail for words, detail in _DETAILS if words in message), "insufficient_node_allocatable")


def resized_fields(before: Pod, wanted: Pod) -> Iterable[tuple[str, str, str]]:
    """The resource, requirement and operation (`add`, `remove`, `increase`, `decrease`) of each change of a container. Pure."""
    old, new = size_of(before), size_of(wanted)
    for name in new.containers:
        if name in old.containers and old.containers[name] != new.containers[name]:
            yield from _changes(old.amounts(name), new.amounts(name))


def _changes(old: Amounts, new: Amounts) -> Iterable[tuple[str, str, str]]:
    for resource, requirement, field in _FIELDS:
        was, now = getattr(old, field), getattr(new, field)
        if was != now:
            operation = "add" if not was else "remove" if not now else "increase" if now > was else "decrease"
            yield resource, requirement, operation
