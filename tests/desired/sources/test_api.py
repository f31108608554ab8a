"""The API server as a source: whole sets, the wait for the node, and what an absent server changes (nothing)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from pykubelet.base.api.core import ObjectMeta, Pod, PodCondition, PodStatus
from pykubelet.base.kit.cells import Cell, CellWriter, Mailbox, Sink, make_cell
from pykubelet.base.kit.clock import ManualClock
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import replace
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.labels import CONFIG_MIRROR, CONFIG_SEEN, CONFIG_SOURCE
from pykubelet.base.model.node import NodeView
from pykubelet.base.model.roster import ApiPods, SourceChanged
from pykubelet.desired.sources.api import ApiSource, pods_of_node
from pykubelet.edges.kubeapi.errors import ApiError
from pykubelet.edges.kubeapi.listwatch import Listed

pytestmark = pytest.mark.virtual_time

NODE = NodeView("n1", "n1", registered=True)


def pod(name: str, **metadata: Any) -> Pod:
    return Pod(metadata=ObjectMeta(name=name, namespace="shop", uid=f"{name}-1", **metadata))


def listed(*pods: Pod, error: ApiError | None = None) -> Listed[Pod]:
    return Listed({f"{p.metadata.namespace}/{p.metadata.name}": p for p in pods}, synced=True, error=error)


@dataclass
class Desk:
    reported: Mailbox[Listed[Pod]]
    out: Sink[SourceChanged]
    pods: Cell[ApiPods]
    node: CellWriter[NodeView]
    clock: ManualClock

    async def until_posted(self, number: int) -> None:
        for _ in range(3000):
            if len(self.out.events) == number:
                return
            await asyncio.sleep(0.01)
        raise AssertionError(f"{len(self.out.events)} sets were posted")

    async def send(self, now: Listed[Pod]) -> list[SourceChanged]:
        self.reported.post(now)
        for _ in range(10):
            await asyncio.sleep(0)
        return self.out.events


async def each(mailbox: Mailbox[Listed[Pod]]) -> AsyncIterator[Listed[Pod]]:
    while True:
        yield await mailbox.get()


@pytest.fixture
async def desk(request: pytest.FixtureRequest) -> AsyncIterator[Desk]:
    reported: Mailbox[Listed[Pod]] = Mailbox("listed")
    pods, writer = make_cell("api-pods", ApiPods())
    node, node_writer = make_cell("node", getattr(request, "param", NODE))
    out: Sink[SourceChanged] = Sink()
    clock = ManualClock()
    source = ApiSource(
        each(reported),
        node,
        out,
        writer,
        clock,
        node_wait_s=0.5 if request.node.name.startswith("test_but_not") else 600.0,
    )
    async with Supervisor("test") as supervisor:
        supervisor.start_root("source", source.run())
        yield Desk(reported, out, pods, node_writer, clock)


def test_only_the_pods_of_this_node_are_asked_for() -> None:
    assert pods_of_node("n1") == "spec.nodeName=n1"


async def test_nothing_is_posted_before_the_pods_were_listed(desk: Desk) -> None:
    assert await desk.send(Listed(error=ApiError(0, "", "no route"))) == []
    assert not desk.pods.get().synced
    (event,) = await desk.send(listed())
    assert (event.source, tuple(event.pods)) == ("api", ())
    assert desk.pods.get().synced


async def test_the_whole_set_comes_with_source_and_first_sight(desk: Desk) -> None:
    await desk.send(listed(pod("a")))
    desk.clock.advance(60)
    events = await desk.send(listed(pod("a", labels={"x": "1"}), pod("b")))
    first, second = events[-1].pods
    assert first.metadata.annotations[CONFIG_SOURCE] == "api"
    assert first.metadata.annotations[CONFIG_SEEN] == next(iter(events[0].pods)).metadata.annotations[CONFIG_SEEN]
    assert second.metadata.annotations[CONFIG_SEEN] > first.metadata.annotations[CONFIG_SEEN]


async def test_an_unchanged_pod_stays_the_same_object(desk: Desk) -> None:
    same = pod("a")
    await desk.send(listed(same))
    events = await desk.send(listed(same, pod("b")))
    assert next(iter(events[1].pods)) is next(iter(events[0].pods))


async def test_a_server_that_is_away_takes_nothing_away(desk: Desk) -> None:
    now = listed(pod("a"))
    await desk.send(now)
    events = await desk.send(Listed(now.items, synced=True, error=ApiError(0, "", "connection refused")))
    assert len(events) == 1
    assert set(desk.pods.get().pods) == {"a-1"}


async def test_mirror_pods_stay_as_the_server_has_them(desk: Desk) -> None:
    mirror = pod("m", annotations={CONFIG_MIRROR: "h", CONFIG_SOURCE: "file"})
    (event,) = await desk.send(listed(mirror))
    assert tuple(event.pods) == (mirror,)
    assert desk.pods.get().pods[PodUID("m-1")] is mirror


@pytest.mark.parametrize("desk", [NodeView("n1", "n1")], indirect=True)
async def test_the_first_set_waits_for_the_node(desk: Desk) -> None:
    assert await desk.send(listed(pod("a"))) == []
    desk.node.publish(NODE)
    await desk.until_posted(1)


@pytest.mark.parametrize("desk", [NodeView("n1", "n1")], indirect=True)
async def test_but_not_for_ever(desk: Desk) -> None:
    await desk.send(listed(pod("a")))
    await desk.until_posted(1)
    assert len(await desk.send(listed(pod("a"), pod("b")))) == 2


async def test_our_own_reports_coming_back_are_no_change_but_are_known(desk: Desk) -> None:
    await desk.send(listed(pod("a", resourceVersion="1"), pod("m", annotations={CONFIG_MIRROR: "h"})))
    running = PodStatus(phase="Running", conditions=(PodCondition(type="Ready", status="True"),))
    reported = replace(pod("a", resourceVersion="2"), status=running)
    mirror = replace(pod("m", annotations={CONFIG_MIRROR: "h"}, resourceVersion="3"), status=running)
    assert len(await desk.send(listed(reported, mirror))) == 1
    assert desk.pods.get().pods[PodUID("a-1")] is reported
    gate = PodCondition(type="example.com/gate", status="True")
    gated = replace(reported, status=replace(running, conditions=(*running.conditions, gate)))
    events = await desk.send(listed(gated, mirror))
    assert len(events) == 2
    assert next(iter(events[1].pods)).status.conditions[-1] is gate


async def test_that_a_deleted_pod_has_ended_is_no_change_unless_a_finalizer_keeps_it(desk: Desk) -> None:
    leaving = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
    kept = leaving | {"finalizers": ("example.com/keep",)}
    pods = [pod("stays"), pod("leaves", **leaving), pod("kept", **kept)]
    await desk.send(listed(*pods))
    failed = [replace(old, status=PodStatus(phase="Failed")) for old in pods]
    assert len(await desk.send(listed(pods[0], failed[1], pods[2]))) == 1
    assert len(await desk.send(listed(pods[0], failed[1], failed[2]))) == 2
    assert len(await desk.send(listed(*failed))) == 3
