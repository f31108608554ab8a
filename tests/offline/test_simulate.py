"""`pykubelet simulate placement`: its output, its explanations and its errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.sysfs import SysfsTree

from pykubelet.app import cli

MACHINE = "sockets: 2\ncoresPerSocket: 4\nmemoryPerNode: 32Gi\n"
CONFIG = """\
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cpuManagerPolicy: static
reservedSystemCPUs: "0,8"
topologyManagerPolicy: single-numa-node
"""


def pods(*cpus: str) -> str:
    """Pods p0, p1.. with one container each."""
    listed = [
        {
            "metadata": {"name": f"p{number}"},
            "spec": {"containers": [{"name": "main", "resources": {"limits": {"cpu": cpu, "memory": "1Gi"}}}]},
        }
        for number, cpu in enumerate(cpus)
    ]
    return json.dumps(listed)


class Run:
    """One run of the command on files of a temporary directory."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.capsys = folder, capsys

    def __call__(
        self, machine: str = MACHINE, listed: str | None = None, config: str | None = None, *more: str
    ) -> tuple[int, str, str]:
        argv = ["simulate", "placement"]
        for name, content in (("machine", machine), ("pods", listed), ("config", config)):
            if content is not None:
                (self.folder / name).write_text(content)
                argv += [f"--{name}", str(self.folder / name)]
        code = cli.main([*argv, *more])
        out, err = self.capsys.readouterr()
        return code, out, err.replace(f"{self.folder}/", "")


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    return Run(tmp_path, capsys)


def test_pods_and_the_map(run: Run) -> None:
    assert run(MACHINE, pods("5", "4", "100m", "4", "4"), CONFIG) == (
        3,
        """\
default/p0: admitted
  main: CPUs 1-3,9-10
default/p1: admitted
  main: CPUs 4-5,12-13
default/p2: admitted
  main: shared pool
default/p3: admitted
  main: CPUs 6-7,14-15
default/p4: rejected, TopologyAffinityError: Resources cannot be allocated with Topology locality
  container main needs 4 CPUs on one NUMA node; largest free: 1 on node 0, held by default/p0 main (5), the system (2)

NUMA node 0 (socket 0, memory 32Gi): CPUs 0-3,8-11
  0,8                  reserved
  1-3,9-10             default/p0 main
  11                   shared pool
NUMA node 1 (socket 1, memory 32Gi): CPUs 4-7,12-15
  4-5,12-13            default/p1 main
  6-7,14-15            default/p3 main
""",
        "",
    )


WHOLE = (
    CONFIG
    + """\
topologyManagerScope: pod
memoryManagerPolicy: Static
systemReserved: {memory: 924Mi}
evictionHard: {memory.available: 100Mi}
reservedMemory: [{numaNode: 0, limits: {memory: 1Gi}}]
featureGates: {PodLevelResourceManagers: true}
"""
)


def whole(name: str, cpu: str, *containers: str) -> dict[str, Any]:
    """A pod with CPUs as a whole and its containers c0.., "" for one that shares."""
    limits = [{"limits": {"cpu": own, "memory": "1Gi"}} if own else {} for own in containers]
    listed = [{"name": f"c{number}", "resources": resources} for number, resources in enumerate(limits)]
    amounts = {"cpu": cpu, "memory": "8Gi"}
    resources = {"requests": amounts, "limits": amounts}
    return {"metadata": {"name": name}, "spec": {"resources": resources, "containers": listed}}


def test_pods_as_a_whole(run: Run) -> None:
    listed = [whole("a", "4", "2", "", ""), whole("b", "6", "2", "1"), whole("c", "4", ""), whole("d", "2", "2", "")]
    assert run(MACHINE, json.dumps(listed), WHOLE) == (
        3,
        """\
default/a: admitted
  the pod as a whole: CPUs 1-2,9-10, 8Gi memory on node 0
  c0: CPUs 1,9, 1Gi memory on node 0
  c1: CPUs 2,10 shared with others of the pod
  c2: CPUs 2,10 shared with others of the pod
default/b: admitted
  the pod as a whole: CPUs 4-6,12-14, 8Gi memory on node 1
  c0: CPUs 4,12, 1Gi memory on node 1
  c1: CPUs 5, 1Gi memory on node 1
default/c: rejected, TopologyAffinityError: Pod Scope pod with pod-level resources failed admission under pod-scope topology manager
  needs 4 CPUs on one NUMA node; largest free: 2 on node 0, held by default/a as a whole (4), the system (2)
default/d: rejected, TopologyAffinityError: Pod Scope pod with pod-level resources failed admission under pod-scope topology manager
  pod rejected, sum of exclusive container cpu requests equals pod budget, leaving no cpus for shared containers

NUMA node 0 (socket 0, memory 32Gi): CPUs 0-3,8-11
  0,8                  reserved
  1,9                  default/a c0
  2,10                 default/a (shared)
  3,11                 shared pool
  1Gi memory           default/a c0
  7Gi memory           default/a (shared)
  23Gi memory          free of 31Gi
NUMA node 1 (socket 1, memory 32Gi): CPUs 4-7,12-15
  4,12                 default/b c0
  5                    default/b c1
  6,13-14              default/b (shared)
  7,15                 shared pool
  1Gi memory           default/b c0
  1Gi memory           default/b c1
  6Gi memory           default/b (shared)
  24Gi memory          free of 32Gi
""",
        "",
    )


def test_json(run: Run) -> None:
    code, out, _ = run(MACHINE, pods("2", "99"), None, "-o", "json")
    document = json.loads(out)
    assert code == 3
    assert document["pods"][0] == {
        "pod": "default/p0", "admitted": True, "reason": "", "message": "", "explanation": "", "cpus": "", "memory": [],
        "containers": [
            {"name": "main", "cpus": "1,9", "shares_cpus": False, "mems": "", "memory": [], "devices": [], "claims": []}
        ],
    }  # fmt: skip
    assert document["pods"][1]["reason"] == "UnexpectedAdmissionError"
    assert document["numa_nodes"][0] == {
        "id": 0, "sockets": [0], "memory": 32 << 30, "cpus": "0-3,8-11", "reserved": "0", "shared": "2-3,8,10-11",
        "exclusive": [{"pod": "default/p0", "container": "main", "cpus": "1,9"}],
    }  # fmt: skip


def options(policy: str, *cpu: str, scope: str = "container") -> str:
    listed = "".join(f"  {name}: 'true'\n" for name in cpu)
    text = CONFIG.replace("single-numa-node", policy) + f"topologyManagerScope: {scope}\n"
    return text + (f"cpuManagerPolicyOptions:\n{listed}" if cpu else "")


@pytest.mark.parametrize(
    ("config", "wanted", "explanation"),
    [
        (options("single-numa-node"), ["9"],
         "container main needs 9 CPUs on one NUMA node; the largest node has 8"),
        (options("restricted"), ["7", "8", "10"],
         "container main needs 10 CPUs on 2 NUMA nodes; largest free: 7 on nodes 0, 1, "
         "held by default/p0 main (7), the system (2)"),
        (options("restricted"), ["17"], "container main needs 17 CPUs; the machine has 16"),
        (options("restricted", scope="pod"), ["8", "7"],
         "needs 7 CPUs on one NUMA node; largest free: 6 on node 0, held by the system (2)"),
        (options("none"), ["9", "6"],
         "container main needs 6 CPUs; free: 5 (5 on node 0, 0 on node 1), "
         "held by default/p0 main (9), the system (2)"),
        (options("none", "full-pcpus-only"), ["3"],
         "container main needs 3 CPUs, but only whole cores of 2 CPUs are allocated"),
        (options("none", "full-pcpus-only"), ["16"],
         "container main needs 16 CPUs on whole cores; free: 14 (6 on node 0, 8 on node 1), held by the system (2)"),
    ],
)  # fmt: skip
def test_why_a_pod_does_not_fit(run: Run, config: str, wanted: list[str], explanation: str) -> None:
    code, out, _ = run(MACHINE, pods(*wanted), config, "-o", "json")
    assert code == 3
    assert json.loads(out)["pods"][-1]["explanation"] == explanation


MEMORY_OF_A_NODE = "container main needs 33Gi of memory on one NUMA node; the largest node has 32Gi"
MEMORY = """\
memoryManagerPolicy: Static
reservedMemory: [{numaNode: 0, limits: {memory: 100Mi}}]
"""


def with_memory(*amounts: tuple[str, str]) -> str:
    listed = json.loads(pods(*(cpu for cpu, _ in amounts)))
    for pod, (_, memory) in zip(listed, amounts, strict=True):
        pod["spec"]["containers"][0]["resources"]["limits"]["memory"] = memory
    return json.dumps(listed)


def test_memory_of_numa_nodes(run: Run) -> None:
    code, out, _ = run(MACHINE, with_memory(("2", "30Gi"), ("4", "32Gi")), CONFIG + MEMORY)
    assert code == 0
    assert "  main: CPUs 1,9, 30Gi memory on node 0\n" in out
    assert "  main: CPUs 4-5,12-13, 32Gi memory on node 1\n" in out
    code, out, _ = run(MACHINE, with_memory(("2", "30Gi")), CONFIG + MEMORY, "-o", "json")
    [container] = json.loads(out)["pods"][0]["containers"]
    assert container["memory"] == [{"type": "memory", "size": 30 << 30, "numa_nodes": [0]}]


@pytest.mark.parametrize(("scope", "subject"), [("container", "container main needs"), ("pod", "needs")])
def test_memory_that_does_not_fit(run: Run, scope: str, subject: str) -> None:
    listed = with_memory(("2", "30Gi"), ("2", "33Gi"), ("2", "31Gi"), ("7", "1Gi"))
    config = CONFIG + MEMORY + f"topologyManagerScope: {scope}\n"
    code, out, _ = run(MACHINE, listed, config, "-o", "json")
    assert code == 3
    reports = [pod["explanation"] for pod in json.loads(out)["pods"]]
    assert reports[:3] == ["", MEMORY_OF_A_NODE, ""]
    assert reports[3].startswith(f"{subject} 7 CPUs on one NUMA node; largest free: 6 on node 1")


def test_cpus_and_memory_on_different_nodes(run: Run) -> None:
    """Node 0 has memory left, node 1 has CPUs left."""
    code, out, _ = run(MACHINE, with_memory(("2", "5Gi"), ("2", "32Gi"), ("6", "2Gi")), CONFIG + MEMORY)
    assert code == 3
    together = "container main needs all resources on the same NUMA nodes"
    assert f"{together}; cpu fits on node 1, memory fits on node 0" in out


def test_memory_without_topology_policy(run: Run) -> None:
    config = CONFIG.replace("single-numa-node", "none") + MEMORY
    code, out, _ = run(MACHINE, with_memory(("1", "90Gi")), config)
    assert code == 3
    assert "container main needs 90Gi of memory; free: 32668Mi on node 0, 32Gi on node 1\n" in out


def test_reserved_memory_that_does_not_add_up(run: Run) -> None:
    code, _, err = run(MACHINE, None, CONFIG + MEMORY.replace("100Mi", "1Gi"))
    assert code == 1
    assert err.startswith('Error: config: the total amount "1Gi" of type "memory" is not equal to the value "100Mi"')


def test_a_container_that_fails_after_another_one_is_explained_with_it(run: Run) -> None:
    pod = json.loads(pods("8"))
    pod[0]["spec"]["containers"].append({**pod[0]["spec"]["containers"][0], "name": "second"})
    code, out, _ = run(MACHINE, json.dumps(pod), CONFIG)
    assert code == 3
    assert "container second needs 8 CPUs on one NUMA node; largest free: 6 on node 0, held by the system (2)" in out


def test_the_map_of_an_empty_machine(run: Run) -> None:
    code, out, _ = run("sockets: 4\nnumaNodes: 2\ncoresPerSocket: 1\nthreadsPerCore: 1\nmemoryPerNode: 1Gi\n")
    assert code == 0
    assert out == (
        "NUMA node 0 (socket 0, 1, memory 1Gi): CPUs 0-1\n  0                    reserved\n"
        "  1                    shared pool\n"
        "NUMA node 1 (socket 2, 3, memory 1Gi): CPUs 2-3\n  2-3                  shared pool\n"
    )


def test_the_policy_none(run: Run) -> None:
    config = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
    code, out, _ = run(MACHINE, pods("2"), config)
    assert (code, out.splitlines()[:3]) == (0, ["default/p0: admitted", "  main: shared pool", ""])
    assert out.endswith("NUMA node 1 (socket 1, memory 32Gi): CPUs 4-7,12-15\n  4-7,12-15            shared pool\n")


DEVICES = """\
devices:
- {resource: example.com/gpu, count: 2, numaNodes: [0, 1]}
- {resource: example.com/disk, count: 3}
"""


def with_devices(*wanted: dict[str, str]) -> str:
    listed = json.loads(pods(*("1" for _ in wanted)))
    for pod, devices in zip(listed, wanted, strict=True):
        pod["spec"]["containers"][0]["resources"]["limits"] |= {f"example.com/{key}": n for key, n in devices.items()}
    return json.dumps(listed)


def test_devices(run: Run) -> None:
    listed = with_devices({"gpu": "1"}, {"gpu": "2", "disk": "1"}, {"gpu": "2"}, {"tpu": "1"})
    code, out, _ = run(MACHINE + DEVICES, listed, CONFIG)
    assert code == 3
    assert out.splitlines() == [
        "default/p0: admitted",
        "  main: CPUs 1, example.com/gpu gpu-0",
        "default/p1: admitted",
        "  main: CPUs 4, example.com/disk disk-0, example.com/gpu gpu-2,gpu-3",
        "default/p2: rejected, TopologyAffinityError: Resources cannot be allocated with Topology locality",
        "  container main needs 2 example.com/gpu on one NUMA node; largest free: 1 on node 0, held by default/p0 main (1)",
        "default/p3: admitted",
        "  main: CPUs 9",
        "",
        "NUMA node 0 (socket 0, memory 32Gi): CPUs 0-3,8-11",
        "  0,8                  reserved",
        "  1                    default/p0 main",
        "  9                    default/p3 main",
        "  2-3,10-11            shared pool",
        "  example.com/gpu",
        "    gpu-0              default/p0 main",
        "    gpu-1              free",
        "NUMA node 1 (socket 1, memory 32Gi): CPUs 4-7,12-15",
        "  4                    default/p1 main",
        "  5-7,12-15            shared pool",
        "  example.com/gpu",
        "    gpu-2,gpu-3        default/p1 main",
        "No NUMA node:",
        "  example.com/disk",
        "    disk-0             default/p1 main",
        "    disk-1,disk-2      free",
    ]


def test_a_machine_from_sysfs(run: Run, tmp_path: Path) -> None:
    tree = SysfsTree(sockets=2, cores_per_node=1).write(tmp_path / "tree")
    code, out, _ = run(f"sysfs: {tree}")
    assert code == 0
    assert "NUMA node 1 (socket 1, memory 4Gi): CPUs 1,3" in out


@pytest.mark.parametrize("wrap", ['{{"kind": "List", "items": {}}}', "{}"])
def test_lists_of_pods(run: Run, wrap: str) -> None:
    assert run(MACHINE, wrap.format(pods("1")))[0] == 0


def test_one_pod_is_a_list_of_one(run: Run) -> None:
    assert run(MACHINE, json.dumps(json.loads(pods("1"))[0]))[0] == 0


@pytest.mark.parametrize(
    ("machine", "message"),
    [
        ("sockets: two", "machine: sockets: expected integer, got string"),
        ("socket: 2", "machine: object contains unknown field socket"),
        ("sockets: 0", "machine: sockets: must be from 1 to 4096"),
        ("coresPerSocket: 4096", "machine: coresPerSocket: the machine would have more than 4096 CPUs"),
        ("numaNodes: 17", "machine: numaNodes: must be from 1 to 16"),
        ("sockets: 2\nnumaNodes: 3", "machine: numaNodes: 3 NUMA nodes and 2 sockets cannot be divided evenly"),
        ("numaNodes: 3", "machine: numaNodes: 4 cores cannot be divided among 3 NUMA nodes"),
        ("uncoreCaches: 3", "machine: uncoreCaches: 4 cores cannot be divided among 3 caches"),
        ("memoryPerNode: much", 'machine: memoryPerNode: "much": quantities must match'),
        ("sysfs: /none\nsockets: 2", "machine: sysfs: may not be combined with other fields, except devices"),
        ("devices: [{resource: gpu}]", 'machine: devices[0].resource: "gpu" is not the name of an extended resource'),
        ("devices: [{resource: a/b, count: 0}]", "machine: devices[0].count: must be at least 1"),
        ("devices: [{resource: a/b, count: 100001}]", "machine: devices[0].count: the machine would have more than"),
        (
            "devices: [{resource: a/b, numaNodes: [0, 5]}]",
            "machine: devices[0].numaNodes: the machine has no NUMA node 5",
        ),
        ("sysfs: /none", "machine: sysfs: read /none/sys/devices/system/cpu: no online CPU"),
        ("- 1", "machine: expected object, got list"),
        ("a: [", "machine: "),
    ],
)
def test_a_wrong_machine(run: Run, machine: str, message: str) -> None:
    code, out, err = run(machine)
    assert (code, out) == (1, "")
    assert err.startswith(f"Error: {message}")


@pytest.mark.parametrize(
    ("listed", "message"),
    [
        ("- spec: {containers: [{name: a, resources: {limits: {cpu: x}}}]}",
         'pods: [0].spec.containers[0].resources.limits.cpu: "x": '),
        ("- spec: {containers: [{name: a, resources: {limits: {cpu: -1}}}]}",
         'pods: [0].spec.containers[0].resources.limits.cpu: "-1" is negative'),
        ("- spec: {containers: [{}]}", 'pods: [0].spec.containers[0].name: "" is not a name of its own'),
        ("- spec: {containers: [{name: a}], initContainers: [{name: a}]}",
         'pods: [0].spec.containers[0].name: "a" is not a name of its own'),
        ("- spec: {}", "pods: [0].spec.containers: must have at least one container"),
        ("items: [{spec: {containers: 3}}]", "pods: items[0].spec.containers: expected list, got integer"),
        ("- 3", "pods: [0]: expected object, got integer"),
        ("", "pods: [0]: expected object, got null"),
    ],
)  # fmt: skip
def test_wrong_pods(run: Run, listed: str, message: str) -> None:
    code, out, err = run(MACHINE, listed)
    assert (code, out) == (1, "")
    assert err.startswith(f"Error: {message}")


def test_an_unknown_field_of_the_configuration_is_warned_about(run: Run) -> None:
    code, _, err = run(MACHINE, None, CONFIG + "cpuManagerPolcy: none\n")
    assert code == 0
    assert err == 'Warning: config: cpuManagerPolcy: unknown field, ignored; did you mean "cpuManagerPolicy"?\n'


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (CONFIG.replace("static", "dynamic"), "config: "),
        (CONFIG.replace('"0,8"', '"77"'), "config: new static policy error: [cpumanager] unable to build"),
        (CONFIG.replace('reservedSystemCPUs: "0,8"', ""), "config: "),
        (CONFIG + "topologyManagerPolicyOptions: {max-allowable-numa-nodes: '1'}\n", "config: "),
    ],
)
def test_a_wrong_configuration(run: Run, config: str, message: str) -> None:
    code, out, err = run(MACHINE, None, config)
    assert (code, out) == (1, "")
    assert err.startswith(f"Error: {message}")


def test_a_missing_file(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["simulate", "placement", "--machine", "/none"]) == 1
    assert capsys.readouterr().err == "Error: /none: No such file or directory\n"


def test_a_wrong_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["simulate"])
    assert caught.value.code == 2


def test_the_example_of_the_documentation(run: Run) -> None:
    page = (Path(__file__).parents[2] / "docs/placement.md").read_text()
    blocks = [block.partition("\n")[::2] for block in page.split("```")[1::2]]
    config = next(text for kind, text in blocks if kind == "yaml")
    machine = MACHINE + "devices: [{resource: example.com/gpu, count: 2, numaNodes: [0, 1]}]\n"
    listed = """\
- metadata: {name: a}
  spec: {containers: [{name: main, resources: {limits: {cpu: 5, memory: 8Gi, example.com/gpu: 1}}}]}
- metadata: {name: b}
  spec:
    containers:
    - {name: main, resources: {limits: {cpu: 4, memory: 4Gi, example.com/gpu: 2}}}
    - {name: log, resources: {limits: {cpu: 500m, memory: 100Mi}}}
- metadata: {name: c}
  spec: {containers: [{name: main, resources: {limits: {cpu: 5, memory: 1Gi}}}]}
"""
    _, out, _ = run(machine, listed, config)
    pods_shown, _, map_shown = out.partition("\n\n")
    texts = [text for _, text in blocks]
    assert f"{pods_shown}\n" in texts
    assert f"Placement:\n{map_shown}" in texts


HIGHEST = """
from pykubelet.extension import Extension


class Highest(Extension):
    name, api = "highest", "1.0"

    def place(self, request, machine):
        return frozenset(sorted(machine.free)[-request.cpus :])
"""


def test_what_an_extension_places_otherwise(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "highest.py"
    path.write_text(HIGHEST)
    code, out, err = run("coresPerSocket: 4\n", pods("2", "100m"), None, "--extension", str(path))
    assert (code, err) == (0, "")
    assert out.startswith(
        """\
default/p0: admitted
  main: CPUs 6-7
    without: main: CPUs 1,5
default/p1: admitted
  main: shared pool

"""
    )
    config = CONFIG.replace("static", "lowest").replace("0,8", "0")
    code, _, err = run("coresPerSocket: 4\n", pods("2"), config, "--extension", str(path))
    assert code == 1 and "no extension of --extension is named lowest and defines `place`" in err
    path.write_text(HIGHEST.replace("-request.cpus :", "-1 :"))
    code, out, err = run("coresPerSocket: 4\n", pods("2"), None, "--extension", str(path))
    assert "main: CPUs 1,5" in out
    assert err == "Error: an extension has failed: highest: place: the answer must have 2 CPUs: it has 1\n"
