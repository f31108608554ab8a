"""Decisions of placement come out the same when they are replayed from the record."""

from __future__ import annotations

from random import Random

import pytest
from provide.placement.pool_pods import random_whole_pod
from provide.placement.test_placement_recording import SHAPE, busy_node, recorded
from provide.placement.together import GPU, FilledNode, make_managers

from pykubelet.base.api import core
from pykubelet.base.kit.values import replace
from pykubelet.base.model.placement import DeviceResource
from pykubelet.provide.placement.provider import PreferredAllocationRequest
from pykubelet.provide.placement.recording import KEPT_DEVICES, KEPT_STEPS, POOL, add_admission
from pykubelet.provide.placement.topology_scopes import admit
from pykubelet.testing.random_pods import random_pod
from pykubelet_offline.placement_replay import PlacementRecordingError, parse_placement, replay_placement


@pytest.mark.parametrize("scope", ["container", "pod"])
@pytest.mark.parametrize("policy", ["none", "best-effort", "restricted", "single-numa-node"])
def test_a_replay_comes_out_as_recorded(policy: str, scope: str) -> None:
    node = busy_node(f"{policy}-{scope}", policy, scope)
    document = recorded(node)
    replayed = replay_placement(parse_placement(document))
    assert [line for step in replayed for line in step.differences] == []
    assert len(replayed) == len(node.log) > 60
    results = [step.result for step in replayed]
    assert sum("reason" in result for result in results) > 5 and sum("asks" in result for result in results) > 5
    # what follows from the steps before is not repeated
    assert sum(step["given"]["memory"] is not None for step in document["steps"]) <= 3


@pytest.mark.parametrize("scope", ["container", "pod"])
def test_pods_as_a_whole_come_out_as_recorded(scope: str) -> None:
    random, node = Random(scope), FilledNode(make_managers(SHAPE, "restricted", scope, pod_level=True))
    for number in range(60):
        node.admit(random_whole_pod(random, number, cpus=2))
        if node.pods and random.random() < 0.6:
            node.release([random.choice(list(node.pods))])
    document = recorded(node)
    replayed = replay_placement(parse_placement(document))
    assert [line for step in replayed for line in step.differences] == []
    assert (sum(POOL in step.result for step in replayed) > 20) == (scope == "pod")
    document["rules"]["topology"]["pod_level"] = False
    changed = replay_placement(parse_placement(document))
    assert any(step.differences for step in changed)


def test_another_policy_makes_differences() -> None:
    document = recorded(busy_node("other", "restricted"))
    document["rules"]["topology"]["policy"] = "none"
    different = [step for step in replay_placement(parse_placement(document)) if step.differences]
    assert different
    assert any(
        'recorded "TopologyAffinityError", now nothing' in line for step in different for line in step.differences
    )


def test_the_oldest_steps_are_dropped() -> None:
    node = FilledNode(make_managers(SHAPE, "best-effort", "container"))
    random = Random(1)
    for number in range(KEPT_STEPS):
        if node.admit(random_pod(random, number, cpus=2)):
            node.release(list(node.pods))
    steps = replay_placement(parse_placement(recorded(node)))
    assert len(steps) == KEPT_STEPS and not any(step.differences for step in steps)


def test_devices_that_come_and_go_do_not_fill_the_memory() -> None:
    node = FilledNode(make_managers(SHAPE, "none", "container"))
    random = Random(1)
    for iteration in range(20):
        ids = frozenset(f"{iteration}-{number}" for number in range(KEPT_DEVICES // 4))
        node.managers = replace(node.managers, devices=replace(node.devices, resources={GPU: DeviceResource(ids)}))
        node.admit(random_pod(random, iteration, cpus=1, resources=(GPU,)))
    kept = tuple(node.log)
    assert 1 <= len(kept) < 10
    assert not any(step.differences for step in replay_placement(parse_placement(recorded(node))))


def test_a_plugin_is_asked_again_after_its_devices_have_changed() -> None:
    node, pod = FilledNode(make_managers(SHAPE, "none", "container")), random_pod(Random(1), 1, cpus=1)
    amounts = core.ResourceRequirements(limits={GPU: "1"}, requests={GPU: "1"})
    first = replace(pod.spec.containers[0], resources=amounts)
    pod = replace(pod, spec=replace(pod.spec, initContainers=(), containers=(first,)))
    before = node.managers
    asked = admit(before.topology, before.providers, pod)
    assert isinstance(asked, PreferredAllocationRequest)
    add_admission(node.log, 1.0, before, pod, asked)
    gpus = node.devices.resources[GPU]
    ill = replace(gpus, healthy=gpus.healthy - {"gpu-0"}, unhealthy=frozenset({"gpu-0"}))
    devices = node.devices.with_answer(asked, ["gpu-1"])
    node.managers = replace(before, devices=replace(devices, resources={**devices.resources, GPU: ill}))
    assert node.admit(pod)
    steps = replay_placement(parse_placement(recorded(node)))
    assert ["asks" in step.result for step in steps] == [True, True, False]
    assert not any(step.differences for step in steps)


def test_what_is_no_recording_is_refused() -> None:
    document = recorded(busy_node("refused"))
    with pytest.raises(PlacementRecordingError, match="version: 9 is not supported, only 1"):
        parse_placement({**document, "version": 9})
    document["steps"][0]["at"] = "noon"
    with pytest.raises(PlacementRecordingError, match=r"Expected `float`, got `str` - at `\$.steps\[0\].at`"):
        parse_placement(document)
