"""The point `cgroup`: what an extension gets for containers and pods, what counts of its answers, and what takes them back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from act.runtime.rendering import CONTEXT, SETTINGS, make_pod, with_resources
from app.extensions.conftest import Host

from pykubelet.act.runtime.render.container_resources import container_resources
from pykubelet.act.runtime.render.container_values import ask_extensions, values_of
from pykubelet.act.runtime.render.context import RenderSettings
from pykubelet.app.extensions.cgroup_files import FILES, CgroupKernel
from pykubelet.app.extensions.load import LoadedExtension
from pykubelet.app.extensions.points import Asker
from pykubelet.app.parts import Points
from pykubelet.base.api.core import Container, EphemeralContainer
from pykubelet.base.kit.values import replace
from pykubelet.base.model.extensions import AskForValues
from pykubelet.base.model.placement import CpuSet
from pykubelet.edges.cri import cri_pb2
from pykubelet.edges.host.cgroups.cgroup_values import CgroupVersion, shares_to_weight, weight_to_shares
from pykubelet.extension import Container as ContainerView
from pykubelet.extension import Extension, Pod
from pykubelet.provide.cgroups import decide
from pykubelet.provide.cgroups.model import ResourceSettings

V2 = CgroupKernel(CgroupVersion.V2, frozenset(FILES))
V1 = CgroupKernel(
    CgroupVersion.V1,
    frozenset({"cpu.shares", "cpu.cfs_quota_us", "memory.limit_in_bytes", "pids.max", "cpu.rt_runtime_us"}),
)
MIB = 1 << 20
ANY_CPU = CpuSet()
Answer = Callable[[Pod, ContainerView | None, Mapping[str, str]], Any]
SIZED: dict[str, Any] = {"requests": {"cpu": "250m", "memory": "32Mi"}, "limits": {"cpu": "500m", "memory": "64Mi"}}


class Tiering(Extension):
    name, api = "tiering", "1.0"

    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self.answer = answer
        self.seen: list[tuple[Pod, ContainerView | None, dict[str, str]]] = []

    def cgroup(self, pod: Pod, container: ContainerView | None, values: Mapping[str, str]) -> Any:
        self.seen.append((pod, container, dict(values)))
        return self.answer(pod, container, values)


def points(host: Host, extension: Extension, kernel: CgroupKernel) -> Points:
    loaded = LoadedExtension(extension, "x.py", b"", ("cgroup",))
    return Asker([(loaded, host.guards[0])], lambda: kernel).points()


def rendered(
    ask: AskForValues | None,
    kernel: CgroupKernel = V2,
    *,
    is_new: bool = True,
    cpuset: CpuSet = ANY_CPU,
    **settings: Any,
) -> cri_pb2.LinuxContainerResources:
    container = with_resources(**SIZED)
    return resources_of(container, ask, kernel, is_new=is_new, cpuset=cpuset, **settings)


def resources_of(
    container: Container | EphemeralContainer,
    ask: AskForValues | None,
    kernel: CgroupKernel = V2,
    *,
    is_new: bool = True,
    cpuset: CpuSet = ANY_CPU,
    **settings: Any,
) -> cri_pb2.LinuxContainerResources:
    v2 = kernel.version is CgroupVersion.V2
    made: RenderSettings = replace(SETTINGS, cgroup_v2=v2, ask_extensions=ask, **settings)
    pod = make_pod(container) if isinstance(container, Container) else make_pod()
    found = container_resources(pod, container, made, replace(CONTEXT, cpuset=cpuset))
    ask_extensions(found, pod, container, made, is_new=is_new)
    return found


def test_what_it_gets_of_a_container(hosts: Callable[..., Host]) -> None:
    extension = Tiering(lambda pod, container, values: None)
    ask = points(hosts(extension), extension, V2).cgroup
    assert rendered(ask) == rendered(None)
    ((pod, container, values),) = extension.seen
    assert container is not None and (pod.name, container.name, container.limits["memory"]) == ("web", "app", 64 * MIB)
    assert values == {
        "cpu.weight": "10",
        "cpu.max": "50000 100000",
        "memory.max": str(64 * MIB),
        "memory.high": "max",
        "memory.oom.group": "1",
    }


def test_an_ephemeral_container_is_not_asked_for(hosts: Callable[..., Host]) -> None:
    extension = Tiering(lambda pod, container, values: {"cpu.weight": "1"})
    ask = points(hosts(extension), extension, V2).cgroup
    debug = EphemeralContainer(name="debug")
    assert resources_of(debug, ask) == resources_of(debug, None) and extension.seen == []


def test_values_of_a_container_are_changed_and_added(hosts: Callable[..., Host]) -> None:
    answer = {
        "cpu.weight": "333",
        "cpu.max": "max 50000",
        "memory.max": str(80 * MIB),
        "memory.high": str(48 * MIB),
        "memory.low": str(16 * MIB),
        "cpu.uclamp.max": "33.5",
        "pids.max": "100",
    }
    extension = Tiering(lambda pod, container, values: {**values, **answer})
    host = hosts(extension)
    found = rendered(points(host, extension, V2).cgroup)
    assert (found.cpu_quota, found.cpu_period, found.memory_limit_in_bytes) == (-1, 50_000, 80 * MIB)
    assert shares_to_weight(found.cpu_shares) == 333 and found.oom_score_adj == rendered(None).oom_score_adj
    assert dict(found.unified) == {
        "cpu.weight": "333",
        "memory.high": str(48 * MIB),
        "memory.low": str(16 * MIB),
        "cpu.uclamp.max": "33.5",
        "pids.max": "100",
        "memory.oom.group": "1",
    }
    assert host.state.error == ""
    assert values_of(found).items() >= {name: answer[name] for name in answer if name != "cpu.max"}.items()


def test_every_weight_has_shares_of_its_own() -> None:
    assert all(shares_to_weight(weight_to_shares(weight)) == weight for weight in range(1, 10_001))
    assert (weight_to_shares(1), weight_to_shares(10_000)) == (2, 262_144)


def test_what_an_earlier_answer_has_added_is_taken_back_when_the_size_changes(hosts: Callable[..., Host]) -> None:
    extension = Tiering(lambda pod, container, values: {"memory.low": "1"})
    ask = points(hosts(extension), extension, V2).cgroup
    assert dict(rendered(ask).unified)["memory.low"] == "1" and "memory.min" not in rendered(ask).unified
    extension.answer = lambda pod, container, values: None
    found = dict(rendered(ask, is_new=False).unified)
    assert (found["memory.low"], found["memory.min"], found["cpu.uclamp.max"]) == ("0", "0", "max")
    assert "pids.max" not in found, "systemd has a limit of its own for each container, which must not be lifted"


def test_on_cgroup_v1_what_the_runtime_has_fields_for(hosts: Callable[..., Host]) -> None:
    answer = {"cpu.weight": "333", "cpu.max": "20000 100000", "memory.max": str(80 * MIB)}
    extension = Tiering(lambda pod, container, values: answer)
    host = hosts(extension)
    found = rendered(points(host, extension, V1).cgroup, V1, swap_controller=True)
    assert host.state.error == "" and not found.unified
    assert (found.cpu_quota, found.memory_limit_in_bytes, found.memory_swap_limit_in_bytes) == (
        20_000,
        80 * MIB,
        80 * MIB,
    )
    assert shares_to_weight(found.cpu_shares) == 333
    assert extension.seen[0][2]["memory.swap.max"] == "0"


Given = tuple[CgroupKernel, dict[Any, Any] | Any, str]
WRONG: list[Given] = [
    (V2, ["memory.low"], "the answer must be a dict of files and values, or None: it is list"),
    (V2, {"memory.low": 5}, "files and their values must be texts of at most 64 characters"),
    (V2, {3: "5"}, "files and their values must be texts of at most 64 characters"),
    (V2, {"memory.low": "9" * 65}, "files and their values must be texts of at most 64 characters"),
    (V2, {f"file{n}": "1" for n in range(65)}, "the answer must have at most 64 files"),
    (V2, {"../memory.low": "5"}, "'../memory.low' cannot be changed: it must be one of cpu.weight, cpu.max, "),
    (V2, {"cgroup.procs": "1"}, "'cgroup.procs' cannot be changed"),
    (V2, {"cpuset.cpus": "1"}, "'cpuset.cpus' cannot be changed"),
    (V2, {"hugetlb.2MB.max": "0"}, "'hugetlb.2MB.max' cannot be changed"),
    (V2, {"memory.low": "5\n6"}, r"memory.low must be bytes or max: it is '5\n6'"),
    (V2, {"memory.low": "-1"}, "memory.low must be bytes or max: it is '-1'"),
    (V2, {"memory.low": "64Mi"}, "memory.low must be bytes or max: it is '64Mi'"),
    (V2, {"memory.low": str(1 << 63)}, "memory.low must be bytes or max: it is '9223372036854775808'"),
    (V2, {"memory.max": "0"}, "memory.max must be bytes from 1048576 or max: it is '0'"),
    (V2, {"cpu.weight": "0"}, "cpu.weight must be a number from 1 to 10000: it is '0'"),
    (
        V2,
        {"cpu.max": "100"},
        "cpu.max must be a quota from 1000 or max, and a period from 1000 to 1000000, in microseconds: it is",
    ),
    (V2, {"cpu.max": "50000 9000000"}, "cpu.max must be "),
    (V2, {"cpu.uclamp.min": "100.01"}, "cpu.uclamp.min must be a percentage: it is '100.01'"),
    (
        replace(V2, files=frozenset({"cpu.weight"})),
        {"memory.low": "5"},
        "this kernel has no memory.low, or its controller is not enabled",
    ),
    (V2, {"cpu.rt_runtime_us": "5"}, "this node has cgroup v2, which has no cpu.rt_runtime_us"),
    (
        V1,
        {"cpu.rt_runtime_us": "2000000"},
        "cpu.rt_runtime_us must be microseconds of a second, up to 1000000: it is '2000000'",
    ),
    (
        replace(V1, files=frozenset({"cpu.shares"})),
        {"cpu.rt_runtime_us": "5"},
        "this kernel has no cpu.rt_runtime_us",
    ),
    (V1, {"memory.high": "5"}, "this node has cgroup v1, which has no memory.high"),
    (
        V1,
        {"pids.max": "5"},
        "this node has cgroup v1, where the container runtime cannot write pids.max of container app",
    ),
]


@pytest.mark.parametrize(("kernel", "answer", "problem"), WRONG)
def test_a_wrong_answer_means_the_values_of_the_agent(
    hosts: Callable[..., Host], kernel: CgroupKernel, answer: Any, problem: str
) -> None:
    extension = Tiering(lambda pod, container, values: answer)
    host = hosts(extension)
    assert rendered(points(host, extension, kernel).cgroup, kernel) == rendered(None, kernel)
    assert host.state.error.startswith(f"cgroup: {problem}")


def test_the_cpus_of_a_container_are_shown_and_stay(hosts: Callable[..., Host]) -> None:
    cpuset = CpuSet(cpus="2-3", mems="0")
    extension = Tiering(lambda pod, container, values: {**values, "cpuset.cpus": "1"})
    host = hosts(extension)
    assert rendered(points(host, extension, V2).cgroup, cpuset=cpuset).cpuset_cpus == "2-3"
    assert extension.seen[0][2]["cpuset.cpus"] == "2-3" and "'cpuset.cpus' cannot be changed" in host.state.error


def test_a_long_list_of_cpus_may_be_repeated(hosts: Callable[..., Host]) -> None:
    cpus = ",".join(str(cpu) for cpu in range(0, 64, 2))
    extension = Tiering(lambda pod, container, values: {**values, "memory.low": "5"})
    host = hosts(extension)
    found = rendered(points(host, extension, V2).cgroup, cpuset=CpuSet(cpus=cpus))
    assert (found.cpuset_cpus, found.unified["memory.low"], host.state.error) == (cpus, "5", "")


# the pod's own cgroup


@pytest.mark.parametrize(("kernel", "answer"), [(V2, {"memory.low": "5", "pids.max": "7"}), (V1, {"pids.max": "7"})])
def test_the_own_cgroup_of_a_pod(hosts: Callable[..., Host], kernel: CgroupKernel, answer: dict[str, str]) -> None:
    extension = Tiering(lambda pod, container, values: answer if container is None else None)
    host, pod = hosts(extension), make_pod(with_resources(**SIZED))
    settings = ResourceSettings(pod_pids_limit=100, ask_extensions=points(host, extension, kernel).cgroup)
    limits = decide.pod_cgroup_limits(pod, settings)
    changed = decide.changed_limits(pod, limits, settings)
    assert host.state.error == ""
    ((_, container, values),) = extension.seen
    assert container is None and (values["memory.max"], values["pids.max"]) == (str(64 * MIB), "100")
    assert (changed.pids, changed.memory_bytes, changed.cpu_shares) == (7, limits.memory_bytes, limits.cpu_shares)
    assert changed.unified.get("memory.low") == answer.get("memory.low")
    assert changed.unified.get("memory.min") == ("0" if kernel is V2 else None)
    assert "memory.oom.group" not in changed.unified


def test_time_for_real_time_scheduling_is_no_field_of_the_runtime(hosts: Callable[..., Host]) -> None:
    extension = Tiering(lambda pod, container, values: {"cpu.rt_runtime_us": "50000"} if container else None)
    host, app = hosts(extension), with_resources(**SIZED)
    settings: RenderSettings = replace(SETTINGS, ask_extensions=points(host, extension, V1).cgroup)
    found = container_resources(make_pod(app), app, settings, CONTEXT)
    assert ask_extensions(found, make_pod(app), app, settings, is_new=True) == 50_000
    assert found == rendered(None, V1) and host.state.error == ""
    extension.answer = lambda pod, container, values: None
    assert ask_extensions(found, make_pod(app), app, settings, is_new=True) is None
    assert ask_extensions(found, make_pod(app), app, settings) == 0  # it is taken back
