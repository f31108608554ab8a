"""Which host ids pods get."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykubelet.act.runtime.lifecycle.decide_userns import (
    IdSlots,
    MappingError,
    format_mapping,
    namespace_at,
    parse_mapping,
    user_namespace_refusal,
)
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.node import HandlerFeatures

A, B, C, D = (PodUID(name) for name in "abcd")
LENGTH = 65536
SLOTS = IdSlots(first=2 * LENGTH, length=LENGTH, count=3)


def first_id(slots: IdSlots, uid: PodUID) -> int:
    found = slots.namespace_of(uid)
    assert found is not None and found.uids == found.gids and len(found.uids) == 1
    assert (found.uids[0].container_id, found.uids[0].length) == (0, LENGTH)
    return found.uids[0].host_id // LENGTH


def test_each_pod_gets_the_first_free_range() -> None:
    slots = SLOTS.take(A).take(B).take(C)
    assert [first_id(slots, uid) for uid in (A, B, C)] == [2, 3, 4]
    assert slots.is_full
    assert slots.take(B) is slots
    with pytest.raises(MappingError, match=r"^could not find an empty slot to allocate a user namespace$"):
        slots.take(D)
    freed = slots.free(B)
    assert freed.namespace_of(B) is None
    assert first_id(freed.take(D), D) == 3
    assert freed.free(B) is freed


def test_what_pods_have_already_is_left_to_them() -> None:
    slots = SLOTS.record(A, namespace_at(3 * LENGTH, LENGTH)).take(B).take(C)
    assert [first_id(slots, uid) for uid in (A, B, C)] == [3, 2, 4]
    assert slots.record(A, namespace_at(3 * LENGTH, LENGTH)) is slots


@pytest.mark.parametrize(
    ("uid", "host_id", "length", "message"),
    [
        (B, 3 * LENGTH, 1000, "wrong user namespace length 1000"),
        (B, 3 * LENGTH + 1, LENGTH, "wrong user namespace offset specified 196609"),
        (B, 5 * LENGTH, LENGTH, "id 327680 is out of range"),
        (B, 0, LENGTH, "id 0 is out of range"),
        (B, 2 * LENGTH, LENGTH, 'range picked for pod "b" already taken'),
        (A, 3 * LENGTH, LENGTH, 'different user namespace range already used by pod "a"'),
    ],
)
def test_ranges_that_cannot_be(uid: PodUID, host_id: int, length: int, message: str) -> None:
    with pytest.raises(MappingError) as caught:
        SLOTS.take(A).record(uid, namespace_at(host_id, length))
    assert str(caught.value) == message


@given(st.lists(st.tuples(st.booleans(), st.sampled_from([PodUID(f"p{n}") for n in range(9)])), max_size=60))
def test_no_two_pods_ever_share_ids(steps: list[tuple[bool, PodUID]]) -> None:
    slots = IdSlots(LENGTH, LENGTH, 5)
    for takes, uid in steps:
        if not takes:
            slots = slots.free(uid)
        elif slots.is_full and uid not in slots.holders:
            with pytest.raises(MappingError):
                slots.take(uid)
        else:
            slots = slots.take(uid)
        given_out = [first_id(slots, pod) for pod in slots.holders]
        assert len(set(given_out)) == len(given_out) == slots.used.bit_count()
        assert all(1 <= number <= 5 for number in given_out)


def test_the_file_is_the_references() -> None:
    text = (
        b'{"uidMappings":[{"hostId":131072,"containerId":0,"length":65536}],'
        b'"gidMappings":[{"hostId":131072,"containerId":0,"length":65536}]}'
    )
    assert format_mapping(namespace_at(2 * LENGTH, LENGTH)) == text
    assert parse_mapping(text) == namespace_at(2 * LENGTH, LENGTH)


ONE = '{"hostId":65536,"containerId":0,"length":65536}'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "invalid user namespace mappings file: "),
        ("\x00\x00", "invalid user namespace mappings file: "),
        ("[]", "invalid user namespace mappings file: "),
        ('{"uidMappings":null}', "invalid user namespace mappings file: "),
        (f'{{"uidMappings":[{ONE}]', "invalid user namespace mappings file: "),
        ('{"uidMappings":[],"gidMappings":[]}', "no more than one mapping allowed"),
        (f'{{"uidMappings":[{ONE},{ONE}],"gidMappings":[{ONE},{ONE}]}}', "no more than one mapping allowed"),
        (f'{{"uidMappings":[{ONE}],"gidMappings":[]}}', "GID and UID mapping should be identical"),
        (
            f'{{"uidMappings":[{ONE}],"gidMappings":[{ONE.replace("65536", "131072", 1)}]}}',
            "GID and UID mapping should be identical",
        ),
        (
            '{"uidMappings":[X],"gidMappings":[X]}'.replace("X", ONE.replace(":0", ":1")),
            "UID 0 must be mapped",
        ),
    ],
)
def test_files_that_are_malformed(text: str, message: str) -> None:
    with pytest.raises(MappingError, match=message):
        parse_mapping(text.encode())


@given(st.binary(max_size=200))
def test_any_file_is_read_or_refused(data: bytes) -> None:
    with pytest.raises(MappingError):
        parse_mapping(data)


def test_runtimes_that_cannot() -> None:
    assert user_namespace_refusal("", HandlerFeatures(user_namespaces=True)) == ""
    plain = "can't set `spec.hostUsers: false`, runtime does not support user namespaces"
    assert user_namespace_refusal("", HandlerFeatures()) == plain
    assert user_namespace_refusal("", None) == f'{plain}: the handler "" is not known'
    named = 'can\'t set `spec.hostUsers: false`, RuntimeClass handler "kata" does not support user namespaces'
    assert user_namespace_refusal("kata", HandlerFeatures()) == named
