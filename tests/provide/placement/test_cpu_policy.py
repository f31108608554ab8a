"""The configuration of the CPU manager, and which containers get exclusive CPUs."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from provide.placement.cpu_pods import GATES, container, make_pod, make_policy
from support.machines import Shape

from pykubelet.base.api.core import Pod
from pykubelet.base.kit.cpuset import format_cpuset
from pykubelet.config.gates import FeatureGates
from pykubelet.provide.placement.cpu_options import CpuOptions, read_cpu_options
from pykubelet.provide.placement.cpu_policy import (
    CpuConfig,
    StaticPolicy,
    exclusive_counts,
    pod_count,
    read_policy,
)
from pykubelet.provide.placement.provider import ManagerStartError

FULL, NUMA, SOCKET = "full-pcpus-only", "distribute-cpus-across-numa", "align-by-socket"
CORES, STRICT, CACHE = "distribute-cpus-across-cores", "strict-cpu-reservation", "prefer-align-cpus-by-uncorecache"
TOGETHER = "can not be used at the same time"


@pytest.mark.parametrize(
    ("given", "gates", "expected"),
    [
        ({}, {}, CpuOptions()),
        ({FULL: "true", STRICT: "1", CACHE: "t"}, {},
         CpuOptions(full_pcpus_only=True, strict_reservation=True, prefer_uncore_cache=True)),
        ({NUMA: "true"}, {}, CpuOptions(distribute_across_numa=True)),
        ({FULL: "false", CORES: "True"}, {"CPUManagerPolicyAlphaOptions": True},
         CpuOptions(distribute_across_cores=True)),
        ({SOCKET: "true"}, {"CPUManagerPolicyAlphaOptions": True}, CpuOptions(align_by_socket=True)),
        ({"fast": "true"}, {}, 'unknown CPU Manager Policy option: "fast"'),
        ({SOCKET: "false"}, {}, f'CPU Manager Policy Alpha-level Options not enabled, but option "{SOCKET}" provided'),
        ({CORES: "true"}, {}, f'CPU Manager Policy Alpha-level Options not enabled, but option "{CORES}" provided'),
        ({NUMA: "true"}, {"CPUManagerPolicyBetaOptions": False},
         f'CPU Manager Policy Beta-level Options not enabled, but option "{NUMA}" provided'),
        ({FULL: "yes"}, {}, f'bad value for option "{FULL}": "yes" is not a boolean: must be true or false'),
        ({FULL: "true", CORES: "true"}, {"CPUManagerPolicyAlphaOptions": True},
         f"static policy options {FULL} and {CORES} {TOGETHER}"),
        ({NUMA: "true", CORES: "true"}, {"CPUManagerPolicyAlphaOptions": True},
         f"static policy options {NUMA} and {CORES} {TOGETHER}"),
        ({CACHE: "true", CORES: "true"}, {"CPUManagerPolicyAlphaOptions": True},
         f"static policy options {CACHE} and {CORES} {TOGETHER}"),
        ({CACHE: "true", NUMA: "true"}, {}, f"static policy options {CACHE} and {NUMA} {TOGETHER}"),
    ],
)  # fmt: skip
def test_options(given: dict[str, str], gates: dict[str, bool], expected: CpuOptions | str) -> None:
    wanted = ManagerStartError(expected) if isinstance(expected, str) else expected
    assert read_cpu_options(given, FeatureGates(gates)) == wanted


@pytest.mark.parametrize(
    ("config", "shape", "text"),
    [
        (CpuConfig(options={"b": "1", "a": "2"}), Shape(),
         "new none policy error: None policy: received unsupported options=map[a:2 b:1]"),
        (CpuConfig("dynamic"), Shape(), 'unknown policy: "dynamic"'),
        (CpuConfig("static"), Shape(),
         "[cpumanager] unable to determine reserved CPU resources for static policy"),
        (CpuConfig("static", reserved_milli=0), Shape(),
         "[cpumanager] the static policy requires systemreserved.cpu + kubereserved.cpu to be greater than zero"),
        (CpuConfig("static", {"x": "1"}, 1000), Shape(),
         'new static policy error: unknown CPU Manager Policy option: "x"'),
        (CpuConfig("static", {}, 9000), Shape(),
         "new static policy error: [cpumanager] unable to reserve the required amount of CPUs (size of  did not equal 9)"),
        (CpuConfig("static", {}, 1000, frozenset({1, 2, 3})), Shape(),
         "new static policy error: [cpumanager] unable to reserve the required amount of CPUs "
         "(size of 1-3 did not equal 1)"),
        (CpuConfig("static", {}, 1000, frozenset({9})), Shape(),
         "new static policy error: [cpumanager] unable to build the reserved physical CPUs from the reserved set: "
         "unknown CPU ID: 9"),
        (CpuConfig("static", {SOCKET: "true"}, 1000, topology_policy="single-numa-node"), Shape(),
         f"new static policy error: Topolgy manager single-numa-node policy is incompatible with CPUManager {SOCKET} "
         "policy option"),
        (CpuConfig("static", {SOCKET: "true"}, 1000), Shape(sockets=4, sockets_per_node=2),
         "new static policy error: Align by socket is not compatible with hardware where number of sockets are more "
         "than number of NUMA"),
    ],
)  # fmt: skip
def test_a_configuration_with_which_it_cannot_start(config: CpuConfig, shape: Shape, text: str) -> None:
    assert read_policy(config, shape.machine, GATES) == ManagerStartError(text)


def test_the_policy_none_manages_nothing() -> None:
    assert read_policy(CpuConfig(), Shape().machine, GATES) is None


@pytest.mark.parametrize(
    ("milli", "given", "reserved", "cores"),
    [
        (1, "", "0", "0,4"),
        (2000, "", "0,4", "0,4"),
        (2001, "", "0-1,4", "0-1,4-5"),
        (8000, "", "0-7", "0-7"),
        (2000, "2-3", "2-3", "2-3,6-7"),
    ],
)
def test_reserved_cpus(milli: int, given: str, reserved: str, cores: str) -> None:
    cpus = frozenset(int(cpu) for cpu in given.split("-") if cpu)
    policy = read_policy(CpuConfig("static", {}, milli, cpus), Shape().machine, GATES)
    assert isinstance(policy, StaticPolicy)
    assert (format_cpuset(policy.reserved), format_cpuset(policy.reserved_cores)) == (reserved, cores)
    assert policy.allocatable == frozenset(range(8)) - policy.reserved


def test_align_by_socket_on_sockets_with_several_nodes() -> None:
    policy = make_policy(Shape(nodes_per_socket=2), (SOCKET,))
    assert policy.options.align_by_socket


def pod_of(*containers: dict[str, Any], whole: dict[str, Any] | None = None) -> Pod:
    return msgspec.convert({"metadata": {"uid": "u"}, "spec": {"containers": containers, "resources": whole}}, Pod)


CPU_ONLY = {"name": "c", "resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "2"}}}
BURSTABLE = {"name": "c", "resources": {"requests": {"cpu": "2", "memory": "1"}, "limits": {"cpu": "3", "memory": "1"}}}
WHOLE = {"requests": {"cpu": "4", "memory": "4Gi"}, "limits": {"cpu": "4", "memory": "4Gi"}}


@pytest.mark.parametrize(
    ("pod", "counts"),
    [
        (pod_of(container("c", "2")), {"c": 2}),
        (pod_of(container("c", "2000m")), {"c": 2}),
        (pod_of(container("c", "1500m")), {}),
        (pod_of(container("c", "999.9999m")), {"c": 1}),
        (pod_of(container("c", "2"), container("d", "500m")), {"c": 2}),
        (pod_of(CPU_ONLY), {}),
        (pod_of(BURSTABLE), {}),
        (pod_of({"name": "c"}), {}),
        (pod_of(container("c", "2"), whole=WHOLE), {}),
        (pod_of(container("c", "2"), whole={}), {"c": 2}),
        (make_pod("u", "1", init=("3",), sidecars=("2",)), {"i0": 3, "s0": 2, "c0": 1}),
    ],
)
def test_who_gets_exclusive_cpus(pod: Pod, counts: dict[str, int]) -> None:
    assert exclusive_counts(pod) == counts


def ordered(*init: tuple[str, bool], apps: tuple[str, ...]) -> Pod:
    containers = [container(f"i{n}", cpu, "Always" if stays else "") for n, (cpu, stays) in enumerate(init)]
    spec = {"initContainers": containers, "containers": [container(f"c{n}", cpu) for n, cpu in enumerate(apps)]}
    return msgspec.convert({"metadata": {"uid": "u"}, "spec": spec}, Pod)


@pytest.mark.parametrize(
    ("pod", "count"),
    [
        (ordered(apps=("2",)), 2),
        (ordered(apps=("2", "4")), 6),
        (ordered(("2", False), apps=("5",)), 5),
        (ordered(("5", False), apps=("2",)), 5),
        (ordered(("1", True), apps=("1",)), 2),
        (ordered(("5", False), ("1", True), ("2", True), ("3", True), apps=("1",)), 7),
        (ordered(("5", False), ("1", True), ("2", True), ("5", False), ("3", True), apps=("1",)), 8),
        (ordered(("10", True), ("200", False), apps=("100",)), 210),
    ],
)
def test_cpus_of_a_whole_pod(pod: Pod, count: int) -> None:
    assert pod_count(pod, exclusive_counts(pod)) == count
