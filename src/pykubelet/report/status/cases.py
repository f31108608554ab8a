"""What the report of each pod is made from, and of which pods something of it is new. Pure.

A mirror pod is reported with what is known of the static pod that it stands for.
"""

from __future__ import annotations

from collections.abc import Mapping

from pykubelet.base.api.core import Pod, PodStatus
from pykubelet.base.kit.changes import changed_keys
from pykubelet.base.kit.values import Value, field
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.labels import CONFIG_HASH, CONFIG_MIRROR
from pykubelet.base.model.lifecycle import KillReason, PodLifecycle, Stage
from pykubelet.base.model.roster import Roster, is_mirror, is_static, pod_ref
from pykubelet.base.model.statuses import Statuses
from pykubelet.report.status.model import ENDED_STAGES


class Case(Value):
    """All that the report of one pod is made from. `api`: as the watch has it."""

    api: Pod
    told: PodStatus | None
    has_ended: bool = False
    is_finished: bool = False
    is_held_up: bool = False


class Seen(Value):
    """What was looked at last. `sources`: by the UID of a mirror pod that of the static pod it stands for."""

    pods: Mapping[PodUID, Pod] = field(default_factory=dict)
    roster: Roster = field(default_factory=Roster)
    statuses: Statuses = field(default_factory=Statuses)
    lifecycles: Mapping[PodUID, PodLifecycle] = field(default_factory=dict)
    sources: Mapping[PodUID, PodUID] = field(default_factory=dict)

    def changed_since(self, before: Seen) -> list[PodUID]:
        """The API server's pods of which something is new."""
        here = [
            *changed_keys(before.statuses.pods, self.statuses.pods),
            *changed_keys(before.lifecycles, self.lifecycles),
            *(before.statuses.remembered ^ self.statuses.remembered),
        ]
        if self.sources:
            mirrors = {source: uid for uid, source in self.sources.items()}
            here = [mirrors.get(uid, uid) for uid in here]
        news = [*changed_keys(before.pods, self.pods), *changed_keys(before.sources, self.sources), *here]
        return [uid for uid in dict.fromkeys(news) if uid in self.pods]

    def case(self, uid: PodUID) -> Case:
        """Of one of the API server's pods."""
        here = self.sources.get(uid, uid)
        told = self.statuses.pods.get(here) if here not in self.statuses.remembered else None
        return case_of(self.pods[uid], told, self.lifecycles.get(here))


def case_of(api: Pod, told: PodStatus | None, lifecycle: PodLifecycle | None) -> Case:
    if lifecycle is None:
        return Case(api, told)
    finished = lifecycle.stage is Stage.FINISHED and lifecycle.kill_reason is KillReason.DELETED
    return Case(api, told, lifecycle.stage in ENDED_STAGES, finished, lifecycle.is_held_up)


def is_same(before: Case, now: Case) -> bool:
    if before.api is not now.api or before.told is not now.told:
        return False
    flags = before.has_ended, before.is_finished, before.is_held_up
    return flags == (now.has_ended, now.is_finished, now.is_held_up)


def sources_of(pods: Mapping[PodUID, Pod], roster: Roster) -> Mapping[PodUID, PodUID]:
    """By mirror pod the static pod of the same full name and hash."""
    if not roster.mirrors:
        return {}
    originals = {
        (pod_ref(entry.pod).full_name, entry.pod.metadata.annotations.get(CONFIG_HASH, "")): uid
        for uid, entry in roster.pods.items()
        if is_static(entry.pod)
    }
    keys = {uid: _mirror_key(pod) for uid, pod in pods.items() if is_mirror(pod)}
    return {uid: originals[key] for uid, key in keys.items() if key in originals}


def _mirror_key(mirror: Pod) -> tuple[str, str]:
    return pod_ref(mirror).full_name, mirror.metadata.annotations.get(CONFIG_MIRROR, "")
