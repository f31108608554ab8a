"""The point `place_memory`: which NUMA nodes an extension may choose, what counts of its answers, and that all else is as with `Static`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from app.extensions.conftest import Host
from provide.placement.test_memory_manager import GI, NO_HINT, container, make_pod, nodes_with
from provide.placement.test_memory_manager import started as memory_started
from support.machines import Shape

from pykubelet.app.extensions.load import check_policy, load_extensions
from pykubelet.base.api.core import Pod
from pykubelet.base.kit.values import replace
from pykubelet.base.model.machine import TopologyHint
from pykubelet.config.combine import File, FlagInput, combine
from pykubelet.config.errors import ConfigError
from pykubelet.config.settings import Flags, Settings
from pykubelet.extension import Extension, MemoryMachine, MemoryRequest
from pykubelet.provide.placement import memory_state
from pykubelet.provide.placement.managers import Managers
from pykubelet.provide.placement.memory_manager import MemoryManager
from pykubelet.provide.placement.start import StateTexts, start_managers

DUAL = Shape(sockets=2, cores_per_node=3)
HEAD = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
Answer = Callable[[MemoryRequest, MemoryMachine], Any]


class Booking(Extension):
    name, api = "booking", "1.0"

    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self.answer = answer
        self.seen: list[tuple[MemoryRequest, MemoryMachine]] = []

    def place_memory(self, request: MemoryRequest, machine: MemoryMachine) -> Any:
        self.seen.append((request, machine))
        return self.answer(request, machine)


def second(_request: MemoryRequest, _machine: MemoryMachine) -> frozenset[int]:
    return frozenset({1})


def manager_of(host: Host) -> MemoryManager:
    return replace(memory_started(nodes=nodes_with(4 * GI, 4 * GI)), choose=host.points.place_memory["booking"])


def pod_with(size: str, uid: str = "p") -> Pod:
    return make_pod([container("main", "app", memory=size)], uid)


def booked(manager: MemoryManager, pod: Pod, hint: TopologyHint = NO_HINT) -> MemoryManager:
    after = manager.allocate(pod, pod.spec.containers[0], hint).after
    assert isinstance(after, MemoryManager), after
    return after


def nodes_of(manager: MemoryManager, uid: str = "p") -> set[int]:
    return {node for block in manager.blocks(uid, "main") for node in block.nodes}


def test_the_extension_chooses_the_nodes(hosts: Callable[..., Host]) -> None:
    extension = Booking(second)
    host = hosts(extension)
    manager = booked(manager_of(host), pod_with("1Gi"))
    assert nodes_of(manager) == {1} and host.state.error == ""
    request, machine = extension.seen[0]
    assert request.sizes == {"memory": GI} and request.container is not None and request.container.name == "main"
    assert [(sorted(choice.numa_nodes), choice.is_smallest) for choice in request.choices] == [
        ([0], True),
        ([1], True),
        ([0, 1], False),
    ]
    assert [(node.id, sorted(node.group), node.blocks) for node in machine.nodes] == [(0, [0], 0), (1, [1], 0)]
    assert machine.nodes[1].free == machine.nodes[1].allocatable


def test_it_may_choose_more_nodes_than_needed_and_these_stay_together(hosts: Callable[..., Host]) -> None:
    extension = Booking(lambda request, _machine: request.choices[-1].numa_nodes)
    manager = booked(manager_of(hosts(extension)), pod_with("1Gi"))
    manager = booked(manager, pod_with("1Gi", "q"))
    assert nodes_of(manager) == nodes_of(manager, "q") == {0, 1}
    assert [sorted(choice.numa_nodes) for choice in extension.seen[1][0].choices] == [[0, 1]]
    assert [sorted(node.group) for node in extension.seen[1][1].nodes] == [[0, 1], [0, 1]]


def test_the_choice_of_the_topology_manager_stands(hosts: Callable[..., Host]) -> None:
    extension = Booking(second)
    manager = booked(manager_of(hosts(extension)), pod_with("1Gi"), TopologyHint(frozenset({0}), True))
    assert nodes_of(manager) == {0} and extension.seen == []


def test_what_is_preferred_does_not_become_worse(hosts: Callable[..., Host]) -> None:
    extension = Booking(lambda _request, _machine: None)
    booked(manager_of(hosts(extension)), pod_with("1Gi"), TopologyHint(None, True))
    assert [sorted(choice.numa_nodes) for choice in extension.seen[0][0].choices] == [[0], [1]]


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (1, "the answer must be a frozenset of ids of NUMA nodes"),
        (frozenset({"1"}), "the answer must be a frozenset of ids of NUMA nodes"),
        (frozenset({2}), "NUMA nodes 2 are none of the request's choices"),
        (frozenset(), "NUMA nodes (none) are none of the request's choices"),
    ],
)
def test_a_wrong_answer_means_the_choice_of_static(hosts: Callable[..., Host], answer: Any, problem: str) -> None:
    host = hosts(Booking(lambda _request, _machine: answer))
    assert nodes_of(booked(manager_of(host), pod_with("1Gi"))) == {0}
    assert host.state.error == f"place_memory: {problem}"


def test_a_node_that_is_full_is_no_choice(hosts: Callable[..., Host]) -> None:
    host = hosts(Booking(second))
    manager = booked(manager_of(host), pod_with("2Gi"))
    assert nodes_of(booked(manager, pod_with("3Gi", "q")), "q") == {0}
    assert "NUMA nodes 1 are none" in host.state.error


# configuration and state file


def settings_of(policy: str, *extension: str) -> Settings:
    reserved = (
        "reservedMemory:\n- {numaNode: 0, limits: {memory: 1Gi}}\nsystemReserved: {memory: 1Gi}\nevictionHard: {}\n"
    )
    text = f"{HEAD}memoryManagerPolicy: {policy}\n{reserved}"
    return combine(File("f", text.encode()), (), FlagInput(flags=Flags(extension=extension)), None)


def test_the_state_file_is_that_of_static(hosts: Callable[..., Host]) -> None:
    """So the policy may be changed to and from it."""
    choose = hosts(Booking(second)).points.place_memory["booking"]
    texts = StateTexts("/k/cpu", "/k/mem")
    managers = start_managers(settings_of("booking", "x"), DUAL.machine, {}, texts, choose_memory=choose)
    assert isinstance(managers, Managers) and managers.places_memory
    memory = booked(managers.memory, pod_with("1Gi"))
    text = memory_state.encode(memory.policy, memory.state, has_data=True)
    assert '"policyName":"Static"' in text.replace(" ", "")
    static = start_managers(settings_of("Static"), DUAL.machine, {}, replace(texts, memory=text))
    assert isinstance(static, Managers) and nodes_of(static.memory) == {1}


def test_the_policy_must_be_one_of_the_extensions(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r'Valid options are "None" or "Static"'):
        settings_of("booking")
    config = settings_of("booking", "x").config
    for name, point in (("booking", "place_memory"), ("bookin", "place_memory"), ("booking", "place")):
        path = tmp_path / f"{name}-{point}.py"
        path.write_text(
            f"from pykubelet.extension import *\nclass X(Extension):\n    name, api = {name!r}, '1.0'\n"
            f"    def {point}(self, a, b):\n        return None\n"
        )
        loaded = load_extensions([str(path)])
        if (name, point) == ("booking", "place_memory"):
            check_policy(config, loaded)
            continue
        with pytest.raises(
            ConfigError, match="no extension of --extension is named booking and defines `place_memory`"
        ):
            check_policy(config, loaded)
