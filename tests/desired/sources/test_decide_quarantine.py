"""Which pods are in quarantine, and until when; and what is shown of them."""

from __future__ import annotations

import pytest
from desired.roster.wants import make_pod
from hypothesis import given
from hypothesis import strategies as st

from pykubelet.base.model.reasons import QUARANTINED
from pykubelet.desired.sources.decide_quarantine import (
    FORGET_S,
    MAX_CONTAINERS,
    MAX_SUSPECTS,
    QUARANTINE,
    Suspects,
    charged,
    is_quarantined,
    remembered,
    stub_of,
    wait_of,
    with_content,
)

NOW = 1_700_000_000.0
CAUSE = "its event loop was blocked for 61 s"


def ends(count: int, apart_s: float = 60.0) -> tuple[Suspects, float]:
    """The suspects after some ends that are charged to one pod, and the time."""
    suspects: Suspects = {}
    now = NOW
    for _ in range(count):
        now += apart_s
        suspects = charged(suspects, [("uid", CAUSE)], now)
    return suspects, now


def test_one_end_is_tolerated() -> None:
    suspects, now = ends(1)
    assert not is_quarantined(suspects["uid"], now)


@pytest.mark.parametrize(("count", "minutes"), [(2, 10), (3, 20), (4, 40), (9, 1280), (10, 1440), (30, 1440)])
def test_the_quarantine_doubles_up_to_a_day(count: int, minutes: int) -> None:
    suspects, now = ends(count)
    assert suspects["uid"].until == now + 60 * minutes
    assert is_quarantined(suspects["uid"], now) and is_quarantined(suspects["uid"], now + 60 * minutes - 1)
    assert not is_quarantined(suspects["uid"], now + 60 * minutes)


def test_ends_are_forgotten_after_a_day_without_one() -> None:
    suspects, now = ends(1)
    assert remembered(suspects, now + FORGET_S - 1) == suspects
    assert remembered(suspects, now + FORGET_S) == {}
    assert charged(suspects, [("uid", CAUSE)], now + FORGET_S)["uid"].ends == 1


def test_the_time_in_quarantine_does_not_count() -> None:
    suspects, now = ends(30)
    over = suspects["uid"].until
    assert over == now + QUARANTINE.cap_s
    assert "uid" in remembered(suspects, over + FORGET_S - 1), "it is being tried again"
    assert remembered(suspects, over + FORGET_S) == {}


def test_the_content_that_is_seen_first_is_the_one_that_was_charged() -> None:
    suspects, _ = ends(2)
    known = with_content(suspects["uid"], "aa")
    assert known is not None and known.content == "aa" and known.ends == 2
    assert with_content(known, "aa") is known
    assert with_content(known, "bb") is None
    again = charged({"uid": known}, [("uid", CAUSE)], NOW + 300)
    assert again["uid"].content == "aa" and again["uid"].ends == 3


def test_other_pods_are_not_affected() -> None:
    suspects, now = ends(2)
    both = charged(suspects, [("other", "x")], now)
    assert both["uid"] == suspects["uid"] and not is_quarantined(both["other"], now)


@given(st.floats(-1e9, 1e9), st.integers(2, 40))
def test_a_change_of_the_clock_makes_no_quarantine_longer_than_a_day(step: float, count: int) -> None:
    suspects, now = ends(count)
    until = suspects["uid"].until
    assert not is_quarantined(suspects["uid"], now + step) or until - (now + step) <= QUARANTINE.cap_s
    assert len(remembered(suspects, now + step)) <= 1


def test_the_number_of_suspects_and_the_length_of_texts_are_limited() -> None:
    suspects = charged({}, [(f"uid-{number}", "x" * 10_000) for number in range(1000)], NOW)
    assert len(suspects) == MAX_SUSPECTS and "uid-999" in suspects
    assert all(len(suspect.cause) < 1000 for suspect in suspects.values())


def test_a_wait_shows_why_and_until_when() -> None:
    suspects, now = ends(2)
    wait = wait_of(suspects["uid"])
    assert (wait.reason, wait.since, wait.next_at) == (QUARANTINED, now, now + 600)
    assert wait.detail == f"the agent has ended 2 times while it worked on this; the last time {CAUSE}"


def test_a_stub_shows_what_the_pod_is_and_holds_nothing_else() -> None:
    full = make_pod(
        "web",
        source="file",
        metadata={
            "labels": {"a": "b"},
            "annotations": {"x": "y" * 100_000},
            "deletionTimestamp": "2026-01-01T00:00:00Z",
        },
        initContainers=[{"name": "side", "image": "busybox", "restartPolicy": "Always", "startupProbe": {"exec": {}}}],
        containers=[
            {
                "name": f"app-{number}",
                "image": "busybox",
                "env": [{"name": "A", "value": "x"}],
                "volumeMounts": [{"name": "v", "mountPath": "/v"}],
                "ports": [{"containerPort": 80, "hostPort": 80}, {"containerPort": 81}],
                "readinessProbe": {"exec": {"command": ["x"]}},
                "livenessProbe": {"exec": {"command": ["x"]}},
                "resources": {"requests": {"cpu": "1"}},
            }
            for number in range(1000)
        ],
        volumes=[{"name": "v", "emptyDir": {}}],
        hostNetwork=True,
    )
    stub = stub_of(full)
    assert (stub.metadata.name, stub.metadata.uid) == (full.metadata.name, full.metadata.uid)
    assert stub.metadata.deletionTimestamp and stub.spec.hostNetwork
    assert stub.spec.volumes == () and "x" not in stub.metadata.annotations
    assert len(stub.spec.containers) == MAX_CONTAINERS and stub.spec.initContainers[0].restartPolicy == "Always"
    first = stub.spec.containers[0]
    assert (first.env, first.volumeMounts, first.livenessProbe) == ((), (), None)
    assert first.resources == full.spec.containers[0].resources and [port.hostPort for port in first.ports] == [80]
    assert first.readinessProbe is not None and first.readinessProbe.exec is None
