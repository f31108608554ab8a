"""The decisions of the PLEG as tables: hints, exits, views and relists."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykubelet.base.kit.values import replace
from pykubelet.base.model.ids import ContainerID, PodRef, PodUID, SandboxID
from pykubelet.base.model.observed import (
    ContainerEnd,
    ContainerView,
    ObservedState,
    PodReadWanted,
    PodView,
    Removed,
    SandboxView,
    Started,
    Stopped,
)
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.events import HintKind, RuntimeEventSource, RuntimeHint
from pykubelet.observe.pleg.decide import (
    EXIT_LAG_OF_CRI_S,
    EXIT_LAG_S,
    REAP_S,
    SANDBOX_LAG_S,
    ExitStep,
    Inspection,
    ReadRecord,
    ReadState,
    RelistPeriods,
    exit_pauses,
    exit_step,
    has_ended,
    ids_of,
    inspection,
    is_unchanged,
    merge_view,
    missing_pods,
    needs_read,
    view_from_answer,
    with_exit,
    with_trusted_end,
    without_stale,
)

REF = PodRef("shop", "web", PodUID("u1"))
CREATED, RUNNING, EXITED = ObservedState.CREATED, ObservedState.RUNNING, ObservedState.EXITED


def container(name: str = "app", state: ObservedState = RUNNING) -> ContainerView:
    return ContainerView(ContainerID(name), name, SandboxID("s0"), state, 0, 100)


def sandbox(ready: bool = True) -> SandboxView:
    return SandboxView(SandboxID("s0"), 0, ready, 50, ("10.0.0.2",))


def view(*containers: ContainerView, ready: bool = True, at: float = 1.0) -> PodView:
    return PodView(REF, (sandbox(ready),), containers, at)


def end(name: str = "app", code: int = 1) -> ContainerEnd:
    return ContainerEnd(ContainerID(name), code, 1_700_000_000_000_000_000)


def hint(kind: HintKind, runtime_id: str = "app", of: ContainerEnd | None = None) -> RuntimeHint:
    return RuntimeHint(runtime_id, kind, RuntimeEventSource.CONTAINERD, end=of)


# Hints

NONE, POD, EXIT = Inspection.NONE, Inspection.POD, Inspection.EXIT


@pytest.mark.parametrize(
    ("kind", "runtime_id", "shown", "expected"),
    [
        (HintKind.STARTED, "app", view(container()), NONE),
        (HintKind.CREATED, "app", view(container()), NONE),
        (HintKind.STARTED, "s0", view(), NONE),
        (HintKind.STARTED, "app", view(container(state=CREATED)), POD),
        (HintKind.STARTED, "other", view(container()), POD),
        (HintKind.STARTED, "app", None, POD),
        (HintKind.STOPPED, "app", view(container()), EXIT),
        (HintKind.STOPPED, "app", None, EXIT),
        (HintKind.REAPED, "app", view(container()), EXIT),
        (HintKind.OOM, "app", view(container()), POD),
        (HintKind.OOM, "app", view(container(state=EXITED)), EXIT),
        (HintKind.DELETED, "app", view(container(state=EXITED)), POD),
    ],
)
def test_which_hint_leads_to_which_read(
    kind: HintKind, runtime_id: str, shown: PodView | None, expected: Inspection
) -> None:
    assert inspection(hint(kind, runtime_id), shown) is expected


@pytest.mark.parametrize(
    ("code", "is_oom_killed", "is_trusted"), [(0, False, True), (0, True, False), (137, True, True), (1, False, True)]
)
def test_only_success_after_an_oom_kill_is_not_trusted(code: int, is_oom_killed: bool, is_trusted: bool) -> None:
    reported = hint(HintKind.STOPPED, of=end(code=code))
    assert (with_trusted_end(reported, is_oom_killed).end is not None) is is_trusted


# Exits


@pytest.mark.parametrize(
    ("shown", "is_being_stopped", "is_being_read", "expected"),
    [
        (view(container()), False, False, ExitStep.READ),
        (view(container()), False, True, ExitStep.REAPED),
        (view(container()), True, False, ExitStep.WAIT),
        (view(container()), True, True, ExitStep.WAIT),
        (view(container(state=EXITED)), False, False, ExitStep.NONE),
        (view(container(state=EXITED)), True, False, ExitStep.WAIT),
        (view(container("other", EXITED)), False, False, ExitStep.READ),
        (None, False, False, ExitStep.READ),
    ],
)
def test_what_follows_from_the_hint_of_an_exit(
    shown: PodView | None, is_being_stopped: bool, is_being_read: bool, expected: ExitStep
) -> None:
    step = exit_step(shown, "app", is_being_stopped=is_being_stopped, is_being_read=is_being_read)
    assert step is expected


@pytest.mark.parametrize(
    ("runtime_id", "source", "expected"),
    [
        ("app", RuntimeEventSource.CONTAINERD, (REAP_S, EXIT_LAG_S)),
        ("app", RuntimeEventSource.CRI, (0.0, EXIT_LAG_OF_CRI_S)),
        ("s0", RuntimeEventSource.CONTAINERD, (0.0, SANDBOX_LAG_S)),
        ("s0", RuntimeEventSource.CRI, (0.0, SANDBOX_LAG_S)),
    ],
)
def test_when_an_exit_is_read(
    runtime_id: str, source: RuntimeEventSource, expected: tuple[float, tuple[float, ...]]
) -> None:
    assert exit_pauses(view(container()), runtime_id, source) == expected


@pytest.mark.parametrize(
    ("shown", "runtime_id", "expected"),
    [
        (view(container(), at=9.0), "app", False),
        (view(container(state=EXITED), at=1.0), "app", True),
        (view(at=9.0), "s0", False),
        (view(ready=False, at=1.0), "s0", True),
        (view(at=4.9), "app", False),  # it was read before the hint
        (view(at=5.0), "app", True),  # gone
    ],
)
def test_when_the_exit_hinted_at_5_is_shown(shown: PodView, runtime_id: str, expected: bool) -> None:
    assert has_ended(shown, runtime_id, 5.0) is expected


def test_an_exit_after_an_oom_kill_is_shown_once_the_runtime_names_the_kill() -> None:
    exited = replace(container(state=EXITED), exit_code=137, reason="Error")
    named = replace(exited, reason="OOMKilled")
    assert not has_ended(view(exited), "app", 5.0, is_oom_killed=True)
    assert has_ended(view(named), "app", 5.0, is_oom_killed=True)
    assert with_exit(view(exited), named) == view(named)
    assert merge_view(view(named, at=1.0), view(exited, at=2.0), ()) == view(named, at=2.0), "a read that began before"


def test_the_exit_of_one_container_leaves_the_others() -> None:
    exited = replace(container(state=EXITED), exit_code=3)
    assert with_exit(view(container(), container("mesh")), exited) == view(exited, container("mesh"))
    earlier = replace(exited, exit_code=1)
    assert with_exit(view(earlier), exited) == view(earlier), "the first status of an exit stays"


# Views from answers


@pytest.mark.parametrize(
    ("answer", "shown", "state", "expected"),
    [
        (Removed(7.0), view(container()), ReadState.READING, PodView(REF, read_at=7.0)),
        (Removed(7.0), None, ReadState.IDLE, PodView(REF, read_at=7.0)),
        (
            Stopped(7.0),
            view(container(state=EXITED)),
            ReadState.IDLE,
            view(container(state=EXITED), ready=False, at=7.0),
        ),
        (Stopped(7.0), view(container(state=EXITED)), ReadState.READING, None),
        (Stopped(7.0), view(container()), ReadState.IDLE, None),
        (Stopped(7.0), None, ReadState.IDLE, None),
        (Started(SandboxID("s0"), (ContainerID("app"),)), view(), ReadState.IDLE, None),
        (None, view(container()), ReadState.IDLE, None),
    ],
)
def test_which_answers_of_the_runtime_spare_a_read(
    answer: Started | Stopped | Removed | None, shown: PodView | None, state: ReadState, expected: PodView | None
) -> None:
    touch = PodReadWanted(REF, "test", answer=answer)
    assert view_from_answer(touch, shown, ReadRecord(REF, state)) == expected


# Views merged


def test_an_exited_container_does_not_run_again() -> None:
    known, late = view(container(state=EXITED), at=1.0), view(container(), container("mesh"), at=2.0)
    merged = merge_view(known, late, ())
    assert [c.state for c in merged.containers] == [EXITED, RUNNING]
    assert merged.read_at == 2.0


def test_pending_exits_stay_until_the_status_shows_them() -> None:
    known = merge_view(None, view(container()), [end()])
    assert known.pending_exits == (end(),)
    assert merge_view(known, view(container(), at=2.0), ()).pending_exits == (end(),)
    assert merge_view(known, view(container(state=EXITED), at=2.0), ()).pending_exits == ()
    assert merge_view(known, view(at=2.0), ()).pending_exits == ()


def test_stale_containers_are_read_again() -> None:
    shown = view(container(), container("mesh"))
    assert without_stale(shown, frozenset()) is shown
    assert without_stale(shown, frozenset([ContainerID("mesh")])) == view(container())
    assert without_stale(None, frozenset([ContainerID("mesh")])) is None


NAMES = st.sampled_from(["a", "b", "c"])
CONTAINERS = st.dictionaries(NAMES, st.sampled_from([CREATED, RUNNING, EXITED]))
READS = st.tuples(CONTAINERS, st.lists(NAMES, max_size=2))


@given(reads=st.lists(READS, max_size=6))
def test_whatever_is_read_an_exit_is_final_and_only_running_containers_have_pending_ones(
    reads: list[tuple[dict[str, ObservedState], list[str]]],
) -> None:
    known: PodView | None = None
    for at, (states, ends) in enumerate(reads):
        read = view(*(container(name, state) for name, state in states.items()), at=float(at))
        merged = merge_view(known, read, [end(name) for name in ends])
        assert [c.id for c in merged.containers] == [c.id for c in read.containers], "a read shows what there is"
        exited = {c.id for c in known.containers if c.state is EXITED} if known is not None else set()
        assert not exited & {c.id for c in merged.running}
        assert {pending.id for pending in merged.pending_exits} <= {c.id for c in merged.running}
        assert len({pending.id for pending in merged.pending_exits}) == len(merged.pending_exits)
        known = merged


# Relists


def item(name: str = "app", state: pb.ContainerState = pb.CONTAINER_RUNNING) -> pb.Container:
    return pb.Container(id=name, state=state)


def box(state: pb.PodSandboxState = pb.SANDBOX_READY) -> pb.PodSandbox:
    return pb.PodSandbox(id="s0", state=state)


@pytest.mark.parametrize(
    ("sandboxes", "containers", "expected"),
    [
        ([box()], [item()], True),
        ([box()], [item(state=pb.CONTAINER_EXITED)], False),
        ([box(pb.SANDBOX_NOTREADY)], [item()], False),
        ([box()], [], False),
        ([box()], [item("other")], False),
        ([box(), box()], [item()], False),
    ],
)
def test_what_a_list_shows_of_a_known_pod(
    sandboxes: list[pb.PodSandbox], containers: list[pb.Container], expected: bool
) -> None:
    assert is_unchanged(view(container()), sandboxes, containers) is expected


@pytest.mark.parametrize(
    ("shown", "listed", "expected"),
    [
        (None, ([box()], [item()]), True),
        (view(container(), at=4.0), ([box()], [item()]), False),
        (view(container(), at=4.0), ([box()], []), True),
        (view(container(), at=6.0), ([box()], []), False),  # a newer read counts
    ],
)
def test_which_pods_a_list_from_5_has_read(
    shown: PodView | None, listed: tuple[list[pb.PodSandbox], list[pb.Container]], expected: bool
) -> None:
    assert needs_read(shown, listed, 5.0) is expected


GONE = PodView(REF, read_at=1.0)


@pytest.mark.parametrize(
    ("shown", "is_listed", "state", "expected"),
    [
        (view(container()), True, ReadState.IDLE, {}),
        (view(container()), False, ReadState.IDLE, {REF.uid: PodView(REF, read_at=5.0)}),
        (view(container(), at=5.0), False, ReadState.IDLE, {}),  # read since the list began
        (GONE, False, ReadState.IDLE, {REF.uid: None}),
        (GONE, False, ReadState.READING, {}),
        (GONE, False, None, {REF.uid: None}),
    ],
)
def test_what_becomes_of_a_pod_that_a_list_from_5_does_not_contain(
    shown: PodView, is_listed: bool, state: ReadState | None, expected: dict[PodUID, PodView | None]
) -> None:
    records = {REF.uid: ReadRecord(REF, state)} if state is not None else {}
    assert missing_pods({REF.uid: shown}, {REF.uid} if is_listed else set(), 5.0, records) == expected


def test_the_ids_of_a_list() -> None:
    assert ids_of([([box()], [item(), item("mesh")])]) == {"s0", "app", "mesh"}


def test_relists_are_rare_with_events() -> None:
    periods = RelistPeriods(with_events_s=10.0, without_events_s=1.0)
    assert (periods.period_s(True), periods.period_s(False)) == (10.0, 1.0)
    assert periods.period_s(True, is_first=True) == 1.0, "what was under way before the subscription is seen soon"
