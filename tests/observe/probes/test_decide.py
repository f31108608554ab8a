"""One worker, as sequence diagrams: its observations and outcomes, and what follows."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf, log2
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykubelet.base.api.core import (
    ContainerState,
    ContainerStateRunning,
    ContainerStatus,
    ExecAction,
    PodCondition,
    PodStatus,
    Probe,
)
from pykubelet.base.kit.values import replace
from pykubelet.base.model.ids import ContainerID
from pykubelet.base.model.probes import ProbeKind, ProbeResult
from pykubelet.edges.probing.outcome import Outcome, ProbeVerdict, errored, failed, passed
from pykubelet.observe.probes import decide
from pykubelet.observe.probes.decide import (
    ASSUMED,
    FIRST_EXTRA_S,
    ContainerObservation,
    EarlierResults,
    ProbeSchedule,
    StartState,
    Worker,
    WorkerPhase,
)

SUCCESS, FAILURE, UNKNOWN = ProbeResult.SUCCESS, ProbeResult.FAILURE, ProbeResult.UNKNOWN
READINESS, LIVENESS, STARTUP = ProbeKind.READINESS, ProbeKind.LIVENESS, ProbeKind.STARTUP
C1, C2 = ContainerID("c1"), ContainerID("c2")


@dataclass
class Play:
    """A worker made at 1000.0 in an old agent; `at` is seconds after that."""

    kind: ProbeKind
    terms: ProbeSchedule = field(default_factory=ProbeSchedule)
    at: float = 0.0
    age_s: float = 3600.0
    fraction: float = 0.5

    def __post_init__(self) -> None:
        self.worker: Worker = decide.make_worker(self.kind, self.terms, 1000.0, self.age_s, self.fraction)

    def sees(
        self,
        container: ContainerID | None = C1,
        started_at: float = 0.0,
        started: StartState = StartState.YES,
        stopping: bool = False,
        old: bool = False,
        earlier: EarlierResults | None = None,
        unready_since: float = -1000.0,
    ) -> Play:
        known = 1000.0 + unready_since
        sight = ContainerObservation(container, 1000.0 + started_at, started, stopping, old, earlier, known)
        self.worker = decide.observe(self.worker, sight, 1000.0 + self.at)
        return self

    @property
    def due(self) -> float | None:
        return None if self.worker.due is None else self.worker.due - 1000.0

    def begins(self) -> Play:
        """The timer rings when the probe is due."""
        assert self.due is not None
        self.at = max(self.at, self.due)
        assert decide.is_due(self.worker, 1000.0 + self.at)
        self.worker = decide.start(self.worker)
        return self

    def ends(self, outcome: Outcome, after_s: float = 0.01, container: ContainerID = C1) -> Play:
        self.at += after_s
        self.worker = decide.take_outcome(self.worker, container, outcome, 1000.0 + self.at)
        return self

    def probes(self, *outcomes: Outcome) -> Play:
        for outcome in outcomes:
            self.begins().ends(outcome)
        return self

    def period(self, *outcomes: Outcome) -> Play:
        """Probes of the period with these outcomes; extra probes between them fail."""
        for outcome in outcomes:
            while self.worker.is_extra:
                self.begins().ends(BAD)
            self.begins().ends(outcome)
        return self

    def times(self, *outcomes: Outcome) -> list[float]:
        """When probes with these outcomes begin, which take no time."""
        begun = []
        for outcome in outcomes:
            begun.append(self.begins().at)
            self.ends(outcome, after_s=0.0)
        return begun


BAD = failed("no")
GOOD = passed("yes")


@pytest.mark.parametrize(("kind", "result"), [(READINESS, FAILURE), (LIVENESS, SUCCESS), (STARTUP, UNKNOWN)])
def test_a_new_container_begins_with_the_initial_result(kind: ProbeKind, result: ProbeResult) -> None:
    play = Play(kind)
    assert play.worker.result is None
    assert play.sees().worker.result is result


def test_readiness_is_asked_at_once_and_then_every_period() -> None:
    play = Play(READINESS, at=3.3).sees(started_at=3.2)
    assert play.due == pytest.approx(3.3)
    play.period(BAD)
    assert play.worker.result is FAILURE
    play.period(GOOD)
    assert play.at == pytest.approx(13.31)
    assert play.worker.result is SUCCESS
    assert play.due == pytest.approx(23.5), "a probe that passes is put off to the next half second"
    play.probes(GOOD)
    assert play.due == pytest.approx(33.5), "once"
    play.probes(BAD)
    assert play.due == pytest.approx(43.3)


@pytest.mark.parametrize("kind", [LIVENESS, STARTUP])
def test_liveness_and_startup_keep_to_the_ticks_of_their_worker(kind: ProbeKind) -> None:
    play = Play(kind, at=3.3).sees(started_at=3.2)
    assert play.worker.period_at - 1000.0 == pytest.approx(10.0)
    assert play.due == pytest.approx(10.0 if kind is LIVENESS else 3.4)


def test_the_first_tick_of_a_young_agent_is_put_off_at_random() -> None:
    assert Play(LIVENESS, age_s=2.0, fraction=0.7).sees().due == pytest.approx(7.0)
    assert Play(LIVENESS, age_s=10.0, fraction=0.7).sees().due == pytest.approx(0.0)


def test_nothing_is_asked_within_the_initial_delay() -> None:
    terms = ProbeSchedule(period_s=5, initial_delay_s=12)
    assert Play(LIVENESS, terms, at=1.0).sees(started_at=1.0).due == pytest.approx(15.0)
    assert Play(READINESS, terms, at=1.0).sees(started_at=1.0).due == pytest.approx(13.0)
    assert Play(READINESS, terms, at=60.0).sees(started_at=1.0).due == pytest.approx(60.0)


def test_thresholds_count_equal_outcomes_in_a_row() -> None:
    play = Play(READINESS, ProbeSchedule(success_threshold=2, failure_threshold=3)).sees()
    results = []
    for outcome in (GOOD, BAD, GOOD, GOOD, BAD, BAD, GOOD, BAD, BAD, BAD):
        results.append(play.probes(outcome).worker.result)
    assert results == [FAILURE] * 3 + [SUCCESS] * 6 + [FAILURE]


def test_a_warning_passes() -> None:
    assert Play(READINESS).sees().probes(Outcome(ProbeVerdict.WARNING, "moved")).worker.result is SUCCESS


def test_errors_are_no_outcomes() -> None:
    play = (
        Play(LIVENESS, ProbeSchedule(failure_threshold=2)).sees().probes(BAD, errored("runtime away"), errored("again"))
    )
    assert play.worker.result is SUCCESS
    assert play.probes(BAD).worker.result is FAILURE


def test_a_time_out_that_the_agent_noticed_late_is_no_outcome() -> None:
    play = Play(LIVENESS, ProbeSchedule(failure_threshold=1)).sees().probes(failed("timeout", late_s=0.9))
    assert play.worker.result is SUCCESS
    assert "node was slow" in play.worker.message
    assert play.probes(failed("timeout", late_s=0.01)).worker.result is FAILURE


def test_a_failed_liveness_holds_until_there_is_a_new_container() -> None:
    play = Play(LIVENESS, ProbeSchedule(failure_threshold=2)).sees().probes(BAD, BAD)
    assert (play.worker.result, play.worker.phase, play.due) == (FAILURE, WorkerPhase.ON_HOLD, None)
    assert play.sees().worker.phase is WorkerPhase.ON_HOLD
    play.sees(None)
    assert (play.worker.result, play.worker.container) == (None, None)
    play.sees(C2, started_at=play.at)
    assert (play.worker.result, play.worker.run) == (SUCCESS, 0)
    assert play.due is not None


def test_failures_of_an_old_container_do_not_count_for_the_next() -> None:
    play = Play(LIVENESS, ProbeSchedule(failure_threshold=2)).sees().probes(BAD)
    play.sees(C2, started_at=play.at).probes(BAD)
    assert play.worker.result is SUCCESS


def test_readiness_goes_on_after_failures() -> None:
    play = Play(READINESS, ProbeSchedule(failure_threshold=1)).sees().probes(GOOD, BAD)
    assert play.worker.result is FAILURE
    assert play.probes(GOOD).worker.result is SUCCESS


@pytest.mark.parametrize(("outcomes", "result"), [((GOOD,), SUCCESS), ((BAD, BAD, BAD), FAILURE)])
def test_startup_ends_with_its_first_result(outcomes: tuple[Outcome, ...], result: ProbeResult) -> None:
    play = Play(STARTUP).sees().period(*outcomes)
    assert (play.worker.result, play.worker.phase, play.due) == (result, WorkerPhase.ON_HOLD, None)


@pytest.mark.parametrize("kind", [LIVENESS, READINESS])
def test_the_others_wait_for_the_startup_probe(kind: ProbeKind) -> None:
    play = Play(kind, at=1.0).sees(started=StartState.NO)
    assert (play.worker.phase, play.due) == (WorkerPhase.BLOCKED, None)
    play.at = 31.5
    play.sees(started=StartState.YES)
    assert play.due == pytest.approx(31.5 if kind is READINESS else 40.0)


@pytest.mark.parametrize("kind", [LIVENESS, STARTUP])
def test_a_pod_that_is_ended_has_no_failing_liveness_or_startup(kind: ProbeKind) -> None:
    play = Play(kind, ProbeSchedule(failure_threshold=1)).sees().probes(BAD).sees(stopping=True)
    assert (play.worker.result, play.worker.phase, play.due) == (SUCCESS, WorkerPhase.QUIET, None)


def test_a_probe_under_way_when_the_pod_is_ended_counts_for_nothing() -> None:
    play = Play(LIVENESS, ProbeSchedule(failure_threshold=1)).sees().begins().sees(stopping=True).ends(BAD)
    assert (play.worker.result, play.worker.phase) == (SUCCESS, WorkerPhase.QUIET)


def test_readiness_of_a_pod_that_is_ended_goes_on() -> None:
    play = Play(READINESS, ProbeSchedule(failure_threshold=1)).sees().probes(GOOD).sees(stopping=True).probes(BAD)
    assert play.worker.result is FAILURE


def test_the_outcome_for_a_container_that_is_gone_is_not_used() -> None:
    play = Play(LIVENESS, ProbeSchedule(failure_threshold=1)).sees().begins().sees(C2, started_at=20.0)
    play.ends(BAD, container=C1)
    assert play.worker.result is SUCCESS
    assert play.begins().ends(BAD, container=C1).worker.phase is WorkerPhase.PROBING
    assert play.ends(BAD, container=C2).worker.result is FAILURE


def test_a_result_ends_with_its_container() -> None:
    play = Play(READINESS).sees().probes(GOOD).sees(None)
    assert (play.worker.result, play.worker.phase, play.due) == (None, WorkerPhase.ABSENT, None)


def test_a_tick_that_passed_during_a_probe_is_made_up_for_once() -> None:
    play = Play(LIVENESS, ProbeSchedule(period_s=1, timeout_s=5)).sees().begins().ends(GOOD, after_s=3.4)
    assert play.due == pytest.approx(3.4)
    assert play.probes(GOOD).due == pytest.approx(4.0)


def test_a_probe_as_long_as_its_period_does_not_drift() -> None:
    play = Play(LIVENESS, ProbeSchedule(period_s=1)).sees()
    for _ in range(1000):
        play.begins().ends(GOOD, after_s=0.9)
    assert play.due == pytest.approx(1000.0)


def test_a_second_probe_cannot_begin_while_one_is_under_way() -> None:
    play = Play(LIVENESS).sees().begins()
    assert not decide.is_due(play.worker, 5000.0)
    with pytest.raises(ValueError, match="liveness probe began while probing"):
        decide.start(play.worker)


def test_looking_again_changes_nothing() -> None:
    play = Play(READINESS).sees()
    before = play.worker
    play.at = 5.0
    assert play.sees().worker is before


# Extra probes of a container that is not ready

NET = ProbeSchedule()
COMMAND = decide.schedule_of(Probe(exec=ExecAction(command=("true",))))


@pytest.mark.parametrize(
    ("kind", "terms", "begun"),
    [
        (READINESS, NET, [0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 20, 30, 40]),
        (READINESS, COMMAND, [0, 1, 2, 4, 8, 10, 20, 30]),
        (READINESS, ProbeSchedule(period_s=1), [0, 0.1, 0.2, 0.4, 0.8, 1, 2, 3]),
        (STARTUP, ProbeSchedule(failure_threshold=9), [0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 20, 30, 40]),
        (LIVENESS, ProbeSchedule(failure_threshold=9), [0, 10, 20, 30]),
    ],
)
def test_a_container_that_is_not_ready_is_probed_again_after_growing_waits(
    kind: ProbeKind, terms: ProbeSchedule, begun: list[float]
) -> None:
    assert Play(kind, terms).sees().times(*[BAD] * len(begun)) == pytest.approx(begun)


def test_a_startup_probe_does_not_wait_for_its_period() -> None:
    play = Play(STARTUP, at=3.3).sees(started_at=3.3)
    assert play.times(BAD, BAD, GOOD) == pytest.approx([3.4, 3.5, 3.7])
    assert (play.worker.result, play.worker.phase) == (SUCCESS, WorkerPhase.ON_HOLD)


def test_extra_probes_wait_for_the_initial_delay() -> None:
    for kind in (READINESS, STARTUP):
        play = Play(kind, ProbeSchedule(initial_delay_s=12), at=1.0).sees(started_at=1.0)
        first = 13.0 if kind is READINESS else 13.1
        assert play.times(BAD, BAD)[0] == pytest.approx(first)


def test_an_extra_probe_that_fails_does_not_count() -> None:
    play = Play(STARTUP, ProbeSchedule(failure_threshold=2), at=3.3).sees(started_at=3.3)
    while play.worker.phase is WorkerPhase.ARMED:
        assert play.worker.result is UNKNOWN
        play.probes(BAD)
    assert (play.worker.result, play.worker.run) == (FAILURE, 2)
    assert play.at == pytest.approx(20.0, abs=0.02)


def test_an_extra_probe_that_cannot_be_run_does_not_count() -> None:
    play = Play(STARTUP, at=3.3).sees(started_at=3.3).probes(BAD, errored("no address"))
    assert (play.worker.run, play.worker.message) == (0, "no address")
    assert play.probes(GOOD).worker.result is SUCCESS


def test_periods_begin_anew_with_an_extra_probe_that_passes() -> None:
    play = Play(READINESS, ProbeSchedule(success_threshold=3)).sees()
    begun = play.times(BAD, BAD, BAD, GOOD, GOOD, GOOD, GOOD)
    assert begun == pytest.approx([0, 0.1, 0.2, 0.4, 10.5, 20.5, 30.5]), "successes are a period apart"
    assert play.worker.result is SUCCESS


def test_a_failure_between_successes_begins_the_count_anew() -> None:
    play = Play(READINESS, ProbeSchedule(success_threshold=2)).sees().probes(BAD, GOOD, BAD)
    assert (play.worker.result, play.worker.is_extra) == (FAILURE, False)
    assert play.probes(GOOD).worker.result is FAILURE
    assert play.probes(GOOD).worker.result is SUCCESS


def test_a_ready_container_has_no_extra_probes_until_it_is_not_ready() -> None:
    play = Play(READINESS).sees()
    assert play.times(GOOD, BAD, BAD, BAD) == pytest.approx([0, 10, 20, 30])
    assert play.worker.result is FAILURE
    assert play.times(*[BAD] * 6) == pytest.approx([31, 33, 37, 40, 50, 60])
    assert play.probes(GOOD).worker.result is SUCCESS


def test_a_container_that_was_not_ready_long_before_the_agents_start_has_no_extra_probes() -> None:
    play = Play(READINESS, age_s=1.0).sees(started_at=-60.0, old=True, earlier=EarlierResults())
    assert play.times(BAD, BAD) == pytest.approx([5, 15])
    play = Play(READINESS, age_s=1.0).sees(started_at=-2.0, old=True, earlier=EarlierResults())
    assert play.times(*[BAD] * 5) == pytest.approx([2, 5, 12, 15, 25]), "a restart in the middle of its start"


def test_an_extra_probe_ends_before_the_next_one_of_the_period() -> None:
    play = Play(READINESS, ProbeSchedule(period_s=1, timeout_s=1)).sees()
    assert play.worker.timeout_s == 1
    play.times(BAD, BAD, BAD)
    assert play.due == pytest.approx(0.4)
    assert play.worker.timeout_s == pytest.approx(0.6)
    slow = decide.schedule_of(Probe(exec=ExecAction(command=("true",)), timeoutSeconds=4))
    assert Play(READINESS, slow).sees().times(*[BAD] * 3) == [0, 4, 10], "a command has its whole time-out"


def test_an_extra_probe_that_waits_long_in_the_queue_is_the_next_one_of_the_period() -> None:
    play = Play(STARTUP, at=3.0).sees(started_at=3.0).begins()
    play.worker = decide.begin(play.worker, 1000.0 + 9.5)
    assert (play.worker.is_extra, play.worker.timeout_s) == (True, 0.5)
    play.worker = decide.begin(play.worker, 1000.0 + 12.0)
    assert (play.worker.is_extra, play.worker.timeout_s) == (False, 1.0)
    play.at = 12.0
    assert play.ends(BAD).worker.run == 1
    assert play.worker.period_at - 1000.0 == pytest.approx(20.0)


@given(
    period_s=st.integers(1, 30),
    timeout_s=st.integers(1, 30),
    threshold=st.integers(1, 5),
    is_exec=st.booleans(),
    durations=st.lists(st.floats(0.0, 40.0), min_size=1, max_size=20),
    kind=st.sampled_from([READINESS, STARTUP]),
    at=st.floats(0.0, 30.0),
)
def test_extra_probes_are_few_and_move_no_probe_of_the_period(
    period_s: int, timeout_s: int, threshold: int, is_exec: bool, durations: list[float], kind: ProbeKind, at: float
) -> None:
    """With extra probes and without them, the same number of failures are counted until the same time."""
    probe = Probe(periodSeconds=period_s, timeoutSeconds=timeout_s, failureThreshold=threshold)
    terms = decide.schedule_of(replace(probe, exec=ExecAction()) if is_exec else probe)
    counted: list[list[float]] = []
    for extra_s in (terms.extra_s, inf):
        play = Play(kind, replace(terms, extra_s=extra_s), at=at).sees(started_at=at)
        begun: list[float] = []
        extras = 0
        while play.worker.phase is WorkerPhase.ARMED and len(begun) < 6:
            extras += play.worker.is_extra
            is_counted = not play.worker.is_extra
            play.begins()
            took_s = min(durations[len(begun) % len(durations)], play.worker.timeout_s)
            if is_counted:
                begun.append(play.at)
            play.ends(BAD, after_s=took_s)
        counted.append(begun)
        assert extras <= log2(period_s / FIRST_EXTRA_S) + 2
    assert counted[0] == pytest.approx(counted[1])


# How long a probe has not passed


def unwell_s(play: Play) -> float:
    """For how many seconds it has not passed."""
    assert not play.worker.is_passing
    return 1000.0 + play.at - play.worker.since


@pytest.mark.parametrize("kind", [READINESS, LIVENESS])
def test_a_probe_that_passed_has_failed_since_its_first_failure(kind: ProbeKind) -> None:
    play = Play(kind, ProbeSchedule(success_threshold=2 if kind is READINESS else 1)).sees().probes(*[GOOD] * 8)
    assert play.worker.is_passing
    play.probes(BAD)
    assert unwell_s(play) == 0.0
    play.probes(BAD)
    assert unwell_s(play) == pytest.approx(10, abs=0.6)
    if kind is LIVENESS:
        return
    assert play.probes(BAD).worker.result is FAILURE
    play.period(GOOD)
    assert unwell_s(play) == pytest.approx(30, abs=0.6), "it needs two successes"
    assert play.period(GOOD).worker.is_passing
    assert unwell_s(play.probes(BAD)) == 0.0


@pytest.mark.parametrize("kind", [READINESS, STARTUP])
def test_a_probe_that_never_passed_has_not_passed_since_the_start_of_its_container(kind: ProbeKind) -> None:
    play = Play(kind, at=3.0).sees(started_at=2.0)
    assert unwell_s(play) == 1.0
    play.probes(BAD)
    assert unwell_s(play) == pytest.approx(play.at - 2.0)


def test_a_probe_that_cannot_be_run_does_not_pass() -> None:
    play = Play(READINESS).sees().probes(GOOD, errored("no such port"))
    assert unwell_s(play) == 0.0


def test_a_new_container_begins_anew() -> None:
    play = Play(READINESS).sees().probes(GOOD, BAD)
    play.at += 30
    assert unwell_s(play.sees(C2, started_at=play.at - 4)) == 4.0


# A restart of the agent


def test_a_container_that_was_not_ready_when_the_agent_started_has_not_been_since_it_was_reported() -> None:
    known: dict[str, Any] = {"started_at": -60.0, "old": True, "earlier": EarlierResults(startup=SUCCESS)}
    assert unwell_s(Play(READINESS).sees(**known, unready_since=-10.0)) == 10.0
    assert unwell_s(Play(READINESS).sees(**known, unready_since=-90.0)) == 60.0, "the container before it was not ready"


def test_a_container_that_was_ready_stays_ready_until_failures_add_up() -> None:
    play = Play(READINESS, age_s=1.0, fraction=0.4).sees(
        started_at=-60.0, old=True, earlier=EarlierResults(readiness=SUCCESS)
    )
    assert play.worker.result is SUCCESS
    assert play.due == pytest.approx(4.0)
    assert play.probes(BAD, BAD).worker.result is SUCCESS
    assert play.probes(BAD).worker.result is FAILURE


def test_a_container_that_was_not_ready_is_not_ready() -> None:
    assert Play(READINESS).sees(started_at=-60.0, old=True, earlier=EarlierResults()).worker.result is FAILURE


def test_a_container_that_had_started_is_not_asked_again() -> None:
    play = Play(STARTUP).sees(started_at=-60.0, old=True, earlier=EarlierResults(startup=SUCCESS))
    assert (play.worker.result, play.worker.phase) == (SUCCESS, WorkerPhase.ON_HOLD)
    assert decide.started_by(play.worker, C1) is StartState.YES


def test_a_container_that_is_taken_for_started_is_asked_and_may_fail() -> None:
    play = Play(STARTUP, ProbeSchedule(failure_threshold=2)).sees(started_at=-60.0, old=True, earlier=ASSUMED)
    assert decide.started_by(play.worker, C1) is StartState.ASSUMED
    assert play.probes(BAD).worker.result is SUCCESS
    assert play.probes(BAD).worker.result is FAILURE
    assert decide.started_by(play.worker, C1) is StartState.NO


def test_liveness_waits_for_the_startup_probe_of_a_container_taken_for_started() -> None:
    sight = {"started_at": -60.0, "old": True, "earlier": ASSUMED}
    play = Play(LIVENESS).sees(started=StartState.ASSUMED, **sight)  # type: ignore[arg-type]
    assert (play.worker.phase, play.worker.result) == (WorkerPhase.BLOCKED, SUCCESS)
    play = Play(READINESS).sees(started=StartState.ASSUMED, **sight)  # type: ignore[arg-type]
    assert (play.worker.phase, play.worker.result) == (WorkerPhase.ARMED, SUCCESS)


def test_what_is_kept() -> None:
    running = {C1: 900.0, C2: 989.9, ContainerID("young"): 990.1, ContainerID("known young"): 999.0}
    remembered = {
        C1: EarlierResults(),
        ContainerID("known young"): EarlierResults(readiness=SUCCESS),
        ContainerID("gone"): ASSUMED,
    }
    assert decide.inherit_results(remembered, running, agent_started=1000.0) == {
        C1: EarlierResults(),
        C2: ASSUMED,
        ContainerID("known young"): EarlierResults(readiness=SUCCESS),
    }


def test_earlier_results_come_from_the_statuses_of_running_containers() -> None:
    def reported(container: ContainerID, **fields: Any) -> ContainerStatus:
        state = ContainerState(running=ContainerStateRunning(startedAt="2026-01-01T00:00:00Z"))
        return ContainerStatus(name="app", containerID=f"containerd://{container}", **{"state": state, **fields})

    sidecar = reported(ContainerID("mesh"), started=False, ready=False)
    since = PodCondition(type="ContainersReady", status="False", lastTransitionTime="2026-01-01T00:01:00Z")
    status = PodStatus(
        conditions=(since,),
        initContainerStatuses=(sidecar,),
        containerStatuses=(
            reported(C1, started=True, ready=True),
            reported(C2, started=True, ready=False),
            reported(ContainerID("over"), started=False, ready=False, state=ContainerState()),
        ),
    )
    assert decide.earlier_results([status]) == {
        ContainerID("mesh"): EarlierResults(unready_since=1767225660.0),
        C1: EarlierResults(SUCCESS, SUCCESS),
        C2: EarlierResults(SUCCESS, unready_since=1767225660.0),
    }


def test_started_without_a_startup_probe() -> None:
    assert decide.started_by(None, C1) is StartState.YES
    assert decide.started_by(Play(STARTUP).sees().worker, C1) is StartState.NO
    assert decide.started_by(Play(STARTUP).sees().probes(GOOD).worker, C2) is StartState.NO
