"""projected volumes: the files of several sources in one directory. Pure; `payload.py` writes them.

Only the downwardAPI source can be had without an API server; the others are refused by name.
Source: the Kubernetes documentation "Projected Volumes".
"""

from __future__ import annotations

from collections.abc import Mapping

from pykubelet.act.volumes.downward_api import items_need_node, plan_files
from pykubelet.act.volumes.model import PayloadFile, VolumesError
from pykubelet.base.api.core import Pod, ProjectedVolumeSource

_API_SOURCES = ("secret", "configMap", "serviceAccountToken", "clusterTrustBundle", "podCertificate")


def sources_need_node(pod: Pod, source: ProjectedVolumeSource) -> bool:
    return any(one.downwardAPI is not None and items_need_node(pod, one.downwardAPI.items) for one in source.sources)


def plan_projection(pod: Pod, source: ProjectedVolumeSource, allocatable: Mapping[str, int]) -> list[PayloadFile]:
    """The files of all sources, later ones winning; VolumesError when a source cannot be had."""
    files: dict[str, PayloadFile] = {}
    for one in source.sources:
        for kind in _API_SOURCES:
            if getattr(one, kind) is not None:
                raise VolumesError(f'projected volume source "{kind}" is not supported without an API server yet')
        if one.downwardAPI is not None:
            for file in plan_files(pod, one.downwardAPI.items, source.defaultMode, allocatable):
                files[file.path] = file
    return list(files.values())
