"""The runtime's readiness, against a fake runtime in virtual time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.virtual_time import virtual_clock

from pykubelet.base.kit.cells import Cell, CellWriter, make_cell
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.model.node import HandlerFeatures, RuntimeReady
from pykubelet.base.model.observed import Observed
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.errors import CriCode
from pykubelet.observe.node.runtime import RuntimeLoop, RuntimePeriods, ready_of
from pykubelet.testing.cri.fake_handles import RuntimeFault
from pykubelet.testing.cri.in_memory import MemoryRuntime

pytestmark = pytest.mark.virtual_time
NETWORK = "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady message:cni not set up"


def answer(*conditions: tuple[str, bool, str, str], **fields: Any) -> pb.StatusResponse:
    reported = [pb.RuntimeCondition(type=t, status=s, reason=r, message=m) for t, s, r, m in conditions]
    return pb.StatusResponse(status=pb.RuntimeStatus(conditions=reported), **fields)


WELL = (("RuntimeReady", True, "", ""), ("NetworkReady", True, "", ""))


@pytest.mark.parametrize(
    ("conditions", "runtime_error", "network_error"),
    [
        (WELL, "", ""),
        ((WELL[0], ("NetworkReady", False, "NetworkPluginNotReady", "cni not set up")), "", NETWORK),
        (
            (("RuntimeReady", False, "R", "m"), WELL[1]),
            "container runtime not ready: RuntimeReady=false reason:R message:m",
            "",
        ),
        ((), "container runtime not ready: <nil>", "container runtime network not ready: <nil>"),
    ],
)
def test_conditions_become_the_references_words(
    conditions: tuple[tuple[str, bool, str, str], ...], runtime_error: str, network_error: str
) -> None:
    found = ready_of(answer(*conditions), RuntimeReady(answer_error="x"))
    assert (found.runtime_error, found.network_error, found.answer_error) == (runtime_error, network_error, "")
    assert found.ok is (not runtime_error)


def test_features_are_published_by_handler() -> None:
    features = pb.RuntimeHandlerFeatures(recursive_read_only_mounts=True, user_namespaces=True)
    handlers = [pb.RuntimeHandler(name="", features=features), pb.RuntimeHandler(name="kata")]
    more = pb.RuntimeFeatures(supplemental_groups_policy=True, mount_options=True)
    found = ready_of(answer(*WELL, runtime_handlers=handlers, features=more), RuntimeReady())
    assert found.handlers == {"": HandlerFeatures(True, True), "kata": HandlerFeatures()}
    assert found.supplemental_groups_policy and found.mount_options


@dataclass
class Stand:
    fake: MemoryRuntime
    runtime: Cell[RuntimeReady]
    observed: CellWriter[Observed]
    clock: Clock

    async def wait(self, condition: Callable[[RuntimeReady], bool]) -> RuntimeReady:
        async with asyncio.timeout(600):
            return await self.runtime.wait_for(condition)


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncIterator[Stand]:
    async with standing(tmp_path) as found:
        yield found


@asynccontextmanager
async def standing(tmp_path: Path, periods: RuntimePeriods | None = None) -> AsyncIterator[Stand]:
    clock = virtual_clock()
    fake = MemoryRuntime(str(tmp_path / "cri.sock"), clock)
    cell, writer = make_cell("runtime", RuntimeReady())
    observed, observed_writer = make_cell("observed", Observed(listed_at=clock.monotonic()))
    client = fake.connect()
    async with Supervisor("test") as supervisor:
        supervisor.start_root(
            "runtime", RuntimeLoop(client, clock, writer, observed, periods or RuntimePeriods()).run()
        )
        yield Stand(fake, cell, observed_writer, clock)
    await client.close()
    fake.stop()


async def test_a_runtime_that_comes_later_is_found(stand: Stand) -> None:
    away = await stand.wait(lambda now: bool(now.answer_error))
    assert not away.ok
    assert away.runtime_error == "container runtime status check may not have completed yet"
    assert "does not exist" in away.answer_error
    stand.fake.start()
    found = await stand.wait(lambda now: now.ok)
    assert (found.name, found.answer_error, found.network_error, found.epoch) == ("fake", "", "", 0)


async def test_a_network_that_is_not_ready_is_published_and_asked_for_again(stand: Stand) -> None:
    stand.fake.conditions.network_ready = False
    stand.fake.start()
    found = await stand.wait(lambda now: now.checked)
    assert found.ok
    assert found.network_error.startswith("container runtime network not ready: NetworkReady=false reason:")
    stand.fake.conditions.network_ready = True
    await stand.wait(lambda now: not now.network_error)


async def test_silence_counts_only_after_30_s(stand: Stand, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pykubelet.node")
    logging.getLogger("pykubelet").propagate = True
    stand.fake.start()
    await stand.wait(lambda now: now.ok)
    await asyncio.sleep(0)
    caplog.clear()
    stand.fake.stop()
    assert (await stand.wait(lambda now: bool(now.answer_error))).ok
    await asyncio.sleep(24.5)
    assert stand.runtime.get().ok
    assert (await stand.wait(lambda now: not now.ok)).runtime_error == "container runtime is down"
    stand.fake.start()
    assert (await stand.wait(lambda now: now.ok)).epoch == 1
    logged = [r.getMessage() for r in caplog.records if r.name == "pykubelet.node"]
    assert logged == [
        "the container runtime does not answer",
        "container runtime is not ready",
        "the container runtime answers again",
        "the container runtime was restarted",
        "container runtime is ready",
    ]


async def test_a_quick_restart_is_noticed(stand: Stand) -> None:
    stand.fake.start()
    await stand.wait(lambda now: now.ok)
    stand.fake.stop()
    stand.fake.start()
    assert (await stand.wait(lambda now: now.epoch == 1)).ok


async def test_a_lost_connection_is_noticed_at_once(tmp_path: Path) -> None:
    async with standing(tmp_path, RuntimePeriods(when_well_s=3600.0)) as stand:
        stand.fake.start()
        for _ in range(2):
            await stand.wait(lambda now: now.ok and not now.answer_error)
            stand.fake.stop()
            await stand.wait(lambda now: bool(now.answer_error))
            stand.fake.start()
        await stand.wait(lambda now: now.epoch == 2)


async def test_a_runtime_that_is_away_is_asked_when_it_has_made_its_socket(tmp_path: Path) -> None:
    async with standing(tmp_path, RuntimePeriods(retries_s=(0.1, 3600.0))) as stand:
        for epoch in range(2):
            await stand.wait(lambda now: now.away and not now.takes_calls)
            await asyncio.sleep(0.3)  # the next question comes in an hour
            stand.fake.start()
            found = await stand.wait(lambda now: now.takes_calls)
            assert (found.away, found.epoch) == (False, epoch)
            stand.fake.stop()


async def test_a_runtime_that_is_there_and_does_not_answer_is_not_away(stand: Stand) -> None:
    stand.fake.start()
    await stand.wait(lambda now: now.takes_calls)
    stand.fake.inject(RuntimeFault("Status", hang=True))
    found = await stand.wait(lambda now: bool(now.answer_error))
    assert found.takes_calls, "its last good answer counts for a while"


async def test_a_runtime_that_hangs_is_given_up_and_asked_again(stand: Stand) -> None:
    hang = stand.fake.inject(RuntimeFault("Status", hang=True))
    stand.fake.start()
    found = await stand.wait(lambda now: bool(now.answer_error) and "no answer within" in now.answer_error)
    assert not found.ok
    stand.fake.withdraw(hang)
    assert (await stand.wait(lambda now: now.ok)).epoch == 0


async def test_an_error_of_the_runtime_is_no_restart(stand: Stand) -> None:
    stand.fake.start()
    await stand.wait(lambda now: now.ok)
    stand.fake.inject(RuntimeFault("Status", code=CriCode.INTERNAL, message="boom", times=1))
    await stand.wait(lambda now: "boom" in now.answer_error)
    assert (await stand.wait(lambda now: not now.answer_error)).epoch == 0


async def test_a_runtime_whose_pods_cannot_be_listed_is_not_well_until_they_can(stand: Stand) -> None:
    stand.observed.publish(Observed())
    stand.fake.start()
    first = await stand.wait(lambda now: now.ok)
    assert first.pleg_error == "PLEG is not healthy: pleg has yet to be successful"
    stand.observed.publish(Observed(listed_at=stand.clock.monotonic()))
    await stand.wait(lambda now: not now.pleg_error)
    last = stand.clock.wall()
    late = await stand.wait(lambda now: now.unseen_since is not None)
    assert stand.clock.wall() - last == pytest.approx(30.0, abs=5.0)
    assert late.ok and not late.pleg_error and late.unseen_since == pytest.approx(last, abs=0.01)
    lost = await stand.wait(lambda now: bool(now.pleg_error))
    assert lost.pleg_error == "PLEG is not healthy: pleg was last seen active 3m0s ago; threshold is 3m0s"
    assert lost.unseen_since == pytest.approx(last, abs=0.01)
    stand.observed.publish(Observed(listed_at=stand.clock.monotonic()))
    await stand.wait(lambda now: not now.pleg_error and now.unseen_since is None)
