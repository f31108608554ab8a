"""The tables of the phases of volumes and devices, and states that break a rule.

Every step of every other test is checked too (`tests/conftest.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Any

import pytest
from provide.volumes.samples import empty_dir, inputs, make_pod, moment, roster

from pykubelet.base.kit.checks import BrokenInvariantError
from pykubelet.base.kit.values import replace
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.paths import Beneath, Paths
from pykubelet.provide.volumes.decide import step_all
from pykubelet.provide.volumes.invariants import DEVICES, VOLUMES, check_device, check_invariants, check_volume
from pykubelet.provide.volumes.kind import FoundDevice
from pykubelet.provide.volumes.model import (
    DevicePhase,
    DeviceState,
    InputsChanged,
    MountPhase,
    PodDirectory,
    PodVolumes,
    Result,
    Scanned,
    SetUpEnded,
    State,
    VolumeState,
)

UID = PodUID("u1")
FOUND = FoundDevice("d", "csi", Beneath("/k", "d"))


def mounted() -> State:
    """The state with the one volume `data` of a pod mounted."""
    events = (InputsChanged(inputs(roster(make_pod(empty_dir())))), Scanned(()), SetUpEnded(UID, "data", Result.DONE))
    return step_all(State(), events, moment(), Paths("/k", "/logs"))[0]


def with_pod(state: State, pod: PodVolumes) -> State:
    return replace(state, pods={UID: pod})


def with_volume(state: State, volume: VolumeState) -> State:
    return with_pod(state, replace(state.pods[UID], volumes={"data": volume}))


@pytest.mark.parametrize(("table", "phases"), [(VOLUMES, MountPhase), (DEVICES, DevicePhase)])
def test_each_phase_is_reached_from_nothing_and_can_end(
    table: Mapping[Any, Collection[Any]], phases: type[StrEnum]
) -> None:
    assert set(table) == {None, *phases}
    reached, ends = set(table[None]), set[Any]([None])
    for _ in phases:
        reached |= {after for phase in reached for after in table[phase]}
        ends |= {phase for phase in phases if ends & set(table[phase])}
    assert reached == {None, *phases} == ends


def test_a_change_that_is_not_in_the_table_is_named() -> None:
    new, busy = VolumeState("data", MountPhase.NEW, 0.0), VolumeState("data", MountPhase.TEARING_DOWN, 0.0)
    check_volume(UID, "data", None, new)
    check_volume(UID, "data", new, new)
    with pytest.raises(BrokenInvariantError, match="volume data of pod u1: tearing down is not followed by new"):
        check_volume(UID, "data", busy, new)
    staged = DeviceState(FOUND, DevicePhase.STAGED, 0.0)
    with pytest.raises(BrokenInvariantError, match="device d: staged is not followed by not known"):
        check_device("d", staged, None)


def test_a_volume_that_breaks_a_rule_is_named_with_its_pod() -> None:
    state = mounted()
    check_invariants(state)
    volume = state.pods[UID].volumes["data"]
    assert volume.phase is MountPhase.MOUNTED
    for broken, rule in (
        (replace(volume, mounted=None), "what is mounted is known exactly if it is mounted"),
        (replace(volume, plan=None), "only a planned volume is set up"),
        (replace(volume, is_cancelled=True), "only a set-up is cancelled"),
    ):
        with pytest.raises(BrokenInvariantError, match=rf"volume data of pod web_shop.*, mounted: broken rule: {rule}"):
            check_invariants(with_volume(state, broken))


def test_a_pod_that_breaks_a_rule_is_named() -> None:
    state = mounted()
    pod = state.pods[UID]
    for broken, rule in (
        (replace(pod, busy=frozenset({"data"})), "the busy volumes are those on which an operation runs"),
        (replace(pod, directory=PodDirectory.REMOVING), "the directory is removed when no volume is left"),
        (replace(pod, used={}), "the strays are the volumes that it is not known to use"),
    ):
        with pytest.raises(BrokenInvariantError, match=f"pod web_shop.*: broken rule: {rule}"):
            check_invariants(with_pod(state, broken))


def test_a_device_that_breaks_a_rule_is_named() -> None:
    state = mounted()
    for device, rule in (
        (DeviceState(FOUND, DevicePhase.STAGING, 0.0), "the operation that runs is the last one"),
        (
            DeviceState(FOUND, DevicePhase.WANTED, 0.0, left_by_previous_run=True),
            "what an earlier agent has left may be staged",
        ),
    ):
        with pytest.raises(BrokenInvariantError, match=f"device d, {device.phase}: broken rule: {rule}"):
            check_invariants(replace(state, devices={"d": device}))


def test_an_index_that_differs_from_the_volumes_is_found() -> None:
    state = mounted()
    wrong = replace(state.users, by_device={"d": {(UID, "data"): None}})
    with pytest.raises(BrokenInvariantError, match="the indices are those of the volumes"):
        check_invariants(replace(state, users=wrong))
    with pytest.raises(BrokenInvariantError, match="each has a view"):
        check_invariants(replace(state, views={}))
