"""Mirror pods on an API server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from report.apiserver import PODS, Cluster, a_cluster, static_pod
from support.api_server import ApiFault

from pykubelet.base.api.core import PodStatus
from pykubelet.base.kit.cells import CellWriter, make_cell
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.model.labels import CONFIG_MIRROR
from pykubelet.base.model.node import ApiState
from pykubelet.report.mirrors.loop import MirrorInputs, MirrorPeriods, MirrorsLoop

pytestmark = pytest.mark.virtual_time

#: Nothing is tried again by itself.
PATIENT = MirrorPeriods(retry_s=600.0, retry_max_s=600.0, away_max_s=600.0)


def start_mirrors(supervisor: Supervisor, found: Cluster, periods: MirrorPeriods) -> CellWriter[ApiState]:
    state, writer = make_cell("api-state", ApiState())
    inputs = MirrorInputs(
        found.roster.cell, found.lifecycles.cell, found.node.cell, state, found.pods.cell, found.statuses.cell
    )
    supervisor.start_root("mirrors", MirrorsLoop(found.client, inputs, found.server.clock, periods).run())
    return writer


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with a_cluster() as (found, supervisor):
        start_mirrors(supervisor, found, MirrorPeriods(echo_s=2.0))
        yield found


async def mirrored(cluster: Cluster, uid: str, name: str = "web-n1") -> None:
    await cluster.until(lambda: cluster.there(name).metadata.annotations[CONFIG_MIRROR] == uid)


async def test_made_once_and_left_alone(cluster: Cluster) -> None:
    cluster.want(static_pod())
    await mirrored(cluster, "s1")
    await asyncio.sleep(2.3)
    assert len(cluster.sent("POST")) == 1
    assert not cluster.sent("DELETE")


async def test_replaced_with_its_static_pod(cluster: Cluster) -> None:
    cluster.want(static_pod())
    await mirrored(cluster, "s1")
    cluster.want(static_pod(uid="s2"))
    await mirrored(cluster, "s2")


async def test_made_again_when_a_user_deletes_it(cluster: Cluster) -> None:
    cluster.want(static_pod())
    await mirrored(cluster, "s1")
    first = cluster.there("web-n1").metadata.uid
    cluster.server.delete(f"{PODS}/web-n1", {"gracePeriodSeconds": 30})
    await cluster.until(lambda: cluster.there("web-n1").metadata.uid != first)
    assert not cluster.there("web-n1").metadata.deletionTimestamp


async def test_made_again_when_its_static_pod_starts_again(cluster: Cluster) -> None:
    static = static_pod()
    cluster.want(static)
    await mirrored(cluster, "s1")
    first = cluster.there("web-n1")
    cluster.report("s1", PodStatus(phase="Failed", reason="NodePorts"))
    cluster.server.update(f"{PODS}/web-n1/status", lambda pod: pod["status"].update(phase="Failed"))
    await asyncio.sleep(2.3)
    assert cluster.there("web-n1").metadata.uid == first.metadata.uid
    cluster.report("s1", PodStatus(phase="Pending"))
    await cluster.until(lambda: cluster.there("web-n1").metadata.uid != first.metadata.uid)
    assert cluster.there("web-n1").status.phase == "Pending"
    await asyncio.sleep(2.3)
    assert len(cluster.sent("POST")) == 2


async def test_gone_with_its_static_pod(cluster: Cluster) -> None:
    cluster.want(static_pod())
    await mirrored(cluster, "s1")
    cluster.want()
    await cluster.until(lambda: cluster.names() == [])


async def test_made_when_the_server_takes_it_at_last(cluster: Cluster) -> None:
    cluster.server.faults.append(ApiFault("POST", status=503, reason="ServiceUnavailable", times=2))
    cluster.want(static_pod())
    await mirrored(cluster, "s1")
    assert len(cluster.sent("POST")) == 3


async def test_many_at_once(cluster: Cluster) -> None:
    cluster.want(*(static_pod(f"p{n}-n1", f"s{n}") for n in range(20)))
    for n in range(20):
        await mirrored(cluster, f"s{n}", f"p{n}-n1")
    assert len(cluster.sent("POST")) == 20


@pytest.mark.parametrize(
    ("away", "back"),
    [
        (ApiState(error="connection refused"), ApiState()),
        (ApiState(error="connection refused", node_error="refused"), ApiState(error="connection refused")),
    ],
)
async def test_made_as_soon_as_the_server_is_known_to_be_back(away: ApiState, back: ApiState) -> None:
    async with a_cluster() as (cluster, supervisor):
        state = start_mirrors(supervisor, cluster, PATIENT)
        cluster.server.faults.append(ApiFault("POST"))
        cluster.want(static_pod())
        await cluster.until(lambda: bool(cluster.sent("POST")))
        await asyncio.sleep(0.1)
        state.publish(away)
        await asyncio.sleep(0.1)
        assert cluster.names() == []
        state.publish(back)
        await mirrored(cluster, "s1")


async def test_what_the_server_refused_rests_whatever_others_are_answered() -> None:
    async with a_cluster() as (cluster, supervisor):
        state = start_mirrors(supervisor, cluster, PATIENT)
        cluster.server.faults.append(ApiFault("POST", status=429, reason="TooManyRequests"))
        cluster.want(static_pod())
        await cluster.until(lambda: bool(cluster.sent("POST")))
        state.publish(ApiState(error="too many requests"))
        await asyncio.sleep(0.1)
        state.publish(ApiState())
        await asyncio.sleep(0.1)
        assert len(cluster.sent("POST")) == 1


async def test_while_the_server_is_away_one_try_stands_for_all() -> None:
    async with a_cluster() as (cluster, supervisor):
        state = start_mirrors(supervisor, cluster, PATIENT)
        cluster.server.faults.append(ApiFault("POST"))
        cluster.want(static_pod("p0-n1", "s0"))
        await cluster.until(lambda: bool(cluster.sent("POST")))
        await asyncio.sleep(0.1)
        cluster.want(*(static_pod(f"p{n}-n1", f"s{n}") for n in range(6)))
        await asyncio.sleep(0.1)
        assert len(cluster.sent("POST")) == 1
        state.publish(ApiState(error="away"))
        await asyncio.sleep(0.01)
        state.publish(ApiState())
        for n in range(6):
            await mirrored(cluster, f"s{n}", f"p{n}-n1")
