"""Logs of running containers, rotated by size and count."""

from __future__ import annotations

import asyncio
import gzip
import os
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from act.runtime.gc_stand import BUSYBOX, Stand, names_in, ref_of, write
from hypothesis import given
from hypothesis import strategies as st
from support.runtimes import memory_runtime

from pykubelet.act.runtime.collect.log_rotation import LogRotation, RotationSettings
from pykubelet.act.runtime.collect.log_rotation_plan import RotationPlan, plan_rotation, rotated_name
from pykubelet.base.kit.clock import ManualClock
from pykubelet.base.kit.flight import SingleFlight
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.model.observed import Observed
from pykubelet.base.model.paths import Paths
from pykubelet.edges.cri.errors import CriCode
from pykubelet.testing.cri.fake_handles import RuntimeFault
from pykubelet.testing.cri.in_memory import MemoryRuntime

pytestmark = pytest.mark.virtual_time

SMALL = RotationSettings(max_bytes=1000, max_files=3)
FIRST = "0.log.20231114-221320"


# The plan


def test_names_sort_by_time() -> None:
    assert rotated_name("0.log", 1_700_000_000.9) == FIRST
    assert rotated_name("0.log", 1_700_000_001) > FIRST


def test_older_parts_are_compressed_and_the_oldest_go() -> None:
    names = [
        "0.log",
        "0.log.20260103-000000",
        "0.log.20260102-000000.gz",
        "0.log.20260101-000000.gz",
        "1.log",
        "0.logs",
    ]
    assert plan_rotation("0.log", names, 5) == RotationPlan((), ("0.log.20260103-000000",))
    assert plan_rotation("0.log", names, 4) == RotationPlan(("0.log.20260101-000000.gz",), ("0.log.20260103-000000",))
    oldest_first = ("0.log.20260101-000000.gz", "0.log.20260102-000000.gz", "0.log.20260103-000000")
    assert plan_rotation("0.log", names, 2) == RotationPlan(oldest_first, ())


def test_leftovers_of_a_compression_go() -> None:
    names = ["0.log", "0.log.1.tmp", "0.log.2", "0.log.2.gz", "0.log.3"]
    assert plan_rotation("0.log", names, 5) == RotationPlan(("0.log.1.tmp", "0.log.2"), ("0.log.3",))


@given(
    st.sets(
        st.builds(
            lambda day, end: f"0.log.202601{day:02d}-000000{end}",
            st.integers(1, 20),
            st.sampled_from(["", ".gz", ".tmp"]),
        )
    ),
    st.integers(2, 8),
)
def test_the_newest_parts_stay_and_none_is_lost(names: set[str], max_files: int) -> None:
    plan = plan_rotation("0.log", {"0.log", *names}, max_files)
    left = names - set(plan.remove)
    days = sorted({name[6:14] for name in left})
    assert len(left) == len(days) <= max_files - 2
    whole = sorted({name[6:14] for name in names if not name.endswith(".tmp")})
    assert days == whole[len(whole) - len(days) :]
    assert len(days) == min(len(whole), max_files - 2)
    assert {name for name in left if not name.endswith(".gz")} == set(plan.compress)


# At work


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[MemoryRuntime]:
    with memory_runtime(tmp_path, BUSYBOX) as fake:
        yield fake


@pytest.fixture
async def stand(runtime: MemoryRuntime, tmp_path: Path) -> AsyncIterator[Stand]:
    cri = runtime.connect()
    yield Stand(cri, Paths(str(tmp_path / "root"), str(tmp_path / "logs"), str(tmp_path / "links")))
    await cri.close()


class Logs:
    """A running container's log directory, and a rotation that checks it on request."""

    def __init__(self, stand: Stand, settings: RotationSettings = SMALL) -> None:
        self.clock = ManualClock()
        self.folder = stand.paths.container_logs(ref_of("web"), "main")
        self.path = f"{self.folder}/0.log"
        self.rotation = LogRotation(stand.cri, self.clock, SingleFlight("test"), stand.observed.cell, settings)

    async def round(self) -> None:
        work = await self.rotation.run_round()
        await asyncio.gather(*work)
        self.clock.advance(1)

    def read(self, name: str) -> str:
        path = f"{self.folder}/{name}"
        if name.endswith(".gz"):
            with gzip.open(path, "rt") as file:
                return file.read()
        with open(path) as plain:
            return plain.read()


@pytest.fixture
async def logs(stand: Stand) -> Logs:
    await stand.container("web", await stand.sandbox("web"), "sleep 100")
    await stand.relist()
    return Logs(stand)


async def test_a_large_log_is_rotated_compressed_and_in_the_end_removed(logs: Logs, runtime: MemoryRuntime) -> None:
    write(logs.path, "a" * 999)
    await logs.round()
    assert names_in(logs.folder) == ["0.log"]

    write(logs.path, "a" * 1000)
    await logs.round()
    first = names_in(logs.folder)[1]
    assert re.fullmatch(r"0\.log\.\d{8}-\d{6}", first)
    assert logs.read(first) == "a" * 1000
    assert logs.read("0.log") == ""

    write(logs.path, "b" * 2000)
    await logs.round()
    names = names_in(logs.folder)
    assert names[:2] == ["0.log", f"{first}.gz"]
    assert logs.read(names[1]) == "a" * 1000
    assert logs.read(names[2]) == "b" * 2000

    write(logs.path, "c" * 2000)
    await logs.round()
    assert names_in(logs.folder)[:2] == ["0.log", f"{names[2]}.gz"]
    assert len(names_in(logs.folder)) == 3
    assert len(runtime.called("ReopenContainerLog")) == 3


async def test_only_running_containers_are_looked_at(stand: Stand, logs: Logs, runtime: MemoryRuntime) -> None:
    write(logs.path, "a" * 1000)
    stand.observed.publish(Observed())
    await logs.round()
    assert names_in(logs.folder) == ["0.log"]


async def test_a_negative_size_switches_it_off(stand: Stand, logs: Logs) -> None:
    write(logs.path, "a" * 1000)
    off = Logs(stand, RotationSettings(max_bytes=-1))
    assert await off.rotation.run_round() == []


async def test_a_log_that_cannot_be_opened_anew_gets_its_name_back(logs: Logs, runtime: MemoryRuntime) -> None:
    write(logs.path, "a" * 1000)
    fault = runtime.inject(RuntimeFault("ReopenContainerLog", code=CriCode.UNKNOWN, message="no"))
    await logs.round()
    await logs.round()
    assert names_in(logs.folder) == ["0.log"]
    assert logs.read("0.log") == "a" * 1000
    runtime.withdraw(fault)
    await logs.round()
    assert len(names_in(logs.folder)) == 2


async def test_an_answer_that_is_lost_does_not_cost_the_new_log(logs: Logs, runtime: MemoryRuntime) -> None:
    write(logs.path, "a" * 1000)
    runtime.inject(RuntimeFault("ReopenContainerLog", code=CriCode.DEADLINE_EXCEEDED, after=True, times=1))
    await logs.round()
    rotated = names_in(logs.folder)[1]
    assert logs.read(rotated) == "a" * 1000
    assert logs.read("0.log") == ""


async def test_a_missing_log_is_opened_again(logs: Logs, runtime: MemoryRuntime) -> None:
    os.rename(logs.path, f"{logs.folder}/{FIRST}")  # the agent ended in the middle of a rotation
    await logs.round()
    assert names_in(logs.folder) == ["0.log", FIRST]


async def test_leftovers_are_cleared_with_the_next_rotation(logs: Logs) -> None:
    write(f"{logs.folder}/0.log.20200101-000000.tmp", "half")
    write(f"{logs.folder}/0.log.20200102-000000", "whole")
    write(logs.path, "a" * 1000)
    await logs.round()
    names = names_in(logs.folder)
    assert names[:2] == ["0.log", "0.log.20200102-000000.gz"]
    assert len(names) == 3


async def test_one_log_that_fails_does_not_keep_others(stand: Stand, runtime: MemoryRuntime) -> None:
    first = Logs(stand)
    sandbox = await stand.sandbox("web")
    await stand.container("web", sandbox, "sleep 100")
    await stand.container("web", sandbox, "sleep 100", name="other")
    await stand.relist()
    write(first.path, "a" * 1000)
    write(f"{first.folder}/0.log.20200101-000000", "old")
    os.mkdir(f"{first.folder}/0.log.20200101-000000.gz")  # no file can take its place
    other = stand.paths.container_logs(ref_of("web"), "other")
    write(f"{other}/0.log", "b" * 1000)
    await first.round()
    assert first.read("0.log") == "a" * 1000
    assert len(names_in(other)) == 2


async def test_rounds_come_by_themselves(logs: Logs) -> None:
    write(logs.path, "a" * 1000)
    async with Supervisor("test") as supervisor:
        supervisor.start_root("rotation", logs.rotation.run())
        await asyncio.sleep(SMALL.period_s + 1.0)
    assert len(names_in(logs.folder)) == 2


async def test_only_regular_files_are_compressed(stand: Stand, runtime: MemoryRuntime, tmp_path: Path) -> None:
    logs = Logs(stand)
    sandbox = await stand.sandbox("web")
    await stand.container("web", sandbox, "sleep 100")
    await stand.relist()
    secret = tmp_path / "secret"
    secret.write_text("secret")
    os.symlink(secret, f"{logs.folder}/0.log.20200101-000000")
    os.mkfifo(f"{logs.folder}/0.log.20200102-000000")
    write(logs.path, "a" * 1000)
    await logs.round()
    assert logs.read("0.log") == ""
    assert sorted(os.listdir(logs.folder))[:3] == ["0.log", "0.log.20200101-000000", "0.log.20200102-000000"]
