"""Derives from the snapshots whether a pod needs its volumes, whether containers use them, and which pods changed. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

from pykubelet.base.api.core import Pod
from pykubelet.base.kit.values import changed_keys
from pykubelet.base.model.content import ContentKey, changed_content
from pykubelet.base.model.extensions import PROVIDES_VOLUMES
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.lifecycle import PodLifecycle, Stage
from pykubelet.base.model.observed import PodView
from pykubelet.base.model.roster import RosterPod
from pykubelet.provide.volumes.flex.plan import EXTENSION, directory_of
from pykubelet.provide.volumes.kind import VolumePlan
from pykubelet.provide.volumes.model import Inputs, PodVolumes, State, VolumeNeed, VolumeState
from pykubelet.provide.volumes.plan import kind_in

T = TypeVar("T")


def need_of(uid: PodUID, inputs: Inputs) -> VolumeNeed:
    """The need for the pod's volumes by rule 1 of `decide.py`: needed, kept, released or orphaned."""
    entry = inputs.roster.pods.get(uid)
    life = inputs.lifecycles.pods.get(uid)
    stage = life.stage if life is not None else None
    if stage is Stage.TERMINATED:
        return VolumeNeed.RELEASED
    if entry is None and (stage is None or stage is Stage.FINISHED):
        return VolumeNeed.ORPHANED if inputs.roster.sources_ready else VolumeNeed.KEPT
    if stage is Stage.FINISHED:
        return VolumeNeed.RELEASED
    if entry is None or entry.rejection is not None or stage is Stage.TERMINATING:
        return VolumeNeed.KEPT
    return VolumeNeed.NEEDED


def is_running(uid: PodUID, inputs: Inputs) -> bool:
    """Whether containers may use the pod's volumes. Also true until the runtime's pods were listed, and while the pod is unread."""
    view = inputs.observed.pods.get(uid)
    return _is_unknown(uid, inputs) or (view is not None and view.is_running)


def _is_unknown(uid: PodUID, inputs: Inputs) -> bool:
    return inputs.observed.listed_at is None or inputs.observed.is_unread(uid)


def is_alive(uid: PodUID, inputs: Inputs) -> bool:
    """Whether the runtime may still have a sandbox or a running container of the pod."""
    view = inputs.observed.pods.get(uid)
    return _is_unknown(uid, inputs) or (view is not None and view.is_alive)


def changed_pods(state: State, new: Inputs) -> set[PodUID]:
    """The pods whose volumes may all be affected by a change of the snapshots; most changes affect none."""
    old = state.inputs
    uids: set[PodUID] = set()
    concerns_all = (
        old.roster.sources_ready != new.roster.sources_ready
        or (old.observed.listed_at is None) != (new.observed.listed_at is None)
        or old.node is not new.node
    )
    uids |= _changed(old.roster.pods, new.roster.pods, _is_same_entry)
    uids |= _changed(old.lifecycles.pods, new.lifecycles.pods, _is_same_life)
    uids |= _changed(old.observed.pods, new.observed.pods, _is_same_view)
    uids = {uid for uid in uids if not _is_settled(state.pods.get(uid), uid, new)}
    if concerns_all:
        uids.update(state.pods)
    return uids | served(state, new)


def spec_of(uid: PodUID, inputs: Inputs) -> Pod | None:
    """The spec that volumes are planned from: the roster's, else that of the pod's life cycle."""
    if (entry := inputs.roster.pods.get(uid)) is not None:
        return entry.pod
    life = inputs.lifecycles.pods.get(uid)
    return life.pod if life is not None else None


def _is_settled(pod: PodVolumes | None, uid: PodUID, new: Inputs) -> bool:
    """Whether a change of the pod cannot affect its volumes: need and spec are as before, or all volumes are given up."""
    need = need_of(uid, new)
    if pod is None:
        return need is not VolumeNeed.NEEDED
    if need is not pod.need or need is VolumeNeed.ORPHANED or (need is VolumeNeed.RELEASED and pod.volumes):
        return False
    spec = spec_of(uid, new)
    return spec is None or (pod.pod is not None and is_same_pod(pod.pod, spec))


def affected(state: State, new: Inputs) -> dict[PodUID, Collection[ContentKey]]:
    """The pods with volumes made from content that has changed, and the keys of that."""
    if state.inputs.content is new.content:
        return {}
    changed = changed_content(state.inputs.content, new.content)
    found = ((uid, pod.keys.keys() & changed) for uid, pod in state.pods.items()) if changed else ()
    return {uid: keys for uid, keys in found if keys}


def served(state: State, new: Inputs) -> set[PodUID]:
    """The pods with volumes of drivers, or with volumes that cannot be planned, if a plugin has come, changed or gone."""
    if not plugins_changed(state.inputs, new):
        return set()
    return {uid for uid, pod in state.pods.items() if any(_is_driven(volume) for volume in pod.volumes.values())}


def plugins_changed(old: Inputs, new: Inputs) -> bool:
    """Whether a plugin has come, changed or gone."""
    before, after = old.plugins, new.plugins
    is_same = before.is_settled == after.is_settled and before.flex == after.flex
    return before.plugins != after.plugins or not is_same


def extended(state: State, new: Inputs) -> dict[PodUID, list[str]]:
    """The volumes of extensions of which one has come or gone, and those that cannot be planned, by pod."""
    found: dict[PodUID, list[str]] = {}
    if state.inputs.extensions is new.extensions:
        return found
    before, after = _providers(state.inputs), _providers(new)
    if before == after:
        return found
    changed = {directory_of(f"{EXTENSION}{name}") for name, *_ in before ^ after}
    for uid, pod in state.pods.items():
        for key, volume in pod.volumes.items():
            if volume.plugin in changed or not isinstance(volume.plan, VolumePlan):
                found.setdefault(uid, []).append(key)
    return found


def _providers(inputs: Inputs) -> frozenset[tuple[str, str, str, bool]]:
    """What plans read of the extensions: the name of each, why it is off, and whether it provides volumes."""
    states = inputs.extensions.extensions
    return frozenset((s.name, s.off, s.error if s.off else "", PROVIDES_VOLUMES in s.points) for s in states)


def attachments_changed(old: Inputs, new: Inputs) -> bool:
    """Whether the Node reports other volumes as in use or attached."""
    return old.api_node is not new.api_node and old.node_volumes != new.node_volumes


def attachable(state: State, new: Inputs) -> dict[PodUID, list[str]]:
    """The volumes that wait for a device which the Node begins or ceases to report as in use or attached, by pod."""
    found: dict[PodUID, list[str]] = {}
    if not state.devices or not attachments_changed(state.inputs, new):
        return found
    before, after = state.inputs.node_volumes, new.node_volumes
    changed = before.in_use ^ after.in_use
    changed |= {name for name in state.devices if before.attached.get(name) != after.attached.get(name)}
    for name in changed:
        for uid, key in state.users.by_device.get(name, ()):
            found.setdefault(uid, []).append(key)
    return found


def _is_driven(volume: VolumeState) -> bool:
    is_planned = isinstance(volume.plan, VolumePlan)
    return not is_planned or (bool(volume.plugin) and kind_in(volume.plugin).unmount is not None)


def _changed(before: Mapping[PodUID, T], after: Mapping[PodUID, T], is_same: Callable[[T, T], bool]) -> set[PodUID]:
    """The pods that were added or removed, or that differ by `is_same`."""
    return {
        uid
        for uid in changed_keys(before, after)
        if (old := before.get(uid)) is None or (new := after.get(uid)) is None or not is_same(old, new)
    }


def is_same_pod(pod: Pod, other: Pod) -> bool:
    """Whether spec, labels and annotations are equal. Volumes depend on these only; most changes of a pod are in its status."""
    if pod is other:
        return True
    mine, theirs = pod.metadata, other.metadata
    return pod.spec == other.spec and mine.labels == theirs.labels and mine.annotations == theirs.annotations


def _is_same_entry(entry: RosterPod, other: RosterPod) -> bool:
    return (entry.rejection is None) == (other.rejection is None) and is_same_pod(entry.pod, other.pod)


def _is_same_life(lifecycle: PodLifecycle, other: PodLifecycle) -> bool:
    return lifecycle.stage is other.stage and is_same_pod(lifecycle.pod, other.pod)


def _is_same_view(view: PodView, other: PodView) -> bool:
    return view.is_running == other.is_running and view.is_alive == other.is_alive
