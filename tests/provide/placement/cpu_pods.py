"""Pods and managers for tests of the CPU manager."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from support.machines import Shape

from pykubelet.base.api.core import Pod
from pykubelet.base.kit.cpuset import format_cpuset, parse_cpuset
from pykubelet.base.model.machine import TopologyHint
from pykubelet.config.gates import FeatureGates
from pykubelet.provide.placement.cpu_manager import CpuManager, CpuState, start
from pykubelet.provide.placement.cpu_policy import CpuConfig, StaticPolicy, read_policy
from pykubelet.provide.placement.provider import AllocationError, ManagerStartError

GATES = FeatureGates({"CPUManagerPolicyAlphaOptions": True})
ANYWHERE = TopologyHint(None, False)


def container(name: str, cpu: str, restart: str = "") -> dict[str, Any]:
    """A container with equal requests and limits."""
    amounts = {"cpu": cpu, "memory": "1Gi"}
    return {"name": name, "resources": {"requests": amounts, "limits": amounts}, "restartPolicy": restart}


def make_pod(uid: str, *cpus: str, init: tuple[str, ...] = (), sidecars: tuple[str, ...] = ()) -> Pod:
    """A Guaranteed pod: init containers i0.., then sidecars s0.., then app containers c0.., with these CPU amounts."""
    first = [container(f"i{n}", cpu) for n, cpu in enumerate(init)]
    beside = [container(f"s{n}", cpu, "Always") for n, cpu in enumerate(sidecars)]
    apps = [container(f"c{n}", cpu) for n, cpu in enumerate(cpus)]
    spec = {"initContainers": first + beside, "containers": apps}
    return msgspec.convert({"metadata": {"uid": uid, "name": uid}, "spec": spec}, Pod)


def make_policy(
    shape: Shape, options: tuple[str, ...] = (), *, reserved: str = "0", gates: FeatureGates = GATES
) -> StaticPolicy:
    cpus = parse_cpuset(reserved)
    config = CpuConfig("static", dict.fromkeys(options, "true"), len(cpus) * 1000, cpus)
    policy = read_policy(config, shape.machine, gates)
    assert isinstance(policy, StaticPolicy)
    return policy


def make_manager(shape: Shape, options: tuple[str, ...] = (), *, reserved: str = "0") -> CpuManager:
    """A manager that has just started on a machine of this shape."""
    policy = make_policy(shape, options, reserved=reserved)
    state = start(policy, CpuState())
    assert not isinstance(state, ManagerStartError)
    return CpuManager(policy, state)


def admit(manager: CpuManager, pod: Pod, hint: TopologyHint = ANYWHERE) -> CpuManager | AllocationError:
    """The manager after all containers of the pod got their CPUs."""
    for c in (*pod.spec.initContainers, *pod.spec.containers):
        after = manager.allocate(pod, c, hint).after
        if isinstance(after, AllocationError):
            return after
        manager = after
    return manager


def admitted(manager: CpuManager, pod: Pod, hint: TopologyHint = ANYWHERE) -> CpuManager:
    after = admit(manager, pod, hint)
    assert isinstance(after, CpuManager), after
    return after


def shown(state: CpuState) -> Mapping[str, str]:
    """All CPU sets as text: the shared pool as `default`, the others as `pod/container`."""
    sets = {f"{uid}/{name}": cpus for uid, pod in state.assignments.items() for name, cpus in pod.items()}
    return {name: format_cpuset(cpus) for name, cpus in {"default": state.default, **sets}.items()}
