"""The reference kubelet and our agent run pods with resource claims in alternation; a driver sees each claim prepared once.

What it needs, and what PYKUBELET_TAKEOVERS means, is in `test_takeover.py`.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator

import pytest
from cluster.conftest import MakeEitherAgent
from provide.claims.samples import GPU
from support.agent import Json, make_container, make_pod
from support.cluster import Cluster
from support.drivers import DriverProcess, dra_driver
from support.reference import REFERENCE, WHY_SKIPPED, EitherAgent, instances

from pykubelet.base.api.resource_claims import claims_path

pytestmark = [pytest.mark.integration, pytest.mark.scheduler, pytest.mark.skipif(not REFERENCE, reason=WHY_SKIPPED)]

TAKEOVERS = int(os.environ.get("PYKUBELET_TAKEOVERS", "4"))
#: The first release with version v1 of the API of claims.
FIRST_WITH_CLAIMS = 34
PREPARE, UNPREPARE = "NodePrepareResources", "NodeUnprepareResources"
CLAIM = {"name": "gpu"}


@pytest.fixture
def agent(make_either_agent: MakeEitherAgent) -> EitherAgent:
    """The node's agent, which is the reference at first."""
    return make_either_agent(FIRST_WITH_CLAIMS)


@pytest.fixture
async def driver(agent: EitherAgent, cluster: Cluster) -> AsyncIterator[DriverProcess]:
    async with dra_driver(agent.root) as started:
        await started.behave([{"device": "dev-0", "requests": [CLAIM["name"]]}])
        cluster.wait_node_ready()
        yield started


def allocate(cluster: Cluster, name: str) -> str:
    """Create a claim with a device of the driver, as the scheduler allocates one. The claim's path."""
    claims = claims_path(cluster.namespace)
    request = CLAIM | {"exactly": {"deviceClassName": GPU}}
    cluster.create(claims, {"metadata": {"name": name}, "spec": {"devices": {"requests": [request]}}})
    result = {"request": CLAIM["name"], "driver": GPU, "pool": "pool", "device": f"dev-{name}"}
    cluster.patch(f"{claims}/{name}/status", {"status": {"allocation": {"devices": {"results": [result]}}}})
    return f"{claims}/{name}"


def run_with_claim(cluster: Cluster, name: str) -> None:
    """A pod, and a claim of the same name that is reserved for it."""
    claim = allocate(cluster, name)
    container = make_container(resources={"claims": [CLAIM]})
    (made,) = cluster.run(make_pod(name, container, resourceClaims=[CLAIM | {"resourceClaimName": name}]))
    user = {"resource": "pods", "name": name, "uid": made["metadata"]["uid"]}
    cluster.patch(f"{claim}/status", {"status": {"reservedFor": [user]}})
    cluster.wait_ready(name)


async def test_a_claim_is_prepared_once_whoever_runs_the_node(
    agent: EitherAgent, cluster: Cluster, driver: DriverProcess
) -> None:
    run_with_claim(cluster, "steady")
    before = instances(await agent.look())["steady"]
    brief: list[str] = []
    for number in range(TAKEOVERS):
        what = f"change {number}, from {agent.who}"
        brief.append(f"brief-{number}")
        run_with_claim(cluster, brief[-1])
        registrations = len(driver.calls("GetInfo"))
        agent.stop()
        cluster.delete_pod(brief[-1])
        agent.is_reference = not agent.is_reference
        agent.start()
        cluster.wait_node_ready()
        await driver.wait_calls("GetInfo", registrations + 1)
        cluster.wait_gone(brief[-1])
        assert driver.claims(PREPARE) == ["steady", *brief], what
        assert set(driver.claims(UNPREPARE)) == set(brief), what
        assert instances(await agent.look()) == {"steady": before}, what
        assert [entry["ClaimName"] for entry in remembered(agent)] == ["steady"], what
    cluster.delete_pod("steady")
    cluster.wait_gone("steady")
    assert set(driver.claims(UNPREPARE)) == {"steady", *brief}
    assert remembered(agent) == []


def remembered(agent: EitherAgent) -> list[Json]:
    """The claims in the agents' state file."""
    state = json.loads((agent.root / "dra_manager_state").read_text())
    found: list[Json] = json.loads(state["Data"])["ClaimInfoStateList"]
    return found
