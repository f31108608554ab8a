"""The file of the Memory Manager's state: the reference's test values, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pykubelet.base.kit.values import replace
from pykubelet.base.model.placement import MemoryBlock
from pykubelet.provide.placement.checkpoint import StateFileError, checksum, member, read_json, write_json
from pykubelet.provide.placement.memory_state import MemoryState, MemoryTable, NodeMemory, decode, encode

NODE = {"total": 2048, "systemReserved": 512, "allocatable": 1536, "reserved": 512, "free": 1024}
FILE: dict[str, Any] = {
    "policyName": "static",
    "machineState": {"0": {"numberOfAssignments": 0, "memoryMap": {"memory": NODE}, "cells": []}},
    "entries": {"pod": {"container1": [{"numaAffinity": [0], "type": "memory", "size": 512}]}},
    "checksum": 4215593881,
}
STATE = MemoryState(
    {0: NodeMemory(0, {"memory": MemoryTable(2048, 512, 1536, 512, 1024)}, ())},
    {"pod": {"container1": (MemoryBlock((0,), "memory", 512),)}},
)
WITH_POD_ENTRIES = {"podEntries": {"pod": {"memoryBlocks": [{"numaAffinity": [0], "type": "memory", "size": 512}]}}}


def test_the_reference_s_test_value() -> None:
    assert decode(json.dumps(FILE, indent=2), "static") == STATE
    assert encode("static", STATE) == json.dumps(FILE, separators=(",", ":"))


def test_memory_of_pods_as_a_whole() -> None:
    with_pool = replace(STATE, pools={"pod": STATE.entries["pod"]["container1"]})
    of_1_36 = json.dumps({**{key: FILE[key] for key in ("policyName", "machineState", "entries")}, **WITH_POD_ENTRIES,
                          "checksum": 1278640530}, separators=(",", ":"))  # fmt: skip
    assert encode("static", with_pool) == of_1_36
    assert decode(of_1_36, "static") == with_pool
    document = json.loads(encode("static", with_pool, has_data=True))
    assert decode(json.dumps(document), "static") == with_pool
    data = document.pop("data")
    assert document.pop("dataChecksum") == checksum(f"(string){data}")
    assert document == FILE, "older kubelets read this"
    assert json.loads(data) == {key: value for key, value in json.loads(of_1_36).items() if key != "checksum"}


def test_no_entries_and_no_nodes() -> None:
    text = encode("None", MemoryState())
    assert text.startswith('{"policyName":"None","machineState":{},"checksum":')
    assert decode(text, "None") == MemoryState()
    assert decode('{"policyName": "None"}', "None") == MemoryState()


def changed(**changes: Any) -> str:
    return json.dumps({**FILE, **changes})


def test_older_files() -> None:
    assert decode(changed(checksum=0), "static") == STATE
    without = {key: value for key, value in FILE.items() if key != "checksum"}
    assert decode(json.dumps(without), "static") == STATE
    # Some versions had the version in the struct's name; keys are compared without case.
    dump = "(*state.MemoryManagerCheckpointV1){PolicyName:(string)P MachineState:(state.NUMANodeMap)map[]"
    value = checksum(f"{dump} Entries:(state.ContainerMemoryAssignments)map[] Checksum:(checksum.Checksum)0}}")
    assert decode(json.dumps({"POLICYNAME": "P", "machineState": {}, "CheckSum": value}), "P") == MemoryState()


def test_nulls_count_in_the_checksum_and_are_empty() -> None:
    table = "(uint64)0 ".join(
        f"{name}:" for name in ("TotalMemSize", "SystemReserved", "Allocatable", "Reserved", "Free")
    )
    nodes = (
        "2:<*>{NumberOfAssignments:(int)0 MemoryMap:(map[v1.ResourceName]*state.MemoryTable)<nil> Cells:([]int)<nil>}"
        " 10:<*>{NumberOfAssignments:(int)-1 MemoryMap:(map[v1.ResourceName]*state.MemoryTable)"
        f"map[b:<*>{{{table}(uint64)0}}] Cells:([]int)[1 2]}}"
    )
    entries = "a:<nil> b:map[c:<nil> d:[{NUMAAffinity:([]int)<nil> Type:(v1.ResourceName) Size:(uint64)0}]]"
    dump = (
        f"(*state.MemoryManagerCheckpoint){{PolicyName:(string)P MachineState:(state.NUMANodeMap)map[{nodes}]"
        f" Entries:(state.ContainerMemoryAssignments)map[{entries}] Checksum:(checksum.Checksum)0}}"
    )
    machine = {
        "10": {"numberOfAssignments": -1, "memoryMap": {"b": {}}, "cells": [1, 2]},
        "2": {"numberOfAssignments": None},
    }
    document = {"machineState": machine, "entries": {"b": {"d": [None], "c": None}, "a": None}, "policyName": "P"}
    state = decode(json.dumps({**document, "checksum": checksum(dump)}), "P")
    zero = MemoryTable(0, 0, 0, 0, 0)
    assert state.machine == {
        10: NodeMemory(-1, {"b": zero}, (1, 2)),
        2: NodeMemory(0, {}, ()),
    }
    assert state.entries == {"b": {"d": (MemoryBlock((), "", 0),), "c": ()}, "a": {}}
    nothing = "(*state.MemoryManagerCheckpoint){PolicyName:(string)P MachineState:(state.NUMANodeMap)<nil>"
    value = checksum(f"{nothing} Entries:(state.ContainerMemoryAssignments)<nil> Checksum:(checksum.Checksum)0}}")
    text = json.dumps({"policyName": "P", "machineState": None, "entries": None, "checksum": value})
    assert decode(text, "P") == MemoryState()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "unexpected end of JSON input"),
        ("{", "unexpected end of JSON input"),
        ("{]", "invalid JSON: "),
        ("[" * 100_000, "invalid JSON: "),
        ('{"checksum": ' + "9" * 5000 + "}", "invalid JSON: "),
        ("[]", "json: the file must be an object"),
        (changed(checksum=101010), "checkpoint is corrupted"),
        (changed(entries={}), "checkpoint is corrupted"),
        (changed(**WITH_POD_ENTRIES, checksum=1278640531), "checkpoint is corrupted"),
        (changed(data="{}", dataChecksum=1), "could not load v3 checkpoint: checkpoint is corrupted"),
        (changed(podEntries=[]), "json: podEntries must be an object"),
        (changed(podEntries={"p": {"memoryBlocks": {}}}), "json: podEntries.p must be an array"),
        (changed(checksum=True), "json: checksum must be an integer from 0 to 18446744073709551615"),
        (changed(checksum=-1), "json: checksum must be an integer"),
        (changed(policyName=3), "json: policyName must be a string"),
        (changed(machineState=[]), "json: machineState must be an object"),
        (changed(machineState={"x": {}}), 'json: machineState: "x" is not the id of a NUMA node'),
        (changed(machineState={"0": None}), "json: machineState.0 must be an object"),
        (changed(machineState={"0": {"memoryMap": {"memory": None}}}), "json: machineState.0.memory must be an object"),
        (changed(machineState={"0": {"cells": 1}}), "json: machineState.0 must be an array"),
        (
            changed(machineState={"0": {"memoryMap": {"memory": {"total": 1.5}}}}),
            "json: machineState.0.memory.total must be",
        ),
        (changed(entries={"p": {"c": [[]]}}), "json: entries.p.c must be an object"),
    ],
)
def test_what_is_refused(text: str, problem: str) -> None:
    with pytest.raises(StateFileError) as error:
        decode(text, "static")
    assert str(error.value).startswith(problem)


def test_another_policy() -> None:
    with pytest.raises(StateFileError) as error:
        decode(json.dumps(FILE), "Static")
    text = '[memorymanager] configured policy "Static" differs from state checkpoint policy "static"'
    assert str(error.value) == text


def test_json_as_the_reference_writes_it() -> None:
    assert (
        write_json({"b": "<&>\u2028", "a": [1, {"ü": None}]})
        == '{"b":"\\u003c\\u0026\\u003e\\u2028","a":[1,{"ü":null}]}'
    )
    assert member({"Key": 1, "KEY": 2, "other": 3}, "key") == 2
    assert member({}, "key") is None
    assert read_json(' {"a": 1} ') == {"a": 1}


NODES = st.lists(st.integers(0, 70), max_size=3).map(tuple)
SIZE = st.integers(0, 2**64 - 1)
NAME = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
TABLE = st.builds(MemoryTable, SIZE, SIZE, SIZE, SIZE, SIZE)
MACHINE = st.dictionaries(
    st.integers(0, 70),
    st.builds(NodeMemory, st.integers(0, 9), st.dictionaries(NAME, TABLE, max_size=2), NODES),
    max_size=3,
)
ENTRIES = st.dictionaries(
    NAME,
    st.dictionaries(NAME, st.lists(st.builds(MemoryBlock, NODES, NAME, SIZE), max_size=2).map(tuple), max_size=2),
    max_size=2,
)

POOLS = st.dictionaries(NAME, st.lists(st.builds(MemoryBlock, NODES, NAME, SIZE), max_size=2).map(tuple), max_size=2)


@settings(deadline=None)
@given(st.builds(MemoryState, MACHINE, ENTRIES, POOLS), st.booleans())
def test_what_is_written_can_be_read(state: MemoryState, has_data: bool) -> None:
    assert decode(encode("Static", state, has_data=has_data), "Static") == state
