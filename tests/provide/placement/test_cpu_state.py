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
WITH_POOL = CpuState(BOTH.default, BOTH.assignments, pools={"pod": parse_cpuset("4-6")})
#: As a kubelet 1.36 writes it with the gate PodLevelResourceManagers.
OF_1_36 = (
    '{"policyName":"none","defaultCpuSet":"1-3","entries":{"pod":{"container1":"4-6","container2":"1-3"}},'
    '"podEntries":{"pod":{"cpuSet":"4-6"}},"checksum":2649431787}'
)


def changed_data(old: str, new: str) -> str:
    """A file of 1.37 whose data was changed."""
    document = json.loads(encode("none", WITH_POOL, has_data=True))
    return json.dumps({**document, "data": document["data"].replace(old, new)})


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
        (OF_1_36, WITH_POOL),
        (encode("none", WITH_POOL, has_data=True), WITH_POOL),
        (encode("none", BOTH, has_data=True), BOTH),
        (encode("none", CpuState(), has_data=True), CpuState()),
        # without data, a checksum of 0 is that of an old file, which has no entries of pods
        (OF_1_36.replace("2649431787", "0"), BOTH),
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
                     "podEntries": {"pod": {"cpuSet": "4-7"}}, "checksum": 2649431787}), "checkpoint is corrupted"),
        (changed_data("4-6", "4-7"), "could not load v4 checkpoint: checkpoint is corrupted"),
        (json.dumps({"data": "{"}), "could not load v4 checkpoint: checkpoint is corrupted"),
        (json.dumps({"data": "", "dataChecksum": 3}), "could not load v4 checkpoint: checkpoint is corrupted"),
        (text("none", "1-3", {}, 0)[:-1] + ', "podEntries": {"pod": {"cpuSet": 4}}}',
         "json: podEntries.pod.cpuSet must be a string"),
        (text("none", "1-3", {}, 0)[:-1] + ', "podEntries": {"pod": {"cpuSet": "4-"}}}',
         'could not parse cpuset "4-" of pod "pod": "" is not the number of a CPU'),
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


def test_a_file_of_1_37_is_that_of_1_36_with_the_whole_state_as_data() -> None:
    document = json.loads(encode("none", WITH_POOL, has_data=True))
    data = (
        '{"policyName":"none","defaultCpuSet":"1-3","entries":{"pod":{"container1":"4-6","container2":"1-3"}},'
        '"podEntries":{"pod":{"cpuSet":"4-6"}}}'
    )
    assert document.pop("data") == data
    assert document.pop("dataChecksum") == checksum(f"(string){data}")
    assert json.dumps(document, separators=(",", ":")) == encode("none", BOTH), "a kubelet 1.36 reads this"


def test_a_kubelet_without_data_reads_the_file_as_one_of_before() -> None:
    """The keys that it does not know are ignored, as here with all of them."""
    document = json.loads(encode("none", WITH_POOL, has_data=True))
    older = {key: value for key, value in document.items() if not key.startswith("data")}
    assert decode(json.dumps(older), "none", {}) == BOTH


def test_entries_of_pods_without_a_pod_have_a_checksum_of_their_own() -> None:
    """A kubelet 1.36 with the gate writes them, though they are not in the text."""
    dump = (
        "(*state.CPUManagerCheckpoint){PolicyName:(string)none DefaultCPUSet:(string)1-3 "
        "Entries:(map[string]map[string]string)map[] PodEntries:(state.PodCPUAssignments)map[] "
        "Checksum:(checksum.Checksum)0}"
    )
    given = json.dumps({"policyName": "none", "defaultCpuSet": "1-3", "checksum": checksum(dump)})
    assert decode(given, "none", {}) == CpuState(parse_cpuset("1-3"))


@pytest.mark.parametrize(
    ("state", "content"),
    [
        (CpuState(parse_cpuset("4-6")), '{"policyName":"none","defaultCpuSet":"4-6","checksum":354655845}'),
        (BOTH, '{"policyName":"none","defaultCpuSet":"1-3","entries":{"pod":{"container1":"4-6","container2":"1-3"}},'
               '"checksum":3610638499}'),
        (WITH_POOL, OF_1_36),
    ],
)  # fmt: skip
def test_files_are_written_as_the_reference_does(state: CpuState, content: str) -> None:
    assert encode("none", state) == content


names = st.text("abc-.é<", min_size=1, max_size=4)
cpus = st.frozensets(st.integers(0, 300), min_size=1, max_size=9)
states = st.builds(
    CpuState,
    cpus,
    st.dictionaries(names, st.dictionaries(names, cpus, min_size=1, max_size=3), max_size=3),
    pools=st.dictionaries(names, cpus, max_size=2),
)


@given(states, st.booleans())
def test_what_is_written_is_read(state: CpuState, has_data: bool) -> None:
    assert decode(encode("static", state, has_data=has_data), "static", {}) == state


@given(states, st.booleans(), st.data())
def test_a_file_that_is_cut_short_is_refused(state: CpuState, has_data: bool, data: st.DataObject) -> None:
    content = encode("static", state, has_data=has_data)
    with pytest.raises(StateFileError):
        decode(content[: data.draw(st.integers(0, len(content) - 1))], "static", {})
