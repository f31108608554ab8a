"""Order, capacity and time of admission, and preemption."""

from __future__ import annotations

from desired.roster.wants import LISTED, NODE, Desk, facts, make_pod, observe, running, stage
from hypothesis import given
from hypothesis import strategies as st

from pykubelet.base.api.core import Pod
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.lifecycle import KillReason, Lifecycles, Stage
from pykubelet.base.model.node import NodeView
from pykubelet.base.model.observed import Observed, ObservedState
from pykubelet.base.model.roster import is_static, pod_ref
from pykubelet.base.model.waits import Owner

UNLISTED = facts(observed=Observed())
CRITICAL = 2_000_000_000


def both(lifecycles: Lifecycles, other: Lifecycles) -> Lifecycles:
    return Lifecycles({**lifecycles.pods, **other.pods})


# Order


def test_first_come_first_served() -> None:
    desk = Desk()
    desk.send(make_pod("a", cpu="600m"))
    desk.send(make_pod("a", cpu="600m"), make_pod("b", cpu="600m"), make_pod("c", cpu="400m"))
    assert [desk.reason(uid) for uid in ("a-1", "b-1", "c-1")] == [None, "OutOfcpu", None]


def test_older_pods_first() -> None:
    desk = Desk()
    new = make_pod("new", cpu="600m", metadata={"creationTimestamp": "2026-01-02T00:00:00Z"})
    old = make_pod("old", cpu="600m", metadata={"creationTimestamp": "2026-01-01T00:00:00Z"})
    desk.send(new, old)
    assert (desk.reason("old-1"), desk.reason("new-1")) == (None, "OutOfcpu")


def test_what_runs_already_is_never_refused_for_resources() -> None:
    new, first, second = make_pod("new", cpu="600m"), make_pod("one", cpu="900m"), make_pod("two", cpu="900m")
    desk = Desk()
    desk.send(new, first, second, at=facts(observed=observe(running(first), running(second))))
    assert [desk.reason(uid) for uid in ("one-1", "two-1", "new-1")] == [None, None, "OutOfcpu"]


def test_what_the_runtime_has_and_could_not_describe_yet_is_not_refused() -> None:
    new, old = make_pod("new", cpu="600m"), make_pod("one", cpu="900m")
    desk = Desk()
    desk.send(new, old, at=facts(observed=Observed(listed_at=1.0, unread=frozenset({pod_ref(old)}))))
    assert [desk.reason(uid) for uid in ("one-1", "new-1")] == [None, "OutOfcpu"]


def test_what_runs_already_stays_although_the_node_changed() -> None:
    pod = make_pod("one", nodeSelector={"zone": "b"})
    desk = Desk()
    desk.send(pod, at=facts(observed=observe(running(pod))))
    assert desk.reason("one-1") is None


def test_what_ran_before_comes_before_the_new() -> None:
    new, dead = make_pod("new", cpu="600m"), make_pod("dead", cpu="600m")
    desk = Desk()
    desk.send(new, dead, at=facts(observed=observe(running(dead, ObservedState.EXITED, 137))))
    assert (desk.reason("dead-1"), desk.reason("new-1")) == (None, "OutOfcpu")


def test_a_pod_that_had_ended_for_good_takes_no_resources() -> None:
    new, over = make_pod("new", cpu="1"), make_pod("over", cpu="1", restartPolicy="Never")
    desk = Desk()
    desk.send(over, new, at=facts(observed=observe(running(over, ObservedState.EXITED))))
    assert (desk.reason("over-1"), desk.reason("new-1")) == (None, None)


def test_before_the_runtime_is_listed_pods_that_all_fit_are_taken() -> None:
    desk = Desk()
    desk.send(make_pod("a", cpu="500m"), make_pod("b", cpu="500m"), at=UNLISTED)
    assert not desk.is_held("a-1")
    assert desk.reason("b-1") is None


def test_before_the_runtime_is_listed_scarce_resources_go_to_no_pod() -> None:
    runs, new = make_pod("runs", cpu="600m"), make_pod("anew", cpu="600m")
    desk = Desk()
    desk.send(new, runs, at=UNLISTED)
    assert desk.is_held("runs-1")
    assert desk.is_held("anew-1")
    assert desk.events == []
    assert desk.settle_again(UNLISTED) is desk.roster
    before = desk.roster
    assert desk.settle_again(UNLISTED, wall=2e9) is before
    desk.settle_again(facts(observed=observe(running(runs))))
    assert (desk.reason("runs-1"), desk.reason("anew-1")) == (None, "OutOfcpu")
    assert not desk.is_held("anew-1")


def test_a_node_without_known_resources_holds_all() -> None:
    desk = Desk()
    desk.send(make_pod("a"), at=facts(node=NodeView("node-1", "node-1")))
    held = desk.roster.pods[PodUID("a-1")].admission_wait
    assert held is not None
    assert held.owner == Owner.NODE_STATUS
    desk.settle_again(facts())
    assert not desk.is_held("a-1")


# Capacity


def test_resources_are_free_again_when_the_containers_are_gone() -> None:
    first, second = make_pod("first", cpu="1"), make_pod("second", cpu="1")
    for at, reason in (
        (Stage.SYNCING, "OutOfcpu"),
        (Stage.TERMINATING, "OutOfcpu"),
        (Stage.TERMINATED, None),
        (Stage.FINISHED, None),
    ):
        desk = Desk()
        desk.send(first)
        desk.send(first, second, at=facts(lifecycles=stage(first, at, KillReason.COMPLETED)))
        assert desk.reason("second-1") == reason, at


def test_an_undesired_pod_takes_no_resources() -> None:
    desk = Desk()
    old, new = make_pod("web", "old", cpu="1"), make_pod("web", "new", cpu="1")
    desk.send(old)
    desk.send(new, at=facts(lifecycles=stage(old, Stage.TERMINATING, KillReason.REMOVED)))
    assert desk.reason("new") is None


def test_a_pod_that_is_wanted_again_takes_resources() -> None:
    pod, other = make_pod("a", cpu="1"), make_pod("b", cpu="1")
    desk = Desk()
    desk.send(pod)
    desk.send()
    desk.send(pod, other, at=facts(lifecycles=stage(pod, Stage.FINISHED, KillReason.REMOVED)))
    assert desk.reason("b-1") == "OutOfcpu"


def test_a_decision_holds_until_the_pod_leaves() -> None:
    first, second = make_pod("first", cpu="1"), make_pod("second", cpu="1")
    desk = Desk()
    desk.send(first, second)
    assert desk.reason("second-1") == "OutOfcpu"
    desk.send(second)
    assert desk.reason("second-1") == "OutOfcpu"
    assert len(desk.events) == 1
    desk.send(make_pod("second", cpu="2m"))  # the same UID
    assert desk.reason("second-1") == "OutOfcpu"
    desk.send(make_pod("second", "other", cpu="1"))
    assert desk.reason("other") is None


# Preemption


def test_a_static_pod_that_does_not_fit_and_has_no_victims() -> None:
    desk = Desk()
    desk.send(make_pod("a", cpu="700m", source="file"), make_pod("b", cpu="500m", source="file"))
    assert desk.reason("b-1") == "UnexpectedAdmissionError"
    assert desk.message("b-1") == (
        "Unexpected error while attempting to recover from admission failure: preemption: error finding a set of pods "
        "to preempt: no set of running pods found to reclaim resources: [(res: cpu, q: 200), ]"
    )


def test_a_critical_pod_takes_the_place_of_another_once_that_has_ended() -> None:
    low = make_pod("low", cpu="800m", source="file", priority=5, terminationGracePeriodSeconds=2)
    high = make_pod("high", cpu="800m", source="file", priority=CRITICAL)
    desk = Desk()
    desk.send(low, at=facts())
    desk.send(low, high, at=facts(lifecycles=stage(low, Stage.SYNCING)))
    assert (desk.reason("low-1"), desk.message("low-1")) == ("Preempting", "Preempted in order to admit critical pod")
    assert desk.events == [("low", "Preempting", "Preempted in order to admit critical pod")]
    assert desk.is_held("high-1")
    held = desk.roster.pods[PodUID("high-1")].admission_wait
    assert held is not None and "low_shop(low-1)" in held.detail
    desk.settle_again(facts(lifecycles=stage(low, Stage.TERMINATING)), now=9.0)
    assert desk.is_held("high-1")
    desk.settle_again(facts(lifecycles=stage(low, Stage.TERMINATED)), now=9.5)
    assert not desk.is_held("high-1")
    assert desk.reason("high-1") is None


def test_a_victim_that_does_not_end_is_not_waited_for_for_ever() -> None:
    low = make_pod("low", cpu="800m", terminationGracePeriodSeconds=20)
    high = make_pod("high", cpu="800m", priority=CRITICAL)
    desk = Desk()
    stuck = facts(lifecycles=stage(low, Stage.TERMINATING))
    desk.send(low)
    desk.send(low, high, at=stuck, now=100.0)
    desk.settle_again(stuck, now=129.9)
    assert desk.is_held("high-1")
    reported = len(desk.events)
    desk.settle_again(stuck, now=130.0)
    assert not desk.is_held("high-1")
    words = "Container runtime did not kill the pod within specified grace period."
    assert desk.events[reported:] == [("low", "ExceededGracePeriod", words)]


def test_a_victim_that_leaves_frees_its_resources() -> None:
    low, high = make_pod("low", cpu="800m"), make_pod("high", cpu="800m", priority=CRITICAL)
    desk = Desk()
    desk.send(low)
    desk.send(low, high)
    assert desk.is_held("high-1")
    desk.send(high)
    assert not desk.is_held("high-1")


def test_preempted_resources_are_not_given_to_others() -> None:
    low, high, late = (make_pod(n, cpu="800m", priority=p) for n, p in (("low", 1), ("high", CRITICAL), ("late", 2)))
    desk = Desk()
    desk.send(low)
    desk.send(low, high)
    desk.send(low, high, late)
    assert desk.reason("late-1") == "OutOfcpu"


def test_a_critical_pod_in_the_wrong_place_preempts_no_pod() -> None:
    low = make_pod("low", cpu="800m")
    high = make_pod("high", cpu="800m", priority=CRITICAL, nodeSelector={"zone": "b"})
    desk = Desk()
    desk.send(low)
    desk.send(low, high)
    assert (desk.reason("low-1"), desk.reason("high-1")) == (None, "NodeAffinity")


def test_the_fewest_and_least_important_pods_end() -> None:
    here = [
        make_pod("effort"),
        make_pod("small", cpu="100m"),
        make_pod("large", cpu="300m", memory="10Mi"),
        make_pod("larger", cpu="300m", memory="20Mi"),
        make_pod(
            "sure",
            containers=[
                {
                    "name": "app",
                    "image": "x",
                    "resources": {
                        "requests": {"cpu": "300m", "memory": "1Mi"},
                        "limits": {"cpu": "300m", "memory": "1Mi"},
                    },
                }
            ],
        ),
    ]
    desk = Desk()
    desk.send(*here)
    desk.send(*here, make_pod("vip", cpu="250m", priority=CRITICAL))
    assert {uid for uid in desk.roster.pods if desk.reason(uid)} == {"large-1"}


def test_a_pod_counts_as_one_pod() -> None:
    node = NodeView("node-1", "node-1", allocatable={**NODE.allocatable, "pods": 2})
    desk = Desk()
    here = [make_pod("effort"), make_pod("burst", cpu="1m")]
    desk.send(*here, at=facts(node=node))
    desk.send(*here, make_pod("vip", cpu="1m", priority=CRITICAL), at=facts(node=node))
    assert desk.reason("effort-1") == "Preempting"
    assert desk.reason("burst-1") is None


PODS = st.lists(
    st.builds(
        lambda name, cpu, static, priority: make_pod(
            name,
            f"{name}-{cpu}-{static}-{priority}",
            cpu=f"{cpu}m",
            source="file" if static else "api",
            priority=priority,
        ),
        st.sampled_from("abcdef"),
        st.sampled_from([100, 300, 500, 900]),
        st.booleans(),
        st.sampled_from([0, 7, CRITICAL]),
    ),
    max_size=6,
)


@given(st.lists(st.tuples(PODS, st.sampled_from(list(Stage))), max_size=8), st.booleans())
def test_the_node_is_never_overbooked_by_admission(sets: list[tuple[list[Pod], Stage]], listed: bool) -> None:
    desk = Desk()
    lifecycles = Lifecycles()
    any_ended = False
    for number, (pods, at) in enumerate(sets):
        for pod in pods[:1]:
            if pod.metadata.uid in desk.roster.pods:
                lifecycles = both(lifecycles, stage(pod, at, KillReason.COMPLETED))
        known = facts(lifecycles=lifecycles, observed=LISTED if listed or number % 2 else Observed())
        before = dict(desk.roster.pods)
        desk.send(*pods, at=known, now=float(number))
        desk.check_counted(known)
        used = 0
        for uid, item in desk.roster.pods.items():
            was = before.get(uid)
            if was is not None and was.rejection is not None:
                assert item.rejection == was.rejection or is_static(item.pod)  # which is admitted again
            lifecycle = lifecycles.pods.get(uid)
            gone = lifecycle is not None and lifecycle.stage in (Stage.TERMINATED, Stage.FINISHED)
            if item.rejection is None and item.admission_wait is None and not gone:
                used += int(uid.split("-")[1])
            if item.rejection is not None and item.rejection.reason == "OutOfcpu":
                assert not is_static(item.pod)
        # A pod that had ended and is then shown to sync again may be counted late; that cannot happen for real.
        any_ended |= any(entry.stage in (Stage.TERMINATED, Stage.FINISHED) for entry in lifecycles.pods.values())
        if not any_ended:
            assert used <= NODE.allocatable["cpu"]
        assert all(pod_ref(item.pod).uid == uid for uid, item in desk.roster.pods.items())
