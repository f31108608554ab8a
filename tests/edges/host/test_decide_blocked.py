"""What is reported about an event loop that does not run, as sequences of looks."""

from __future__ import annotations

from pykubelet.edges.host.services.decide_blocked import (
    BEAT_S,
    BLAME_S,
    DUMP_PAUSE_S,
    DUMP_S,
    REPORT_S,
    SUSPECT_S,
    BlameNone,
    BlamePod,
    DumpStacks,
    MonitorSample,
    Report,
    ReportBlocked,
    ReportPause,
    ReportRunning,
    Watched,
    look,
)


class Loop:
    """An event loop and the monitor thread that looks at it once a second, in a time of their own."""

    def __init__(self) -> None:
        self.now = self.beat_at = 1000.0
        self.cpu_s = 0.0
        self.state = Watched(self.seen())

    def seen(self) -> MonitorSample:
        return MonitorSample(self.now, self.beat_at, self.cpu_s)

    def run(self, seconds: float) -> list[Report]:
        return self._pass(seconds, beats=True)

    def block(self, seconds: float) -> list[Report]:
        return self._pass(seconds, beats=False)

    def pause(self, seconds: float, cpu_s: float) -> list[Report]:
        """Neither the event loop nor the monitor thread runs; the thread is the first one afterwards."""
        self.now, self.cpu_s = self.now + seconds, self.cpu_s + cpu_s
        return self._look()

    def _pass(self, seconds: float, *, beats: bool) -> list[Report]:
        reports: list[Report] = []
        for _ in range(int(seconds)):
            self.now += 1.0
            self.cpu_s += 0.5
            self.beat_at = self.now if beats else self.beat_at
            reports += self._look()
        return reports

    def _look(self) -> list[Report]:
        self.state, reports = look(self.state, self.seen(), DUMP_S)
        return list(reports)


def test_nothing_is_reported_of_an_event_loop_that_runs() -> None:
    loop = Loop()
    assert loop.run(100) == []
    assert loop.block(REPORT_S - 1) == []
    assert loop.run(100) == []


def test_a_blocked_event_loop_is_reported_once_then_all_stacks_and_then_its_end() -> None:
    loop = Loop()
    assert loop.block(60) == [ReportBlocked(REPORT_S), DumpStacks(DUMP_S)]
    assert loop.run(10) == [ReportRunning(61.0)]
    assert loop.block(10) == [ReportBlocked(REPORT_S)]
    assert loop.run(1) == [ReportRunning(11.0)]


def test_all_stacks_are_reported_seldom() -> None:
    loop = Loop()
    loop.block(60)
    loop.run(10)
    assert DumpStacks(DUMP_S) not in loop.block(60)
    loop.run(DUMP_PAUSE_S)
    assert DumpStacks(DUMP_S) in loop.block(60)


def test_a_short_watchdog_interval_brings_all_stacks_forward() -> None:
    state = Watched(MonitorSample(0.0, 0.0, 0.0))
    state, reports = look(state, MonitorSample(3.0, 0.0, 0.0), dump_s=3.0)
    assert reports == (DumpStacks(3.0),)


def test_a_process_that_did_not_run_is_no_blocked_event_loop() -> None:
    loop = Loop()
    assert loop.pause(30.0, cpu_s=0.1) == [ReportPause(30.0, loop.cpu_s)]
    assert loop.run(10) == []


def test_c_code_that_keeps_the_lock_again_and_again_is_reported_each_time() -> None:
    loop = Loop()
    assert loop.pause(30.0, cpu_s=30.0) == [ReportPause(30.0, 30.0)]
    assert loop.pause(7.0, cpu_s=7.0) == [ReportPause(7.0, 7.0)]
    loop.beat_at = loop.now
    assert loop.pause(BEAT_S, cpu_s=0.0) == []


def test_a_pause_within_a_block_does_not_end_it() -> None:
    loop = Loop()
    assert loop.block(6) == [ReportBlocked(REPORT_S)]
    assert loop.pause(6.0, cpu_s=6.0) == [ReportPause(6.0, 6.0)]
    assert loop.block(10) == [DumpStacks(DUMP_S)]
    assert loop.run(1) == [ReportRunning(23.0)]


class Pods(Loop):
    """As above, with the pod that the event loop works on."""

    pod = ""

    def seen(self) -> MonitorSample:
        return MonitorSample(
            self.now, self.beat_at, self.cpu_s, self.pod if self.now - self.beat_at >= SUSPECT_S else ""
        )


def blames(reports: list[Report]) -> list[Report]:
    return [report for report in reports if isinstance(report, BlamePod | BlameNone)]


def test_a_pod_is_blamed_that_the_event_loop_works_on_all_the_time() -> None:
    loop = Pods()
    loop.pod = "uid-1"
    assert blames(loop.block(SUSPECT_S + BLAME_S - 1)) == []
    assert blames(loop.block(2)) == [BlamePod("uid-1", SUSPECT_S + BLAME_S), BlamePod("uid-1", SUSPECT_S + BLAME_S + 1)]
    assert blames(loop.run(5)) == [BlameNone()]


def test_many_pods_one_after_the_other_are_not_blamed() -> None:
    loop = Pods()
    reports: list[Report] = []
    for number in range(60):
        loop.pod = f"uid-{number}"
        reports += loop.block(1)
    assert blames(reports) == [] and ReportBlocked(REPORT_S) in reports


def test_a_pod_that_is_left_is_not_blamed_any_more() -> None:
    loop = Pods()
    loop.pod = "uid-1"
    assert blames(loop.block(20))[-1] == BlamePod("uid-1", 20.0)
    loop.pod = ""
    assert blames(loop.block(20)) == [BlameNone()]


def test_work_for_no_pod_is_blamed_on_none() -> None:
    assert blames(Pods().block(100)) == []


def test_a_pause_of_the_whole_process_is_blamed_on_none() -> None:
    loop = Pods()
    loop.pod = "uid-1"
    assert blames(loop.pause(60.0, cpu_s=0.0)) == []
    assert blames(loop.run(5)) == []
