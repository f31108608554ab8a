"""Which mirror pods are made, and which go."""

from __future__ import annotations

from typing import Any

import pytest
from report.apiserver import static_pod

from pykubelet.base.api.core import Pod, PodStatus
from pykubelet.base.kit.values import replace
from pykubelet.base.model.labels import CONFIG_MIRROR
from pykubelet.base.model.lifecycle import Lifecycles, PodLifecycle, Stage
from pykubelet.base.model.node import NodeView
from pykubelet.base.model.reasons import QUARANTINED
from pykubelet.base.model.roster import ApiPods, Roster, RosterPod, pod_ref
from pykubelet.base.model.statuses import Statuses
from pykubelet.base.model.waits import Owner, Wait
from pykubelet.report.mirrors.decide import MakeMirror, RemoveMirror, mirror_of, plan_mirrors

NODE = NodeView("n1", "n1", registered=True, uid="node-uid")
NAME = "web-n1_shop"


def roster(*statics: Pod, mirrors: tuple[Pod, ...] | None = (), ready: bool = True) -> Roster:
    pods = {pod_ref(p).uid: RosterPod(p, "file", 0.0) for p in statics}
    shown = None if mirrors is None else {pod_ref(p).full_name: p for p in mirrors}
    return Roster(pods, ready, (), shown)


def mirror(static: Pod, **metadata: Any) -> Pod:
    made = mirror_of(static, NODE)
    return replace(made, metadata=replace(made.metadata, uid="m1", **metadata))


def test_a_static_pod_gets_a_mirror() -> None:
    static = static_pod()
    assert plan_mirrors(roster(static), Lifecycles(), NODE) == {NAME: MakeMirror(static)}


def test_nothing_before_the_api_server_was_heard_or_without_a_node() -> None:
    static = static_pod()
    assert plan_mirrors(roster(static, mirrors=None), Lifecycles(), NODE) == {}
    assert plan_mirrors(roster(static), Lifecycles(), NodeView("n1", "n1")) == {}
    assert plan_mirrors(roster(static), Lifecycles(), replace(NODE, deleting=True)) == {}


def test_a_mirror_that_fits_is_left_alone() -> None:
    static = static_pod()
    assert plan_mirrors(roster(static, mirrors=(mirror(static),)), Lifecycles(), NODE) == {}


def test_a_mirror_of_an_older_manifest_goes() -> None:
    old, new = static_pod(uid="s1"), static_pod(uid="s2")
    errand = plan_mirrors(roster(new, mirrors=(mirror(old),)), Lifecycles(), NODE)[NAME]
    assert isinstance(errand, RemoveMirror)


def test_a_mirror_shows_the_older_pod_until_that_has_ended() -> None:
    old, new = static_pod(uid="s1"), static_pod(uid="s2")
    ending = PodLifecycle(pod_ref(old), old, Stage.TERMINATING, 0.0, 0.0)
    waiting = PodLifecycle(pod_ref(new), new, Stage.SYNCING, 0.0, 0.0)
    wanted = roster(new, mirrors=(mirror(old),))
    assert plan_mirrors(wanted, Lifecycles({ending.ref.uid: ending, waiting.ref.uid: waiting}), NODE) == {}
    assert NAME in plan_mirrors(wanted, Lifecycles({waiting.ref.uid: waiting}), NODE)


def test_a_mirror_pod_that_a_user_deletes_goes_at_once() -> None:
    static = static_pod()
    there = mirror(static, deletionTimestamp="2026-01-01T00:00:00Z")
    errand = plan_mirrors(roster(static, mirrors=(there,)), Lifecycles(), NODE)[NAME]
    assert isinstance(errand, RemoveMirror)


@pytest.mark.parametrize(
    ("there", "now", "is_remembered", "goes"),
    [
        ("Failed", "Running", False, True),
        ("Succeeded", "Pending", False, True),
        ("Failed", "Failed", False, False),
        ("Running", "Running", False, False),
        ("Failed", "Running", True, False),  # the agent has not looked at the pod since its restart
    ],
)
def test_a_mirror_that_has_ended_goes_when_its_pod_has_started_again(
    there: str, now: str, is_remembered: bool, goes: bool
) -> None:
    static = static_pod()
    shown = mirror(static)
    ended = replace(shown, status=PodStatus(phase=there))
    api = ApiPods({pod_ref(ended).uid: ended}, synced=True)
    uid = pod_ref(static).uid
    statuses = Statuses({uid: PodStatus(phase=now)}, frozenset({uid}) if is_remembered else frozenset())
    errands = plan_mirrors(roster(static, mirrors=(shown,)), Lifecycles(), NODE, api, statuses)
    assert (NAME in errands) == goes


def test_an_orphan_goes_once_all_is_known_and_its_pod_has_ended() -> None:
    static = static_pod()
    there = mirror(static)
    ref = pod_ref(static)
    ending = Lifecycles({ref.uid: PodLifecycle(ref, static, Stage.TERMINATING, 0.0, 0.0)})
    assert plan_mirrors(roster(mirrors=(there,), ready=False), Lifecycles(), NODE) == {}
    assert plan_mirrors(roster(mirrors=(there,)), ending, NODE) == {}
    assert isinstance(plan_mirrors(roster(mirrors=(there,)), Lifecycles(), NODE)[NAME], RemoveMirror)


def test_a_mirror_belongs_to_the_node_and_carries_the_hash() -> None:
    made = mirror_of(static_pod(), NODE)
    assert made.metadata.annotations[CONFIG_MIRROR] == "s1"
    assert made.metadata.annotations["kubernetes.io/config.source"] == "file"
    assert made.metadata.uid == ""
    assert made.metadata.labels == {"app": "web"}
    (owner,) = made.metadata.ownerReferences
    assert (owner.apiVersion, owner.kind, owner.name, owner.uid, owner.controller) == (
        "v1",
        "Node",
        "n1",
        "node-uid",
        True,
    )
    assert made.spec.nodeName == "n1"


def test_a_pod_in_quarantine_keeps_its_mirror_and_gets_no_new_one() -> None:
    static = static_pod()
    wait = Wait("end of quarantine", Owner.POD_SOURCES, 0.0, reason=QUARANTINED)

    def quarantined(*mirrors: Pod) -> Roster:
        wanted = roster(static, mirrors=mirrors)
        return replace(wanted, pods={uid: replace(entry, admission_wait=wait) for uid, entry in wanted.pods.items()})

    assert plan_mirrors(quarantined(), Lifecycles(), NODE) == {}
    assert plan_mirrors(quarantined(mirror(static)), Lifecycles(), NODE) == {}


def test_the_mirror_of_a_manifest_in_quarantine_stays() -> None:
    there = mirror(static_pod())
    withheld = replace(roster(mirrors=(there,)), withheld=frozenset({NAME}))
    assert plan_mirrors(withheld, Lifecycles(), NODE) == {}
    assert NAME in plan_mirrors(roster(mirrors=(there,)), Lifecycles(), NODE)
