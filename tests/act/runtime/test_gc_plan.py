"""Which containers and sandboxes are collected."""

from __future__ import annotations

from act.runtime.gc_stand import lifecycle, pod_of, ref_of
from hypothesis import given
from hypothesis import strategies as st

from pykubelet.act.runtime.collect.gc_plan import GcFacts, GcPolicy, GcState, plan_ended, plan_gc, unknown_pod_dirs
from pykubelet.base.model.ids import ContainerID, SandboxID
from pykubelet.base.model.lifecycle import KillReason, Lifecycles, PodLifecycle, Stage
from pykubelet.base.model.observed import ContainerView, Observed, ObservedState, PodView, SandboxView
from pykubelet.base.model.roster import Roster, RosterPod

EXITED, RUNNING, CREATED = ObservedState.EXITED, ObservedState.RUNNING, ObservedState.CREATED
NOW = 1000.0


def container(
    name: str, attempt: int, state: ObservedState = EXITED, *, sandbox: str = "s0", at: float = 0.0, pod: str = "web"
) -> ContainerView:
    made = int((at or attempt + 1) * 1e9)
    return ContainerView(
        ContainerID(f"{pod}-{name}-{attempt}"), name, SandboxID(f"{pod}-{sandbox}"), state, attempt, made
    )


def sandbox(attempt: int, *, ready: bool = False, pod: str = "web") -> SandboxView:
    return SandboxView(SandboxID(f"{pod}-s{attempt}"), attempt, ready, attempt + 1)


def view(*containers: ContainerView, sandboxes: tuple[SandboxView, ...] = (), pod: str = "web") -> PodView:
    newest = sorted(containers, key=lambda c: c.created_at, reverse=True)
    return PodView(ref_of(pod), tuple(reversed(sandboxes)), tuple(newest))


def known(*lifecycles: PodLifecycle, wanted: tuple[str, ...] = ()) -> GcFacts:
    roster = Roster({ref_of(n).uid: RosterPod(pod_of(n), "file", 0.0) for n in wanted}, sources_ready=True)
    return GcFacts(Lifecycles({life.ref.uid: life for life in lifecycles}), roster)


def going(views: list[PodView], facts: GcFacts, policy: GcPolicy | None = None, with_ended: bool = False) -> list[str]:
    """Ids of containers and sandboxes that go, in order."""
    observed = Observed({pod_view.ref.uid: pod_view for pod_view in views}, 1.0)
    plans = plan_gc(observed, facts, policy or GcPolicy(), NOW, with_ended=with_ended)
    return [gone for plan in plans for gone in (*(c.id for c in plan.containers), *plan.sandboxes)]


def test_one_dead_instance_of_each_container_stays() -> None:
    web = view(
        container("app", 0), container("app", 1), container("app", 2), container("side", 0), container("side", 1)
    )
    assert going([web], known(lifecycle("web"))) == ["web-side-0", "web-app-0", "web-app-1"]


def test_running_ones_stay_and_do_not_count() -> None:
    web = view(container("app", 0), container("app", 1), container("app", 2, RUNNING))
    assert going([web], known(lifecycle("web"))) == ["web-app-0"]
    assert going([web], known(lifecycle("web")), GcPolicy(per_container=0)) == ["web-app-0", "web-app-1"]
    assert going([web], known(lifecycle("web")), GcPolicy(per_container=-1)) == []


def test_the_newest_stays_while_its_pod_is_active() -> None:
    web = view(container("app", 0), container("app", 1))
    none = GcPolicy(per_container=0)
    assert going([web], known(lifecycle("web")), none) == ["web-app-0"]
    assert going([web], known(wanted=("web",)), none) == ["web-app-0"]
    over = known(lifecycle("web", Stage.FINISHED, KillReason.COMPLETED))
    assert going([web], over, none) == ["web-app-0", "web-app-1"]


def test_a_container_that_is_about_to_start_is_no_garbage() -> None:
    web = view(container("app", 0), container("app", 1), container("app", 2, CREATED))
    assert going([web], known(lifecycle("web"))) == ["web-app-0"]
    stale = view(container("app", 0, CREATED), container("app", 1), container("app", 2, RUNNING))
    assert going([stale], known(lifecycle("web"))) == ["web-app-0"]


def test_the_young_stay() -> None:
    web = view(container("app", 0, at=10), container("app", 1, at=950), container("app", 2, at=990))
    assert going([web], known(lifecycle("web")), GcPolicy(min_age_s=60)) == []
    older = view(container("app", 0, at=10), container("app", 1, at=20), container("app", 2, at=990))
    assert going([older], known(lifecycle("web")), GcPolicy(min_age_s=60)) == ["web-app-0"]


def test_nothing_stays_of_unknown_and_evicted_pods() -> None:
    web = view(container("app", 0), container("app", 1), sandboxes=(sandbox(0),))
    everything = ["web-app-0", "web-app-1", "web-s0"]
    assert going([web], known()) == everything
    assert going([web], known(lifecycle("web", Stage.FINISHED, KillReason.EVICTED))) == everything
    assert going([web], known(lifecycle("web", Stage.TERMINATING, KillReason.EVICTED))) == ["web-app-0"]


def test_a_pod_that_ended_for_a_shutdown_keeps_its_last_container_to_be_counted_at_the_next_start() -> None:
    web = view(container("app", 0), container("app", 1), sandboxes=(sandbox(0),))
    assert going([web], known(lifecycle("web", Stage.FINISHED, KillReason.SHUTDOWN))) == ["web-app-0"]


def test_an_unknown_pod_that_still_runs_is_not_ours_to_end() -> None:
    web = view(container("app", 0), container("app", 1, RUNNING), sandboxes=(sandbox(0, ready=True),))
    assert going([web], known()) == []


def test_pods_that_are_being_removed_are_left_alone() -> None:
    web = view(container("app", 0), container("app", 1), sandboxes=(sandbox(0), sandbox(1)))
    for reason in (KillReason.REMOVED, KillReason.DELETED, KillReason.ORPHANED):
        for stage in Stage:
            assert going([web], known(lifecycle("web", stage, reason)), with_ended=True) == []


def test_what_is_over_goes_when_the_disk_is_short() -> None:
    web = view(container("app", 0), sandboxes=(sandbox(0),))
    over = known(lifecycle("web", Stage.FINISHED, KillReason.COMPLETED))
    assert going([web], over) == []
    assert going([web], over, with_ended=True) == ["web-app-0", "web-s0"]
    assert going([web], known(lifecycle("web")), with_ended=True) == []


def test_the_total_is_shared_evenly_and_then_the_oldest_go() -> None:
    def many(pod: str, count: int) -> PodView:
        return view(*(container("app", n, at=n + 1, pod=pod) for n in range(count)), pod=pod)

    pods = [many("a", 4), many("b", 2)]
    over = known(*(lifecycle(n, Stage.FINISHED, KillReason.COMPLETED) for n in "ab"))
    assert going(pods, over, GcPolicy(per_container=-1, total=4)) == ["a-app-0", "a-app-1"]
    assert going(pods, over, GcPolicy(per_container=-1, total=1)) == [
        "a-app-0",
        "a-app-1",
        "a-app-2",
        "b-app-0",
        "b-app-1",
    ]
    assert going(pods, over, GcPolicy(per_container=-1, total=6)) == []
    active = known(lifecycle("a"), lifecycle("b"))
    assert going(pods, active, GcPolicy(total=0)) == ["a-app-0", "a-app-1", "a-app-2", "b-app-0"]


def test_dead_sandboxes_but_the_newest_go() -> None:
    web = view(sandboxes=(sandbox(0), sandbox(1), sandbox(2, ready=True)))
    assert going([web], known(lifecycle("web"))) == ["web-s0", "web-s1"]
    assert going([view(sandboxes=(sandbox(0), sandbox(1)))], known(lifecycle("web"))) == ["web-s0"]


def test_a_sandbox_stays_as_long_as_it_holds_a_container() -> None:
    web = view(
        container("app", 0, sandbox="s0"),
        container("app", 1, sandbox="s1"),
        container("app", 2, sandbox="s1"),
        container("init", 0, sandbox="s1"),
        sandboxes=(sandbox(0), sandbox(1), sandbox(2, ready=True)),
    )
    assert going([web], known(lifecycle("web"))) == ["web-app-0", "web-app-1", "web-s0"]


def test_when_a_container_has_ended_its_older_ones_go_at_once() -> None:
    web = view(container("app", 0), container("app", 1), container("app", 2), container("app", 3, RUNNING))

    def ended(gc_state: GcState, policy: GcPolicy) -> list[str]:
        plan = plan_ended(web, gc_state, policy)
        return [] if plan is None else [c.id for c in plan.containers]

    young = GcPolicy(min_age_s=1e6)
    assert ended(GcState.ACTIVE, young) == ["web-app-0", "web-app-1"]
    assert ended(GcState.ACTIVE, GcPolicy(per_container=0)) == ["web-app-0", "web-app-1"]
    assert ended(GcState.ACTIVE, GcPolicy(per_container=2)) == ["web-app-0"]
    assert ended(GcState.ACTIVE, GcPolicy(per_container=-1)) == []
    assert ended(GcState.EVICTED, young) == ["web-app-0", "web-app-1", "web-app-2"]
    assert ended(GcState.REMOVING, young) == []


def test_log_directories_of_unknown_pods() -> None:
    names = [
        "shop_web_uid-web",
        "shop_new_uid-new",
        "shop_gone_uid-gone",
        "shop_seen_uid-seen",
        "lost+found",
        "a_b_c_d",
        "x_y_",
    ]
    seen = {ref_of("seen").uid: view(container("app", 0, pod="seen"), pod="seen")}
    facts = known(lifecycle("web"), wanted=("new",))
    assert unknown_pod_dirs(names, facts, seen) == [("shop_gone_uid-gone", "uid-gone")]


CONTAINERS = st.lists(
    st.tuples(
        st.sampled_from("abc"),
        st.sampled_from(["app", "side"]),
        st.integers(0, 4),
        st.sampled_from(list(ObservedState)),
        st.integers(1, 999),
        st.integers(0, 2),
    ),
    max_size=25,
    unique_by=lambda drawn: drawn[:3],
)
STANDINGS = st.fixed_dictionaries(
    {
        n: st.one_of(
            st.none(), st.tuples(st.sampled_from(list(Stage)), st.one_of(st.none(), st.sampled_from(list(KillReason))))
        )
        for n in "abc"
    }
)
POLICIES = st.builds(GcPolicy, st.sampled_from([0.0, 500.0]), st.integers(-1, 3), st.integers(-1, 6))


@given(CONTAINERS, STANDINGS, POLICIES, st.booleans())
def test_whatever_there_is(
    listed: list[tuple[str, str, int, ObservedState, int, int]],
    standings: dict[str, tuple[Stage, KillReason | None] | None],
    policy: GcPolicy,
    with_ended: bool,
) -> None:
    facts = known(*(lifecycle(n, *lifecycles) for n, lifecycles in standings.items() if lifecycles is not None))
    by_id: dict[str, ContainerView] = {}
    views = []
    for pod in "abc":
        mine = [container(n, a, s, sandbox=f"s{box}", at=at, pod=pod) for p, n, a, s, at, box in listed if p == pod]
        boxes = tuple(
            sandbox(n, ready=any(c.sandbox_id == f"{pod}-s{n}" and c.is_running for c in mine), pod=pod)
            for n in range(3)
        )
        by_id.update((c.id, c) for c in mine)
        views.append(view(*mine, sandboxes=boxes, pod=pod))
    gone = going(views, facts, policy, with_ended)
    assert len(set(gone)) == len(gone)
    for pod_view in views:
        gc_state = facts.gc_state(pod_view.ref.uid)
        left = [c for c in pod_view.containers if c.id not in gone]
        lost = [c for c in pod_view.containers if c.id in gone]
        if gc_state is GcState.REMOVING:
            assert not lost
        assert all(c.state is not RUNNING and c.created_at / 1e9 <= NOW - policy.min_age_s for c in lost)
        for name in {c.name for c in pod_view.containers}:
            newest = max(pod_view.instances(name), key=lambda c: (c.attempt, c.created_at))
            if gc_state is GcState.ACTIVE:
                assert newest.id not in gone
            kept = [
                c for c in left if c.name == name and c.state is EXITED and c.created_at / 1e9 <= NOW - policy.min_age_s
            ]
            if policy.per_container >= 0 and gc_state in (GcState.ACTIVE, GcState.ENDED):
                assert len(kept) <= max(policy.per_container, 1 if gc_state is GcState.ACTIVE else 0)
        for box in pod_view.sandboxes:
            if box.id in gone:
                assert not box.ready
                assert all(c.sandbox_id != box.id for c in left)
    again = [
        PodView(
            v.ref, tuple(s for s in v.sandboxes if s.id not in gone), tuple(c for c in v.containers if c.id not in gone)
        )
        for v in views
    ]
    assert going(again, facts, policy, with_ended) == []
