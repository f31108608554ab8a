"""Mirror pods on an API server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from report.apiserver import PODS, Cluster, a_cluster, static_pod

from pykubelet.base.kit.clock import SystemClock
from pykubelet.base.model.labels import CONFIG_MIRROR
from pykubelet.edges.kubeapi.fake import Fault
from pykubelet.report.mirrors.loop import MirrorInputs, MirrorsLoop


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with a_cluster() as (found, supervisor):
        inputs = MirrorInputs(found.roster.cell, found.lifecycles.cell, found.node.cell)
        supervisor.start_root("mirrors", MirrorsLoop(found.client, inputs, SystemClock(), echo_s=0.5).run())
        yield found


async def mirrored(cluster: Cluster, uid: str, name: str = "web-n1") -> None:
    await cluster.until(lambda: cluster.there(name).metadata.annotations[CONFIG_MIRROR] == uid)


async def test_made_once_and_left_alone(cluster: Cluster) -> None:
    cluster.want(static_pod())
    await mirrored(cluster, "s1")
    await asyncio.sleep(0.6)
    assert len(cluster.sent("POST")) == 1
    assert not cluster.sent("DELETE")


async def test_replaced_with_its_static_pod(cluster: Cluster) -> None:
    cluster.want(static_pod())
    await mirrored(cluster, "s1")
    cluster.want(static_pod(uid="s2"))
    await mirrored(cluster, "s2")


async def test_made_again_when_somebody_deletes_it(cluster: Cluster) -> None:
    cluster.want(static_pod())
    await mirrored(cluster, "s1")
    first = cluster.there("web-n1").metadata.uid
    cluster.server.delete(f"{PODS}/web-n1", {"gracePeriodSeconds": 30})
    await cluster.until(lambda: cluster.there("web-n1").metadata.uid != first)
    assert not cluster.there("web-n1").metadata.deletionTimestamp


async def test_gone_with_its_static_pod(cluster: Cluster) -> None:
    cluster.want(static_pod())
    await mirrored(cluster, "s1")
    cluster.want()
    await cluster.until(lambda: cluster.names() == [])


async def test_made_when_the_server_takes_it_at_last(cluster: Cluster) -> None:
    cluster.server.faults.append(Fault("POST", status=503, reason="ServiceUnavailable", times=2))
    cluster.want(static_pod())
    await mirrored(cluster, "s1")
    assert len(cluster.sent("POST")) == 3


async def test_many_at_once(cluster: Cluster) -> None:
    cluster.want(*(static_pod(f"p{n}-n1", f"s{n}") for n in range(20)))
    for n in range(20):
        await mirrored(cluster, f"s{n}", f"p{n}-n1")
    assert len(cluster.sent("POST")) == 20
