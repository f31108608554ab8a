"""Which ends of the agent are charged to a pod, and which are not."""

from __future__ import annotations

from typing import Any

import pytest

from pykubelet.app.decide_last_run import BLOCKED_S, GROWTH, Charge, charges_of
from pykubelet.base.kit.flight import OpenWork
from pykubelet.edges.host.proc.kmsg import KernelRecord
from pykubelet.edges.host.services.run_record import Blame, EndedRun

POD, OTHER = OpenWork("uid-1", 1000.0, True), OpenWork("manifest /a", 1001.0, False)
MIB = 1 << 20


def run(*works: OpenWork, **fields: Any) -> EndedRun:
    return EndedRun(4711, 500.0, 50 * MIB, works, **fields)


def killed(pid: int = 4711, memory: int = 2048 * MIB, at: float = 1010.0, scope: str = "") -> KernelRecord:
    kib = memory >> 10
    text = f"{scope}ut of memory: Killed process {pid} (pykubelet) total-vm:9kB, anon-rss:{kib}kB, file-rss:1kB, shmem-rss:0kB"
    return KernelRecord(at, text)


def test_a_run_that_was_ended_from_outside_is_not_charged() -> None:
    assert charges_of(run(), ()) == ()
    assert charges_of(run(POD), ()) == (), "it was at work for a pod, and that is all"
    assert charges_of(run(POD, OTHER), [KernelRecord(1010.0, "something else")]) == ()


def test_a_pod_that_was_in_the_way_is_charged_however_the_run_ended() -> None:
    blame = Blame("uid-2", "its event loop was blocked for 61 s")
    for ended in (run(blame=blame), run(POD, blame=blame), run(POD, blame=blame, fatal="Aborted", fatal_at=2000.0)):
        assert charges_of(ended, [killed()]) == (Charge("uid-2", "its event loop was blocked for 61 s"),)


@pytest.mark.parametrize(("lasted", "is_charged"), [(BLOCKED_S - 1, False), (BLOCKED_S, True), (61.0, True)])
def test_an_abort_is_charged_to_work_that_has_lasted(lasted: float, is_charged: bool) -> None:
    charges = charges_of(run(POD, fatal="Aborted", fatal_at=POD.since + lasted), ())
    assert [charge.key for charge in charges] == (["uid-1"] if is_charged else [])


def test_an_abort_of_an_agent_that_was_at_no_pod_is_not_charged() -> None:
    assert charges_of(run(fatal="Aborted", fatal_at=2000.0), ()) == ()


def test_an_abort_in_an_extension_is_not_charged_to_the_pod_that_it_was_asked_about() -> None:
    asked = OpenWork("extension price", POD.since, True)
    charges = charges_of(run(POD, asked, fatal="Aborted", fatal_at=POD.since + 10), ())
    assert [charge.key for charge in charges] == ["extension price"]


def test_a_fatal_error_is_charged_to_all_work_that_was_under_way() -> None:
    charges = charges_of(run(POD, OTHER, fatal="Segmentation fault", fatal_at=1000.0), ())
    assert [charge.key for charge in charges] == ["uid-1", "manifest /a"]
    assert "Segmentation fault" in charges[0].cause


@pytest.mark.parametrize(
    ("record", "is_charged"),
    [
        (killed(), True),
        (killed(scope="Memory cgroup o"), True),
        (killed(pid=4712), False),
        (killed(memory=50 * MIB + GROWTH - 1024), False),
        (killed(memory=50 * MIB + GROWTH), True),
        (killed(at=400.0), False),
        (KernelRecord(1010.0, "Killed process 4711 (pykubelet)"), False),
    ],
)
def test_the_kernels_kill_is_charged_if_the_work_has_got_the_memory(record: KernelRecord, is_charged: bool) -> None:
    before = KernelRecord(1009.0, "pykubelet invoked oom-killer: gfp_mask=0xcc0")
    charges = charges_of(run(POD), [before, record])
    assert [charge.key for charge in charges] == (["uid-1"] if is_charged else [])
    assert charges_of(run(), [before, record]) == (), "it was at no pod"
