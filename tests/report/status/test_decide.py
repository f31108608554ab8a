"""The next step for one pod's status, as a table."""

from __future__ import annotations

from typing import Any

import pytest
from report.samples import UID, container, entry, exited, lifecycle, make_pod, running, view

from pykubelet.base.api.core import (
    ContainerState,
    ContainerStateRunning,
    ContainerStateTerminated,
    ContainerStatus,
    PodStatus,
)
from pykubelet.base.kit.values import replace
from pykubelet.base.model.ids import ContainerID
from pykubelet.base.model.lifecycle import KillReason, Lifecycles, Stage
from pykubelet.base.model.observed import Observed
from pykubelet.base.model.reasons import QUARANTINED
from pykubelet.base.model.sizing import ResizeProgress
from pykubelet.base.model.waits import Owner, Wait
from pykubelet.report.status.decide import (
    EXIT_STATUS_S,
    RESIZE_S,
    Defer,
    Keep,
    PodRecord,
    PodSnapshot,
    Project,
    Publish,
    ReadMessages,
    SharedInputs,
    Snapshot,
    Step,
    plan_status,
    with_status,
)

POD = make_pod()
ENTRY = entry(POD)
NEXT_POD = make_pod(meta={"generation": 2})
REPORTED = PodStatus(phase="Running", startTime="2026-01-01T00:00:00Z")
SHARED = SharedInputs(runtime="containerd")
READ = frozenset({ContainerID("app-0")})
NOW, TAKE_UP_S = 1000.0, 0.015
BETWEEN = view(running(number=1), running())


def snapshot(**given: Any) -> PodSnapshot:
    """A desired pod that act/pods has taken up and of which the runtime has nothing."""
    taken = PodSnapshot(POD, ENTRY, lifecycle(POD), None, 1.0, is_unread=False, shared=SHARED)
    return replace(taken, **given)


def step(pod: PodSnapshot, record: PodRecord | None = None, at: float = NOW) -> Step:
    return plan_status(record or PodRecord(), pod, READ, at, TAKE_UP_S)


def projected(pod: PodSnapshot, status: PodStatus = REPORTED) -> PodRecord:
    found = step(pod, at=NOW - 10)
    assert isinstance(found, Project)
    return with_status(found, status)


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        pytest.param(snapshot(), Project, id="taken up"),
        pytest.param(snapshot(lifecycle=None), Defer, id="not taken up"),
        pytest.param(snapshot(pod=NEXT_POD, entry=entry(NEXT_POD)), Defer, id="an older manifest taken up"),
        pytest.param(
            snapshot(entry=entry(NEXT_POD), lifecycle=lifecycle(POD, kill_reason=KillReason.REJECTED)),
            Project,
            id="an ending pod needs no newer manifest",
        ),
        pytest.param(snapshot(entry=None), Project, id="not desired any more"),
        pytest.param(snapshot(view=view(running()), shared=SharedInputs()), Keep, id="the runtime's name is unknown"),
        pytest.param(snapshot(view=view(exited())), Project, id="an exit whose message was read"),
        pytest.param(snapshot(view=view(exited(number=1))), ReadMessages, id="an exit whose message was not read"),
        pytest.param(snapshot(view=BETWEEN), Defer, id="the exit status of the previous instance is missing"),
    ],
)
def test_the_first_step(pod: PodSnapshot, expected: type) -> None:
    assert isinstance(step(pod), expected)


def test_the_status_from_before_the_restart_stays_until_the_pod_was_read() -> None:
    record = PodRecord(remembered=REPORTED)
    for unknown in (snapshot(listed_at=None), snapshot(is_unread=True), snapshot(listed_at=None, lifecycle=None)):
        found = step(unknown, record)
        assert isinstance(found, Publish)
        assert (found.record.newest, found.record.is_remembered) == (REPORTED, True)
    after = step(snapshot(view=view(running())), record)
    assert isinstance(after, Project)
    assert not with_status(after, REPORTED).is_remembered


def test_the_status_from_before_the_restart_stays_until_the_pod_worker_has_started() -> None:
    # only it knows that a postStart hook has not ended, or that all containers are being restarted
    waiting = replace(lifecycle(POD), has_worker=False)
    record = PodRecord(remembered=REPORTED)
    seen = view(running())
    held = entry(
        POD, admission_wait=Wait("placement", Owner.POD_ADMISSION, 0.0)
    )  # as each pod is after a restart, for a moment
    for unknown in (
        snapshot(lifecycle=waiting, view=seen),
        snapshot(lifecycle=None, view=seen),
        snapshot(entry=held, lifecycle=waiting, view=seen),
    ):
        found = step(unknown, record)
        assert isinstance(found, Publish)
        assert found.record.newest is REPORTED
    wait = Wait("end of quarantine", Owner.POD_SOURCES, 0.0, reason=QUARANTINED)
    for never in (
        snapshot(entry=None, view=seen),
        snapshot(entry=entry(POD, admission_wait=wait), view=seen),
        snapshot(),
    ):
        assert isinstance(step(replace(never, lifecycle=waiting), record), Project), "it gets no worker, or has nothing"


def test_an_init_container_of_a_static_pod_keeps_its_restarts_over_the_restart_of_the_agent() -> None:
    # nothing confirms its state, except that it has succeeded if the pod has begun
    ended = ContainerState(terminated=ContainerStateTerminated(exitCode=3, reason="Error"))
    now = ContainerState(running=ContainerStateRunning())
    setup = ContainerStatus(name="setup", restartCount=2, state=now, lastState=ended, containerID="fake://setup-2")
    pod = make_pod(init=(container("setup"),))
    before = PodStatus(phase="Pending", initContainerStatuses=(setup,))
    seen = snapshot(pod=pod, entry=entry(pod), lifecycle=lifecycle(pod))
    found = step(seen, PodRecord(remembered=before))
    assert isinstance(found, Project)
    assert found.old is not None
    assert found.old.initContainerStatuses == (replace(setup, state=None, containerID=""),)
    found = step(replace(seen, view=view(exited("setup", code=3, number=2))), PodRecord(remembered=before))
    assert isinstance(found, ReadMessages)


def test_an_init_container_that_was_removed_keeps_its_last_end_over_the_restart_of_the_agent() -> None:
    # as after the removal of its sandbox; before a container that came after it, it may have succeeded since
    ended = [
        ContainerState(terminated=ContainerStateTerminated(exitCode=code, reason=reason))
        for code, reason in ((137, "Error"), (137, "Error"), (0, "Completed"))
    ]
    names = ("log", "setup", "fetch")
    ends = tuple(
        ContainerStatus(name=name, state=end, containerID=f"fake://{name}-0")
        for name, end in zip(names, ended, strict=True)
    )
    pod = make_pod(init=(container("log", restartPolicy="Always"), container("setup"), container("fetch")))
    before = PodStatus(phase="Pending", initContainerStatuses=ends)
    for seen, kept in ((None, 3), (view(), 3), (view(running()), 1)):
        found = step(
            snapshot(pod=pod, entry=entry(pod), lifecycle=lifecycle(pod), view=seen), PodRecord(remembered=before)
        )
        assert isinstance(found, Project)
        assert found.old is not None
        assert [s.state for s in found.old.initContainerStatuses] == [*ended[:kept], *[None] * (3 - kept)]


@pytest.mark.parametrize("day", ["01", "03"])
def test_after_a_power_cut_the_newer_one_of_journal_and_api_counts(day: str) -> None:
    def status(day: str) -> PodStatus:
        now = ContainerState(running=ContainerStateRunning(startedAt=f"2026-01-{day}T00:00:00Z"))
        return replace(REPORTED, containerStatuses=(ContainerStatus(name="app", state=now),))

    pod = replace(make_pod(static=False), status=status("02"))
    found = step(snapshot(pod=pod, entry=entry(pod), lifecycle=lifecycle(pod)), PodRecord(remembered=status(day)))
    assert isinstance(found, Project)
    assert found.old == status(max(day, "02"))


@pytest.mark.parametrize("phase", ["Running", "Failed"])
def test_after_a_power_cut_restarts_and_ends_count_more_than_the_dates_of_a_clock_that_was_set_back(phase: str) -> None:
    def status(phase: str, restarts: int, day: str) -> PodStatus:
        now = ContainerState(running=ContainerStateRunning(startedAt=f"2026-01-{day}T00:00:00Z"))
        app = ContainerStatus(name="app", state=now, restartCount=restarts)
        return replace(REPORTED, phase=phase, containerStatuses=(app,))

    newer, older = status(phase, 1, "01"), status("Running", 1 if phase == "Failed" else 0, "02")
    for of_api, kept in ((newer, older), (older, newer)):
        pod = replace(make_pod(static=False), status=of_api)
        seen = view(running())  # so that an ended pod of the API is projected too
        found = step(
            snapshot(pod=pod, entry=entry(pod), lifecycle=lifecycle(pod), view=seen), PodRecord(remembered=kept)
        )
        assert isinstance(found, Project)
        assert found.old == newer


def test_a_manifest_that_nothing_takes_up_is_projected_when_its_time_is_over() -> None:
    first = step(snapshot(lifecycle=None))
    assert isinstance(first, Defer)
    assert first.until == NOW + TAKE_UP_S
    again = step(snapshot(lifecycle=None, view=view(running())), first.record, NOW + TAKE_UP_S / 2)
    assert isinstance(again, Defer)
    assert again.until == first.until
    assert isinstance(step(snapshot(lifecycle=None), again.record, first.until), Project)


def test_an_exit_status_that_never_comes_is_waited_for_once() -> None:
    first = step(snapshot(view=BETWEEN))
    assert isinstance(first, Defer)
    assert first.until == NOW + EXIT_STATUS_S
    last = step(snapshot(view=replace(BETWEEN, read_at=2.0)), first.record, first.until)
    assert isinstance(last, Project)
    healed = step(snapshot(view=view(running(number=1))), last.record, first.until)
    assert isinstance(healed, Project)
    assert healed.record.between_since is None


def test_an_older_snapshot_of_the_runtime_does_not_replace_a_newer_one() -> None:
    record = projected(snapshot(view=view(running(number=1), read_at=5.0)))
    assert isinstance(step(snapshot(view=view(running(), read_at=4.0), listed_at=6.0), record), Keep)
    assert isinstance(step(snapshot(view=view(running(), read_at=6.0), listed_at=6.0), record), Project)
    gone = step(snapshot(view=None, listed_at=6.0), record)
    assert isinstance(gone, Project)
    assert gone.inputs.view is not None
    assert gone.inputs.view.is_gone


def test_a_pod_that_starts_over_follows_on_from_nothing_and_from_no_old_snapshot() -> None:
    ended = snapshot(lifecycle=lifecycle(POD, Stage.TERMINATED, kill_reason=KillReason.RENEWED), view=view(exited()))
    found = step(snapshot(view=view(exited(), read_at=NOW - 1)), projected(ended))
    assert isinstance(found, Project)
    assert (found.inputs.view, found.old) == (None, None)


def test_a_pod_that_ended_in_the_api_keeps_the_status_it_has_there() -> None:
    pod = replace(make_pod(static=False), status=PodStatus(phase="Failed", reason="OutOfcpu"))
    found = step(snapshot(pod=pod, entry=entry(pod), lifecycle=lifecycle(pod)))
    assert isinstance(found, Publish)
    assert found.record.newest is pod.status


def test_the_inputs_of_all_pods_are_compared_by_identity() -> None:
    pods = {UID: lifecycle(POD)}
    before = Snapshot({UID: entry(POD)}, Lifecycles(pods).pods, Observed(), SHARED)
    assert before.changed_since(before) == []
    assert before.pod(UID) is not None
    assert set(replace(before, shared=SharedInputs(runtime="containerd")).changed_since(before)) == {UID}
    assert Snapshot(shared=SHARED).changed_since(before) == [UID, UID]
    assert Snapshot().pod(UID) is None


def test_a_resize_is_awaited_for_a_moment_and_shown_as_a_whole() -> None:
    record = projected(snapshot(view=view(running())))
    begun = snapshot(
        pod=NEXT_POD,
        entry=entry(NEXT_POD),
        view=view(running()),
        lifecycle=lifecycle(NEXT_POD, resize=ResizeProgress(2)),
    )
    before = record.made_from
    assert before is not None
    begun = replace(begun, view=before.view)
    first = step(begun, record)
    assert isinstance(first, Defer) and first.until == NOW + RESIZE_S
    slow = step(begun, first.record, first.until)
    assert isinstance(slow, Project), "a slow one is shown while it lasts"

    read = replace(begun, view=view(running(), read_at=NOW + 0.02))
    assert step(read, first.record, NOW + 0.021) == Defer(first.record, NOW + 0.02 + TAKE_UP_S)
    ended = step(replace(read, lifecycle=lifecycle(NEXT_POD)), first.record, NOW + 0.022)
    assert isinstance(ended, Project)

    busy = [replace(begun, view=view(running(), read_at=NOW + ms / 1000)) for ms in range(10, 2000, 10)]
    shown = [pod.view for pod in busy if pod.view and isinstance(step(pod, first.record, pod.view.read_at), Project)]
    assert shown and shown[0] is busy[99].view, "views that follow each other closely do not keep it from being shown"


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"lifecycle": lifecycle(NEXT_POD, resize=ResizeProgress(2, "refused"))}, id="it has failed"),
        pytest.param(
            {"shared": SharedInputs(runtime="containerd", host_ips=("10.0.0.1",))}, id="something else changes"
        ),
        pytest.param(
            {"lifecycle": lifecycle(NEXT_POD, resize=ResizeProgress(2), kill_reason=KillReason.REMOVED)}, id="it ends"
        ),
    ],
)
def test_what_else_happens_to_a_pod_does_not_wait_for_its_resize(change: dict[str, Any]) -> None:
    record = projected(snapshot(view=view(running())))
    assert record.made_from is not None
    now = snapshot(
        pod=NEXT_POD,
        entry=entry(NEXT_POD),
        view=record.made_from.view,
        lifecycle=lifecycle(NEXT_POD, resize=ResizeProgress(2)),
    )
    assert isinstance(step(replace(now, **change), record), Project)
