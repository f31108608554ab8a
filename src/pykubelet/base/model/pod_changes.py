"""Detects whether a pod changed in a way that the agent acts upon. Pure.

Relevant are the spec and generation, the labels, the annotations except for the agent's own, the deletion time and grace
period, and the parts of the status that others write (conditions, resource claims, a terminal phase). The agent's own status
reports come back through the watch and are not relevant. A terminal phase does not count for a pod that is being deleted
and has no finalizers, because it vanishes next. For a mirror pod only the metadata count.
"""

from __future__ import annotations

from collections.abc import Mapping

from pykubelet.base.api.core import ObjectMeta, Pod
from pykubelet.base.kit.values import replace
from pykubelet.base.model.labels import CONFIG_MIRROR, LOCAL_ANNOTATIONS
from pykubelet.base.model.reasons import OWN_CONDITIONS
from pykubelet.base.model.roster import has_ended_in_api

_OWN_ANNOTATIONS = LOCAL_ANNOTATIONS | {CONFIG_MIRROR}


def is_same(before: Pod, now: Pod) -> bool:
    """Whether nothing changed that the agent would act upon."""
    if before is now:
        return True
    old, new = before.metadata, now.metadata
    return (
        old.labels == new.labels
        and old.deletionTimestamp == new.deletionTimestamp
        and old.deletionGracePeriodSeconds == new.deletionGracePeriodSeconds
        and old.generation == new.generation
        and _foreign(old.annotations) == _foreign(new.annotations)
        and before.spec == now.spec
        and _of_others(before) == _of_others(now)
    )


def is_same_mirror(before: Pod, now: Pod) -> bool:
    """Whether two versions of a mirror pod have the same metadata, apart from `resourceVersion`."""
    return before is now or _unversioned(before) == _unversioned(now)


def _of_others(pod: Pod) -> tuple[object, ...]:
    """The parts of the status that other writers own, and whether its phase is terminal."""
    status, meta = pod.status, pod.metadata
    conditions = tuple(c for c in status.conditions if c.type not in OWN_CONDITIONS)
    stays = not meta.deletionTimestamp or bool(meta.finalizers)
    return conditions, status.resourceClaimStatuses, status.extendedResourceClaimStatus, stays and has_ended_in_api(pod)


def _foreign(annotations: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in annotations.items() if key not in _OWN_ANNOTATIONS}


def _unversioned(pod: Pod) -> ObjectMeta:
    return replace(pod.metadata, resourceVersion="")
