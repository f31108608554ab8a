"""projected volumes: the files of several sources in one directory. Pure; `payload.py` writes them.

Source: the Kubernetes documentation "Projected Volumes".
"""

from __future__ import annotations

from collections.abc import Mapping

from pykubelet.act.volumes.api_files import Reader
from pykubelet.act.volumes.downward_api import items_need_node, plan_files
from pykubelet.act.volumes.model import PayloadFile, VolumesError
from pykubelet.base.api.core import Pod, ProjectedVolumeSource, VolumeProjection


def sources_need_node(pod: Pod, source: ProjectedVolumeSource) -> bool:
    return any(one.downwardAPI is not None and items_need_node(pod, one.downwardAPI.items) for one in source.sources)


def plan_projection(
    pod: Pod, source: ProjectedVolumeSource, reader: Reader, allocatable: Mapping[str, int]
) -> list[PayloadFile]:
    """The files of all sources, later ones winning; VolumesError joins what is wrong with all of them.

    They are complete only when `reader` awaits nothing.
    """
    files: dict[str, PayloadFile] = {}
    errors: dict[str, None] = {}
    for one in source.sources:
        try:
            files.update((file.path, file) for file in _plan_source(pod, source, one, reader, allocatable))
        except VolumesError as error:
            errors[str(error)] = None
    if errors:
        raise VolumesError(next(iter(errors)) if len(errors) == 1 else f"[{', '.join(errors)}]")
    return list(files.values())


def _plan_source(
    pod: Pod, source: ProjectedVolumeSource, one: VolumeProjection, reader: Reader, allocatable: Mapping[str, int]
) -> list[PayloadFile]:
    if one.secret is not None:
        return reader.secret(one.secret.name, one.secret.items, one.secret.optional)
    if one.configMap is not None:
        return reader.config_map(one.configMap.name, one.configMap.items, one.configMap.optional)
    if one.downwardAPI is not None:
        return plan_files(pod, one.downwardAPI.items, source.defaultMode, allocatable)
    if one.serviceAccountToken is not None:
        return reader.token(one.serviceAccountToken)
    if one.clusterTrustBundle is not None:
        return reader.trust_bundle(one.clusterTrustBundle)
    if one.podCertificate is not None:
        raise VolumesError('projected volume source "podCertificate" is not supported')
    return []
