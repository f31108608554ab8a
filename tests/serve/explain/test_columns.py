"""READY, STATUS and RESTARTS, as kubectl prints them."""

from __future__ import annotations

from typing import Any

import pytest
from report.samples import container, exited, facts, instance, lifecycle, make_pod, running, sidecar, view

from pykubelet.base.api import core
from pykubelet.base.model.lifecycle import KillReason, Stage
from pykubelet.base.model.observed import ObservedState, PodView
from pykubelet.base.model.probes import ProbeKind, ProbeResults
from pykubelet.report.status.project import project_status
from pykubelet.serve.explain.columns import Columns, columns_of

UNREADY = core.Probe()
INIT = (container("i1"), container("i2"))
CRASH = {"app": ("CrashLoopBackOff", "x")}
CASES: dict[str, tuple[core.Pod, PodView, dict[str, Any], Columns]] = {
    "new": (make_pod(), view(), {}, Columns(0, 1, "ContainerCreating", 0)),
    "running": (make_pod(), view(running(number=2)), {}, Columns(1, 1, "Running", 2)),
    "two containers, one not ready": (
        make_pod(container("a"), container("b", readinessProbe=UNREADY)),
        view(running("a"), running("b")),
        {},
        Columns(1, 2, "Running", 0),
    ),
    "crash looping": (
        make_pod(),
        view(exited("app", 1, number=4)),
        {"errors": CRASH},
        Columns(0, 1, "CrashLoopBackOff", 4),
    ),
    "failed to pull": (
        make_pod(),
        view(),
        {"errors": {"app": ("ErrImagePull", "x")}},
        Columns(0, 1, "ErrImagePull", 0),
    ),
    "first init container": (make_pod(init=INIT), view(running("i1")), {}, Columns(0, 1, "Init:0/2", 0)),
    "second init container": (make_pod(init=INIT), view(exited("i1")), {}, Columns(0, 1, "Init:1/2", 0)),
    "init OOM-killed": (
        make_pod(init=INIT, restartPolicy="Never"),
        view(exited("i1", reason="OOMKilled")),
        {},
        Columns(0, 1, "Init:OOMKilled", 0),
    ),
    "init failed": (make_pod(init=INIT), view(exited("i1", 1)), {}, Columns(0, 1, "Init:Error", 0)),
    "init crash looping": (
        make_pod(init=INIT),
        view(exited("i1", 1, number=3)),
        {"errors": {"i1": ("CrashLoopBackOff", "x")}},
        Columns(0, 1, "Init:CrashLoopBackOff", 3),
    ),
    "init done": (make_pod(init=INIT), view(exited("i1"), exited("i2")), {}, Columns(0, 1, "PodInitializing", 0)),
    "sidecar not started": (
        make_pod(init=(sidecar(startupProbe=UNREADY),)),
        view(running("side")),
        {},
        Columns(0, 2, "Init:0/1", 0),
    ),
    "sidecar and pod": (
        make_pod(init=(sidecar(),)),
        view(running("side", 1), running(number=2)),
        {},
        Columns(2, 2, "Running", 3),
    ),
    "completed": (make_pod(restartPolicy="Never"), view(exited()), {}, Columns(0, 1, "Completed", 0)),
    "one completed, one runs": (
        make_pod(container("a"), container("b"), restartPolicy="Never"),
        view(exited("a"), running("b")),
        {},
        Columns(1, 2, "NotReady", 0),
    ),
    "created only": (make_pod(), view(instance(state=ObservedState.CREATED)), {}, Columns(0, 1, "Pending", 0)),
    "terminating": (
        make_pod(),
        view(running()),
        {"stage": Stage.TERMINATING, "kill_reason": KillReason.REMOVED},
        Columns(1, 1, "Terminating", 0),
    ),
    "completed pods that are stopped are not terminating": (
        make_pod(restartPolicy="Never"),
        view(exited()),
        {"stage": Stage.TERMINATING, "kill_reason": KillReason.COMPLETED},
        Columns(0, 1, "Completed", 0),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_columns(name: str) -> None:
    pod, seen, fields, expected = CASES[name]
    life = lifecycle(pod, **dict(fields))
    probes = ProbeResults({}, frozenset(ProbeKind))
    status = project_status(facts(pod, seen, lifecycle=life, probes=probes))
    assert columns_of(pod, status, life) == expected


def test_a_pod_without_a_status_is_pending() -> None:
    assert columns_of(make_pod(), core.PodStatus(), None) == Columns(0, 1, "Pending", 0)


def test_a_pods_reason_stands_for_its_phase() -> None:
    status = core.PodStatus(phase="Failed", reason="Evicted")
    assert columns_of(make_pod(), status, None).status == "Evicted"
