"""Every group below kubepods has the values that the kubelet gives it: pods of all kinds, both drivers, memory QoS, swap.

`data/groups-*.json` are those of a Kubernetes 1.36 kubelet, measured on this machine for the pods of `data/pods-*.json`; what
depends on the machine's memory or on defaults of systemd stands there by name (`$memory`). Names stand for ids.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.agent import NODE_NAME, Json, RuntimeView, is_ready, make_container
from support.unit import CGROUP_MOUNT, LONG_S, UnitAgent, cgroups_below_kubepods, show, systemctl, with_flags
from support.world import World, a_world

pytestmark = pytest.mark.vm

MakeUnit = Callable[..., UnitAgent]
DATA = Path(__file__).with_name("data")
MIB = 1 << 20
_SLICE = ".slice"
RESERVED = 300 * MIB
SETTINGS: dict[str, Any] = {
    "memorySwap": {"swapBehavior": "LimitedSwap"},
    "podPidsLimit": 1024,
    "kubeReserved": {"cpu": "200m", "memory": "200Mi", "pid": "1000"},
    "systemReserved": {"cpu": "100m", "memory": "100Mi"},
    "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
}
MEMORY_QOS: dict[str, Any] = {
    "featureGates": {"MemoryQoS": True},
    "memoryThrottlingFactor": 0.9,
    "memoryReservationPolicy": "TieredReservation",
}


def read_pods(name: str) -> dict[str, Json]:
    """Manifests by name, with the image and command that all containers have."""
    pods: dict[str, Json] = {}
    for pod, spec in json.loads((DATA / name).read_text()).items():
        for container in [*spec["containers"], *spec.get("initContainers", [])]:
            container |= make_container(container["name"]) | container
        pods[pod] = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": pod, "namespace": "default"}, "spec": spec}
    return pods


def read_reference(driver: str) -> dict[str, Json]:
    """All values of each group; unit properties as `unit <name>`."""
    reference = json.loads((DATA / f"groups-{driver}.json").read_text())
    groups: dict[str, Json] = {}
    for group, values in reference["groups"].items():
        unit = values.pop("unit", None)
        groups[group] = reference["unless_given"] | values
        if unit is not None:
            groups[group] |= {f"unit {k}": v for k, v in (reference["unit_unless_given"] | unit).items()}
    known = machine_values()
    return {g: {k: resolve(v, known) for k, v in values.items()} for g, values in groups.items()}


def without_systemd(reference: dict[str, Json]) -> dict[str, Json]:
    """The same groups as the cgroupfs driver has them: other names, no units, and no default of `TasksMax` for containers.

    Made so from `groups-systemd.json`, the values are those of `groups-cgroupfs.json`.
    """
    found: dict[str, Json] = {}
    for group, values in reference.items():
        kept = {key: value for key, value in values.items() if not key.startswith("unit ")}
        if not group.endswith(_SLICE):
            kept["pids.max"] = "max"
        parts = [part.removesuffix(_SLICE) if part.endswith(_SLICE) else part for part in group.split("/")]
        nested = zip(["", *parts], parts, strict=False)
        found["/".join(part.removeprefix(f"{above}-") for above, part in nested)] = kept
    return found


def machine_values() -> dict[str, int]:
    """What the names in the reference stand for on this machine."""
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    total, swap = (int(lines[name].split()[0]) * 1024 for name in ("MemTotal", "SwapTotal"))
    threads = min(int(Path("/proc/sys/kernel", name).read_text()) for name in ("pid_max", "threads-max"))
    memory = total - RESERVED
    return {
        "$memory": memory,
        "$total": total,
        "$swap": swap,
        "$pids": threads - 1000,
        "$tasks": int(systemctl("show", "--property=DefaultTasksMax", "--value")),
        # of a container without limit that requests 64Mi, with a throttling factor of 0.9
        "$throttled": whole_pages(64 * MIB + 0.9 * (memory - 64 * MIB)),
    }


def whole_pages(value: float) -> int:
    return int(value) // 4096 * 4096


def resolve(value: str, known: dict[str, int]) -> str:
    name, _, request = value.partition(" ")
    if name == "$swap":  # the container's share of the swap is its request's share of the memory
        return str(whole_pages(int(request) / known["$total"] * known["$swap"]))
    return str(known[value]) if value.startswith("$") else value


class Names:
    """Puts the names of pods and containers in place of ids."""

    def __init__(self, view: RuntimeView, node: str) -> None:
        self._names: dict[str, str] = {}
        for sandbox in view.sandboxes:
            pod = sandbox.metadata.name.removesuffix(f"-{node}")
            self._names[f"cri-containerd-{sandbox.id}.scope"] = self._names[sandbox.id] = f"<{pod}/POD>"
            for uid in (sandbox.metadata.uid, sandbox.metadata.uid.replace("-", "_")):
                self._names[f"pod{uid}"] = f"pod<{pod}>"
        for container in view.running:
            labels = container.labels
            pod = labels["io.kubernetes.pod.name"].removesuffix(f"-{node}")
            name = f"<{pod}/{labels['io.kubernetes.container.name']}>"
            self._names[f"cri-containerd-{container.id}.scope"] = self._names[container.id] = name

    def __call__(self, text: str) -> str:
        for given, name in self._names.items():
            text = text.replace(given, name)
        return text


def read_groups(reference: dict[str, Json], names: Names) -> dict[str, Json]:
    """The groups as they are, in the form of the reference, as far as it goes."""
    groups: dict[str, Json] = {}
    for path in cgroups_below_kubepods():
        group = names(str(path.relative_to(CGROUP_MOUNT)))
        wanted = reference.get(group, {})
        values: Json = {}
        for key in wanted:
            if not key.startswith(("unit ", "oom_score_adj")):
                with contextlib.suppress(OSError):
                    values[key] = (path / key).read_text().strip()
        if scores := sorted(set(oom_scores(path))):
            values["oom_score_adj"] = " ".join(scores)
        if properties := [key.removeprefix("unit ") for key in wanted if key.startswith("unit ")]:
            values |= {f"unit {key}": names(value) for key, value in show(path.name, *properties).items()}
        groups[group] = values
    return groups


def oom_scores(path: Path) -> Iterator[str]:
    for pid in (path / "cgroup.procs").read_text().split():
        with contextlib.suppress(OSError):  # it may end meanwhile
            yield Path("/proc", pid, "oom_score_adj").read_text().strip()


def differences(reference: dict[str, Json], groups: dict[str, Json]) -> list[str]:
    """Each value that is not the reference's, a line for each."""
    found = [f"{group}: missing" for group in sorted(set(reference) - set(groups))]
    found += [f"{group}: should not be there" for group in sorted(set(groups) - set(reference))]
    for group in sorted(set(groups) & set(reference)):
        wanted, given = reference[group], groups[group]
        for key in sorted(set(wanted) | set(given)):
            if wanted.get(key) != given.get(key):
                found.append(f"{group}: {key} is {given.get(key)!r}, the kubelet has {wanted.get(key)!r}")
    return found


class CpuLoan:
    """Lifts the CPU limits of all groups below kubepods until its end, and then puts back what was there.

    Emulated on a busy host, runc would need many minutes to start a container within a few millicores.
    """

    def __init__(self) -> None:
        self._limits: dict[Path, str] = {}

    def renew(self) -> None:
        """Lift the limits that were set since the last call."""
        for path in cgroups_below_kubepods():
            with contextlib.suppress(OSError):  # it may be removed meanwhile
                limit = (path / "cpu.max").read_text()
                if not limit.startswith("max"):
                    self._limits[path / "cpu.max"] = limit
                    (path / "cpu.max").write_text("max")

    def end(self) -> None:
        for file, limit in self._limits.items():
            with contextlib.suppress(OSError):
                file.write_text(limit)


async def wait_started(agent: UnitAgent, names: Iterable[str], are_started: Callable[[], bool]) -> None:
    """Until the pods run, with as much CPU as there is."""
    loan = CpuLoan()

    def started() -> bool:
        loan.renew()
        return are_started()

    await agent.wait_for(f"{', '.join(names)} running and ready", started, LONG_S)
    loan.end()


async def compare(agent: UnitAgent, reference: dict[str, Json]) -> None:
    """Equal after a while: some values the kubelet writes once a minute. Shows what differs then."""
    names = Names(await agent.look(), NODE_NAME)
    last: list[str] = []

    def same() -> bool:
        last[:] = differences(reference, read_groups(reference, names))
        return not last

    with contextlib.suppress(AssertionError):
        await agent.wait_for("the reference's values", same, 300)
    count = sum(map(len, reference.values()))
    assert not last, f"{len(last)} of {count} values differ:\n" + "\n".join(last)
    print(f"{count} values of {len(reference)} groups are alike")


def pods_of(reference: dict[str, Json], pods: dict[str, Json]) -> list[Json]:
    """Those that were there when the reference was measured."""
    return [pod for name, pod in pods.items() if any(f"pod<{name}>" in group for group in reference)]


def batched(pods: list[Json]) -> Iterator[list[Json]]:
    """A few at a time: for a dozen at once runc does not wait until an emulated systemd has made its scopes."""
    for at in range(0, len(pods), 4):
        yield pods[at : at + 4]


def are_ready(agent: UnitAgent, pods: list[Json]) -> bool:
    known = agent.pods()
    names = {pod["metadata"]["name"] for pod in pods}
    return names <= set(known) and all(is_ready(known[name]) for name in names)


def are_ready_in(world: World, names: Iterable[str]) -> bool:
    return all(pod is not None and is_ready(pod) for pod in map(world.pod, names))


@pytest.mark.parametrize("driver", ["systemd", "cgroupfs"])
async def test_static_pods(make_unit: MakeUnit, driver: str) -> None:
    reference = read_reference(driver)
    pods = pods_of(reference, read_pods("pods-static.json"))
    agent = make_unit(cgroupDriver=driver, **SETTINGS).start()
    for few in batched(pods):
        agent.put(*few)
        await wait_started(agent, [pod["metadata"]["name"] for pod in few], partial(are_ready, agent, few))
    await compare(agent, reference)


@pytest.mark.parametrize("driver", ["systemd", "cgroupfs"])
async def test_memory_qos_and_swap_of_pods_from_an_api_server(make_unit: MakeUnit, tmp_path: Path, driver: str) -> None:
    """Static pods are critical, and critical pods get no swap: this takes an API server."""
    reference = read_reference("api")
    if driver == "cgroupfs":
        reference = without_systemd(reference)
    pods = read_pods("pods-api.json")

    # the release that the values were recorded of
    make = with_flags(make_unit, "--emulated-version", "1.36")
    async with a_world(make, tmp_path, cgroupDriver=driver, **SETTINGS, **MEMORY_QOS) as world:
        assert isinstance(world.agent, UnitAgent)
        for few in batched(pods_of(reference, pods)):
            started = [world.run(pod)["metadata"]["name"] for pod in few]
            await wait_started(world.agent, started, partial(are_ready_in, world, started))
        await compare(world.agent, reference)
        for name in pods:
            world.delete(name)
        await world.wait_gone(*pods, within=LONG_S)
