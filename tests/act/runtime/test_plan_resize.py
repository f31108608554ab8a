"""Which running containers get a new size in place, and which by a restart."""

from __future__ import annotations

from typing import Any

from act.pods.scenes import box, container, exited, pod, running, sidecar, view
from act.runtime.planning import kills

from pykubelet.act.runtime.plan.plan import Applied, KillCause, PodPlan, is_under_way, plan_pod
from pykubelet.base.api.core import Pod, ResourceRequirements
from pykubelet.base.model.containers import container_hash
from pykubelet.base.model.ids import ContainerID
from pykubelet.base.model.observed import PodView
from pykubelet.base.model.probes import ProbeResults
from pykubelet.base.model.sizing import Amounts, size_of

MEBI = 1 << 20
SMALL = {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"cpu": "200m", "memory": "128Mi"}}
MORE_CPU = {"requests": {"cpu": "150m", "memory": "64Mi"}, "limits": {"cpu": "300m", "memory": "128Mi"}}
RESTART_FOR_MEMORY = [
    {"resourceName": "cpu", "restartPolicy": "NotRequired"},
    {"resourceName": "memory", "restartPolicy": "RestartContainer"},
]


def had(of: Pod, look: PodView) -> Applied:
    """What the containers of this look have if they were started for `of`."""
    sizes = size_of(of).containers
    return Applied({c.id: sizes[c.name] for c in look.containers if c.name in sizes}, of.spec.resources)


def plan(of: Pod, look: PodView, before: Pod) -> PodPlan:
    return plan_pod(of, look, ProbeResults(), container_hash, had(before, look))


def sized(resources: dict[str, Any], **more: Any) -> Pod:
    return pod(container(resources=resources, **more))


def test_nothing_is_done_while_the_size_stays() -> None:
    assert plan(sized(SMALL), view(box(), running()), sized(SMALL)).is_empty


def test_amounts_written_otherwise_are_the_same_amounts() -> None:
    same = {"requests": {"cpu": 0.1, "memory": 64 * MEBI}, "limits": {"cpu": "0.2", "memory": "131072Ki"}}
    assert plan(sized(same), view(box(), running()), sized(SMALL)).is_empty


def test_a_running_container_gets_its_new_amounts_in_place() -> None:
    made = plan(sized(MORE_CPU), view(box(), running()), sized(SMALL))
    (change,) = made.resizes
    assert (change.name, change.instance) == ("app", "app-0")
    assert change.before == Amounts(100, 200, 64 * MEBI, 128 * MEBI)
    assert change.after == Amounts(150, 300, 64 * MEBI, 128 * MEBI)
    assert made.resize_pod and not made.kills and not made.starts and not made.is_empty


def test_only_a_change_of_that_resource_restarts_the_container() -> None:
    before = sized(SMALL, resizePolicy=RESTART_FOR_MEMORY)
    in_place = plan(sized(MORE_CPU, resizePolicy=RESTART_FOR_MEMORY), view(box(), running()), before)
    assert [change.name for change in in_place.resizes] == ["app"]
    more_memory = {**SMALL, "limits": {"cpu": "200m", "memory": "256Mi"}}
    restarted = plan(sized(more_memory, resizePolicy=RESTART_FOR_MEMORY), view(box(), running()), before)
    assert kills(restarted) == [("app-0", KillCause.RESIZE)]
    assert restarted.kills[0].message == "Container app resize requires restart"
    assert restarted.start == ("app",) and not restarted.resizes and restarted.resize_pod


def test_a_restart_for_a_resize_ignores_the_restart_policy() -> None:
    def never(resources: dict[str, Any]) -> Pod:
        return pod(container(resources=resources, resizePolicy=RESTART_FOR_MEMORY), restart="Never")

    made = plan(never({**SMALL, "requests": {"cpu": "100m", "memory": "96Mi"}}), view(box(), running()), never(SMALL))
    assert made.start == ("app",) and not made.stop_pod


def test_sidecars_are_resized_and_containers_that_do_not_run_are_not() -> None:
    def of(resources: dict[str, Any]) -> Pod:
        return pod(container(resources=resources), init=(sidecar(resources=resources),))

    look = view(box(), running("mesh"), exited("app", 1))
    made = plan(of(MORE_CPU), look, of(SMALL))
    assert [change.name for change in made.resizes] == ["mesh"]
    assert made.start == ("app",)


def test_an_init_container_is_resized_while_it_runs() -> None:
    def of(resources: dict[str, Any], **more: Any) -> Pod:
        return pod(container(resources=SMALL), init=(container("init", resources=resources, **more),))

    look = view(box(), running("init"))
    made = plan(of(MORE_CPU), look, of(SMALL))
    assert [change.name for change in made.resizes] == ["init"]
    assert made.resize_pod and made.holding == "init" and not made.kills and not made.starts
    policy = {"resizePolicy": [{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]}
    restarted = plan(of(MORE_CPU, **policy), look, of(SMALL, **policy))
    assert kills(restarted) == [("init-0", KillCause.RESIZE)]
    assert restarted.start_init == ("init",) and not restarted.resizes and not restarted.stop_pod
    over = plan(of(MORE_CPU), view(box(), exited("init"), running()), of(SMALL))
    assert over.is_empty


def test_a_limit_of_the_whole_pod_reaches_containers_without_their_own() -> None:
    def of(limit: str) -> Pod:
        return pod(container(), resources={"limits": {"memory": limit}})

    made = plan(of("256Mi"), view(box(), running()), of("128Mi"))
    assert [(c.before.memory_limit, c.after.memory_limit) for c in made.resizes] == [(128 * MEBI, 256 * MEBI)]


def test_a_request_of_the_whole_pod_touches_no_container() -> None:
    def of(cpu: str) -> Pod:
        return pod(container(resources=SMALL), resources={"requests": {"cpu": cpu}})

    made = plan(of("500m"), view(box(), running()), of("400m"))
    assert made.resize_pod and not made.resizes and not made.is_empty


def test_what_is_under_way_and_what_is_done() -> None:
    look = view(box(), running())
    assert is_under_way(sized(MORE_CPU), look, had(sized(SMALL), look))
    assert not is_under_way(sized(MORE_CPU), look, had(sized(MORE_CPU), look))
    assert not is_under_way(sized(MORE_CPU), view(box(), exited()), had(sized(SMALL), look))


def test_an_instance_that_is_unknown_is_left_as_it_is() -> None:
    unknown = Applied({ContainerID("other"): ResourceRequirements()})
    assert plan_pod(sized(SMALL), view(box(), running()), ProbeResults(), container_hash, unknown).is_empty
