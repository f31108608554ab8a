"""Decides when a pod's volume is expanded: reads and changes the `VolumesStep` of a step. Pure. `expansion.py` has the rules.

A volume that is set up is expanded by the same operation, before it counts as mounted. A mounted one is expanded by an operation
of its own, when its PersistentVolume has grown: `Content` reads that again about once a minute. The same claim and volume are
looked at once, unless the last try has failed.
"""

from __future__ import annotations

from pykubelet.base.api.core import Volume
from pykubelet.base.api.quantity import canonical
from pykubelet.base.kit.values import replace
from pykubelet.base.model import reasons
from pykubelet.base.model.claim_sizes import claim_size, volume_size
from pykubelet.base.model.kube_events import warning
from pykubelet.provide.volumes.expansion import Expansion
from pykubelet.provide.volumes.kind import ResolvedVolume, VolumePlan
from pykubelet.provide.volumes.model import (
    ExpandVolume,
    MountPhase,
    PodVolumes,
    RecordEvent,
    Result,
    VolumeExpanded,
    VolumeState,
)
from pykubelet.provide.volumes.needs import is_directory_busy
from pykubelet.provide.volumes.plan import is_persistent, kind_named, resolve
from pykubelet.provide.volumes.work import VolumesStep, is_due, next_failure


def first_expansion(
    work: VolumesStep, pod: PodVolumes, wanted: Volume, state: VolumeState
) -> tuple[VolumeState, Expansion | None]:
    """The volume that is about to be set up, with its size as far as it is known, and how it is expanded then; None: not at all."""
    resolved = _resolved(work, pod, wanted, state)
    if resolved is None:
        return state, None
    state = replace(state, size=claim_size(resolved.claim), size_checked_for=_version(resolved))
    return state, _expansion(pod, resolved, state.size)


def expand_mounted(work: VolumesStep, pod: PodVolumes, wanted: Volume, state: VolumeState) -> VolumeState:
    """Begin to expand a mounted volume if it has grown. Otherwise the state is returned, without a failure that no longer matters."""
    resolved = _resolved(work, pod, wanted, state)
    expansion = _expansion(pod, resolved, state.size) if resolved is not None else None
    if resolved is None or expansion is None:
        return replace(state, expand_failure=None) if state.expand_failure is not None else state
    version = _version(resolved)
    if state.expand_failure is None and version == state.size_checked_for:
        return state
    if not is_due(state.expand_failure, work.now) or is_directory_busy(pod, wanted.name, state):
        return state
    assert pod.pod is not None
    plan = work.plan(pod.pod, wanted)  # that of the mount may have old secrets
    if not isinstance(plan, VolumePlan) or not work.is_staged(plan):
        return state
    work.commands.append(ExpandVolume(pod.uid, wanted.name, plan, expansion, "the volume has grown"))
    return replace(state, phase=MountPhase.EXPANDING, size_checked_for=version)


def expanded(work: VolumesStep, event: VolumeExpanded) -> None:
    """Take the end of the expansion of a mounted volume, which stays mounted in any case."""
    pod, volume = work.busy_volume(event.uid, event.key, (MountPhase.EXPANDING,))
    volume = replace(volume, phase=MountPhase.MOUNTED)
    if event.result is Result.DONE:
        volume = replace(volume, size=event.size or volume.size, expand_failure=None)
    else:
        text = f'NodeExpandVolume.NodeExpandVolume failed for volume "{volume.name}" : {event.error}'
        work.commands.append(RecordEvent(warning(reasons.EVENT_VOLUME_RESIZE_FAILED, text, pod.ref)))
        volume = replace(volume, expand_failure=next_failure(volume.expand_failure, event.error, work.now))
    work.put(event.uid, event.key, volume)
    work.free_device(volume.device)
    work.look(event.uid, "expanded", (event.key,))


def _resolved(work: VolumesStep, pod: PodVolumes, wanted: Volume, state: VolumeState) -> ResolvedVolume | None:
    """The persistent volume behind the pod's volume, if its kind can be expanded."""
    if pod.pod is None or not isinstance(state.plan, VolumePlan) or kind_named(state.plan.kind).expand is None:
        return None
    resolved = resolve(pod.pod, wanted, work.inputs.content) if is_persistent(pod.pod, wanted) else None
    return resolved if isinstance(resolved, ResolvedVolume) else None


def _expansion(pod: PodVolumes, resolved: ResolvedVolume, known: int) -> Expansion | None:
    """The expansion of a volume of which `known` bytes are in use; None if it is not larger, or its size is not known."""
    claim, spec = resolved.claim, resolved.volume.spec
    size = volume_size(spec)
    if claim is None or not known or size <= known:
        return None
    about = claim.metadata
    return Expansion(
        (about.namespace, about.name),
        about.uid,
        resolved.name,
        size,
        canonical(spec.capacity["storage"]),
        resolved.read_only,
        pod.ref,
        known,
    )


def _version(resolved: ResolvedVolume) -> tuple[str, str]:
    """What the decision about an expansion depends on."""
    version = resolved.claim.metadata.resourceVersion if resolved.claim is not None else ""
    return version, resolved.volume.metadata.resourceVersion
