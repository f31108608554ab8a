"""The checks of one pod, with the reference's reasons and messages."""

from __future__ import annotations

from typing import Any

import pytest
from desired.roster.wants import NODE, Desk, facts, make_pod
from support.cost import count_instructions

from pykubelet.base.api.core import Taint
from pykubelet.base.kit.values import replace
from pykubelet.base.model.evictions import NodePressure
from pykubelet.base.model.node import NodeView, RuntimeReady
from pykubelet.base.model.version import Release
from pykubelet.config.gates import FeatureGates
from pykubelet.config.settings import Settings
from pykubelet.desired.roster.admission import refuse_placement, refuse_sysctls
from pykubelet.desired.roster.model import AdmissionRules, Demand, HostPort, Load, admission_rules


def refusal(pod: Any, *others: Any, **circumstances: Any) -> tuple[str | None, str]:
    desk = Desk()
    desk.send(*others, pod, at=facts(**circumstances))
    uid = pod.metadata.uid
    rejection = desk.roster.pods[uid].rejection
    if rejection is None:
        assert desk.events == []
        return None, ""
    assert desk.events == [(pod.metadata.name, rejection.reason, rejection.message)]
    return rejection.reason, rejection.message


def test_a_plain_pod_is_taken() -> None:
    assert refusal(make_pod(cpu="500m", memory="64Mi")) == (None, "")


TOLERATES = [{"key": "node.kubernetes.io/memory-pressure", "operator": "Exists", "effect": "NoSchedule"}]
LOW = "The node had condition: [MemoryPressure]. "
FULL = "The node had condition: [DiskPressure]. "
BOTH = "The node had condition: [MemoryPressure DiskPressure]. "


@pytest.mark.parametrize(
    ("pressure", "fields", "message"),
    [
        ({"memory": True}, {}, LOW),
        ({"memory": True}, {"memory": "64Mi"}, ""),
        ({"memory": True}, {"tolerations": TOLERATES}, ""),
        ({"memory": True}, {"priority": 2_000_000_000}, ""),
        ({"memory": True}, {"source": "file"}, ""),
        ({"disk": True}, {"memory": "64Mi"}, FULL),
        ({"disk": True}, {"tolerations": TOLERATES}, FULL),
        ({"memory": True, "disk": True}, {"memory": "64Mi"}, BOTH),
        ({"memory": True, "pid": True}, {}, "The node had condition: [MemoryPressure PIDPressure]. "),
        ({"disk": True}, {"priority": 2_000_000_000}, ""),
    ],
)
def test_pressure_on_the_node(pressure: dict[str, bool], fields: dict[str, Any], message: str) -> None:
    expected = ("Evicted", message) if message else (None, "")
    assert refusal(make_pod(**fields), pressure=NodePressure(**pressure)) == expected


@pytest.mark.parametrize(
    ("volume", "where"),
    [
        ({"hostPath": {"path": "/a\0b"}}, "spec.volumes[0].hostPath.path"),
        ({"downwardAPI": {"items": [{"path": "a\0"}]}}, "spec.volumes[0].downwardAPI.items[0].path"),
    ],
)
def test_text_that_nothing_can_use(volume: dict[str, Any], where: str) -> None:
    message = f"{where}: must not have a NUL character: no file name, variable or argument can have one"
    assert refusal(make_pod(volumes=[{"name": "v", **volume}])) == ("InvalidPodSpec", message)


LONG = "1" + "0" * 300


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"volumes": [{"name": "v", "emptyDir": {"sizeLimit": LONG}}]}, "volumes[0].emptyDir.sizeLimit"),
        ({"cpu": LONG}, "containers[0].resources.requests[cpu]"),
        ({"resources": {"limits": {"memory": LONG}}}, "resources.limits[memory]"),
        ({"overhead": {"memory": LONG}}, "overhead[memory]"),
    ],
)
def test_an_amount_that_is_none(fields: dict[str, Any], where: str) -> None:
    message = f"spec.{where}: quantities must have at most 256 characters"
    assert refusal(make_pod(**fields)) == ("InvalidPodSpec", message)


def test_kernel_parameters() -> None:
    sysctls = {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}
    pod = make_pod(securityContext=sysctls)
    assert refusal(pod) == ("SysctlForbidden", 'forbidden sysctl: "kernel.msgmax" not allowlisted')
    assert refusal(pod, allowed_unsafe_sysctls=("kernel.msg*",))[0] is None
    old = make_pod(securityContext={"sysctls": [{"name": "net.ipv4.tcp_rmem", "value": "1"}]})
    assert refusal(old, kernel=(4, 14))[0] == "SysctlForbidden"
    assert refusal(old, kernel=(6, 1))[0] is None


@pytest.mark.parametrize(("release", "is_safe"), [(Release.V1_36, False), (Release.V1_37, True)])
def test_the_kernel_parameters_that_are_safe_are_those_of_the_release(release: Release, is_safe: bool) -> None:
    pod = make_pod(securityContext={"sysctls": [{"name": "net.ipv4.tcp_notsent_lowat", "value": "1"}]})
    rules = admission_rules(Settings(gates=FeatureGates({}, release)), (6, 1), app_armor=False)
    assert (refuse_sysctls(pod, rules) is None) is is_safe


def test_operating_system() -> None:
    assert refusal(make_pod(metadata={"labels": {"kubernetes.io/os": "windows"}})) == (
        "PodOSSelectorNodeLabelDoesNotMatch",
        "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label",
    )
    assert refusal(make_pod(os={"name": "windows"})) == (
        "PodOSNotSupported",
        "Failed to admit pod as the OS field doesn't match node OS",
    )
    assert refusal(make_pod(os={"name": "linux"}, metadata={"labels": {"kubernetes.io/os": "linux"}}))[0] is None


def test_resources_of_the_pod_itself_where_they_are_switched_off() -> None:
    pod = make_pod(resources={"requests": {"cpu": "100m"}})
    assert refusal(pod)[0] is None
    assert refusal(pod, pod_level_resources=False) == (
        "PodLevelResourcesNotSupported",
        "PodLevelResources feature gate is disabled",
    )
    assert refusal(make_pod(cpu="100m"), pod_level_resources=False)[0] is None


def test_features_that_the_node_does_not_declare() -> None:
    rules = [{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [1]}}]
    pod = make_pod(
        hostNetwork=True,
        hostUsers=False,
        initContainers=[{"name": "init", "image": "busybox", "restartPolicyRules": rules}],
    )
    text = "Pod requires node features that are not available: "
    restart, users = "RestartAllContainersOnContainerExits", "UserNamespacesHostNetworkSupport"
    assert refusal(pod, features=frozenset()) == ("PodFeatureUnsupported", f"{text}{restart}, {users}")
    assert refusal(pod, features=frozenset({restart})) == ("PodFeatureUnsupported", f"{text}{users}")
    assert refusal(pod, features=frozenset({restart, users}))[0] is None
    assert refusal(pod)[0] is None
    assert refusal(make_pod(hostUsers=False), features=frozenset())[0] is None


def test_flags_of_bind_mounts_need_the_gate_and_the_runtime() -> None:
    mounts = [{"name": "v", "mountPath": "/v", "bindMountOptions": ["noexec"]}]
    pod = make_pod(
        volumes=[{"name": "v", "emptyDir": {}}],
        ephemeralContainers=[{"name": "d", "image": "i", "volumeMounts": mounts}],
    )
    refused = ("PodFeatureUnsupported", "Pod requires node features that are not available: VolumeBindMountOptions")
    able, declared = RuntimeReady(checked=True, mount_options=True), frozenset({"VolumeBindMountOptions"})
    assert refusal(pod, features=frozenset(), runtime=able) == refused
    assert refusal(pod, features=declared) == refused
    assert refusal(pod, features=declared, runtime=able)[0] is None


def test_strict_supplemental_groups() -> None:
    pod = make_pod(securityContext={"supplementalGroupsPolicy": "Strict"})
    assert refusal(pod) == (
        "SupplementalGroupsPolicyNotSupported",
        "SupplementalGroupsPolicy=Strict is not supported in this node",
    )
    able = RuntimeReady(checked=True, supplemental_groups_policy=True)
    assert refusal(pod, runtime=able)[0] is None
    assert refusal(make_pod(securityContext={"supplementalGroupsPolicy": "Merge"}))[0] is None


def test_strict_supplemental_groups_wait_for_the_runtime() -> None:
    pod = make_pod(securityContext={"supplementalGroupsPolicy": "Strict"})
    desk = Desk()
    desk.send(pod, make_pod("other"), at=facts(runtime=RuntimeReady()))
    assert desk.is_held("web-1")
    assert not desk.is_held("other-1")
    desk.settle_again(facts(runtime=RuntimeReady(checked=True, supplemental_groups_policy=True)))
    assert not desk.is_held("web-1")


@pytest.mark.parametrize(
    ("fields", "reason", "message"),
    [
        ({"cpu": "600m"}, "OutOfcpu", "cpu, requested: 600, used: 500, capacity: 1000"),
        ({"memory": "1Gi"}, "OutOfmemory", f"memory, requested: {1 << 30}, used: {64 << 20}, capacity: {1 << 30}"),
        ({"cpu": "2", "memory": "2Gi"}, "OutOfcpu", "cpu, requested: 2000, used: 500, capacity: 1000"),
    ],
)
def test_resources(fields: dict[str, str], reason: str, message: str) -> None:
    here = make_pod("here", cpu="500m", memory="64Mi")
    text = f"Node didn't have enough resource: {message}"
    assert refusal(make_pod(**fields), here) == (reason, text)


def test_the_last_bit_of_capacity_is_used() -> None:
    assert refusal(make_pod(cpu="500m"), make_pod("here", cpu="500m"))[0] is None


def test_number_of_pods() -> None:
    few = NodeView("node-1", "node-1", allocatable={"cpu": 1000, "pods": 1})
    message = "Node didn't have enough resource: pods, requested: 1, used: 1, capacity: 1"
    assert refusal(make_pod(), make_pod("here"), node=few) == ("OutOfpods", message)
    no_count = NodeView("node-1", "node-1", allocatable={"cpu": 1000})
    assert refusal(make_pod(), make_pod("here"), node=no_count, max_pods=1) == ("OutOfpods", message)


def requesting(name: str, amount: str = "1", **fields: Any) -> Any:
    container = {"name": "app", "image": "x", "resources": {"requests": {name: amount}}}
    return make_pod(containers=[container], **fields)


def test_extended_resources_and_huge_pages() -> None:
    assert refusal(requesting("example.com/gpu"))[0] is None  # no such resource here: not this node's business
    has = NodeView("node-1", "node-1", allocatable={**NODE.allocatable, "example.com/gpu": 0})
    assert refusal(requesting("example.com/gpu"), node=has)[0] == "OutOfexample.com/gpu"
    assert refusal(requesting("hugepages-2Mi", "2Mi"))[0] == "OutOfhugepages-2Mi"
    assert refusal(requesting("ephemeral-storage", "11Gi"))[0] == "OutOfephemeral-storage"


def test_requests_follow_the_rules_for_init_containers_overhead_and_the_whole_pod() -> None:
    def container(cpu: str, **fields: Any) -> dict[str, Any]:
        return {"name": f"c{cpu}", "image": "x", "resources": {"requests": {"cpu": cpu}}, **fields}

    def used(**fields: Any) -> str:
        return refusal(make_pod(cpu="1"), make_pod("here", **fields))[1].partition("used: ")[2].partition(",")[0]

    assert used(containers=[container("10m"), container("20m")]) == "30"
    assert used(containers=[container("10m")], initContainers=[container("50m"), container("40m")]) == "50"
    sidecar = container("7m", restartPolicy="Always")
    assert used(containers=[container("10m")], initContainers=[sidecar, container("50m")]) == "57"
    assert used(containers=[container("10m")], overhead={"cpu": "3m"}) == "13"
    assert used(containers=[container("10m")], resources={"requests": {"cpu": "80m"}}) == "80"


def affinity(*terms: dict[str, Any]) -> dict[str, Any]:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    return {"affinity": {"nodeAffinity": required}}


def rule(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    ("fields", "fits"),
    [
        ({"nodeSelector": {"zone": "a"}}, True),
        ({"nodeSelector": {"zone": "b"}}, False),
        ({"nodeSelector": {"zone": "a", "none": ""}}, False),
        (affinity(rule("zone", "In", "a", "b")), True),
        (affinity(rule("zone", "In", "b")), False),
        (affinity(rule("zone", "In", "b"), rule("zone", "Exists")), True),
        (affinity(rule("zone", "NotIn", "b")), True),
        (affinity(rule("none", "NotIn", "b")), True),
        (affinity(rule("zone", "NotIn", "a")), False),
        (affinity(rule("none", "DoesNotExist")), True),
        (affinity(rule("zone", "DoesNotExist")), False),
        (affinity(rule("rank", "Gt", "6")), True),
        (affinity(rule("rank", "Gt", "7")), False),
        (affinity(rule("rank", "Lt", "8")), True),
        (affinity(rule("zone", "Lt", "8")), False),
        (affinity(rule("zone", "Near", "a")), False),
        (affinity({}), False),
        (affinity(), False),
        (affinity({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-1"]}]}), True),
        (affinity({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-2"]}]}), False),
        ({"nodeSelector": {"zone": "b"}, **affinity(rule("zone", "Exists"))}, False),
    ],
)
def test_node_affinity(fields: dict[str, Any], fits: bool) -> None:
    text = "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"
    assert refusal(make_pod(**fields)) == ((None, "") if fits else ("NodeAffinity", text))


def test_node_name() -> None:
    assert refusal(make_pod(nodeName="node-1"))[0] is None
    text = "Predicate NodeName failed: node(s) didn't match the requested node name"
    assert refusal(make_pod(nodeName="node-2")) == ("NodeName", text)


@pytest.mark.parametrize(
    ("port", "fits"),
    [
        ({"containerPort": 1, "hostPort": 80}, False),
        ({"containerPort": 1, "hostPort": 80, "protocol": "TCP", "hostIP": "0.0.0.0"}, False),
        ({"containerPort": 1, "hostPort": 80, "hostIP": "10.0.0.9"}, False),
        ({"containerPort": 1, "hostPort": 80, "protocol": "UDP"}, True),
        ({"containerPort": 80}, True),
        ({"containerPort": 1, "hostPort": 8080, "hostIP": "10.0.0.2"}, True),
        ({"containerPort": 1, "hostPort": 8080, "hostIP": "10.0.0.1"}, False),
    ],
)
def test_host_ports(port: dict[str, Any], fits: bool) -> None:
    ports = [{"containerPort": 1, "hostPort": 80}, {"containerPort": 2, "hostPort": 8080, "hostIP": "10.0.0.1"}]
    text = "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports"
    outcome = refusal(make_pod(ports=[port]), make_pod("here", ports=ports))
    assert outcome == ((None, "") if fits else ("NodePorts", text))


def test_host_ports_are_compared_in_linear_time() -> None:
    """Two pods of 10,000 host ports each have a hundred million pairs."""

    def compare(count: int) -> int:
        ours, others = (
            frozenset(HostPort(f"{port}/TCP", f"10.0.0.{ip}") for port in range(1, count + 1)) for ip in (1, 2)
        )
        pod, load = make_pod(), Load().plus(Demand(ports=others))
        return count_instructions(lambda: refuse_placement(pod, Demand(ports=ours), load, NODE, AdmissionRules()))

    assert compare(400) < 3 * compare(200)


def test_tolerations_are_compared_in_linear_time() -> None:
    def compare(count: int) -> int:
        taints = tuple(Taint(key=f"k{n}", value="v", effect="NoExecute") for n in range(count))
        tolerations = [{"key": f"k{n}", "operator": "Exists", "effect": "NoExecute"} for n in reversed(range(count))]
        pod, node = make_pod(tolerations=tolerations), replace(NODE, taints=taints)
        assert refuse_placement(pod, Demand(), Load(), node, AdmissionRules()) is None
        return count_instructions(lambda: refuse_placement(pod, Demand(), Load(), node, AdmissionRules()))

    assert compare(400) < 3 * compare(200)


def test_ports_of_sidecars_count_and_those_of_init_containers_do_not() -> None:
    port = [{"containerPort": 1, "hostPort": 80}]
    init = {"name": "init", "image": "x", "ports": port}
    assert refusal(make_pod(ports=port), make_pod("here", initContainers=[init]))[0] is None
    sidecar = {**init, "restartPolicy": "Always"}
    assert refusal(make_pod(ports=port), make_pod("here", initContainers=[sidecar]))[0] == "NodePorts"


@pytest.mark.parametrize(
    "fields",
    [
        {"securityContext": {"appArmorProfile": {"type": "RuntimeDefault"}}},
        {
            "containers": [
                {"name": "a", "image": "x", "securityContext": {"appArmorProfile": {"type": "RuntimeDefault"}}}
            ]
        },
        {"metadata": {"annotations": {"container.apparmor.security.beta.kubernetes.io/app": "runtime/default"}}},
    ],
)
def test_app_armor(fields: dict[str, Any]) -> None:
    text = "Cannot enforce AppArmor: AppArmor is not enabled on the host"
    assert refusal(make_pod(**fields)) == ("AppArmor", text)
    assert refusal(make_pod(**fields), app_armor=True)[0] is None


def test_unconfined_needs_no_app_armor() -> None:
    assert refusal(make_pod(securityContext={"appArmorProfile": {"type": "Unconfined"}}))[0] is None
    annotations = {"container.apparmor.security.beta.kubernetes.io/app": "unconfined"}
    assert refusal(make_pod(metadata={"annotations": annotations}))[0] is None
