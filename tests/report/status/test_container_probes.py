"""`started` and `ready` of containers, from the results of probes."""

from __future__ import annotations

from typing import Any

import pytest
from report.samples import (
    container,
    exited,
    facts,
    make_pod,
    reported,
    running,
    sidecar,
    view,
)

from pykubelet.base.api import core
from pykubelet.base.kit.values import replace
from pykubelet.base.model.ids import ContainerID
from pykubelet.base.model.probes import ProbeKind, ProbeResult, ProbeResults
from pykubelet.report.status.project import project_status

PROBE = core.Probe(exec=core.ExecAction(command=("true",)))


ALL = frozenset(ProbeKind)


def probes(watched: frozenset[ProbeKind] = ALL, **results: ProbeResult) -> ProbeResults:
    return ProbeResults({(ContainerID("app-0"), ProbeKind(kind)): r for kind, r in results.items()}, watched)


OK, BAD = ProbeResult.SUCCESS, ProbeResult.FAILURE


@pytest.mark.parametrize(
    ("fields", "results", "started", "ready"),
    [
        ({}, probes(), True, True),
        ({"readinessProbe": PROBE}, probes(), True, False),
        ({"readinessProbe": PROBE}, probes(readiness=BAD), True, False),
        ({"readinessProbe": PROBE}, probes(readiness=OK), True, True),
        ({"startupProbe": PROBE}, probes(), False, False),
        ({"startupProbe": PROBE}, probes(startup=OK), True, True),
        ({"startupProbe": PROBE, "readinessProbe": PROBE}, probes(readiness=OK), False, False),
        ({"startupProbe": PROBE, "readinessProbe": PROBE}, probes(startup=OK), True, False),
        ({"startupProbe": PROBE, "readinessProbe": PROBE}, probes(frozenset()), True, True),
        ({"livenessProbe": PROBE}, probes(), True, True),
    ],
)
def test_started_and_ready_follow_the_probes(
    fields: dict[str, Any], results: ProbeResults, started: bool, ready: bool
) -> None:
    shown = reported(make_pod(container(**fields)), view(running()), probes=results)
    assert (shown["started"], shown["ready"]) == (started, ready)


ASSUMED = ProbeResults(
    {(ContainerID("app-0"), ProbeKind.READINESS): OK},
    ALL,
    assumed=frozenset({(ContainerID("app-0"), ProbeKind.READINESS)}),
)


@pytest.mark.parametrize("was_ready", [True, False])
@pytest.mark.parametrize(
    ("now", "ready"),
    [
        pytest.param(probes(), None, id="no result yet"),
        pytest.param(ASSUMED, None, id="only from the age of the container"),
        pytest.param(probes(readiness=OK), True, id="success"),
        pytest.param(probes(readiness=BAD), False, id="failure"),
        pytest.param(replace(probes(), keeps=False), False, id="all begin anew"),
    ],
)
def test_until_there_is_a_result_what_was_reported_of_the_instance_holds(
    was_ready: bool, now: ProbeResults, ready: bool | None
) -> None:
    pod = make_pod(container(readinessProbe=PROBE))
    before = project_status(facts(pod, view(running()), probes=probes(readiness=OK if was_ready else BAD)))
    shown = reported(pod, view(running()), probes=now, old=before)
    assert shown["ready"] is (was_ready if ready is None else ready)
    another = replace(before.containerStatuses[0], containerID="containerd://another")
    shown = reported(pod, view(running()), probes=probes(), old=replace(before, containerStatuses=(another,)))
    assert shown["ready"] is False


@pytest.mark.parametrize(
    ("instances", "started", "ready"),
    [
        ((), False, False),
        ((running("i"),), True, False),
        ((exited("i"),), False, True),
        ((exited("i", 1),), False, False),
    ],
)
def test_an_init_container_is_ready_when_it_has_succeeded(
    instances: tuple[Any, ...], started: bool, ready: bool
) -> None:
    (shown,) = project_status(facts(make_pod(init=(container("i"),)), view(*instances))).initContainerStatuses
    assert (shown.started, shown.ready) == (started, ready)


def test_a_sidecar_is_ready_like_a_regular_container() -> None:
    pod = make_pod(init=(sidecar("app", readinessProbe=PROBE),))
    for result, ready in ((OK, True), (BAD, False)):
        status = project_status(facts(pod, view(running()), probes=probes(readiness=result)))
        assert status.initContainerStatuses[0].ready is ready
