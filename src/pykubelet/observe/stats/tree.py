"""Reads the resource usage of pods and the node from the cgroup tree. Blocks; called in a thread.

The names of cgroups show the pod and container: `pod<uid>` (with underscores for dashes under systemd), and below it the
container's ID, which systemd puts between a prefix and `.scope`. CRI-O always writes a prefix: `crio-`, and `crio-conmon-` for
the cgroup of a container's monitor.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from pykubelet.base.kit.values import Value, field
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.observed import NetworkMode, Observed, PodView
from pykubelet.base.model.usage import ContainerUse, Details, NetworkUse, NodeUse, PodUse
from pykubelet.edges.host.cgroups.cgroup_stats import GroupReader
from pykubelet.edges.host.cgroups.io_stats import device_of, read_disks
from pykubelet.edges.host.proc.network_stats import read_network_use

_POD = re.compile(r"(?:^|-)pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?:\.slice)?$")
_CONTAINER = re.compile(r"(?:^|(?<!-conmon)-)([0-9a-f]{64})(?:\.scope)?$")
_CLASSES = 3


class UsageSources(Value):
    """What does not change between measurements. `pods_root`: the cgroup of all pods. `system`: paths by name, and
    `huge_pages`, see `NodeUse`."""

    reader: GroupReader
    pods_root: str
    memory_capacity: int
    booted_at: float
    system: Mapping[str, str] = field(default_factory=dict)
    interface: str = "eth0"
    huge_pages: int = 0


def pod_of_group(name: str) -> PodUID | None:
    """The pod of a cgroup, by the cgroup's name. Pure."""
    match = _POD.search(name)
    return PodUID(match[1].replace("_", "-")) if match else None


def container_of_group(name: str) -> str:
    """The container ID of a cgroup, by the cgroup's name; "" for other cgroups, also of monitors. Pure."""
    match = _CONTAINER.search(name)
    return match[1] if match else ""


def is_qos_group(name: str) -> bool:
    """Whether a cgroup directly below that of all pods is that of a QoS class. Pure."""
    return name.removesuffix(".slice").endswith(("burstable", "besteffort"))


def qos_groups(reader: GroupReader, root: str) -> Iterator[str]:
    """The cgroups of Burstable and BestEffort pods."""
    yield from (f"{root.rstrip('/')}/{name}" for name in reader.children(root) if is_qos_group(name))


def pod_groups(reader: GroupReader, root: str) -> Iterator[tuple[PodUID, str]]:
    """The cgroup of every pod, directly below the root or in a QoS class."""
    waiting = [root]
    for _ in range(_CLASSES):
        below = []
        for path in waiting:
            for name in reader.children(path):
                uid = pod_of_group(name)
                here = f"{path.rstrip('/')}/{name}"
                if uid is not None:
                    yield uid, here
                elif is_qos_group(name):
                    below.append(here)
        waiting = below


def read_node(sources: UsageSources, at: float, *, brief: bool = False) -> NodeUse | None:
    """Read the usage of the node; None if the root cgroup cannot be read. `brief`: see `GroupReader.read`."""
    group = sources.reader.read("/", at, brief=brief)
    if group is None:
        return None
    system = {}
    for name, path in sources.system.items():
        found = sources.reader.read(path, at, brief=brief)
        if found is not None:
            system[name] = found
    classes = () if brief else (sources.reader.read(path, at) for path in qos_groups(sources.reader, sources.pods_root))
    return NodeUse(
        group=group,
        memory_capacity=sources.memory_capacity,
        booted_at=sources.booted_at,
        huge_pages=sources.huge_pages,
        system=system,
        qos_groups=tuple(found for found in classes if found is not None),
        network=read_network_use(at, default=sources.interface),
    )


def read_pods(sources: UsageSources, observed: Observed, at: float, *, brief: bool = False) -> dict[PodUID, PodUse]:
    """Read the usage of all pods that are in the runtime and have a cgroup. `brief`: see `GroupReader.read`."""
    found = {}
    for uid, path in pod_groups(sources.reader, sources.pods_root):
        view = observed.pods.get(uid)
        if view is not None and not view.is_gone:
            found[uid] = _read_pod(sources, view, path, at, brief=brief)
    return found


def _read_pod(sources: UsageSources, view: PodView, path: str, at: float, *, brief: bool) -> PodUse:
    reader = sources.reader
    groups = {container_of_group(name): f"{path}/{name}" for name in reader.children(path)}
    containers = []
    for container in view.running:
        where = groups.get(container.id)
        group = reader.read(where, at, brief=brief) if where is not None else None
        if where is not None and group is not None:
            started = container.started_at / 1e9
            containers.append(ContainerUse(container.name, container.id, container.image, where, started, group))
    sandbox = next(iter(view.sandboxes), None)
    where = groups.get(sandbox.id) if sandbox is not None else None
    in_network = [where or "", *(container.path for container in containers)]
    return PodUse(
        ref=view.ref,
        path=path,
        started_at=sandbox.created_at / 1e9 if sandbox is not None else 0.0,
        group=reader.read(path, at, brief=brief),
        containers=tuple(sorted(containers, key=lambda use: use.name)),
        network=_pod_network(reader, in_network, at) if sandbox and sandbox.network is NetworkMode.POD else None,
        sandbox_id=sandbox.id if sandbox is not None else "",
        sandbox_attempt=sandbox.attempt if sandbox is not None else 0,
        sandbox=reader.read(where, at) if where is not None and not brief else None,
    )


def _pod_network(reader: GroupReader, paths: Iterable[str], at: float) -> NetworkUse | None:
    """The interfaces that a process in the first cgroup with any sees.

    A sandbox of CRI-O has no process, unless the pod shares one process namespace. Its containers use the same network.
    """
    for path in filter(None, paths):
        if pids := reader.processes(path):
            return read_network_use(at, min(pids))
    return None


def read_cpu_totals(sources: UsageSources) -> dict[str, int]:
    """Read only the CPU time in nanoseconds, of all cgroups of which the usage is reported, by path below the mount."""
    return {path: used for path in _paths(sources) if (used := sources.reader.cpu_total(path)) is not None}


def _paths(sources: UsageSources) -> Iterator[str]:
    yield "/"
    yield from sources.system.values()
    for _, path in pod_groups(sources.reader, sources.pods_root):
        yield path
        yield from (f"{path}/{name}" for name in sources.reader.children(path) if container_of_group(name))


def read_details(sources: UsageSources, node: NodeUse | None, pods: Mapping[PodUID, PodUse], root_dir: str) -> Details:
    """Read details of all measured cgroups except the root, and of the disks. `root_dir`: a directory on the node's file system."""
    seen = [group for pod in pods.values() for group in (pod.group, pod.sandbox, *(c.group for c in pod.containers))]
    if node is not None:
        seen += (*node.system.values(), *node.qos_groups)
    paths = dict.fromkeys(group.path for group in seen if group is not None and group.path != "/")
    return Details({path: sources.reader.detail(path) for path in paths}, read_disks(), device_of(root_dir))
