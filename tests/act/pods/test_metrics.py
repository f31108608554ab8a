"""How long pods take to run, as `/metrics` shows it."""

from __future__ import annotations

from typing import Any

import pytest

from pykubelet.act.pods.metrics import (
    CONTAINERS,
    FIRST_NETWORK_START,
    START_DURATIONS,
    START_SLIS,
    START_TOTALS,
    WORK_BEGINS,
    PullTime,
    StartCount,
    init_seconds,
)
from pykubelet.base.api.codec import from_object
from pykubelet.base.api.core import Pod
from pykubelet.base.model.ids import ContainerID, PodRef, PodUID, SandboxID
from pykubelet.base.model.observed import ContainerView, ObservedState, PodView

REF = PodRef("default", "web", PodUID("u"))
CREATED = 1_700_000_000.0  # 2023-11-14T22:13:20Z
RUNNING, EXITED, MADE = ObservedState.RUNNING, ObservedState.EXITED, ObservedState.CREATED
COUNTED = (WORK_BEGINS, CONTAINERS, START_DURATIONS, START_TOTALS, START_SLIS)


def pod(*, created: str = "2023-11-14T22:13:20Z", **spec: Any) -> Pod:
    fields = {"containers": [{"name": "a", "image": "x"}, {"name": "b", "image": "x"}], **spec}
    meta = {"name": "web", "namespace": "default", "uid": "u", "creationTimestamp": created}
    return from_object(Pod, {"metadata": meta, "spec": fields})


def seen(**states: ObservedState) -> PodView:
    """Those that have been started ran for two seconds."""
    return PodView(
        REF,
        (),
        tuple(
            ContainerView(
                *(ContainerID(name), name, SandboxID("s"), state, 0, 1),
                started_at=0 if state is MADE else 10**9,
                finished_at=3 * 10**9 if state is EXITED else 0,
            )
            for name, state in states.items()
        ),
    )


def counts() -> list[int]:
    return [metric.count() for metric in COUNTED]


def since(before: list[int]) -> list[int]:
    return [now - then for now, then in zip(counts(), before, strict=True)]


def total(histogram: Any) -> float:
    return next(float(sample.value) for sample in histogram.family().samples if sample.suffix == "_sum")


def test_a_start_is_counted_once_when_all_of_it_runs() -> None:
    before, count = counts(), StartCount(CREATED + 1, is_new=True)
    assert count.begins(pod(), "new pod", CREATED + 1.5) == "create"
    assert since(before) == [1, 1, 0, 0, 0]
    count.saw(pod(), seen(a=RUNNING), CREATED + 3, PullTime())
    count.saw(pod(), seen(a=RUNNING, b=MADE), CREATED + 3, PullTime())
    assert since(before) == [1, 1, 0, 0, 0]
    count.saw(pod(), seen(a=RUNNING, b=RUNNING), CREATED + 4, PullTime())
    count.saw(pod(), seen(a=RUNNING, b=RUNNING), CREATED + 9, PullTime())
    assert since(before) == [1, 1, 1, 1, 1]
    assert FIRST_NETWORK_START.value() > 0


def test_what_syncs_are_called() -> None:
    count = StartCount(CREATED, is_new=True)
    assert [count.begins(pod(), cause, CREATED) for cause in ("new pod", "manifest changed", "a container ended")] == [
        "create",
        "update",
        "sync",
    ]


def test_pods_found_running_have_no_start() -> None:
    before, count = counts(), StartCount(CREATED, is_new=False)
    assert count.begins(pod(), "found running", CREATED) == "sync"
    count.saw(pod(), seen(a=RUNNING, b=RUNNING), CREATED + 4, PullTime())
    assert since(before) == [0, 0, 0, 0, 0]


def test_pulls_and_init_containers_are_left_out_of_the_sli() -> None:
    whole, sli = total_of(START_TOTALS), total_of(START_SLIS)
    pulled = PullTime()
    pulled.add(100.0, 101.0)
    pulled.add(100.5, 103.0)
    assert pulled.seconds == 3.0
    made = pod(initContainers=[{"name": "init", "image": "x"}])
    view = seen(a=RUNNING, b=RUNNING, init=EXITED)
    assert init_seconds(made, view) == 2.0
    StartCount(CREATED, is_new=True).saw(made, view, CREATED + 10, pulled)
    assert total(START_TOTALS) - whole == pytest.approx(10.0)
    assert total(START_SLIS) - sli == pytest.approx(5.0)


def total_of(histogram: Any) -> float:
    return total(histogram) if histogram.count() else 0.0


@pytest.mark.parametrize(
    ("made", "view", "expected"),
    [
        (pod(created=""), seen(a=RUNNING, b=RUNNING), [1, 0, 0]),  # a manifest has no creation time
        (pod(), seen(a=RUNNING, b=EXITED), [1, 0, 0]),  # it has ended before it was seen to run
        (pod(volumes=[{"name": "v", "hostPath": {"path": "/"}}]), seen(a=RUNNING, b=RUNNING), [1, 1, 0]),
        (pod(volumes=[{"name": "v", "emptyDir": {}}]), seen(a=RUNNING, b=RUNNING), [1, 1, 1]),
    ],
)
def test_which_starts_are_counted(made: Pod, view: PodView, expected: list[int]) -> None:
    before = counts()
    StartCount(CREATED, is_new=True).saw(made, view, CREATED + 1, PullTime())
    assert since(before)[2:] == expected
