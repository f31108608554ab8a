"""The file `cpu_manager_state`: the CPU manager's policy name, shared pool and assignments. Pure.

The format is the reference's, so that either can take over the other's file. There are four. The first has
entries by container id, and is only read. The second has entries by pod and container, the third also those of pods as a whole (gate
PodLevelResourceManagers of 1.36). The fourth, of 1.37, is the second with all of the state as `data`. The reference ignores or refuses
entries of pods without the gate; here they stay until their pods have ended.
Source: the Kubernetes documentation "Control CPU Management Policies on the Node", "Changing the CPU Manager Policy".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pykubelet.base.kit.cpuset import format_cpuset, parse_cpuset
from pykubelet.provide.placement.checkpoint import (
    CORRUPT,
    PolicyDiffers,
    StateFileError,
    add_data,
    as_number,
    as_object,
    as_text,
    checksum,
    dump_map,
    member,
    read_data,
    read_json,
    write_json,
)
from pykubelet.provide.placement.cpu_manager import CpuState
from pykubelet.provide.placement.cpu_options import quoted

FILE_NAME = "cpu_manager_state"

#: The error about a file of the first format whose containers are not known.
FIRST_FORMAT = "failed to migrate checkpoint from v1 to v2"
_STRUCT = "CPUManagerCheckpoint"
_CPU_SET = "cpuSet"

#: Entries as text: CPU lists by pod UID and container name; None stands for null, which has another checksum than no entries.
_Entries = Mapping[str, Mapping[str, str] | None] | None
_Pods = Mapping[str, frozenset[int]]
#: Pod UID and container name by container id.
ContainerIds = Mapping[str, tuple[str, str]]


def encode(policy: str, state: CpuState, *, has_data: bool = False) -> str:
    """The file's text. `has_data`: in the format of 1.37."""
    default = format_cpuset(state.default)
    entries = {
        uid: {name: format_cpuset(cpus) for name, cpus in sorted(containers.items())}
        for uid, containers in sorted(state.assignments.items())
    }
    pods = {uid: format_cpuset(cpus) for uid, cpus in sorted(state.pools.items())}
    document: dict[str, Any] = {"policyName": policy, "defaultCpuSet": default}
    if entries:
        document["entries"] = entries
    whole = {**document, "podEntries": {uid: {_CPU_SET: cpus} for uid, cpus in pods.items()}} if pods else document
    plain = {**document, "checksum": checksum(_dump(_STRUCT, policy, default, entries))}
    if has_data:
        return write_json(add_data(plain, whole))
    value = checksum(_dump(_STRUCT, policy, default, entries, _dump_pods(pods)))
    return write_json({**whole, "checksum": value} if pods else plain)


def decode(text: str, policy: str, containers: ContainerIds) -> CpuState:
    """The state in a file's text. `containers`: those that run, for a file of the first format.

    Raises CheckpointError: no such file, a wrong checksum, another policy, an unknown container, or no list of CPUs.
    """
    document = read_json(text)
    data = read_data(document, "v4")
    given = document if data is None else data
    found_policy = as_text(member(given, "policyName"), "policyName")
    default = as_text(member(given, "defaultCpuSet"), "defaultCpuSet")
    pods = _read_pods(given)
    if data is None:
        entries, pods = _checked_entries(given, found_policy, default, pods, containers)
    else:
        listed = as_object(member(given, "entries") or {}, "entries")
        entries = {uid: _read_names(uid, pod) for uid, pod in listed.items()}
    if found_policy != policy:
        what = f"configured policy {quoted(policy)} differs from state checkpoint policy {quoted(found_policy)}"
        raise PolicyDiffers(what)
    pool = _cpus(default, f"could not parse default cpu set {quoted(default)}")
    return CpuState(pool, {uid: _read_pod(uid, pod or {}) for uid, pod in (entries or {}).items()}, pools=pods)


def restore_error(error: StateFileError, path: str) -> str:
    """Why the CPU manager cannot start with the file at `path`."""
    how = f"please drain this node and delete the CPU manager checkpoint file {quoted(path)} before restarting Kubelet"
    return f"could not restore state from checkpoint: {error}, {how}"


def _checked_entries(
    given: Mapping[str, Any], policy: str, default: str, pods: _Pods, containers: ContainerIds
) -> tuple[_Entries, _Pods]:
    """The entries by pod and container, and those of pods as a whole, of a file of the first three formats, if the checksum is theirs."""
    found = as_number(member(given, "checksum"), "checksum")
    entries = member(given, "entries") if any(key.lower() == "entries" for key in given) else {}
    listed = None if entries is None else as_object(entries, "entries")
    by_id = bool(listed) and all(isinstance(item, str) for item in (listed or {}).values())
    if not by_id:
        by_name = None if listed is None else {uid: _read_names(uid, pod) for uid, pod in listed.items()}
        shown = _dump_pods({uid: format_cpuset(cpus) for uid, cpus in pods.items()})
        if found in (checksum(_dump(struct, policy, default, by_name, shown)) for struct in (_STRUCT, f"{_STRUCT}V3")):
            return by_name, pods
        # files of old versions have the checksum 0; some versions took it over a struct with the version in its name
        if found in (0, *(checksum(_dump(struct, policy, default, by_name)) for struct in (_STRUCT, f"{_STRUCT}V2"))):
            return by_name, {}
    if listed and not by_id:
        raise StateFileError(CORRUPT)
    if found not in (0, checksum(_dump_first(policy, default, listed))):
        raise StateFileError(CORRUPT)
    return _by_pod(listed or {}, containers), {}


def _by_pod(entries: Mapping[str, str], containers: ContainerIds) -> dict[str, dict[str, str]]:
    """Entries of the first format, by pod UID and container name."""
    pods: dict[str, dict[str, str]] = {}
    for container_id, cpus in entries.items():
        if container_id not in containers:
            what = f"containerID '{container_id}' not found in initial containers list"
            raise StateFileError(f"{FIRST_FORMAT}: {what}")
        uid, name = containers[container_id]
        pods.setdefault(uid, {})[name] = cpus
    return pods


def _read_names(uid: str, pod: Any) -> dict[str, str] | None:
    if pod is None:
        return None
    return {name: as_text(cpus, f"entries.{uid}.{name}") for name, cpus in as_object(pod, f"entries.{uid}").items()}


def _read_pods(given: Mapping[str, Any]) -> _Pods:
    """The CPUs of pods as a whole."""
    pods = {}
    for uid, entry in as_object(member(given, "podEntries") or {}, "podEntries").items():
        where = f"podEntries.{uid}"
        text = as_text(member(as_object(entry, where), _CPU_SET), f"{where}.{_CPU_SET}")
        pods[uid] = _cpus(text, f"could not parse cpuset {quoted(text)} of pod {quoted(uid)}")
    return pods


def _read_pod(uid: str, pod: Mapping[str, str]) -> dict[str, frozenset[int]]:
    where = f"in pod {quoted(uid)}"
    return {
        name: _cpus(cpus, f"could not parse cpuset {quoted(cpus)} for container {quoted(name)} {where}")
        for name, cpus in pod.items()
    }


def _cpus(text: str, problem: str) -> frozenset[int]:
    try:
        return parse_cpuset(text)
    except ValueError as error:
        raise StateFileError(f"{problem}: {error}") from None


# The dump under the checksum


def _dump(struct: str, policy: str, default: str, entries: _Entries, pods: str = "") -> str:
    containers = dump_map(entries, lambda pod: dump_map(pod, str))
    return _dump_struct(struct, policy, default, f"(map[string]map[string]string){containers}{pods}")


def _dump_pods(pods: Mapping[str, str]) -> str:
    """What the third format adds. `pods`: lists of CPUs."""

    def dump(cpus: str) -> str:
        elements = " ".join(f"{cpu}:{{}}" for cpu in sorted(parse_cpuset(cpus)))
        return f"{{CPUSet:(cpuset.CPUSet){{elems:(map[int]struct {{}})map[{elements}]}}}}"

    return f" PodEntries:(state.PodCPUAssignments){dump_map(pods, dump)}"


def _dump_first(policy: str, default: str, entries: Mapping[str, str] | None) -> str:
    return _dump_struct(_STRUCT, policy, default, f"(map[string]string){dump_map(entries, str)}")


def _dump_struct(struct: str, policy: str, default: str, entries: str) -> str:
    return (
        f"(*state.{struct}){{PolicyName:(string){policy} DefaultCPUSet:(string){default}"
        f" Entries:{entries} Checksum:(checksum.Checksum)0}}"
    )
