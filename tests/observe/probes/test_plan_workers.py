"""The workers that a pod needs, as a table."""

from __future__ import annotations

import pytest
from observe.probes.stand import Json, Node, probed

from pykubelet.base.kit.values import replace
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.lifecycle import Stage
from pykubelet.base.model.probes import ProbeKind
from pykubelet.observe.probes.plan_workers import ProbeId, WorkerPlan, plan_workers

UID = PodUID("web")
READINESS, LIVENESS, STARTUP = ProbeKind.READINESS, ProbeKind.LIVENESS, ProbeKind.STARTUP
ALL_KINDS = probed("app", "readiness", "liveness", "startup")


def plan(*containers: Json, stage: Stage = Stage.SYNCING, present: tuple[ProbeId, ...] = ()) -> WorkerPlan:
    node = Node()
    init = (probed("side", "readiness", sidecar=True), probed("first", "readiness"))
    uid = node.pod(UID, *containers, init=init)
    return plan_workers(replace(node.lifecycles.get().pods[uid], stage=stage), present)


@pytest.mark.parametrize(
    ("containers", "wanted"),
    [
        pytest.param((probed("app"),), [("side", READINESS)], id="a sidecar has probes, an init container has none"),
        pytest.param(
            (ALL_KINDS,),
            [("side", READINESS), ("app", STARTUP), ("app", LIVENESS), ("app", READINESS)],
            id="startup first",
        ),
    ],
)
def test_there_is_one_worker_for_each_probe(containers: tuple[Json, ...], wanted: list[tuple[str, ProbeKind]]) -> None:
    found = plan(*containers)
    assert [(probe_id.container, probe_id.kind) for probe_id in found.wanted] == wanted
    assert {probe_id.uid for probe_id in found.wanted} == {UID}
    assert found.stop == ()


@pytest.mark.parametrize("stage", [Stage.TERMINATED, Stage.FINISHED])
def test_a_pod_that_was_stopped_needs_no_worker(stage: Stage) -> None:
    present = tuple(plan(ALL_KINDS).wanted)
    assert plan(ALL_KINDS, stage=stage, present=present) == WorkerPlan({}, present)
    assert plan(ALL_KINDS, stage=Stage.TERMINATING, present=present).stop == ()


def test_the_worker_of_a_probe_that_is_gone_stops() -> None:
    gone = ProbeId(UID, "app", LIVENESS)
    found = plan(probed("app", "readiness"), present=(gone, ProbeId(UID, "app", READINESS)))
    assert found.stop == (gone,)


def test_a_pod_in_quarantine_is_not_probed() -> None:
    node = Node()
    uid = node.pod(UID, ALL_KINDS)
    lifecycle = node.lifecycles.get().pods[uid]
    quarantined = replace(lifecycle, has_worker=False, quarantine="the agent has ended 2 times")
    present = tuple(plan_workers(lifecycle, ()).wanted)
    assert present and plan_workers(quarantined, present) == WorkerPlan({}, present)
