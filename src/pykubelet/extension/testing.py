"""Tests of extensions without an agent: values to ask with, and the question as the agent asks it.

    from pykubelet.extension.testing import load, make_node, make_pod

    def test_batch_pods_wait_for_cheap_power() -> None:
        extension = load("price.py", {"most": 30})
        pod = make_pod(labels={"batch": "yes"})
        assert extension.ask("admit", pod, make_node(labels={"price": "45"})).reason == "TooExpensive"
        assert extension.ask("admit", pod, make_node(labels={"price": "20"})) is None

The file is loaded, and each question has the limits and the checks of the agent: what would be a failure there raises AssertionError.
This module needs the agent's code beside it; the rest of the package does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pykubelet.app.extensions.guard import ExtensionRaised, WrongAnswer, asked
from pykubelet.app.extensions.load import ExtensionRefused, load_file
from pykubelet.app.extensions.points import CHECKS, concerns
from pykubelet.edges.host.services.limited_call import CallLimits, LimitedCalls, LimitError
from pykubelet.extension.extension import Extension
from pykubelet.extension.values import (
    Container,
    CpuMachine,
    CpuRequest,
    EvictionCandidate,
    Image,
    MachineCpu,
    Node,
    Pod,
    Usage,
)

__all__ = [
    "ExtensionUnderTest",
    "load",
    "make_candidate",
    "make_container",
    "make_image",
    "make_machine",
    "make_node",
    "make_pod",
    "make_request",
]
GI = 1 << 30
#: The points at which `annotation` counts.
ABOUT_PODS = frozenset({"admit", "cgroup", "pull", "restart"})


class ExtensionUnderTest:
    """An extension, asked as the agent asks it. In the main thread only. `points`: those that it defines."""

    def __init__(self, extension: Extension, points: tuple[str, ...]) -> None:
        self.extension = extension
        self.points = points

    def ask(self, point: str, *args: Any) -> Any:
        """Its answer at a point; None: the built-in decision. Raises AssertionError where the agent would count a failure."""
        if point not in self.points:
            raise AssertionError(f"{self.extension.name} does not define {point}: it defines {', '.join(self.points)}")
        pod = next((found for arg in args if (found := _pod_of(arg)) is not None), None)
        annotation = self.extension.annotation
        if annotation and point in ABOUT_PODS and pod is not None and not concerns(annotation, pod.annotations):
            return None  # the agent does not ask
        calls = LimitedCalls(CallLimits())
        try:
            return calls.call(asked, getattr(self.extension, point), args, partial(_checked, point, args))
        except (LimitError, WrongAnswer, ExtensionRaised) as error:
            raise AssertionError(f"{self.extension.name} fails in {point}: {error}") from error
        finally:
            calls.close()


def load(path: str | Path, settings: Mapping[str, Any] | None = None) -> ExtensionUnderTest:
    """Load the extension of a file. `settings`: as its settings file has them. Raises AssertionError if the agent would refuse it."""
    try:
        found = load_file(str(path), settings)
    except ExtensionRefused as error:
        raise AssertionError(f"{path}: {error}") from error
    return ExtensionUnderTest(found.extension, found.points)


def _pod_of(arg: object) -> Pod | None:
    """The pod that a question is about, if this argument has it."""
    found = arg if isinstance(arg, Pod) else getattr(arg, "pod", None)
    return found if isinstance(found, Pod) else None


def _checked(point: str, args: tuple[Any, ...], answer: Any) -> Any:
    CHECKS[point](args, answer)
    return answer


def make_container(name: str = "main", cpu: int = 0, memory: int = 0, **fields: Any) -> Container:
    """A container that requests `cpu` thousandths of a CPU and `memory` bytes. `fields`: those of Container."""
    return Container(name, requests=_amounts(cpu=cpu, memory=memory), **fields)


def make_pod(name: str = "web", *containers: Container, **fields: Any) -> Pod:
    """A pod in the namespace `default`. It requests what its containers do. `fields`: those of Pod."""
    found = containers or (make_container(),)
    total = {
        resource: sum(container.requests.get(resource, 0) for container in found) for resource in ("cpu", "memory")
    }
    given = {"namespace": "default", "uid": f"{name}-uid", "requests": _amounts(**total), "containers": found}
    return Pod(name=name, **(given | {key: _frozen(value) for key, value in fields.items()}))


def make_node(name: str = "node-1", cpu: int = 4000, memory: int = 8 * GI, **fields: Any) -> Node:
    """A node with `cpu` thousandths of a CPU and `memory` bytes, all free. `fields`: those of Node."""
    amounts = MappingProxyType({"cpu": cpu, "memory": memory, "pods": 110})
    return Node(name, **({"capacity": amounts, "allocatable": amounts} | {k: _frozen(v) for k, v in fields.items()}))


def make_candidate(
    name: str = "web",
    memory: int | None = None,
    disk: int | None = None,
    stalls: Mapping[str, float] | None = None,
    **pod: Any,
) -> EvictionCandidate:
    """A pod that may be evicted, with its usage. `stalls`: percent by resource. `pod`: fields of Pod."""
    return EvictionCandidate(make_pod(name, **pod), Usage(memory, None, disk, MappingProxyType(dict(stalls or {}))))


def make_image(name: str, size: int = 0, last_used: float = 0.0, **fields: Any) -> Image:
    """An image that no container uses. `fields`: those of Image."""
    return Image(f"sha256:{name}", (name,), size, last_used=last_used, **fields)


def make_machine(
    cores: int = 4, threads: int = 2, numa_nodes: int = 1, used: Iterable[int] = (), reserved: Iterable[int] = ()
) -> CpuMachine:
    """A machine of `cores` cores. Threads are numbered as Linux does: first one of every core, then the second ones.

    A NUMA node is a socket with a last-level cache of its own. `used`: the CPUs that other containers have.
    """
    cpus = tuple(
        MachineCpu(core + thread * cores, core, *(core * numa_nodes // cores,) * 3)
        for thread in range(threads)
        for core in range(cores)
    )
    return CpuMachine(cpus, frozenset(range(len(cpus))) - {*used, *reserved}, frozenset(reserved))


def make_request(
    cpus: int, numa_nodes: Iterable[int] | None = None, whole_cores: bool = False, near: Iterable[int] = ()
) -> CpuRequest:
    """A container of a Guaranteed pod that is to get `cpus` CPUs to itself."""
    container = make_container(cpu=1000 * cpus)
    nodes = frozenset(numa_nodes) if numa_nodes is not None else None
    pod = make_pod("web", container, qos="Guaranteed")
    return CpuRequest(pod, container, cpus, nodes, whole_cores=whole_cores, near=frozenset(near))


def _amounts(**amounts: int) -> Mapping[str, int]:
    return MappingProxyType({name: amount for name, amount in amounts.items() if amount})


def _frozen(value: Any) -> Any:
    return MappingProxyType(dict(value)) if isinstance(value, Mapping) else value
