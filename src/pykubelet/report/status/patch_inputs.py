"""The inputs of one pod's status patch (`PatchInput`), and the pods with inputs that changed since the last pass. Pure.

A mirror pod is patched with the status of its static pod.
"""

from __future__ import annotations

from collections.abc import Mapping

from pykubelet.base.api.core import Pod, PodStatus
from pykubelet.base.kit.values import Value, changed_keys, field
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.labels import CONFIG_HASH, CONFIG_MIRROR
from pykubelet.base.model.lifecycle import ENDED_STAGES, KillReason, PodLifecycle, Stage
from pykubelet.base.model.roster import Roster, is_mirror, pod_ref, static_pods
from pykubelet.base.model.statuses import Statuses


class PatchInput(Value):
    """All inputs of one pod's patch. `api`: the pod from the watch. `status`: this node's; None: there is no newer status.

    `has_ended`: the agent has stopped the pod for good. `is_finished`: nothing is left of a deleted pod. `is_held_up`: the pod
    cannot start because of a failure.
    """

    api: Pod
    status: PodStatus | None
    has_ended: bool = False
    is_finished: bool = False
    is_held_up: bool = False


class PatchSnapshot(Value):
    """The inputs of all pods' patches, at one moment. `sources`: the UID of the static pod by the UID of its mirror pod."""

    pods: Mapping[PodUID, Pod] = field(default_factory=dict)
    roster: Roster = field(default_factory=Roster)
    statuses: Statuses = field(default_factory=Statuses)
    lifecycles: Mapping[PodUID, PodLifecycle] = field(default_factory=dict)
    sources: Mapping[PodUID, PodUID] = field(default_factory=dict)

    def changed_since(self, before: PatchSnapshot) -> list[PodUID]:
        """The API server's pods with changed inputs."""
        here = [
            *changed_keys(before.statuses.pods, self.statuses.pods),
            *changed_keys(before.lifecycles, self.lifecycles),
            *(before.statuses.remembered ^ self.statuses.remembered),
        ]
        if self.sources:
            mirrors = {source: uid for uid, source in self.sources.items()}
            here = [mirrors.get(uid, uid) for uid in here]
        changed = [*changed_keys(before.pods, self.pods), *changed_keys(before.sources, self.sources), *here]
        return [uid for uid in dict.fromkeys(changed) if uid in self.pods]

    def of(self, uid: PodUID) -> PatchInput:
        """The inputs of one of the API server's pods."""
        here = self.sources.get(uid, uid)
        status = self.statuses.pods.get(here) if here not in self.statuses.remembered else None
        return patch_input(self.pods[uid], status, self.lifecycles.get(here))


def patch_input(api: Pod, status: PodStatus | None, lifecycle: PodLifecycle | None) -> PatchInput:
    """The inputs of one pod's patch, from the API server's copy, the status of this node and the lifecycle."""
    if lifecycle is None:
        return PatchInput(api, status)
    finished = lifecycle.stage is Stage.FINISHED and lifecycle.kill_reason is KillReason.DELETED
    return PatchInput(api, status, lifecycle.stage in ENDED_STAGES, finished, lifecycle.is_held_up)


def is_same(before: PatchInput, now: PatchInput) -> bool:
    """True if nothing differs; objects are compared by identity."""
    if before.api is not now.api or before.status is not now.status:
        return False
    flags = before.has_ended, before.is_finished, before.is_held_up
    return flags == (now.has_ended, now.is_finished, now.is_held_up)


def sources_of(pods: Mapping[PodUID, Pod], roster: Roster) -> Mapping[PodUID, PodUID]:
    """The UID of the static pod with the same full name and hash, by the UID of its mirror pod."""
    if not roster.mirrors:
        return {}
    originals = {
        (pod_ref(entry.pod).full_name, entry.pod.metadata.annotations.get(CONFIG_HASH, "")): uid
        for uid, entry in static_pods(roster.pods).items()
    }
    keys = {uid: _mirror_key(pod) for uid, pod in pods.items() if is_mirror(pod)}
    return {uid: originals[key] for uid, key in keys.items() if key in originals}


def _mirror_key(mirror: Pod) -> tuple[str, str]:
    return pod_ref(mirror).full_name, mirror.metadata.annotations.get(CONFIG_MIRROR, "")
