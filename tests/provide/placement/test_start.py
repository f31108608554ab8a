"""The start of the managers: what a configuration or a state file that does not fit is answered with."""

from __future__ import annotations

import pytest
from provide.placement.pool_pods import whole_pod
from support.machines import Shape

from pykubelet.config.combine import File, FlagInput, combine
from pykubelet.config.settings import Settings
from pykubelet.provide.placement import cpu_state, memory_state
from pykubelet.provide.placement.managers import Managers
from pykubelet.provide.placement.provider import ManagerStartError
from pykubelet.provide.placement.start import StateTexts, start_managers
from pykubelet.provide.placement.topology_scopes import Admitted, admit

SHAPE = Shape(sockets=1, nodes_per_socket=1, cores_per_node=4, threads=1)
HEAD = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
STATIC = "cpuManagerPolicy: static\nreservedSystemCPUs: '0'\n"
MEMORY = "memoryManagerPolicy: Static\nreservedMemory: [{numaNode: 0, limits: {memory: 1124Mi}}]\nsystemReserved: {memory: 1Gi}\n"
HOW = "please drain this node and delete the"
CPU_HOW = f', {HOW} CPU manager checkpoint file "/k/cpu" before restarting Kubelet'
MEMORY_HOW = f', {HOW} memory manager checkpoint file "/k/memory" before restarting Kubelet'
EVICTION = {"memory": 100 << 20}
NONE_CPU = '{"policyName":"none","defaultCpuSet":"","checksum":1353318690}'
NONE_MEMORY = '{"policyName":"None","machineState":{},"checksum":4236770233}'


def start(config: str, cpu: str | None = None, memory: str | None = None) -> Managers | ManagerStartError:
    settings = combine(File("f", (HEAD + config).encode()), (), FlagInput(), None) if config else Settings()
    texts = StateTexts("/k/cpu", "/k/memory", cpu, memory, {"id-1": ("pod", "app")})
    return start_managers(settings, SHAPE.machine, EVICTION, texts)


def problem(config: str, cpu: str | None = None, memory: str | None = None) -> str:
    error = start(config, cpu, memory)
    assert isinstance(error, ManagerStartError)
    return error.text


def test_without_policies_nothing_is_placed() -> None:
    managers = start("", NONE_CPU, NONE_MEMORY)
    assert isinstance(managers, Managers)
    assert managers.providers == ()
    assert not managers.is_new


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (
            STATIC + "cpuManagerPolicyOptions: {align-by-socket: 'true'}",
            "new static policy error: CPU Manager Policy Alpha-level Options not enabled, "
            'but option "align-by-socket" provided',
        ),
        (
            "memoryManagerPolicy: Static\nreservedMemory: [{numaNode: 0, limits: {memory: 1Gi}}]\n",
            'the total amount "1Gi" of type "memory" is not equal to the value "100Mi" determined by Node Allocatable feature',
        ),
        (
            "topologyManagerPolicy: restricted\ntopologyManagerPolicyOptions: {max-allowable-numa-nodes: '7'}\n",
            'the minimum value of "max-allowable-numa-nodes" should not be less than 8',
        ),
    ],
)
def test_a_configuration_that_cannot_be_has_the_text_of_the_reference(config: str, text: str) -> None:
    assert problem(config) == text


@pytest.mark.parametrize(
    ("cpu", "text"),
    [
        (
            NONE_CPU,
            'could not restore state from checkpoint: configured policy "static" differs from state checkpoint policy "none"',
        ),
        ("", "could not restore state from checkpoint: unexpected end of JSON input"),
        (NONE_CPU[:-20], "could not restore state from checkpoint: unexpected end of JSON input"),
        (
            '{"policyName":"static","defaultCpuSet":"0-3","checksum":1}',
            "could not restore state from checkpoint: checkpoint is corrupted",
        ),
        (
            '{"policyName":"static","defaultCpuSet":"1-3","checksum":0}',
            'not all reserved cpus: "0" are present in defaultCpuSet: "1-3"',
        ),
        (
            '{"policyName":"static","defaultCpuSet":"0-7","checksum":0}',
            'current set of available CPUs "0-3" doesn\'t match with CPUs in state "0-7"',
        ),
    ],
)
def test_a_cpu_state_that_does_not_fit_is_answered_with_what_to_do(cpu: str, text: str) -> None:
    assert problem(STATIC, cpu) == f"start cpu manager error: {text}{CPU_HOW}"


@pytest.mark.parametrize("damaged", ["", "{", NONE_CPU[:20], NONE_CPU.replace("1353318690", "7"), "\x00\xff"])
def test_without_policies_a_damaged_state_file_stops_no_start(damaged: str) -> None:
    assert start("", damaged, damaged) == start("")


WHOLE = "topologyManagerPolicy: restricted\ntopologyManagerScope: pod\nfeatureGates: {PodLevelResourceManagers: true}\n"
WITH_POOL = '{"policyName":"static","defaultCpuSet":"0,3","entries":{"a":{"app":"1-2"}},"checksum":0,"data":"{}","dataChecksum":1}'


@pytest.mark.parametrize("gate", [True, False])
def test_the_gate_for_pods_as_a_whole(gate: bool) -> None:
    managers = start(STATIC + MEMORY + WHOLE.replace("true", str(gate).lower()))
    assert isinstance(managers, Managers)
    assert managers.cpus is not None
    assert [managers.topology.pod_level, managers.cpus.policy.pod_level, managers.memory.pod_level] == [gate] * 3


@pytest.mark.parametrize("gate", [True, False])
@pytest.mark.parametrize("has_data", [True, False])
def test_the_files_of_a_kubelet_with_pods_as_a_whole_are_taken_over(gate: bool, has_data: bool) -> None:
    """Without the gate too: the CPUs and the memory are not free before the pods have ended."""
    config = STATIC + MEMORY + WHOLE
    managers = start(config)
    assert isinstance(managers, Managers)
    pod = whole_pod("a", "2", "1", "", memory="2Gi")
    result = admit(managers.topology, managers.providers, pod)
    assert isinstance(result, Admitted), result
    after = managers.with_providers(result.providers)
    cpus = cpu_state.encode("static", after.cpu_state, has_data=has_data)
    memory = memory_state.encode("Static", after.memory.state, has_data=has_data)
    again = start(config.replace("true", str(gate).lower()), cpus, memory)
    assert isinstance(again, Managers), again
    assert again.cpu_state == after.cpu_state and again.memory.state == after.memory.state
    assert again.release(["a"]).cpu_state.default == frozenset(range(4))
    assert again.release(["a"]).memory.state == managers.memory.state


def test_a_damaged_file_of_1_37_is_not_read_as_an_older_one() -> None:
    text = "could not restore state from checkpoint: could not load v4 checkpoint: checkpoint is corrupted"
    assert problem(STATIC, WITH_POOL) == f"start cpu manager error: {text}{CPU_HOW}"


def test_a_policy_that_was_switched_off_is_an_error_too() -> None:
    static = '{"policyName":"static","defaultCpuSet":"0-3","checksum":0}'
    text = 'configured policy "none" differs from state checkpoint policy "static"'
    assert problem("", static) == f"start cpu manager error: could not restore state from checkpoint: {text}{CPU_HOW}"


def test_a_file_of_the_first_format_is_read_with_the_running_containers() -> None:
    managers = start(STATIC, '{"policyName":"static","defaultCpuSet":"0,3","entries":{"id-1":"1-2"},"checksum":0}')
    assert isinstance(managers, Managers)
    assert managers.cpu_state.own("pod", "app") == frozenset({1, 2})
    unknown = '{"policyName":"static","defaultCpuSet":"0,3","entries":{"id-2":"1-2"},"checksum":0}'
    assert "containerID 'id-2' not found in initial containers list" in problem(STATIC, unknown)


@pytest.mark.parametrize(
    ("memory", "text"),
    [
        (
            NONE_MEMORY,
            "could not restore state from checkpoint: [memorymanager] "
            'configured policy "Static" differs from state checkpoint policy "None"',
        ),
        ("{", "could not restore state from checkpoint: unexpected end of JSON input"),
        (
            '{"policyName":"Static","machineState":{"0":{"numberOfAssignments":0,"memoryMap":{},"cells":[0]}},"checksum":0}',
            "[memorymanager] the expected machine state is different from the real one",
        ),
    ],
)
def test_a_memory_state_that_does_not_fit_is_answered_with_what_to_do(memory: str, text: str) -> None:
    assert problem(MEMORY, None, memory) == f"start memory manager error: {text}{MEMORY_HOW}"


def test_the_first_start_of_a_static_policy_looks_at_running_containers() -> None:
    managers = start(STATIC)
    assert isinstance(managers, Managers)
    assert managers.is_new
    assert managers.cpu_state.default == frozenset(range(4))
