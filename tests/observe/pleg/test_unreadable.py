"""The PLEG with a runtime that hangs or fails for one pod, or for a list."""

from __future__ import annotations

from pathlib import Path

import pytest
from observe.pleg.stand import EXITED, RUNNING, Stand, pods, ref, run_pleg

from pykubelet.edges.cri.errors import CriCode
from pykubelet.observe.pleg.decide import RelistPeriods
from pykubelet.testing.cri.fake_handles import RuntimeFault

pytestmark = pytest.mark.virtual_time


async def test_a_pod_whose_status_hangs_at_the_start_delays_no_other(tmp_path: Path) -> None:
    def before(stand: Stand) -> None:
        pods(stand, "stuck", "web")
        stand.fake.inject(RuntimeFault("ContainerStatus", pod="stuck", hang=True))

    async with run_pleg(tmp_path, before=before) as stand:
        observed = await stand.listed("stuck")
        assert ref("web").uid in observed.pods
        assert observed.unread == {ref("stuck")}, "it is there, but nothing is known of it"
        assert ref("stuck").uid not in observed.pods
        stand.fake.state.end(stand.fake.container("app", "web"), 1)
        await stand.wait_state("web", "app", EXITED)
        assert stand.cell.get().unread == {ref("stuck")}


async def test_a_pod_whose_status_fails_is_read_again_until_it_works(tmp_path: Path) -> None:
    faults: list[RuntimeFault] = []

    def before(stand: Stand) -> None:
        pods(stand, "broken", "web")
        faults.append(
            stand.fake.inject(RuntimeFault("ContainerStatus", pod="broken", code=CriCode.UNKNOWN, message="boom"))
        )

    async with run_pleg(tmp_path, before=before) as stand:
        await stand.listed("broken")
        stand.fake.withdraw(faults[0])
        view = await stand.wait_state("broken", "app", RUNNING)
        assert view.is_alive
        assert not stand.cell.get().unread


async def test_a_read_that_hangs_later_delays_no_other(tmp_path: Path) -> None:
    async with run_pleg(tmp_path, before=lambda stand: pods(stand, "stuck", "web")) as stand:
        await stand.followed()
        stand.fake.inject(RuntimeFault("ContainerStatus", pod="stuck", hang=True))
        for name in ("stuck", "web"):
            stand.fake.state.end(stand.fake.container("app", name), 1)
        await stand.wait_state("web", "app", EXITED)
        assert stand.view("stuck").newest("app").state is RUNNING  # type: ignore[union-attr]


async def test_a_failed_read_is_repeated_and_keeps_the_last_view(tmp_path: Path) -> None:
    async with run_pleg(tmp_path, before=lambda stand: pods(stand, "web")) as stand:
        await stand.followed()
        fault = stand.fake.inject(RuntimeFault("ContainerStatus", pod="web", code=CriCode.INTERNAL))
        stand.fake.state.end(stand.fake.container("app"), 1)
        await stand.until("tried again", lambda: fault.met >= 6)
        assert stand.view("web").newest("app").state is RUNNING  # type: ignore[union-attr]
        stand.fake.withdraw(fault)
        await stand.wait_state("web", "app", EXITED)
        [reported] = stand.recorder.events
        assert (reported.reason, reported.pod) == ("FailedSync", ref("web")), "once, however often it is tried"
        assert reported.message.startswith("error determining status: ")


async def test_containers_that_go_while_they_are_read_are_left_out(tmp_path: Path) -> None:
    def before(stand: Stand) -> None:
        sandbox = stand.make_pod("web", "app")
        stand.start(sandbox, "going")
        stand.fake.inject(RuntimeFault("ContainerStatus", pod="web", code=CriCode.NOT_FOUND, times=1))

    async with run_pleg(tmp_path, before=before) as stand:
        view = (await stand.listed()).pods[ref("web").uid]
        assert len(view.containers) == 1


async def test_a_list_that_fails_is_tried_again(tmp_path: Path) -> None:
    def before(stand: Stand) -> None:
        pods(stand, "web")
        stand.fake.inject(RuntimeFault("ListPodSandbox", code=CriCode.INTERNAL, times=2))

    async with run_pleg(tmp_path, RelistPeriods(0.05, 0.05), before=before) as stand:
        assert ref("web").uid in (await stand.listed()).pods
