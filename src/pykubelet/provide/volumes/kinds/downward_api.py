"""downwardAPI volumes: fields of the pod as files in memory.

Source: the Kubernetes documentation "Downward API" and the API reference, DownwardAPIVolumeSource.
"""

from __future__ import annotations

from pykubelet.provide.volumes.kind import NODE_UNKNOWN, PlanInputs, UndecidedPlan
from pykubelet.provide.volumes.payloads.downward_files import items_need_node, plan_files
from pykubelet.provide.volumes.payloads.payload import PayloadPlan, plan_payload
from pykubelet.provide.volumes.payloads.payload_kind import payload_kind


def plan(inputs: PlanInputs) -> PayloadPlan | UndecidedPlan:
    """The fields as files; undecided while they need allocatable resources that are not known yet. VolumesError."""
    source, allocatable = inputs.volume.downwardAPI, inputs.node.allocatable
    assert source is not None
    if not allocatable and items_need_node(inputs.pod, source.items):
        return NODE_UNKNOWN
    files = plan_files(inputs.pod, source.items, source.defaultMode, source.defaultUser, allocatable)
    return plan_payload(inputs, files)


KIND = payload_kind("downwardAPI", "kubernetes.io/downward-api", plan)
