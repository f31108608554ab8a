"""projected volumes: the files of several sources in one directory in memory.

Source: the Kubernetes documentation "Projected Volumes".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pykubelet.base.api.core import Pod, ProjectedVolumeSource, Volume, VolumeProjection
from pykubelet.base.model.content import ContentKey
from pykubelet.base.model.needs import bundle_key, certificate_keys, config_map_key, secret_key, token_key
from pykubelet.base.model.waits import Wait
from pykubelet.provide.volumes.kind import HEAVY, NODE_UNKNOWN, PendingError, PlanInputs, UndecidedPlan, VolumesError
from pykubelet.provide.volumes.payloads.api_files import Reader
from pykubelet.provide.volumes.payloads.downward_files import items_need_node, plan_files
from pykubelet.provide.volumes.payloads.payload import PayloadPlan, PayloadSource, plan_payload
from pykubelet.provide.volumes.payloads.payload_kind import payload_kind


def keys(pod: Pod, volume: Volume) -> Iterable[ContentKey]:
    """The API objects of all sources of the volume."""
    yield from certificate_keys(pod).get(volume.name, {}).values()
    for source in volume.projected.sources if volume.projected is not None else ():
        yield from _source_keys(pod, source)


def weight(volume: Volume) -> int:
    """How many sources and items the volume has."""
    sources = volume.projected.sources if volume.projected is not None else ()
    if len(sources) >= HEAVY:
        return len(sources)
    projections = (
        projection for source in sources for projection in (source.configMap, source.secret, source.downwardAPI)
    )
    return len(sources) + sum(len(projection.items) for projection in projections if projection is not None)


def _source_keys(pod: Pod, source: VolumeProjection) -> Iterable[ContentKey]:
    if source.configMap is not None and source.configMap.name:
        yield config_map_key(pod, source.configMap.name)
    if source.secret is not None and source.secret.name:
        yield secret_key(pod, source.secret.name)
    if source.serviceAccountToken is not None and pod.spec.serviceAccountName:
        yield token_key(pod, source.serviceAccountToken)
    if source.clusterTrustBundle is not None:
        bundle = bundle_key(source.clusterTrustBundle)
        if bundle is not None:
            yield bundle


def plan(inputs: PlanInputs) -> PayloadPlan | UndecidedPlan:
    """The files of all sources; undecided while the node is unknown or an object is awaited. VolumesError."""
    source, allocatable = inputs.volume.projected, inputs.node.allocatable
    assert source is not None
    if not allocatable and _sources_need_node(inputs.pod, source):
        return NODE_UNKNOWN
    reader = Reader(inputs.pod, inputs.content, source.defaultMode, source.defaultUser)
    files = _plan_sources(inputs.pod, inputs.volume, source, reader, allocatable)
    return plan_payload(inputs, files, reader.awaited)


def _sources_need_node(pod: Pod, source: ProjectedVolumeSource) -> bool:
    return any(
        projection.downwardAPI is not None and items_need_node(pod, projection.downwardAPI.items)
        for projection in source.sources
    )


def _plan_sources(
    pod: Pod, volume: Volume, source: ProjectedVolumeSource, reader: Reader, allocatable: Mapping[str, int]
) -> list[PayloadSource]:
    """The files of all sources. VolumesError with the errors of all sources.

    The files are complete only if `reader.awaited` is empty.
    """
    files: list[PayloadSource] = []
    errors: dict[str, None] = {}
    waits: list[Wait] = []
    is_pending = True
    requested = certificate_keys(pod).get(volume.name, {})
    for index, projection in enumerate(source.sources):
        try:
            if projection.podCertificate is not None:
                files += reader.certificate(requested.get(index), projection.podCertificate)
            else:
                files += _plan_source(pod, source, projection, reader, allocatable)
        except PendingError as error:
            errors[str(error)] = None
            waits += error.waits
        except VolumesError as error:
            errors[str(error)] = None
            is_pending = False
    if errors:
        text = next(iter(errors)) if len(errors) == 1 else f"[{', '.join(errors)}]"
        raise PendingError(text, tuple(waits)) if is_pending else VolumesError(text)
    return files


def _plan_source(
    pod: Pod,
    source: ProjectedVolumeSource,
    projection: VolumeProjection,
    reader: Reader,
    allocatable: Mapping[str, int],
) -> Sequence[PayloadSource]:
    if projection.secret is not None:
        return reader.secret(projection.secret.name, projection.secret.items, projection.secret.optional)
    if projection.configMap is not None:
        return reader.config_map(projection.configMap.name, projection.configMap.items, projection.configMap.optional)
    if projection.downwardAPI is not None:
        return plan_files(pod, projection.downwardAPI.items, source.defaultMode, source.defaultUser, allocatable)
    if projection.serviceAccountToken is not None:
        return reader.token(projection.serviceAccountToken)
    if projection.clusterTrustBundle is not None:
        return reader.trust_bundle(projection.clusterTrustBundle)
    return []


KIND = payload_kind("projected", "kubernetes.io/projected", plan, keys, weight)
