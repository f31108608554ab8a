"""Which pods get the size that their spec asks for, in which order, and the Events of the others."""

from __future__ import annotations

import json

import pytest
from desired.roster.wants import WALL, Desk, facts, make_pod, sized, stage
from hypothesis import given
from hypothesis import strategies as st

from pykubelet.base.api.core import Pod, PodCondition, PodStatus
from pykubelet.base.kit.values import replace
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.lifecycle import KillReason, Lifecycles, PodLifecycle, Stage
from pykubelet.base.model.node import RuntimeReady
from pykubelet.base.model.roster import RosterPod, pod_ref
from pykubelet.base.model.sizing import PendingResize, ResizeProgress, size_of, with_size
from pykubelet.desired.roster.kept_size import KeptSize, merged_sizes
from pykubelet.desired.roster.model import RosterState


def with_init(name: str, cpu: str, generation: int = 1) -> Pod:
    init = {"name": "init", "image": "busybox", "resources": {"requests": {"cpu": cpu}}}
    return sized(name, "100m", generation, initContainers=[init])


def item(desk: Desk, name: str) -> RosterPod:
    return desk.roster.pods[PodUID(f"{name}-1")]


def cpu(desk: Desk, name: str) -> object:
    resources = item(desk, name).pod.spec.containers[0].resources
    assert resources is not None
    return resources.requests["cpu"]


def life(pod: Pod, resize: ResizeProgress | None = None) -> Lifecycles:
    ref = pod_ref(pod)
    return Lifecycles({ref.uid: PodLifecycle(ref, pod, Stage.SYNCING, 0.0, 0.0, resize=resize)})


def in_memory(name: str, limit: str, generation: int = 1, cpu: str = "100m") -> Pod:
    return sized(name, cpu, generation, volumes=[{"name": "v", "emptyDir": {"medium": "Memory", "sizeLimit": limit}}])


def limit_of(pod: Pod) -> object:
    (volume,) = pod.spec.volumes
    assert volume.emptyDir is not None
    return volume.emptyDir.sizeLimit


def test_the_limit_of_a_volume_in_memory_is_allocated_with_the_resize() -> None:
    desk, on = Desk(("api",)), facts(resize_volumes=True)
    desk.send(in_memory("a", "1Mi"), source="api", at=on)
    desk.send(in_memory("a", "2Mi", 2), source="api", at=on)
    assert limit_of(item(desk, "a").pod) == "2Mi"
    desk.send(in_memory("a", "4Mi", 3, cpu="100"), source="api", at=on)
    pending = item(desk, "a").pending
    assert pending is not None and pending.reason == "Deferred"
    assert (limit_of(item(desk, "a").pod), cpu(desk, "a")) == ("2Mi", "100m")


def test_the_limit_of_a_volume_in_memory_survives_a_restart() -> None:
    """The files of the reference's format do not have it."""
    size, larger = size_of(in_memory("a", "1Mi")), size_of(in_memory("a", "2Mi"))
    resources = replace(size, volumes={})
    known = KeptSize(size=larger, before=size, at=7.0)
    uid = PodUID("a-1")
    assert merged_sizes({uid: known}, {uid: resources}, {uid: resources}, 9.0) == {uid: KeptSize(size=larger)}
    kept = merged_sizes({}, {uid: resources}, {}, 9.0)[uid]
    assert limit_of(with_size(in_memory("a", "2Mi"), kept.size)) == "2Mi"
    assert limit_of(with_size(in_memory("a", "2Mi"), size)) == "1Mi"


def test_without_the_gate_a_volume_in_memory_keeps_its_limit() -> None:
    desk = Desk(("api",))
    desk.send(in_memory("a", "1Mi"), source="api")
    desk.send(in_memory("a", "2Mi", 2), source="api")
    pending = item(desk, "a").pending
    assert pending == PendingResize("Infeasible", "InPlacePodVerticalScalingMemoryBackedVolumes is disabled", 2, WALL)
    assert limit_of(item(desk, "a").pod) == "1Mi"


def test_a_size_that_fits_is_given_at_once() -> None:
    desk = Desk(("api",))
    desk.send(sized("a", "100m"), source="api")
    desk.send(sized("a", "500m", 2), source="api")
    assert cpu(desk, "a") == "500m"
    change = item(desk, "a").change
    assert change is not None and change.at == WALL
    assert change.before == size_of(sized("a", "100m"))
    (_, reason, message) = desk.events[-1]
    assert reason == "ResizeStarted"
    what, _, reported = message.partition(": ")
    assert what == "Pod resize started"
    assert json.loads(reported) == {
        "containers": [{"name": "app", "resources": {"requests": {"cpu": "500m"}}}],
        "generation": 2,
    }


def test_a_change_is_over_when_it_holds_for_all_that_runs() -> None:
    desk = Desk(("api",))
    desk.send(sized("a", "100m"), source="api")
    desk.send(sized("a", "500m", 2), source="api")
    pod = item(desk, "a").pod
    desk.settle_again(facts(lifecycles=life(pod, ResizeProgress(2))))
    assert item(desk, "a").change is not None and not desk.state.is_settled
    desk.settle_again(facts(lifecycles=life(pod)))
    assert item(desk, "a").change is None and desk.state.is_settled


def test_a_pod_keeps_its_size_until_the_new_one_fits() -> None:
    desk = Desk(("api",))
    desk.send(sized("a", "100m"), sized("b", "600m"), source="api")
    desk.send(sized("a", "500m", 2), sized("b", "600m"), source="api")
    assert cpu(desk, "a") == "100m"
    message = "Node didn't have enough resource: cpu, requested: 500, used: 600, capacity: 1000"
    assert item(desk, "a").pending == PendingResize("Deferred", message, 2, WALL)
    assert desk.events[-1][1] == "ResizeDeferred"
    assert desk.events[-1][2].startswith("Pod resize OutOfcpu: ") and message in desk.events[-1][2]
    count = len(desk.events)
    desk.settle_again(wall=WALL + 5)
    assert item(desk, "a").pending == PendingResize("Deferred", message, 2, WALL)
    assert len(desk.events) == count
    desk.send(sized("a", "500m", 2), source="api")
    assert cpu(desk, "a") == "500m" and item(desk, "a").pending is None


def test_a_pod_that_is_not_admitted_yet_takes_nothing_from_a_resize() -> None:
    desk, unknown = Desk(("api",)), facts(runtime=RuntimeReady(checked=False))
    waiting = sized("b", "600m", securityContext={"supplementalGroupsPolicy": "Strict"})
    desk.send(sized("a", "100m"), waiting, source="api", at=unknown)
    assert desk.is_held("b-1")
    desk.send(sized("a", "500m", 2), waiting, source="api", at=unknown)
    assert cpu(desk, "a") == "500m" and item(desk, "a").pending is None


def test_a_changed_message_is_no_new_event() -> None:
    desk = Desk(("api",))
    desk.send(sized("a", "100m"), sized("b", "600m"), source="api")
    desk.send(sized("a", "500m", 2), sized("b", "600m"), source="api")
    count = len(desk.events)
    desk.send(sized("a", "500m", 2), sized("b", "600m"), sized("c", "10m"), source="api")
    pending = item(desk, "a").pending
    assert pending is not None and "used: 610" in pending.message
    assert len(desk.events) == count
    desk.send(sized("a", "550m", 3), sized("b", "600m"), sized("c", "10m"), source="api")
    assert [events[1] for events in desk.events[count:]] == ["ResizeDeferred"]


def test_what_was_reported_before_a_restart_is_not_reported_again() -> None:
    reported = PodCondition(type="PodResizePending", status="True", reason="Deferred", observedGeneration=2)
    pod = replace(sized("a", "500m", 2), status=PodStatus(conditions=(reported,)))
    kept = {PodUID("a-1"): KeptSize(size=size_of(sized("a", "100m")))}
    desk = Desk(("api",))
    desk.state = RosterState(kept=kept)
    desk.send(pod, sized("b", "600m"), source="api")
    assert item(desk, "a").pending is not None and desk.events == []


def test_the_pod_is_seen_in_its_old_size_with_all_else_new() -> None:
    desk = Desk(("api",))
    desk.send(sized("a", "100m"), sized("b", "600m"), source="api")
    changed = sized("a", "500m", 2, activeDeadlineSeconds=60)
    desk.send(changed, sized("b", "600m"), source="api")
    seen = item(desk, "a").pod
    assert seen.spec.activeDeadlineSeconds == 60 and seen.metadata.generation == 2
    assert cpu(desk, "a") == "100m"


def test_going_back_to_the_old_size_is_the_end_of_waiting() -> None:
    desk = Desk(("api",))
    desk.send(sized("a", "100m"), sized("b", "600m"), source="api")
    desk.send(sized("a", "500m", 2), sized("b", "600m"), source="api")
    desk.send(sized("a", "100m", 3), sized("b", "600m"), source="api")
    assert item(desk, "a").pending is None and item(desk, "a").change is None


def test_who_asks_for_no_more_comes_first_and_frees_resources() -> None:
    desk = Desk(("api",))
    desk.send(sized("a", "100m"), sized("b", "800m"), source="api")
    desk.send(sized("a", "500m", 2), sized("b", "400m", 2), source="api")
    assert (cpu(desk, "a"), cpu(desk, "b")) == ("500m", "400m")


def test_the_more_important_pod_comes_first() -> None:
    desk = Desk(("api",))
    desk.send(sized("a", "400m"), sized("b", "400m", priority=7), source="api")
    desk.send(sized("a", "600m", 2), sized("b", "600m", 2, priority=7), source="api")
    assert (cpu(desk, "a"), cpu(desk, "b")) == ("400m", "600m")
    assert item(desk, "a").pending is not None


def test_a_pod_that_is_ended_waits_for_no_size() -> None:
    desk = Desk(("api",))
    desk.send(sized("a", "100m"), sized("b", "600m"), source="api")
    desk.send(sized("a", "500m", 2), sized("b", "600m"), source="api")
    desk.settle_again(facts(lifecycles=stage(item(desk, "a").pod, Stage.TERMINATING, KillReason.DELETED)))
    assert item(desk, "a").pending is None


def test_what_can_never_be_is_infeasible_and_not_decided_again() -> None:
    desk = Desk(("api",))
    desk.send(sized("a", "100m"), source="api")
    desk.send(sized("a", "500m", 2), source="api", at=facts(resize_containers=False))
    pending = item(desk, "a").pending
    assert pending == PendingResize("Infeasible", "InPlacePodVerticalScaling is disabled", 2, WALL)
    assert desk.events[-1][1] == "ResizeInfeasible" and desk.state.is_settled


def test_init_containers_have_a_gate_of_their_own() -> None:
    desk = Desk(("api",))
    desk.send(with_init("a", "100m"), source="api")
    desk.send(with_init("a", "200m", 2), source="api", at=facts(resize_init_containers=False))
    pending = item(desk, "a").pending
    assert pending == PendingResize("Infeasible", "InPlacePodVerticalScalingInitContainers is disabled", 2, WALL)


def test_an_init_container_is_given_its_new_size() -> None:
    desk = Desk(("api",))
    desk.send(with_init("a", "100m"), source="api")
    desk.send(with_init("a", "200m", 2), source="api")
    assert item(desk, "a").pending is None
    assert item(desk, "a").pod.spec.initContainers == with_init("a", "200m").spec.initContainers
    change = item(desk, "a").change
    assert change is not None and change.before == size_of(with_init("a", "100m"))


def test_guaranteed_pods_with_cpus_of_their_own_keep_them() -> None:
    def guaranteed(amount: str, generation: int) -> Pod:
        resources = {"requests": {"cpu": amount, "memory": "1Mi"}, "limits": {"cpu": amount, "memory": "1Mi"}}
        containers = [{"name": "app", "image": "busybox", "resources": resources}]
        return make_pod("a", metadata={"generation": generation}, containers=containers)

    desk = Desk(("api",))
    desk.send(guaranteed("1", 1), source="api")
    desk.send(guaranteed("500m", 2), source="api", at=facts(static_cpus=True))
    pending = item(desk, "a").pending
    assert pending is not None
    assert pending.message == 'Resize is infeasible for Guaranteed Pods alongside CPU Manager policy "static"'


@pytest.mark.parametrize(
    ("resource", "policy"), [("cpu", 'CPU Manager policy "static"'), ("memory", 'Memory Manager policy "Static"')]
)
@pytest.mark.parametrize("places_pods", [True, False])
def test_a_pod_that_is_placed_as_a_whole_keeps_its_size(resource: str, policy: str, places_pods: bool) -> None:
    def guaranteed(amount: str, generation: int) -> Pod:
        amounts = {"cpu": "1", "memory": "1Mi", resource: amount}
        whole = {"requests": amounts, "limits": amounts}
        containers = [{"name": "app", "image": "busybox"}]
        return make_pod("a", metadata={"generation": generation}, containers=containers, resources=whole)

    desk = Desk(("api",))
    rules = facts(static_cpus=True, static_memory=True, places_pods=places_pods)
    desk.send(guaranteed("500m" if resource == "cpu" else "1Mi", 1), source="api", at=rules)
    desk.send(guaranteed("1" if resource == "cpu" else "2Mi", 2), source="api", at=rules)
    pending = item(desk, "a").pending
    assert (pending.message if pending else "") == (
        f"Resize is infeasible for Guaranteed Pods alongside {policy}" if places_pods else ""
    )


def test_shares_of_the_swap_do_not_move_while_a_container_runs() -> None:
    desk = Desk(("api",))
    desk.send(make_pod("a", memory="1Mi"), source="api")
    desk.send(make_pod("a", memory="2Mi"), source="api", at=facts(limited_swap=True))
    pending = item(desk, "a").pending
    assert pending is not None
    assert pending.message == "In-place resize of containers with swap is not supported."


@pytest.mark.parametrize(("limit", "priority"), [("same", 0), ("", 2_000_000_000)])
def test_what_has_no_swap_can_be_resized(limit: str, priority: int) -> None:
    def with_memory(amount: str) -> Pod:
        limits = {"memory": amount} if limit else {}
        resources = {"requests": {"memory": amount}, "limits": limits}
        app = {"name": "app", "image": "busybox", "resources": resources}
        return make_pod("a", priority=priority, containers=[app])

    desk = Desk(("api",))
    desk.send(with_memory("1Mi"), source="api", at=facts(limited_swap=True))
    desk.send(with_memory("2Mi"), source="api", at=facts(limited_swap=True))
    assert item(desk, "a").pending is None


def test_a_static_pod_follows_its_manifest() -> None:
    desk = Desk()
    desk.send(sized("a", "100m", source="file"))
    desk.send(sized("a", "500m", source="file"))
    assert cpu(desk, "a") == "500m" and item(desk, "a").change is None


# Over a restart of the agent


def test_after_a_restart_a_pod_has_the_size_it_was_given() -> None:
    desk = Desk(("api",))
    before, given = size_of(sized("a", "50m")), size_of(sized("a", "100m"))
    desk.state = RosterState(kept={PodUID("a-1"): KeptSize(size=given, before=before, at=WALL - 5)})
    desk.send(sized("a", "700m", 3), sized("b", "600m"), source="api")
    assert cpu(desk, "a") == "100m"
    assert item(desk, "a").change is not None, "it is not known whether it holds for all that runs"
    assert item(desk, "a").pending is not None
    (held,) = life(item(desk, "a").pod).pods.values()
    desk.settle_again(facts(lifecycles=Lifecycles({held.ref.uid: replace(held, has_worker=False)})))
    assert item(desk, "a").change is not None, "a pod that waits to be taken up has not been looked at"
    desk.settle_again(facts(lifecycles=life(item(desk, "a").pod)))
    assert item(desk, "a").change is None


_STEPS = st.lists(
    st.tuples(
        st.sampled_from(("a", "b", "static")),
        st.sampled_from(("100m", "900m", "1500m", "3", "")),
        st.sampled_from((None, Stage.SYNCING, Stage.FINISHED)),
        st.booleans(),
    ),
    max_size=10,
)


@given(_STEPS)
def test_what_counts_is_what_a_look_at_all_pods_finds(steps: list[tuple[str, str, Stage | None, bool]]) -> None:
    """After each step: a pod comes, gets another size or goes, its worker has come as far as `at`, and critical pods preempt others."""
    desk, lives, wanted = Desk(("api", "file")), dict[PodUID, PodLifecycle](), dict[str, Pod]()
    for generation, (name, cpu, at, is_critical) in enumerate(steps):
        source = "file" if name == "static" else "api"
        wanted.pop(name, None)
        if cpu:
            more = {"priority": 2_000_001_000} if is_critical else {}
            wanted[name] = sized(name, cpu, generation, source=source, **more)
        uid = PodUID(f"{name}-1")
        if at is not None and uid in desk.roster.pods:
            ended = KillReason.COMPLETED if at is Stage.FINISHED else None
            lives |= stage(desk.roster.pods[uid].pod, at, ended).pods
        elif at is None:
            lives.pop(uid, None)
        known = facts(lifecycles=Lifecycles(lives.copy()))
        pods = [pod for other, pod in wanted.items() if (other == "static") == (source == "file")]
        desk.send(*pods, source=source, at=known, now=float(generation))
        desk.check_counted(known)
