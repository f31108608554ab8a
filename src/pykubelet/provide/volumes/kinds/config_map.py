"""configMap volumes: the keys of a ConfigMap as files on the node's disk.

Source: the Kubernetes documentation "ConfigMaps".
"""

from __future__ import annotations

from collections.abc import Iterable

from pykubelet.base.api.core import Pod, Volume
from pykubelet.base.model.content import ContentKey
from pykubelet.base.model.needs import config_map_key
from pykubelet.provide.volumes.kind import PlanInputs, UndecidedPlan
from pykubelet.provide.volumes.payloads.api_files import Reader
from pykubelet.provide.volumes.payloads.payload import PayloadPlan, plan_payload
from pykubelet.provide.volumes.payloads.payload_kind import payload_kind


def keys(pod: Pod, volume: Volume) -> Iterable[ContentKey]:
    """The ConfigMap of the volume."""
    if volume.configMap is not None and volume.configMap.name:
        yield config_map_key(pod, volume.configMap.name)


def plan(inputs: PlanInputs) -> PayloadPlan | UndecidedPlan:
    """The keys of the ConfigMap as files on disk. VolumesError for a missing object or key."""
    source = inputs.volume.configMap
    assert source is not None
    reader = Reader(inputs.pod, inputs.content, source.defaultMode, source.defaultUser)
    files = reader.config_map(source.name, source.items, source.optional)
    return plan_payload(inputs, files, reader.awaited, in_memory=False)


KIND = payload_kind("configMap", "kubernetes.io/configmap", plan, keys)
