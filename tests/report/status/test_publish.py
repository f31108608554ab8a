"""The publisher and an API server: what reaches it, in how many requests, and what its absence changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from report.apiserver import PODS, Cluster, a_cluster, static_pod
from support.api_server import ApiFault

from pykubelet.base.api import core
from pykubelet.base.kit.cells import CellWriter, make_cell
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import replace
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.labels import CONFIG_MIRROR
from pykubelet.base.model.lifecycle import KillReason, Stage
from pykubelet.base.model.node import ApiState
from pykubelet.base.model.statuses import Statuses
from pykubelet.report.status.publish import SYNC_DURATIONS, PublishInputs, StatusPublisher
from pykubelet.report.status.records import PublishPeriods

pytestmark = pytest.mark.virtual_time

DEFER_S = 0.3


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with a_cluster() as (found, supervisor):
        start_publisher(supervisor, found, PublishPeriods(defer_s=DEFER_S))
        yield found


def start_publisher(supervisor: Supervisor, found: Cluster, periods: PublishPeriods) -> CellWriter[ApiState]:
    state, writer = make_cell("api-state", ApiState())
    inputs = PublishInputs(found.pods.cell, found.roster.cell, found.statuses.cell, found.lifecycles.cell, state)
    publisher = StatusPublisher(found.client, inputs, found.diagnostics_end, found.server.clock, periods)
    supervisor.start_root("publisher", publisher.run())
    return writer


def status(phase: str = "Running", ready: bool = True, **fields: Any) -> core.PodStatus:
    now: dict[str, Any] = {"lastTransitionTime": "2026-01-01T00:00:00Z"}
    conditions = (core.PodCondition(type="Ready", status="True" if ready else "False", **now),)
    return core.PodStatus(phase=phase, conditions=conditions, **fields)


def creating(**fields: Any) -> core.PodStatus:
    waiting = core.ContainerState(waiting=core.ContainerStateWaiting(reason="ContainerCreating"))
    return status("Pending", False, containerStatuses=(core.ContainerStatus(name="app", state=waiting),), **fields)


def ended(code: int = 0) -> core.PodStatus:
    state = core.ContainerState(terminated=core.ContainerStateTerminated(exitCode=code))
    return status(
        "Failed" if code else "Succeeded", False, containerStatuses=(core.ContainerStatus(name="app", state=state),)
    )


async def seen(cluster: Cluster, *names: str) -> None:
    await cluster.until(lambda: cluster.names() == sorted(names))


async def test_a_start_is_one_patch() -> None:
    defer_s = 1.5
    async with a_cluster() as (cluster, supervisor):
        start_publisher(supervisor, cluster, PublishPeriods(defer_s=defer_s))
        counted = SYNC_DURATIONS.count()
        pod = cluster.make()
        await seen(cluster, "web")
        cluster.report(pod.metadata.uid, creating())
        await asyncio.sleep(0.05)
        cluster.report(pod.metadata.uid, status())
        await cluster.until(lambda: cluster.there().status.phase == "Running")
        await asyncio.sleep(defer_s + 0.4)
        (sent,) = cluster.sent("PATCH")
        assert SYNC_DURATIONS.count() == counted + 1
        assert sent.path == f"{PODS}/web/status"
        assert sent.content_type.startswith("application/strategic-merge-patch")
        assert sent.body["metadata"] == {"uid": pod.metadata.uid}
        assert {sent.path for sent in cluster.sent("GET")} == {"/api/v1/pods"}  # only the list and the watch


async def test_a_start_that_takes_long_is_reported_while_it_lasts(cluster: Cluster) -> None:
    pod = cluster.make()
    await seen(cluster, "web")
    cluster.report(pod.metadata.uid, creating())
    await cluster.until(lambda: bool(cluster.there().status.containerStatuses))
    assert cluster.there().status.phase == "Pending"


async def test_a_start_that_is_held_up_is_reported_at_once(cluster: Cluster) -> None:
    pods = [cluster.make(f"web{n}") for n in range(100)]  # without anything in the way they would wait for 20 s
    for pod in pods:
        cluster.report(pod.metadata.uid, creating())
    cluster.stage(pods[0], Stage.SYNCING, is_held_up=True)
    await cluster.until(lambda: bool(cluster.there("web0").status.containerStatuses), within_s=15.0)
    assert [sent.path for sent in cluster.sent("PATCH")] == [f"{PODS}/web0/status"]


async def test_the_last_of_a_crowd_to_start_is_one_patch_too(cluster: Cluster) -> None:
    *others, last = [cluster.make(f"web{n}") for n in range(20)]
    for pod in (*others, last):
        cluster.report(pod.metadata.uid, creating())
    await asyncio.sleep(DEFER_S)
    for pod in others:
        cluster.report(pod.metadata.uid, status())
    await asyncio.sleep(2 * DEFER_S)
    cluster.report(last.metadata.uid, status())
    await cluster.until(lambda: cluster.there(last.metadata.name).status.phase == "Running")
    assert len(cluster.sent("PATCH")) == 20


async def test_a_condition_that_changes_during_a_slow_start_is_reported(cluster: Cluster) -> None:
    pod = cluster.make()
    await seen(cluster, "web")
    cluster.report(pod.metadata.uid, creating())
    await cluster.until(lambda: bool(cluster.there().status.containerStatuses))
    has_network = core.PodCondition(type="PodReadyToStartContainers", status="True")
    now = creating(podIP="10.0.0.1")
    cluster.report(pod.metadata.uid, replace(now, conditions=(*now.conditions, has_network)))
    await cluster.until(lambda: cluster.there().status.podIP == "10.0.0.1")
    assert len(cluster.sent("PATCH")) == 2


async def test_the_end_of_a_pod_is_one_patch_and_one_deletion(cluster: Cluster) -> None:
    pod = cluster.make()
    cluster.report(pod.metadata.uid, status())
    await cluster.until(lambda: cluster.there().status.phase == "Running")
    cluster.server.requests.clear()
    cluster.server.delete(f"{PODS}/web", {"gracePeriodSeconds": 30})
    await cluster.until(lambda: bool(next(iter(cluster.pods.get().pods.values())).metadata.deletionTimestamp))
    cluster.report(pod.metadata.uid, status("Running", False))
    await asyncio.sleep(0.05)
    cluster.stage(pod, Stage.TERMINATED, KillReason.DELETED)
    cluster.report(pod.metadata.uid, ended(3))
    await cluster.until(lambda: cluster.there().status.phase == "Failed")
    await asyncio.sleep(0.1)
    assert cluster.there().metadata.deletionTimestamp  # its volumes may still be mounted
    cluster.stage(pod, Stage.FINISHED, KillReason.DELETED)
    await seen(cluster)
    assert [s.method for s in cluster.server.requests if s.method != "GET"] == ["PATCH", "DELETE"]
    assert cluster.sent("DELETE")[0].body["preconditions"] == {"uid": pod.metadata.uid}


async def test_what_changes_after_the_end_was_reported_holds_up_no_deletion(cluster: Cluster) -> None:
    pod = cluster.make()
    cluster.server.delete(f"{PODS}/web", {"gracePeriodSeconds": 30})
    cluster.stage(pod, Stage.TERMINATED, KillReason.DELETED)
    cluster.report(pod.metadata.uid, ended())
    await cluster.until(lambda: cluster.there().status.phase == "Succeeded")
    cluster.report(pod.metadata.uid, replace(ended(), podIP="10.0.0.1"))
    cluster.stage(pod, Stage.FINISHED, KillReason.DELETED)
    await cluster.until(lambda: cluster.names() == [])
    assert len(cluster.sent("PATCH")) == 1


async def test_what_the_server_has_already_is_not_sent(cluster: Cluster) -> None:
    pod = cluster.make()
    cluster.report(pod.metadata.uid, status())
    await cluster.until(lambda: cluster.there().status.phase == "Running")
    cluster.report(pod.metadata.uid, status())
    await asyncio.sleep(DEFER_S + 0.1)
    assert len(cluster.sent("PATCH")) == 1


async def test_a_status_that_a_user_overwrote_is_put_right(cluster: Cluster) -> None:
    pod = cluster.make()
    cluster.report(pod.metadata.uid, status())
    await cluster.until(lambda: cluster.there().status.phase == "Running")

    def unready(body: Any) -> None:
        body["status"]["conditions"][0]["status"] = "False"

    cluster.server.update(f"{PODS}/web/status", unready)
    assert cluster.there().status.conditions[0].status == "False"
    await cluster.until(lambda: cluster.there().status.conditions[0].status == "True")


async def test_a_condition_of_another_survives(cluster: Cluster) -> None:
    pod = cluster.make()
    await seen(cluster, "web")

    def gate(body: Any) -> None:
        body["status"]["conditions"] = [{"type": "example.com/gate", "status": "True"}]

    cluster.server.update(f"{PODS}/web/status", gate)
    cluster.report(pod.metadata.uid, status())
    await cluster.until(lambda: {c.type for c in cluster.there().status.conditions} == {"example.com/gate", "Ready"})


async def test_a_condition_that_comes_later_stands_behind_the_others(cluster: Cluster) -> None:
    """An API server puts it first, unless the patch has the order."""
    pod = cluster.make()
    await seen(cluster, "web")
    first, later = status(), core.PodCondition(type="PodResizePending", status="True")
    cluster.report(pod.metadata.uid, first)
    await cluster.until(lambda: len(cluster.there().status.conditions) == 1)
    cluster.report(pod.metadata.uid, replace(first, conditions=(*first.conditions, later)))
    await cluster.until(lambda: len(cluster.there().status.conditions) == 2)
    await asyncio.sleep(DEFER_S + 0.1)
    assert [condition.type for condition in cluster.there().status.conditions] == ["Ready", "PodResizePending"]
    assert len(cluster.sent("PATCH")) == 2


async def test_all_is_reported_when_the_server_is_back(cluster: Cluster) -> None:
    pods = [cluster.make(f"p{n}") for n in range(12)]
    await seen(cluster, *(p.metadata.name for p in pods))
    await cluster.server.stop()
    for pod in pods:
        cluster.report(pod.metadata.uid, status("Running", False))
    await cluster.until(lambda: len(cluster.waits) > 0)
    wait = next(iter(cluster.waits.values()))[0]
    assert (wait.what, wait.subject, wait.next_step) == ("the API server", "status", "send it again")
    for pod in pods:
        cluster.report(pod.metadata.uid, status())
    await cluster.server.start()
    await cluster.until(lambda: all(cluster.there(p.metadata.name).status.conditions[0].status == "True" for p in pods))
    await cluster.until(lambda: not cluster.waits)


@pytest.mark.parametrize(("answer", "patches"), [(0, 2), (429, 1)])
async def test_what_got_no_answer_is_sent_as_soon_as_the_server_is_known_to_be_back(answer: int, patches: int) -> None:
    """What it refused rests longer."""
    async with a_cluster() as (cluster, supervisor):
        state = start_publisher(supervisor, cluster, PublishPeriods(retry_s=600, retry_max_s=600, away_max_s=600))
        pod = cluster.make()
        await seen(cluster, "web")
        cluster.server.faults.append(ApiFault("PATCH", status=answer))
        cluster.report(pod.metadata.uid, status())
        await cluster.until(lambda: bool(cluster.waits))
        state.publish(ApiState(error="connection refused"))
        await asyncio.sleep(0.1)
        assert len(cluster.sent("PATCH")) == 1
        state.publish(ApiState())
        await cluster.until(lambda: len(cluster.sent("PATCH")) >= patches)
        await asyncio.sleep(0.2)
        assert len(cluster.sent("PATCH")) == patches


async def test_a_refused_patch_is_sent_again(cluster: Cluster) -> None:
    cluster.server.faults.append(ApiFault("PATCH", status=429, reason="TooManyRequests", retry_after_s=0, times=2))
    pod = cluster.make()
    cluster.report(pod.metadata.uid, status())
    await cluster.until(lambda: cluster.there().status.phase == "Running")
    assert len(cluster.sent("PATCH")) == 3


async def test_a_conflict_loses_nothing(cluster: Cluster) -> None:
    cluster.server.faults.append(ApiFault("PATCH", status=409, reason="Conflict", times=2))
    pod = cluster.make()
    cluster.report(pod.metadata.uid, status())
    await cluster.until(lambda: cluster.there().status.phase == "Running")
    assert len(cluster.sent("PATCH")) == 3


async def test_a_last_deletion_that_ends_in_a_conflict_is_sent_again(cluster: Cluster) -> None:
    cluster.server.faults.append(ApiFault("DELETE", status=409, reason="Conflict"))
    pod = cluster.make()
    await seen(cluster, "web")
    cluster.server.delete(f"{PODS}/web", {"gracePeriodSeconds": 30})
    cluster.stage(pod, Stage.FINISHED, KillReason.DELETED)
    cluster.report(pod.metadata.uid, ended())
    await seen(cluster)
    assert len(cluster.sent("DELETE")) == 2


async def test_what_came_up_during_a_patch_that_ends_in_a_conflict_is_reported(cluster: Cluster) -> None:
    held = asyncio.Event()
    cluster.server.faults.append(ApiFault("PATCH", status=409, reason="Conflict", held=held))
    pod = cluster.make()
    cluster.report(pod.metadata.uid, status("Running", False))
    await cluster.until(lambda: len(cluster.sent("PATCH")) == 1)
    cluster.server.update(f"{PODS}/web", lambda body: body["metadata"].update(labels={"a": "b"}))
    cluster.report(pod.metadata.uid, status(podIP="10.0.0.1"))
    await cluster.until(lambda: next(iter(cluster.pods.get().pods.values())).metadata.labels == {"a": "b"})
    await asyncio.sleep(0.05)
    held.set()
    await cluster.until(lambda: cluster.there().status.podIP == "10.0.0.1")
    assert cluster.there().status.conditions[0].status == "True"
    assert len(cluster.sent("PATCH")) == 2
    await cluster.until(lambda: not cluster.waits)


async def test_the_end_of_a_container_that_may_not_run_again_is_not_taken_back(cluster: Cluster) -> None:
    pod = cluster.make()
    cluster.server.update(f"{PODS}/web", lambda body: body["spec"].update(restartPolicy="Never"))
    cluster.server.update(f"{PODS}/web", lambda body: body["spec"].update(containers=[{"name": "app"}]))
    await cluster.until(lambda: next(iter(cluster.pods.get().pods.values())).spec.restartPolicy == "Never")
    cluster.report(pod.metadata.uid, replace(ended(), phase="Running"))
    await cluster.until(lambda: cluster.there().status.phase == "Running")
    cluster.report(pod.metadata.uid, creating(podIP="10.0.0.1"))
    await asyncio.sleep(DEFER_S + 0.1)
    (shown,) = cluster.there().status.containerStatuses
    assert shown.state is not None and shown.state.terminated is not None and shown.state.terminated.exitCode == 0
    cluster.report(pod.metadata.uid, replace(ended(), podIP="10.0.0.1"))
    cluster.stage(pod, Stage.TERMINATED)
    await cluster.until(lambda: cluster.there().status.phase == "Succeeded")


async def test_one_pod_whose_patches_hang_delays_no_other(cluster: Cluster) -> None:
    cluster.server.faults.append(ApiFault("PATCH", "pods/stuck", hang=True, times=-1))
    stuck, web = cluster.make("stuck"), cluster.make("web")
    cluster.report(stuck.metadata.uid, status())
    cluster.report(web.metadata.uid, status())
    await cluster.until(lambda: cluster.there("web").status.phase == "Running")


async def test_a_pod_that_was_made_again_is_another_pod(cluster: Cluster) -> None:
    first = cluster.make()
    await seen(cluster, "web")
    cluster.server.delete(f"{PODS}/web", {"gracePeriodSeconds": 0})
    second = cluster.make()
    cluster.report(first.metadata.uid, status("Failed", False))
    await cluster.until(lambda: second.metadata.uid in cluster.pods.get().pods)
    cluster.report(second.metadata.uid, status())
    await cluster.until(lambda: cluster.there().status.phase == "Running")
    bodies = {sent.body["metadata"]["uid"] for sent in cluster.sent("PATCH")}
    assert bodies <= {first.metadata.uid, second.metadata.uid}


async def test_the_status_of_a_static_pod_goes_to_its_mirror(cluster: Cluster) -> None:
    cluster.want(static_pod())
    cluster.report("s1", status())
    annotations = {CONFIG_MIRROR: "s1"}
    cluster.make("web-n1", annotations=annotations)
    await cluster.until(lambda: cluster.there("web-n1").status.phase == "Running")
    other = cluster.make("old-n1", annotations={CONFIG_MIRROR: "gone"})
    await asyncio.sleep(0.1)
    assert cluster.there(other.metadata.name).status.phase == "Pending"


async def test_a_pod_with_finalizers_is_deleted_once(cluster: Cluster) -> None:
    pod = cluster.make(finalizers=["example.com/keep"])
    cluster.server.delete(f"{PODS}/web", {"gracePeriodSeconds": 30})
    cluster.stage(pod, Stage.FINISHED, KillReason.DELETED)
    cluster.report(pod.metadata.uid, ended())
    await cluster.until(lambda: cluster.there().metadata.deletionGracePeriodSeconds == 0)
    await asyncio.sleep(0.1)
    assert len(cluster.sent("DELETE")) == 1
    (wait,) = cluster.waits[PodUID(pod.metadata.uid)]
    assert (wait.what, wait.detail) == ("finalizers", "example.com/keep")


async def test_ends_overtake_what_is_not_urgent(cluster: Cluster) -> None:
    slow = [cluster.make(f"slow{n}") for n in range(30)]
    dying = cluster.make("dying")
    await seen(cluster, "dying", *(p.metadata.name for p in slow))
    for pod in slow:
        cluster.report(pod.metadata.uid, creating())
    cluster.stage(dying, Stage.TERMINATED, KillReason.COMPLETED)
    cluster.report(dying.metadata.uid, ended())
    await cluster.until(lambda: cluster.there("dying").status.phase == "Succeeded")
    assert len(cluster.sent("PATCH")) == 1


async def test_what_is_only_remembered_is_not_sent(cluster: Cluster) -> None:
    pod = cluster.make()
    await seen(cluster, "web")
    uid = PodUID(pod.metadata.uid)
    cluster.statuses.publish(Statuses({uid: status("Running", False)}, frozenset({uid})))
    await asyncio.sleep(0.1)
    assert not cluster.sent("PATCH")
    cluster.report(uid, status())
    await cluster.until(lambda: cluster.there().status.phase == "Running")


async def test_a_slow_start_is_reported_once_before_it_is_over(cluster: Cluster) -> None:
    pod = cluster.make()
    await seen(cluster, "web")
    cluster.report(pod.metadata.uid, creating())
    await cluster.until(lambda: bool(cluster.there().status.containerStatuses))
    cluster.report(pod.metadata.uid, creating(podIP="10.0.0.1"))
    await asyncio.sleep(2 * DEFER_S + 0.3)
    assert len(cluster.sent("PATCH")) == 1
    cluster.report(pod.metadata.uid, status(podIP="10.0.0.1"))
    await cluster.until(lambda: cluster.there().status.phase == "Running")
    assert len(cluster.sent("PATCH")) == 2
