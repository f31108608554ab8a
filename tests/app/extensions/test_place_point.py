"""The point `place`: what an extension gets of the machine, what counts of its answers, and that all else is as with `static`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from app.extensions.conftest import Host
from provide.placement.cpu_pods import admitted, make_manager, make_pod, shown
from support.machines import Shape

from pykubelet.app.extensions.load import LoadedExtensions, check_policy, load_extensions
from pykubelet.base.kit.values import replace
from pykubelet.base.model.machine import TopologyHint
from pykubelet.config.combine import File, FlagInput, combine
from pykubelet.config.errors import ConfigError
from pykubelet.config.kubelet import KubeletConfiguration
from pykubelet.config.settings import Flags, Settings
from pykubelet.extension import CpuMachine, CpuRequest, Extension
from pykubelet.provide.placement import cpu_state
from pykubelet.provide.placement.cpu_manager import CpuManager
from pykubelet.provide.placement.managers import Managers
from pykubelet.provide.placement.provider import ManagerStartError
from pykubelet.provide.placement.start import StateTexts, start_managers

DUAL = Shape(sockets=2, cores_per_node=3)  # node 0: 0-2,6-8; node 1: 3-5,9-11
HEAD = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
SPREAD = """
from pykubelet.extension import *
class Spread(Extension):
    name, api = '{name}', '1.0'
    def {point}(self, a, b):
        return None
"""
Place = Callable[[CpuRequest, CpuMachine], Any]


class Placing(Extension):
    name, api = "spread", "1.0"

    def __init__(self, answer: Place) -> None:
        super().__init__()
        self.answer = answer
        self.seen: list[tuple[CpuRequest, CpuMachine]] = []

    def place(self, request: CpuRequest, machine: CpuMachine) -> Any:
        self.seen.append((request, machine))
        return self.answer(request, machine)


def highest(request: CpuRequest, machine: CpuMachine) -> frozenset[int]:
    return frozenset(sorted(machine.free)[-request.cpus :])


def manager_of(host: Host, shape: Shape = DUAL, options: tuple[str, ...] = ()) -> CpuManager:
    manager = make_manager(shape, options)
    return replace(manager, policy=replace(manager.policy, name="spread", choose=host.points.place["spread"]))


def test_the_extension_chooses_the_cpus(hosts: Callable[..., Host]) -> None:
    extension = Placing(highest)
    manager = admitted(manager_of(hosts(extension)), make_pod("p", "2", "1"))
    assert shown(manager.state) == {"default": "0-8", "p/c0": "10-11", "p/c1": "9"}
    (first, machine), (second, later) = extension.seen
    assert (first.pod.uid, first.container.name, first.cpus, first.numa_nodes) == ("p", "c0", 2, None)
    assert second.container.name == "c1" and later.free == machine.free - {10, 11}
    assert machine.reserved == {0} and 0 not in machine.free
    assert [(cpu.id, cpu.core, cpu.socket, cpu.numa_node, cpu.l3_cache) for cpu in machine.cpus][9] == (9, 3, 1, 1, 1)


def test_containers_that_get_no_exclusive_cpus_are_not_asked_for(hosts: Callable[..., Host]) -> None:
    extension = Placing(highest)
    manager = manager_of(hosts(extension))
    assert admitted(manager, make_pod("p", "500m")) == manager and extension.seen == []


def test_cpus_of_a_completed_init_container_are_offered_again(hosts: Callable[..., Host]) -> None:
    extension = Placing(lambda request, machine: request.reusable or highest(request, machine))
    manager = admitted(manager_of(hosts(extension)), make_pod("p", "2", init=("2",)))
    assert shown(manager.state) == {"default": "0-9", "p/i0": "10-11", "p/c0": "10-11"}


def test_a_pod_that_has_its_cpus_keeps_them(hosts: Callable[..., Host]) -> None:
    extension, pod = Placing(highest), make_pod("p", "2")
    manager = admitted(manager_of(hosts(extension)), pod)
    assert admitted(manager, pod).state.assignments == manager.state.assignments and len(extension.seen) == 1


def test_it_is_not_asked_where_there_are_not_enough(hosts: Callable[..., Host]) -> None:
    extension, pod = Placing(highest), make_pod("p", "12")
    manager = manager_of(hosts(extension))
    after = manager.allocate(pod, pod.spec.containers[0], TopologyHint(None, False)).after
    assert "not enough cpus available" in str(after) and extension.seen == []


NODE_0 = TopologyHint(frozenset({0}), True)
WRONG: list[tuple[Place, TopologyHint, tuple[str, ...], str]] = [
    (lambda r, m: [1, 2], TopologyHint(None, False), (), "the answer must be a frozenset of CPU ids"),
    (lambda r, m: frozenset({True, 2}), TopologyHint(None, False), (), "the answer must be a frozenset of CPU ids"),
    (lambda r, m: frozenset({1}), TopologyHint(None, False), (), "the answer must have 2 CPUs: it has 1"),
    (lambda r, m: frozenset({0, 1}), TopologyHint(None, False), (), "these CPUs are not free: 0"),
    (lambda r, m: frozenset({98, 99}), TopologyHint(None, False), (), "these CPUs are not free: 98-99"),
    (highest, NODE_0, (), "2 of the CPUs must be near ones of the request (1-2,6-8)"),
    (
        lambda r, m: frozenset({1, 2}),
        NODE_0,
        ("full-pcpus-only",),
        "with full-pcpus-only, the answer must have all threads of each core",
    ),
]


@pytest.mark.parametrize(("answer", "hint", "options", "problem"), WRONG)
def test_a_wrong_answer_means_the_choice_of_static(
    hosts: Callable[..., Host], answer: Place, hint: TopologyHint, options: tuple[str, ...], problem: str
) -> None:
    extension = Placing(answer)
    host, pod = hosts(extension), make_pod("p", "2")
    manager = admitted(manager_of(host, options=options), pod, hint)
    assert shown(manager.state) == shown(admitted(make_manager(DUAL, options), pod, hint).state)
    assert host.state.error == f"place: {problem}"
    assert extension.seen[0][0].whole_cores is bool(options)


def test_of_the_numa_nodes_as_many_as_are_free(hosts: Callable[..., Host]) -> None:
    extension = Placing(lambda request, machine: frozenset({1, 2, 6, 7, 8, 11}))
    host = hosts(extension)
    manager = admitted(manager_of(host), make_pod("p", "6"), NODE_0)
    assert shown(manager.state)["p/c0"] == "1-2,6-8,11" and host.state.error == ""
    assert extension.seen[0][0].numa_nodes == frozenset({0})


def test_none_means_the_choice_of_static(hosts: Callable[..., Host]) -> None:
    host, pod = hosts(Placing(lambda request, machine: None)), make_pod("p", "2")
    assert shown(admitted(manager_of(host), pod).state) == shown(admitted(make_manager(DUAL), pod).state)
    assert host.state.error == ""


# configuration and state file


def settings_of(policy: str, *extension: str) -> Settings:
    text = f"{HEAD}cpuManagerPolicy: {policy}\nreservedSystemCPUs: '0'\n"
    return combine(File("f", text.encode()), (), FlagInput(flags=Flags(extension=extension)), None)


def started(host: Host, text: str | None = None) -> Managers | ManagerStartError:
    choose = host.points.place.get("spread")
    return start_managers(
        settings_of("spread", "x"), DUAL.machine, {}, StateTexts("/k/cpu", "/k/mem", text), None, choose
    )


def test_the_state_file_has_the_name_of_the_policy(hosts: Callable[..., Host]) -> None:
    host = hosts(Placing(highest))
    managers = started(host)
    assert isinstance(managers, Managers) and managers.cpus is not None
    managers = replace(managers, cpus=admitted(managers.cpus, make_pod("p", "2")))
    text = cpu_state.encode(managers.cpu_policy, managers.cpu_state, has_data=True)
    assert '"policyName":"spread"' in text.replace(" ", "")
    again = started(host, text)
    assert isinstance(again, Managers) and again.cpu_state.own("p", "c0") == {10, 11}
    other = start_managers(settings_of("static"), DUAL.machine, {}, StateTexts("/k/cpu", "/k/mem", text))
    assert isinstance(other, ManagerStartError)
    assert 'configured policy "static" differs from state checkpoint policy "spread"' in other.text


def test_a_policy_without_an_extension_is_refused_as_ever() -> None:
    with pytest.raises(ConfigError) as error:
        settings_of("spread")
    text = 'option "spread" specified for cpuManagerPolicy (--cpu-manager-policy). Valid options are "none" or "static"'
    assert text in str(error.value)


def write(folder: Path, name: str, point: str) -> LoadedExtensions:
    path = folder / f"{name}.py"
    path.write_text(SPREAD.format(name=name, point=point))
    return load_extensions([str(path)])


def test_the_policy_must_be_one_of_the_extensions(tmp_path: Path) -> None:
    config = settings_of("spread", "x").config
    check_policy(config, write(tmp_path, "spread", "place"))
    check_policy(KubeletConfiguration(), write(tmp_path, "cheap", "admit"))
    with pytest.raises(ConfigError) as error:
        check_policy(config, write(tmp_path, "sprad", "place"))
    assert str(error.value) == (
        'option "spread" specified for cpuManagerPolicy (--cpu-manager-policy). Valid options are "none", "static" or "sprad": '
        "no extension of --extension is named spread and defines `place`"
    )


def test_a_built_in_policy_cannot_be_replaced(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="static is a built-in policy of the CPU manager"):
        write(tmp_path, "static", "place")
