"""What `explain` shows of a probe."""

from __future__ import annotations

from pykubelet.base.model.probes import ProbeKind, ProbeResult
from pykubelet.observe.probes.decide import ProbeSchedule, Worker, WorkerPhase
from pykubelet.observe.probes.messages import Lateness, probe_wait


def test_a_probe_that_hangs_after_a_success_without_output() -> None:
    worker = Worker(
        ProbeKind.READINESS,
        ProbeSchedule(),
        1000.0,
        WorkerPhase.PROBING,
        result=ProbeResult.SUCCESS,
        due=1000.0,
        last=ProbeResult.SUCCESS,
        run=1,
    )
    wait = probe_wait(worker, "main", (1008.0, 5008.0), 1001.0, (Lateness.HANGS, 1120.0))
    assert wait.detail == (
        "the probe due 8s ago has not ended: the runtime or the command does not answer; (1 of 1 successes in a row)"
    )
    assert wait.since == 5000.0
    assert (wait.next_step, wait.next_at) == ("give the try up", 5120.0)


def test_a_wait_begins_when_the_probe_stops_passing() -> None:
    worker = Worker(
        ProbeKind.READINESS,
        ProbeSchedule(),
        1000.0,
        WorkerPhase.ARMED,
        started_at=900.0,
        result=ProbeResult.FAILURE,
        due=1010.0,
        last=ProbeResult.FAILURE,
        run=3,
        message="no",
        since=980.0,
    )
    wait = probe_wait(worker, "main", (1008.0, 5008.0), 0.0, None)
    assert (wait.since, wait.next_at) == (4980.0, 5010.0)
