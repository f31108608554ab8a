"""Reads what `pykubelet takeover --check` compares: state files, volumes, running pods and wanted pods. Writes nothing."""

from __future__ import annotations

import asyncio
import json
import os
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from pykubelet.app.decide_takeover import (
    Desired,
    Finding,
    FoundContainer,
    RunningPod,
    Severity,
    cgroup_findings,
    misplaced_devices,
    pod_findings,
    volume_findings,
)
from pykubelet.app.driver import CRI_DRIVERS
from pykubelet.base.api.core import Pod, PodList
from pykubelet.base.kit.clock import SystemClock
from pykubelet.base.model import labels
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.remarks import Remark, place_of
from pykubelet.base.model.roster import ManifestProblem, is_mirror
from pykubelet.base.model.sizing import qos_class
from pykubelet.config.errors import ConfigError
from pykubelet.config.settings import Settings
from pykubelet.desired.roster.allocation_state import ACTUATED, ALLOCATED, AllocationStateError
from pykubelet.desired.roster.allocation_state import decode_state as decode_sizes
from pykubelet.desired.sources.decode import MAX_BYTES, decode_manifest, manifest_rules
from pykubelet.desired.sources.static import file_origin
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.client import CriClient
from pykubelet.edges.cri.errors import CriError
from pykubelet.edges.host.fs import files
from pykubelet.edges.host.fs.checkpoint import CheckpointError, decode
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.proc.machine import read_machine
from pykubelet.edges.host.proc.procfs import read_hostname
from pykubelet.edges.host.proc.topology import read_topology
from pykubelet.provide.cgroups.decide import cgroup_parent
from pykubelet.provide.cgroups.model import CgroupDriver, resource_settings
from pykubelet.provide.claims.state import StateError, decode_state
from pykubelet.provide.claims.store import STATE_FILE as CLAIMS
from pykubelet.provide.placement.checkpoint import StateFileError
from pykubelet.provide.placement.cpu_state import FILE_NAME as CPUS
from pykubelet.provide.placement.devices.device_checkpoint import FILE_NAME as DEVICES
from pykubelet.provide.placement.devices.device_checkpoint import decode as decode_devices
from pykubelet.provide.placement.memory_state import FILE_NAME as MEMORY
from pykubelet.provide.placement.provider import ManagerStartError
from pykubelet.provide.placement.start import StateTexts, start_managers
from pykubelet.provide.volumes.plan import DIRECTORIES

_LIMIT = 64 << 20
#: Where the kubelet has device plugins and their checkpoint.
FIXED = "/var/lib/kubelet/device-plugins"
_ANSWER_S = 10.0
SIZES = (ALLOCATED, ACTUATED)
#: The agent's own files: an earlier version of the agent does not know those of a later one.
OWN_FILES = ("pod_statuses", "post_start_hooks", "pod_sizes", "static_pods", "volume_bindings")


# Files


def file_findings(settings: Settings) -> Iterator[Finding]:
    """State files that cannot be used, and volumes of kinds that are not known."""
    root = settings.flags.root_dir
    for name in (CPUS, MEMORY, CLAIMS, f"device-plugins/{DEVICES}", *SIZES, *OWN_FILES):
        if problem := _unreadable(f"{root}/{name}"):
            severity = Severity.CHANGE if name in (*SIZES, *OWN_FILES) else Severity.REFUSED
            yield Finding(severity, f"{root}/{name}", problem)
    yield from _manager_findings(settings)
    yield from _checkpoint_findings(root)
    yield from volume_findings(_volumes(settings), DIRECTORIES)


def _unreadable(path: str) -> str:
    try:
        files.read_bytes(path, _LIMIT)
    except HostError as error:
        return "" if error.is_not_found else f"cannot be read: {error}"
    return ""


def _read(path: str) -> bytes | None:
    """None: there is none, or `_unreadable` has reported it."""
    try:
        return files.read_bytes(path, _LIMIT)
    except HostError:
        return None


def _text(path: str) -> str | None:
    data = _read(path)
    return None if data is None else data.decode("utf-8", "replace")


def _manager_findings(settings: Settings) -> Iterator[Finding]:
    """What the CPU, memory and topology managers say about their state files and the configuration."""
    cpu_path, memory_path = f"{settings.flags.root_dir}/{CPUS}", f"{settings.flags.root_dir}/{MEMORY}"
    texts = StateTexts(cpu_path, memory_path, _text(cpu_path), _text(memory_path))
    try:
        capacity = read_machine("/", settings.flags.root_dir).capacity()
        managers = start_managers(settings, read_topology(), settings.eviction_reserved(capacity), texts)
    except HostError as error:
        yield Finding(Severity.NOTE, "machine", f"cannot be read: {error}")
        return
    if isinstance(managers, ManagerStartError):
        yield Finding(Severity.REFUSED, "resource managers", managers.text)


def _checkpoint_findings(root: str) -> Iterator[Finding]:
    claims = _read(f"{root}/{CLAIMS}")
    if claims is not None:
        try:
            decode_state(claims)
        except StateError as error:
            yield Finding(Severity.REFUSED, f"{root}/{CLAIMS}", f"cannot be used: {error}")
    devices = _text(f"{root}/device-plugins/{DEVICES}")
    if devices is not None:
        try:
            decode_devices(devices)
        except StateFileError as error:
            text = f"is set aside, and running pods may lose their devices: {error}"
            yield Finding(Severity.CHANGE, f"{root}/device-plugins/{DEVICES}", text)
    elsewhere = _text(f"{FIXED}/{DEVICES}")
    if elsewhere is not None and os.path.realpath(FIXED) != os.path.realpath(f"{root}/device-plugins"):
        with suppress(StateFileError):  # of no use to the kubelet either
            uids = decode_devices(elsewhere).state.entries
            yield from misplaced_devices(FIXED, f"{root}/device-plugins", uids, _names(f"{root}/pods"))
    for name in SIZES:
        sizes = _read(f"{root}/{name}")
        if sizes is not None:
            try:
                decode_sizes(sizes)
            except AllocationStateError as error:
                text = f"is set aside, and every pod is taken to have the size of its spec: {error}"
                yield Finding(Severity.CHANGE, f"{root}/{name}", text)
    for name in OWN_FILES:
        data = _read(f"{root}/{name}")
        if data is not None and name != "pod_statuses":
            try:
                decode(data, 1)
            except CheckpointError as error:
                yield Finding(Severity.CHANGE, f"{root}/{name}", f"is set aside, and starts anew: {error}")


def _volumes(settings: Settings) -> Iterator[tuple[str, str, str]]:
    """The directories of volumes: pod, kind, name."""
    for uid in _names(settings.paths.pods):
        parent = settings.paths.pod_volumes(PodUID(uid))
        for directory in _names(parent):
            yield from ((uid, directory, name) for name in _names(f"{parent}/{directory}"))


def _names(path: str) -> list[str]:
    try:
        return files.names_in(path)
    except HostError:
        return []


# The runtime


async def node_findings(settings: Settings) -> list[Finding]:
    """What the container runtime, the manifests and the API server report."""
    findings: list[Finding] = []
    cri = CriClient(settings.config.containerRuntimeEndpoint, settings.image_endpoint, _ANSWER_S)
    try:
        version = await cri.version()
        driver = await _driver(cri, settings, findings)
        running = await _running(cri)
    except (CriError, TimeoutError) as error:
        text = f"does not answer at {settings.config.containerRuntimeEndpoint}: {error}"
        return [Finding(Severity.REFUSED, "container runtime", text)]
    finally:
        await cri.close()
    findings.append(Finding(Severity.NOTE, "container runtime", f"{version.runtime_name} {version.runtime_version}"))
    desired = await _desired(settings, findings)
    capacity = read_machine("/", settings.flags.root_dir).capacity()
    resources = resource_settings(settings, capacity, driver)
    parents = {
        PodUID(pod.metadata.uid): cgroup_parent(resources, qos_class(pod), PodUID(pod.metadata.uid))
        for pod in desired.pods
    }
    findings += pod_findings(running, desired)
    findings += cgroup_findings(running, parents, driver)
    kept = len({pod.uid for pod in running} & set(parents))
    findings.append(
        Finding(Severity.NOTE, "pods", f"{kept} of {len(running)} running pods are among those wanted here")
    )
    return findings


async def _driver(cri: CriClient, settings: Settings, findings: list[Finding]) -> CgroupDriver:
    configured = CgroupDriver(settings.config.cgroupDriver)
    try:
        answer = await cri.runtime_config()
    except CriError as error:
        if error.is_unimplemented:
            return configured
        raise
    driver = CRI_DRIVERS.get(answer.linux.cgroup_driver, configured)
    if driver is not configured:
        text = f"is {configured.value}, and the runtime's {driver.value} is used"
        findings.append(Finding(Severity.NOTE, "cgroupDriver", text))
    return driver


async def _running(cri: CriClient) -> list[RunningPod]:
    """The sandboxes that are ready, of kubelets."""
    containers: dict[str, list[FoundContainer]] = {}
    for container in await cri.list_containers(state=pb.CONTAINER_RUNNING):
        found = FoundContainer(
            container.labels.get(labels.CONTAINER_NAME, ""), container.annotations.get(labels.CONTAINER_HASH, "")
        )
        containers.setdefault(container.pod_sandbox_id, []).append(found)
    pods = []
    for sandbox in await cri.list_pod_sandboxes(state=pb.SANDBOX_READY):
        if labels.POD_UID in sandbox.labels:
            pods.append(
                RunningPod(
                    PodUID(sandbox.labels[labels.POD_UID]),
                    sandbox.labels.get(labels.POD_NAMESPACE, ""),
                    sandbox.labels.get(labels.POD_NAME, ""),
                    sandbox.annotations.get(labels.CONFIG_SOURCE, ""),
                    await _parent(cri, sandbox.id),
                    tuple(containers.get(sandbox.id, ())),
                )
            )
    return pods


async def _parent(cri: CriClient, sandbox: str) -> str:
    """The cgroup of a sandbox's pod, where the runtime reports it, as containerd does; else empty."""
    try:
        answer = await cri.pod_sandbox_status(sandbox, verbose=True)
        config = json.loads(answer.info.get("info", "{}")).get("config") or {}
        return str((config.get("linux") or {}).get("cgroup_parent") or "")
    except (CriError, ValueError, AttributeError):
        return ""


# The pods that are wanted


async def _desired(settings: Settings, findings: list[Finding]) -> Desired:
    try:
        node_name = settings.node_name(read_hostname())
    except ConfigError as error:
        findings += [Finding(Severity.REFUSED, "node name", problem) for problem in error.problems]
        return Desired((), frozenset())
    findings.append(Finding(Severity.NOTE, "node name", f"is {node_name}, and part of the names of static pods"))
    complete = set() if settings.config.staticPodURL else {labels.SOURCE_HTTP}
    complete |= {labels.SOURCE_FILE}
    pods = list(_manifests(settings, node_name, findings))
    if settings.standalone:
        return Desired(tuple(pods), frozenset(complete))
    found = await _api_pods(settings, node_name, findings)
    if found is not None:
        complete.add(labels.SOURCE_API)
        pods += found
    return Desired(tuple(pods), frozenset(complete))


def _manifests(settings: Settings, node_name: str, findings: list[Finding]) -> Iterator[Pod]:
    """The static pods of the manifests; those that cannot be used are findings."""
    rules = manifest_rules(settings, node_name)
    for path in _manifest_paths(settings.config.staticPodPath):
        try:
            data = files.read_bytes(path, MAX_BYTES)
        except HostError as error:
            findings.append(Finding(Severity.CHANGE, f"manifest {path}", f"cannot be read: {error}"))
            continue
        for item in decode_manifest(data, file_origin(path), rules):
            if isinstance(item, Pod):
                yield item
            elif isinstance(item, ManifestProblem):
                place = f"manifest {place_of(path, item.document)}"
                text = (
                    f"is refused: {item.field_path}: {item.reason}" if item.field_path else f"is refused: {item.reason}"
                )
                findings.append(Finding(Severity.CHANGE, place, text))
            elif isinstance(item, Remark):
                findings.append(Finding(Severity.NOTE, f"manifest {place_of(path, item.document)}", item.text))


def _manifest_paths(path: str) -> Sequence[str]:
    path = path.rstrip("/")
    if not path or os.path.isfile(path):
        return [path] if path else []
    found = (posixpath.join(path, name) for name in sorted(_names(path)) if not name.startswith("."))
    return [manifest for manifest in found if os.path.isfile(manifest)]


async def _api_pods(settings: Settings, node_name: str, findings: list[Finding]) -> Sequence[Pod] | None:
    """The pods of the node, without mirror pods; None if the API server cannot be asked, which becomes a finding."""
    from pykubelet.app.wiring_cluster import client_store  # a node that stands alone does not need it
    from pykubelet.desired.sources.api import PODS_PATH, pods_of_node
    from pykubelet.edges.kubeapi.client import ApiClient
    from pykubelet.edges.kubeapi.errors import ApiError
    from pykubelet.edges.kubeapi.kubeconfig import KubeconfigError, Pem, load_access

    try:
        access = load_access(settings.flags.kubeconfig)
    except KubeconfigError as error:
        if settings.flags.bootstrap_kubeconfig:
            findings.append(Finding(Severity.NOTE, "kubeconfig", f"would be made by a TLS bootstrap: {error}"))
        else:
            findings.append(Finding(Severity.REFUSED, "kubeconfig", str(error)))
        return None
    current = client_store(settings).current
    rotated = Pem(current) if settings.config.rotateCertificates else None
    client = ApiClient(access, SystemClock(), rotated=rotated)
    query: Mapping[str, str] = {"fieldSelector": pods_of_node(node_name)}
    try:
        async with asyncio.timeout(_ANSWER_S):
            answer = await client.get(PODS_PATH, PodList, query)
    except (ApiError, TimeoutError) as error:
        findings.append(Finding(Severity.NOTE, "API server", f"cannot be asked for the pods of {node_name}: {error}"))
        return None
    finally:
        await client.close()
    return [pod for pod in answer.items if not is_mirror(pod)]
