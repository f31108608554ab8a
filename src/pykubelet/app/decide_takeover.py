"""Decides what would change if this agent took over a node: compares the pods that run with the pods that it would want. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import StrEnum

from pykubelet.act.runtime.render.context import AnyContainer
from pykubelet.base.api.core import Pod
from pykubelet.base.kit.values import Value
from pykubelet.base.model.containers import container_hash
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.roster import is_static
from pykubelet.provide.cgroups.model import CgroupDriver

_IN_TREE = "kubernetes.io~"  # others belong to drivers of flexVolume


class Severity(StrEnum):
    """`REFUSED`: the agent would not start. `CHANGE`: something of the node would change. `NOTE`: something to know."""

    REFUSED = "refused"
    CHANGE = "change"
    NOTE = "note"


class Finding(Value):
    """One thing about the takeover. `subject`: what it is about, such as a flag, a file or a pod."""

    severity: Severity
    subject: str
    text: str


class FoundContainer(Value):
    """A container that runs, as the runtime has it. `hash`: its annotation; empty: it has none."""

    name: str
    hash: str


class RunningPod(Value):
    """A sandbox that is ready, with its running containers. `source`: its annotation; `parent`: its cgroup, if it is known."""

    uid: PodUID
    namespace: str
    name: str
    source: str
    parent: str
    containers: tuple[FoundContainer, ...]

    @property
    def full_name(self) -> str:
        return f"{self.namespace}/{self.name}"


class Desired(Value):
    """The pods that the agent would want. `complete`: the sources (`file`, `http`, `api`) that were read."""

    pods: tuple[Pod, ...]
    complete: frozenset[str]


def pod_findings(running: Iterable[RunningPod], desired: Desired) -> Iterator[Finding]:
    """What would happen to the running pods."""
    wanted = {pod.metadata.uid: pod for pod in desired.pods}
    by_name = {f"{pod.metadata.namespace}/{pod.metadata.name}": pod for pod in desired.pods if is_static(pod)}
    for found in running:
        pod = wanted.get(found.uid)
        if pod is not None:
            yield from _container_findings(found, pod)
        elif found.source not in desired.complete:
            yield Finding(Severity.NOTE, f"pod {found.full_name}", f"not compared: {_unread(found.source)}")
        elif found.full_name in by_name:
            uid = by_name[found.full_name].metadata.uid
            text = f"is started anew: it runs with the UID {found.uid}, and its manifest now has {uid}"
            yield Finding(Severity.CHANGE, f"pod {found.full_name}", f"{text} (a changed manifest, path or node name)")
        else:
            yield Finding(Severity.CHANGE, f"pod {found.full_name}", f"is ended: no {_origin(found.source)} has it")


def _unread(source: str) -> str:
    return f"the pods of the source {source} were not read" if source else "it has no annotation of a kubelet"


def _origin(source: str) -> str:
    return {"api": "pod of the API server", "http": "manifest of the URL"}.get(source, "manifest")


def _container_findings(found: RunningPod, pod: Pod) -> Iterator[Finding]:
    spec = pod.spec
    containers: dict[str, AnyContainer] = {
        declared.name: declared for declared in (*spec.initContainers, *spec.containers)
    }
    containers |= {declared.name: declared for declared in spec.ephemeralContainers}
    for running in found.containers:
        subject = f"container {running.name} of pod {found.full_name}"
        container = containers.get(running.name)
        if container is None:
            yield Finding(Severity.CHANGE, subject, "is stopped: the pod has no such container any more")
        elif not running.hash:
            yield Finding(Severity.CHANGE, subject, "is restarted: it has no hash of its definition")
        elif running.hash != container_hash(container):
            text = f"is restarted: its hash is {running.hash}, and that of its definition {container_hash(container)}"
            yield Finding(Severity.CHANGE, subject, f"{text} (another image)")


def cgroup_findings(
    running: Iterable[RunningPod], parents: Mapping[PodUID, str], driver: CgroupDriver
) -> Iterator[Finding]:
    """Pods whose cgroups are not where this agent has them. `parents`: where it has those of the pods that it wants."""
    for found in running:
        wanted = parents.get(found.uid)
        if not found.parent or wanted is None or _last(found.parent) == _last(wanted):
            continue
        if found.parent.endswith(".slice") != (driver is CgroupDriver.SYSTEMD):
            what = f"its cgroup {found.parent} is not one of the cgroup driver {driver.value}: set cgroupDriver"
        else:
            what = f"its cgroup is {found.parent} and would be {wanted}: compare cgroupRoot and cgroupsPerQOS"
        yield Finding(Severity.CHANGE, f"pod {found.full_name}", f"is started anew: {what}")


def _last(parent: str) -> str:
    """A slice is known by its name; a path is compared whole."""
    return parent.rpartition("/")[2] if parent.endswith(".slice") else "/" + parent.strip("/")


def volume_findings(directories: Iterable[tuple[str, str, str]], known: frozenset[str]) -> Iterator[Finding]:
    """Volumes on disk that no kind here serves. `directories`: UID of the pod, directory of the kind, name; `known`: of the kinds."""
    for uid, directory, name in directories:
        if directory.startswith(_IN_TREE) and directory not in known:
            kind = directory.replace("~", "/")
            text = f"is not adopted: there are no volumes of the kind {kind}; it is unmounted when the pod ends"
            yield Finding(Severity.CHANGE, f"volume {name} of pod {uid}", text)


def misplaced_devices(fixed: str, own: str, elsewhere: Collection[str], here: Collection[str]) -> Iterator[Finding]:
    """The kubelet has device plugins in the folder `fixed`, whatever its root directory is, and this agent in `own`, another one.

    `elsewhere`: the UIDs of the pods with devices by the checkpoint in `fixed`; `here`: of the pods in the root directory.
    """
    if pods := sorted(set(elsewhere) & set(here)):
        text = f"is not used, and the pods {', '.join(pods)} lose their devices: bind {fixed} to {own}"
        yield Finding(Severity.CHANGE, fixed, text)


def exit_code(findings: Iterable[Finding]) -> int:
    """0: nothing would change; 1: something would, or the agent would not start."""
    return int(any(finding.severity is not Severity.NOTE for finding in findings))
