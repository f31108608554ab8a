"""The file `cpu_manager_state`: the CPU manager's policy name, shared pool and assignments. Pure.

The format is the reference's, so that either can take over the other's file. The present format is its second; files of the
first, whose entries are by container id, are read too. Files of the gate PodLevelResourceManagers have another checksum and are
refused, as by the reference without that gate.
Source: the Kubernetes documentation "Control CPU Management Policies on the Node", "Changing the CPU Manager Policy".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pykubelet.base.kit.cpuset import format_cpuset, parse_cpuset
from pykubelet.provide.placement.checkpoint import (
    CORRUPT,
    PolicyDiffers,
    StateFileError,
    as_number,
    as_object,
    as_text,
    checksum,
    member,
    read_json,
    write_json,
)
from pykubelet.provide.placement.cpu_manager import CpuState
from pykubelet.provide.placement.cpu_options import quoted

FILE_NAME = "cpu_manager_state"

#: The error about a file of the first format whose containers are not known.
FIRST_FORMAT = "failed to migrate checkpoint from v1 to v2"
_STRUCT = "CPUManagerCheckpoint"

#: Entries as text: CPU lists by pod UID and container name; None stands for null, which has another checksum than no entries.
_Entries = Mapping[str, Mapping[str, str] | None] | None
#: Pod UID and container name by container id.
ContainerIds = Mapping[str, tuple[str, str]]


def encode(policy: str, state: CpuState) -> str:
    """The file's text."""
    default = format_cpuset(state.default)
    entries = {
        uid: {name: format_cpuset(cpus) for name, cpus in sorted(containers.items())}
        for uid, containers in sorted(state.assignments.items())
    }
    document: dict[str, Any] = {"policyName": policy, "defaultCpuSet": default}
    if entries:
        document["entries"] = entries
    return write_json({**document, "checksum": checksum(_dump(_STRUCT, policy, default, entries))})


def decode(text: str, policy: str, containers: ContainerIds) -> CpuState:
    """The state in a file's text. `containers`: those that run, for a file of the first format.

    Raises CheckpointError: no such file, a wrong checksum, another policy, an unknown container, or no list of CPUs.
    """
    given = read_json(text)
    found_policy = as_text(member(given, "policyName"), "policyName")
    default = as_text(member(given, "defaultCpuSet"), "defaultCpuSet")
    entries = _checked_entries(given, found_policy, default, containers)
    if found_policy != policy:
        what = f"configured policy {quoted(policy)} differs from state checkpoint policy {quoted(found_policy)}"
        raise PolicyDiffers(what)
    pool = _cpus(default, f"could not parse default cpu set {quoted(default)}")
    return CpuState(pool, {uid: _read_pod(uid, pod or {}) for uid, pod in (entries or {}).items()})


def restore_error(error: StateFileError, path: str) -> str:
    """Why the CPU manager cannot start with the file at `path`."""
    how = f"please drain this node and delete the CPU manager checkpoint file {quoted(path)} before restarting Kubelet"
    return f"could not restore state from checkpoint: {error}, {how}"


def _checked_entries(given: Mapping[str, Any], policy: str, default: str, containers: ContainerIds) -> _Entries:
    """The entries by pod and container, of a file of either format, if the checksum is theirs."""
    found = as_number(member(given, "checksum"), "checksum")
    entries = member(given, "entries") if any(key.lower() == "entries" for key in given) else {}
    listed = None if entries is None else as_object(entries, "entries")
    by_id = bool(listed) and all(isinstance(item, str) for item in (listed or {}).values())
    if not by_id:
        pods = None if listed is None else {uid: _read_names(uid, pod) for uid, pod in listed.items()}
        # files of old versions have the checksum 0; some versions took it over a struct with the version in its name
        if found in (0, *(checksum(_dump(struct, policy, default, pods)) for struct in (_STRUCT, f"{_STRUCT}V2"))):
            return pods
    if listed and not by_id:
        raise StateFileError(CORRUPT)
    if found not in (0, checksum(_dump_first(policy, default, listed))):
        raise StateFileError(CORRUPT)
    return _by_pod(listed or {}, containers)


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


def _dump(struct: str, policy: str, default: str, entries: _Entries) -> str:
    pods = _dump_map(entries, lambda pod: _dump_map(pod, str))
    return _dump_struct(struct, policy, default, f"(map[string]map[string]string){pods}")


def _dump_first(policy: str, default: str, entries: Mapping[str, str] | None) -> str:
    return _dump_struct(_STRUCT, policy, default, f"(map[string]string){_dump_map(entries, str)}")


def _dump_struct(struct: str, policy: str, default: str, entries: str) -> str:
    return (
        f"(*state.{struct}){{PolicyName:(string){policy} DefaultCPUSet:(string){default}"
        f" Entries:{entries} Checksum:(checksum.Checksum)0}}"
    )


def _dump_map(value: Mapping[str, Any] | None, dump: Callable[[Any], str]) -> str:
    return "<nil>" if value is None else f"map[{' '.join(f'{key}:{dump(value[key])}' for key in sorted(value))}]"
