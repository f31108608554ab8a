"""What pods with very many containers get, and that the work for them grows with their number only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from provide.placement.together import make_managers
from support.cost import count_instructions
from support.machines import Shape

from pykubelet.base.api.core import Container, Pod
from pykubelet.base.kit.values import replace
from pykubelet.base.model.machine import TopologyHint
from pykubelet.base.model.placement import MemoryBlock
from pykubelet.base.model.restart import is_sidecar
from pykubelet.provide.placement.managers import Managers
from pykubelet.provide.placement.memory_manager import MemoryManager, MemoryPolicy
from pykubelet.provide.placement.memory_reserved import unused_machine
from pykubelet.provide.placement.memory_state import MemoryState
from pykubelet.provide.placement.topology_scopes import Admitted, admit

GI = 1 << 30
#: What twice as many containers may cost: twice as much, and a part that all pods have.
DOUBLED = 2.2


def make_pod(init: Sequence[dict[str, Any]], regular: Sequence[dict[str, Any]]) -> Pod:
    spec = {"initContainers": list(init), "containers": list(regular)}
    return msgspec.convert({"metadata": {"uid": "a", "name": "a", "namespace": "default"}, "spec": spec}, Pod)


def container(name: str, cpu: str = "100m", memory: str = "1Mi", restart: str = "") -> dict[str, Any]:
    amounts = {"cpu": cpu, "memory": memory}
    return {"name": name, "restartPolicy": restart, "resources": {"requests": amounts, "limits": amounts}}


def pod_of(count: int, kind: str) -> Pod:
    """A Guaranteed pod with so many containers. `kind`: what most of them are."""
    cpu = "1" if "exclusive" in kind else "100m"
    if "regular" in kind:
        return make_pod([], [container(f"c{n}", cpu) for n in range(count)])
    if "half" in kind:
        half = count // 2
        return make_pod([container(f"i{n}", cpu) for n in range(half)], [container(f"c{n}") for n in range(half)])
    restart = "Always" if "sidecar" in kind else ""
    sizes = {"growing": range(count), "shrinking": range(count, 0, -1)}.get(kind, [1] * count)
    init = [container(f"i{n}", cpu, f"{size + 1}Mi", restart) for n, size in enumerate(sizes)]
    return make_pod(init, [container("c", cpu)])


@pytest.mark.parametrize(
    "kind", ["init", "init exclusive", "growing", "shrinking", "sidecar", "half init", "regular", "pod scope"]
)
def test_the_work_for_a_pod_grows_with_the_number_of_its_containers(kind: str) -> None:
    shape = Shape(sockets=2, cores_per_node=64, node_memory=1000 * GI)
    scope = "pod" if kind == "pod scope" else "container"
    managers = make_managers(shape, "best-effort", scope)
    once, twice = (work_for(managers, pod_of(count, kind)) for count in (40, 80))
    for step, work in twice.items():
        assert work <= DOUBLED * once[step], f"{step}: {once[step]}, {work}"


def work_for(managers: Managers, pod: Pod) -> Mapping[str, int]:
    """The instructions for each step of the pod's life."""
    result = admit(managers.topology, managers.providers, pod)
    assert isinstance(result, Admitted), result
    after = managers.with_providers(result.providers)
    last = pod.spec.containers[-1].name
    return {
        "admit": count_instructions(lambda: admit(managers.topology, managers.providers, pod)),
        "admit again": count_instructions(lambda: admit(after.topology, after.providers, pod)),
        "release": count_instructions(lambda: after.release(["a"])),
        "release init": count_instructions(lambda: after.memory.release_completed(pod, last)),
    }


# the memory of init containers that later ones reuse


def shrunk_by_definition(
    state: MemoryState, pod: Pod, container: Container, taken: Sequence[MemoryBlock]
) -> Mapping[str, tuple[MemoryBlock, ...]]:
    """The pod's entries after a container has reused blocks of the plain init containers before it, the first one first."""
    entries = {**state.entries["a"]}
    left = {block.type: block.size for block in taken}
    nodes = {frozenset(block.nodes) for block in taken}
    for init in pod.spec.initContainers:
        if init.name == container.name:
            break
        if is_sidecar(init) or init.name not in entries:
            continue
        shrunk = []
        for block in entries[init.name]:
            reused = min(block.size, left.get(block.type, 0)) if frozenset(block.nodes) in nodes else 0
            left[block.type] = left.get(block.type, 0) - reused
            shrunk.append(replace(block, size=block.size - reused))
        entries[init.name] = tuple(shrunk)
    return entries


@st.composite
def pods(draw: st.DrawFn) -> Pod:
    def drawn(name: str, restart: str) -> dict[str, Any]:
        made = container(name, memory=f"{draw(st.integers(1, 6))}Gi", restart=restart)
        pages = draw(st.sampled_from(["", "1Gi", "2Gi"]))
        for amounts in made["resources"].values() if pages else ():
            amounts["hugepages-1Gi"] = pages
        return made

    init = [drawn(f"i{n}", draw(st.sampled_from(["", "", "Always"]))) for n in range(draw(st.integers(0, 7)))]
    return make_pod(init, [drawn(f"c{n}", "") for n in range(draw(st.integers(1, 4)))])


@settings(max_examples=100, deadline=None)
@given(pods(), st.data())
def test_what_init_containers_leave_is_used_as_by_the_definition(pod: Pod, data: st.DataObject) -> None:
    hints = st.sampled_from([None, frozenset({0}), frozenset({1}), frozenset({0, 1})])
    containers = (*pod.spec.initContainers, *pod.spec.containers)
    names = [c.name for c in containers]
    nodes = [replace(node, huge_pages={GI: 20}) for node in Shape(sockets=2, node_memory=100 * GI).machine.nodes]
    manager = MemoryManager(MemoryPolicy.STATIC, MemoryState(unused_machine(nodes, {})))
    for _ in range(2):  # the second time, some containers have been released, and the agent may have been restarted
        for c in containers:
            before = manager.state
            after = manager.allocate(pod, c, TopologyHint(data.draw(hints), False)).after
            if not isinstance(after, MemoryManager):
                continue
            if before.blocks("a", c.name) is None:
                taken = after.state.entries["a"][c.name]
                with_taken = before.with_entries("a", {c.name: taken})
                assert after.state.entries["a"] == shrunk_by_definition(with_taken, pod, c, taken)
                assert list(after.state.entries["a"]) == list(with_taken.entries["a"])
            manager = after
        manager = manager.release("a", *data.draw(st.lists(st.sampled_from(names), unique=True)))
        if data.draw(st.booleans()):
            manager = replace(manager, reusable_pod="", reusable={}, lenders=None)
