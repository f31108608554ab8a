"""The file cpu_manager_state: written as the reference writes it, read in all formats, refused when damaged."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykubelet.base.kit.cpuset import parse_cpuset
from pykubelet.provide.placement.checkpoint import StateFileError, checksum
from pykubelet.provide.placement.cpu_manager import CpuState
from pykubelet.provide.placement.cpu_state import decode, encode, restore_error

CONTAINERS = {"containerID1": ("pod", "container1"), "containerID2": ("pod", "container2")}
BOTH = CpuState(parse_cpuset("1-3"), {"pod": {"container1": parse_cpuset("4-6"), "container2": parse_cpuset("1-3")}})


def text(policy: str, default: str, entries: object, value: object, key: str = "defaultCpuSet") -> str:
    return json.dumps({"policyName": policy, key: default, "entries": entries, "checksum": value})


ENTRIES = {"pod": {"container2": "1-3", "container1": "4-6"}}
FIRST = {"containerID1": "4-6", "containerID2": "1-3"}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (text("none", "4-6", {}, 354655845), CpuState(parse_cpuset("4-6"))),
        (text("none", "4-6", {}, 354655845, "defaultCPUSet"), CpuState(parse_cpuset("4-6"))),
        (text("none", "1-3", ENTRIES, 3610638499), BOTH),
        (text("none", "1-3", ENTRIES, 0), BOTH),
        ('{"policyName":"none","defaultCpuSet":"1-3","checksum":1694838852}', CpuState(parse_cpuset("1-3"))),
        (text("none", "1-3", FIRST, 3680390589), BOTH),
        (text("none", "1-3", FIRST, 0), BOTH),
        (text("none", "", None, 0), CpuState()),
    ],
)
def test_files_of_all_formats_are_read(content: str, expected: CpuState) -> None:
    assert decode(content, "none", CONTAINERS) == expected


def test_a_checksum_over_the_versioned_name_is_accepted() -> None:
    dump = (
        "(*state.CPUManagerCheckpointV2){PolicyName:(string)none DefaultCPUSet:(string)1-3 "
        "Entries:(map[string]map[string]string)map[pod:map[container1:4-6 container2:1-3]] Checksum:(checksum.Checksum)0}"
    )
    assert decode(text("none", "1-3", ENTRIES, checksum(dump)), "none", {}) == BOTH


def test_null_entries_have_a_checksum_of_their_own() -> None:
    dump = (
        "(*state.CPUManagerCheckpoint){PolicyName:(string)none DefaultCPUSet:(string) "
        "Entries:(map[string]map[string]string)map[a:<nil> b:map[]] Checksum:(checksum.Checksum)0}"
    )
    assert decode(text("none", "", {"a": None, "b": {}}, checksum(dump)), "none", {}).assignments == {"a": {}, "b": {}}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "unexpected end of JSON input"),
        ("{", "unexpected end of JSON input"),
        (text("none", "1-3", ENTRIES, 3610638499)[:-3], "unexpected end of JSON input"),
        (text("none", "1-3", ENTRIES, 3610638499)[:-20], "unexpected end of JSON input"),
        (text("none", "4-6", {}, 1337), "checkpoint is corrupted"),
        (text("none", "1-4", ENTRIES, 3610638499), "checkpoint is corrupted"),
        (text("none", "1-3", FIRST, 1), "checkpoint is corrupted"),
        (text("other", "1-3", {}, 1394507217),
         'configured policy "none" differs from state checkpoint policy "other"'),
        (text("none", "1.3", {}, 3021697696),
         'could not parse default cpu set "1.3": "1.3" is not the number of a CPU'),
        (text("none", "1-3", {"pod": {"container1": "4-6", "container2": "asd"}}, 962272150),
         'could not parse cpuset "asd" for container "container2" in pod "pod": '
         '"asd" is not the number of a CPU'),
        (text("none", "1-3", {"gone": "4-6"}, 0),
         "failed to migrate checkpoint from v1 to v2: containerID 'gone' not found in initial containers list"),
        (json.dumps({"policyName": "none", "defaultCPUSet": "1-3", "entries": ENTRIES,
                     "podEntries": {"pod": {"cpuSet": "4-6"}}, "checksum": 2649431787}), "checkpoint is corrupted"),
        ("[]", "json: the file must be an object"),
        (text("none", "1-3", {"pod": ["4-6"]}, 1), "json: entries.pod must be an object"),
        (text("none", "1-3", {"pod": {"c": 4}}, 1), "json: entries.pod.c must be a string"),
        (text("none", "1-3", {}, "1"), "json: checksum must be an integer from 0 to 18446744073709551615"),
    ],
)  # fmt: skip
def test_damaged_files_are_refused(content: str, message: str) -> None:
    with pytest.raises(StateFileError) as caught:
        decode(content, "none", CONTAINERS)
    assert str(caught.value) == message


def test_the_whole_message_names_the_file() -> None:
    assert restore_error(StateFileError("checkpoint is corrupted"), "/var/lib/kubelet/cpu_manager_state") == (
        "could not restore state from checkpoint: checkpoint is corrupted, please drain this node and delete the CPU manager "
        'checkpoint file "/var/lib/kubelet/cpu_manager_state" before restarting Kubelet'
    )


def test_the_checksum_of_pod_entries() -> None:
    """Of files that a kubelet with the gate PodLevelResourceManagers writes; they are refused here."""
    dump = (
        "(*state.CPUManagerCheckpoint){PolicyName:(string)none DefaultCPUSet:(string)1-3 "
        "Entries:(map[string]map[string]string)map[pod:map[container1:4-6 container2:1-3]] "
        "PodEntries:(state.PodCPUAssignments)map[pod:{CPUSet:(cpuset.CPUSet){elems:(map[int]struct {})map[4:{} 5:{} 6:{}]}}] "
        "Checksum:(checksum.Checksum)0}"
    )
    assert checksum(dump) == 2649431787


@pytest.mark.parametrize(
    ("state", "content"),
    [
        (CpuState(parse_cpuset("4-6")), '{"policyName":"none","defaultCpuSet":"4-6","checksum":354655845}'),
        (BOTH, '{"policyName":"none","defaultCpuSet":"1-3","entries":{"pod":{"container1":"4-6","container2":"1-3"}},'
               '"checksum":3610638499}'),
    ],
)  # fmt: skip
def test_files_are_written_as_the_reference_does(state: CpuState, content: str) -> None:
    assert encode("none", state) == content


names = st.text("abc-.é<", min_size=1, max_size=4)
cpus = st.frozensets(st.integers(0, 300), min_size=1, max_size=9)
states = st.builds(
    CpuState, cpus, st.dictionaries(names, st.dictionaries(names, cpus, min_size=1, max_size=3), max_size=3)
)


@given(states)
def test_what_is_written_is_read(state: CpuState) -> None:
    assert decode(encode("static", state), "static", {}) == state


@given(states, st.data())
def test_a_file_that_is_cut_short_is_refused(state: CpuState, data: st.DataObject) -> None:
    content = encode("static", state)
    with pytest.raises(StateFileError):
        decode(content[: data.draw(st.integers(0, len(content) - 1))], "static", {})
