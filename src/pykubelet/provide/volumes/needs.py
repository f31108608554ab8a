"""Who needs volumes: whether a pod does, whether containers use them, which pods a change concerns, and which volumes are shared. Pure.

The indices over all volumes (`Users`) have those that are shared, by two volumes of a pod or with other pods.
Source: the Kubernetes documentation "Persistent Volumes", access modes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TypeVar

from pykubelet.base.api.core import Pod
from pykubelet.base.kit.values import changed_keys
from pykubelet.base.model.content import ContentKey, ObjectKey, changed_content
from pykubelet.base.model.extensions import PROVIDES_VOLUMES
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.lifecycle import PodLifecycle, Stage
from pykubelet.base.model.observed import PodView
from pykubelet.base.model.roster import RosterPod
from pykubelet.provide.volumes.flex.plan import EXTENSION, directory_of
from pykubelet.provide.volumes.kind import VolumePlan
from pykubelet.provide.volumes.model import Inputs, Place, PodVolumes, State, Users, VolumeNeed, VolumeState
from pykubelet.provide.volumes.plan import kind_in
from pykubelet.provide.volumes.selinux import is_context_problem

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
    concerned: Iterable[PodUID] = state.pods
    if not any(isinstance(key, ObjectKey) for key in changed):  # tokens and certificates are of one pod each
        concerned = {key.pod for key in changed if not isinstance(key, ObjectKey) and key.pod in state.pods}
    found = ((uid, state.pods[uid].keys.keys() & changed) for uid in concerned)
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


# Shared volumes

K = TypeVar("K")
IN_USE = "volume uses the ReadWriteOncePod access mode and is already in use by another pod"
_NOTHING: Mapping[Place, None] = {}


def is_directory_busy(pod: PodVolumes, key: str, volume: VolumeState) -> bool:
    """Whether an operation runs on the directory of `volume`, begun for another volume of the pod."""
    others = (pod.volumes[other] for other in pod.busy if other != key)
    return any(other.plugin != "" and (other.plugin, other.name) == (volume.plugin, volume.name) for other in others)


def waits_for_other(error: str) -> bool:
    """Whether the error is that of a volume that another pod has."""
    return error == IN_USE or is_context_problem(error)


def is_same_volume(volume: VolumeState, other: VolumeState) -> bool:
    """Whether both are the same persistent volume. One that was found on disk is known by its directory alone."""
    if volume.name != other.name or volume.plugin != other.plugin:
        return False
    return all(state.plan is None or state.is_claimed for state in (volume, other))


class UsersDraft:
    """The indices of a step. An index is copied when it first changes."""

    def __init__(self, users: Users) -> None:
        self._before = users
        self._by_device = users.by_device
        self._by_directory = users.by_directory
        self._waiting = users.waiting

    def of_device(self, name: str) -> Mapping[Place, None]:
        """The volumes with this device."""
        return self._by_device.get(name, _NOTHING)

    def of_directory(self, volume: VolumeState) -> Mapping[Place, None]:
        """The volumes that may be the same persistent volume."""
        return self._by_directory.get((volume.plugin, volume.name), _NOTHING)

    @property
    def waiting(self) -> Mapping[Place, None]:
        """The volumes that were refused because another pod has them."""
        return self._waiting

    def change(self, place: Place, before: VolumeState | None, after: VolumeState | None) -> None:
        """Take the change of a volume. None: there is none."""
        old, new = (state.device if state is not None else "" for state in (before, after))
        if old != new:
            self._by_device = _moved(self._by_device, self._before.by_device, place, old or None, new or None)
        left, entered = _directory(before), _directory(after)
        if left != entered:
            self._by_directory = _moved(self._by_directory, self._before.by_directory, place, left, entered)
        is_waiting = after is not None and after.failure is not None and waits_for_other(after.failure.error)
        if is_waiting != (place in self._waiting):
            waiting = dict(self._waiting)
            if is_waiting:
                waiting[place] = None
            else:
                del waiting[place]
            self._waiting = waiting

    def done(self) -> Users:
        """The indices after the step; the same object if none has changed."""
        before = self._before
        if (
            self._by_device is before.by_device
            and self._by_directory is before.by_directory
            and self._waiting is before.waiting
        ):
            return before
        return Users(self._by_device, self._by_directory, self._waiting)


def _directory(state: VolumeState | None) -> tuple[str, str] | None:
    """The directory of a volume that is persistent, or of which that is not known; None for others."""
    if state is None or not state.plugin or not (state.plan is None or state.is_claimed):
        return None
    return state.plugin, state.name


def _moved(
    index: Mapping[K, Mapping[Place, None]],
    before: Mapping[K, Mapping[Place, None]],
    place: Place,
    old: K | None,
    new: K | None,
) -> Mapping[K, Mapping[Place, None]]:
    """The index with a place moved from one key to another. The same object, unless it is that of `before`."""
    moved = dict(index) if index is before else index
    assert isinstance(moved, dict)
    if old is not None:
        left = {other: None for other in moved.get(old, _NOTHING) if other != place}
        if left:
            moved[old] = left
        else:
            moved.pop(old, None)
    if new is not None:
        moved[new] = {**moved.get(new, _NOTHING), place: None}
    return moved
