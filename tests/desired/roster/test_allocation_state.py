"""The files with the sizes of all pods: one content after the other, and what each of them costs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from hypothesis import given
from hypothesis import strategies as st

from pykubelet.base.api.core import ResourceRequirements
from pykubelet.base.kit.fnv import fnv1a_32
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.sizing import PodSize
from pykubelet.desired.roster.allocation_state import StateEncoder, decode_state


def size(cpu: str) -> PodSize:
    return PodSize(containers={"app": ResourceRequirements(requests={"cpu": cpu})})


class Counted(Mapping[str, ResourceRequirements]):
    """Containers that count how often they are read."""

    def __init__(self) -> None:
        self._containers = {"app": ResourceRequirements(requests={"cpu": "1"})}
        self.reads = 0

    def __getitem__(self, name: str) -> ResourceRequirements:
        return self._containers[name]

    def __len__(self) -> int:
        return len(self._containers)

    def __iter__(self) -> Iterator[str]:
        self.reads += 1
        return iter(self._containers)


@given(st.lists(st.dictionaries(st.sampled_from("abcdefg"), st.sampled_from(("1", "2", "500m"))), max_size=12))
def test_each_content_is_whole_whatever_was_encoded_before(states: list[dict[str, str]]) -> None:
    encoder, sizes = StateEncoder(), {cpu: size(cpu) for cpu in ("1", "2", "500m")}
    for state in states:
        wanted = {PodUID(uid): sizes[cpu] for uid, cpu in state.items()}
        content = encoder.encode(wanted)
        assert decode_state(content) == wanted
        assert content == StateEncoder().encode(wanted)
        envelope = json.loads(content)
        assert envelope["checksum"] == fnv1a_32(b"(string)" + envelope["data"].encode())


def test_the_newest_pod_costs_the_same_among_few_and_among_many() -> None:
    """The checksum of 500 pods takes 15 ms."""
    reads = []
    for others in (50, 100, 200):
        encoder, pods = StateEncoder(), {PodUID(f"u-{n}"): PodSize(containers=Counted()) for n in range(others)}
        encoder.encode(pods)
        newest = {PodUID("new"): PodSize(containers=Counted())}
        counted = [size.containers for size in (pods | newest).values()]
        before = sum(c.reads for c in counted if isinstance(c, Counted))
        assert decode_state(encoder.encode(pods | newest)).keys() == (pods | newest).keys()
        assert decode_state(encoder.encode(pods)).keys() == pods.keys()
        reads.append(sum(c.reads for c in counted if isinstance(c, Counted)) - before)
    assert reads == [1, 1, 1]
