"""The Node's status, as `kubectl describe node` would show it, and the patches that bring it there."""

from __future__ import annotations

from typing import Any

import pytest

from pykubelet.base.api.codec import from_object, to_object
from pykubelet.base.api.core import Node, NodeAddress, NodeStatus, NodeSystemInfo, ObjectMeta
from pykubelet.base.kit.values import replace
from pykubelet.base.model.evictions import NodePressure
from pykubelet.base.model.node import HandlerFeatures, NodeView, RuntimeReady
from pykubelet.report.node.model import NodeInputs, NodeRegistration
from pykubelet.report.node.plan_registration import first_node, label_patch, without_stale
from pykubelet.report.node.render_status import (
    condition_events,
    node_image,
    render_annotations,
    render_status,
    same_but_heartbeats,
    status_patch,
)
from pykubelet_local_api.kinds.schema import schema_of
from pykubelet_local_api.patch.strategic import strategic_patch

NOW, LATER = "2026-01-02T03:04:05Z", "2026-01-02T03:05:05Z"
MIB = 1 << 20
INFO = NodeSystemInfo(architecture="amd64", bootID="b1", kubeletVersion="v1.36.2", operatingSystem="linux")
ABOUT = NodeRegistration("n", "host", {"kubernetes.io/hostname": "host"}, info=INFO)
VIEW = NodeView(
    "n",
    "host",
    ("10.0.0.1",),
    capacity={"cpu": 2500, "memory": 1000 * MIB, "ephemeral-storage": 10**9, "pods": 110, "hugepages-2Mi": 0, "pid": 9},
    allocatable={"cpu": 2000, "memory": 900 * MIB, "ephemeral-storage": 9 * 10**8, "pods": 110, "hugepages-2Mi": 0},
)
READY = RuntimeReady(checked=True, runtime_error="", name="containerd", version="1.7.24")
INPUTS = NodeInputs(VIEW, READY, NodePressure())


def render(
    about: NodeRegistration = ABOUT, inputs: NodeInputs = INPUTS, before: NodeStatus | None = None, now: str = NOW
) -> NodeStatus:
    return render_status(about, inputs, before or NodeStatus(), now)


def condition(status: NodeStatus, kind: str) -> tuple[str, str, str]:
    found = next(c for c in status.conditions if c.type == kind)
    return found.status, found.reason, found.message


def test_a_node_that_is_well() -> None:
    status = render()
    assert [(c.type, c.status, c.reason, c.message) for c in status.conditions] == [
        ("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
        ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
        ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
        ("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
    ]
    assert [(a.type, a.address) for a in status.addresses] == [("InternalIP", "10.0.0.1"), ("Hostname", "host")]
    assert status.capacity == {
        "cpu": "2500m",
        "memory": "1000Mi",
        "ephemeral-storage": "1G",
        "pods": "110",
        "hugepages-2Mi": "0",
    }
    assert status.nodeInfo is not None and status.nodeInfo.containerRuntimeVersion == "containerd://1.7.24"
    assert to_object(status.daemonEndpoints) == {"kubeletEndpoint": {"Port": 10250}}


@pytest.mark.parametrize(
    ("runtime", "message"),
    [
        (RuntimeReady(), "container runtime status check may not have completed yet"),
        (replace(READY, network_error="cni away"), "cni away"),
        (replace(READY, runtime_error="down", network_error="cni away"), "[down, cni away]"),
        (replace(READY, pleg_error="PLEG is not healthy: lost"), "PLEG is not healthy: lost"),
    ],
)
def test_a_node_that_is_not_ready_gives_all_reasons(runtime: RuntimeReady, message: str) -> None:
    assert condition(render(inputs=replace(INPUTS, runtime=runtime)), "Ready") == ("False", "KubeletNotReady", message)


def test_a_node_that_goes_down_is_not_ready() -> None:
    shown = condition(render(inputs=replace(INPUTS, shutting_down=True)), "Ready")
    assert shown == ("False", "KubeletNotReady", "node is shutting down")


def test_what_the_machine_can_do_without_is_a_warning_in_any_case() -> None:
    lacking = replace(INPUTS, view=replace(INPUTS.view, warning="CPU hardcapping unsupported"))
    message = "kubelet is posting ready status. WARNING: CPU hardcapping unsupported"
    assert condition(render(inputs=lacking), "Ready") == ("True", "KubeletReady", message)
    message = "node is shutting down. WARNING: CPU hardcapping unsupported"
    down = render(inputs=replace(lacking, shutting_down=True))
    assert condition(down, "Ready") == ("False", "KubeletNotReady", message)


def test_missing_capacity_makes_a_node_unready() -> None:
    view = replace(VIEW, capacity={"memory": 1, "ephemeral-storage": 1, "pods": 1})
    message = "missing node capacity for resources: cpu"
    assert condition(render(inputs=replace(INPUTS, view=view)), "Ready") == ("False", "KubeletNotReady", message)


def test_a_node_without_isolation_of_local_storage_is_ready_and_reports_none() -> None:
    capacity, allocatable = (
        {name: amount for name, amount in amounts.items() if name != "ephemeral-storage"}
        for amounts in (VIEW.capacity, VIEW.allocatable)
    )
    view = replace(VIEW, capacity=capacity, allocatable=allocatable)
    status = render(replace(ABOUT, local_storage=False), replace(INPUTS, view=view), before=render())
    assert condition(status, "Ready")[0] == "True"
    assert "ephemeral-storage" not in {*status.capacity, *status.allocatable}


@pytest.mark.parametrize(
    ("decimal", "size", "shown"),
    [(True, 1 << 30, "1073741824"), (True, 2000, "2k"), (False, 1 << 30, "1Gi"), (False, 2000, "2000")],
)
def test_the_size_of_local_storage_has_the_units_of_the_release(decimal: bool, size: int, shown: str) -> None:
    amounts = {**VIEW.capacity, "ephemeral-storage": size}
    view = replace(VIEW, capacity=amounts, allocatable=amounts)
    status = render(replace(ABOUT, decimal_storage=decimal), replace(INPUTS, view=view))
    assert (status.capacity["ephemeral-storage"], status.allocatable["ephemeral-storage"]) == (shown, shown)
    assert status.capacity["memory"] == "1000Mi"


def test_pressure() -> None:
    status = render(inputs=replace(INPUTS, pressure=NodePressure(memory=True, disk=True, pid=True)))
    assert [condition(status, kind)[:2] for kind in ("MemoryPressure", "DiskPressure", "PIDPressure")] == [
        ("True", "KubeletHasInsufficientMemory"),
        ("True", "KubeletHasDiskPressure"),
        ("True", "KubeletHasInsufficientPID"),
    ]


def test_a_transition_time_changes_with_the_status_only() -> None:
    first = render()
    again = render(inputs=replace(INPUTS, runtime=replace(READY, network_error="x")), before=first, now=LATER)
    times = {c.type: (c.lastTransitionTime, c.lastHeartbeatTime) for c in again.conditions}
    assert times["Ready"] == (LATER, LATER)
    assert times["MemoryPressure"] == (NOW, LATER)


def test_only_heartbeats_are_nothing_new() -> None:
    first = render()
    assert same_but_heartbeats(render(before=first, now=LATER), first)
    assert not same_but_heartbeats(render(inputs=replace(INPUTS, pressure=NodePressure(pid=True)), before=first), first)


def test_what_others_wrote_into_the_status_stays() -> None:
    theirs: dict[str, Any] = {
        "conditions": [{"type": "NetworkUnavailable", "status": "False"}, {"type": "Ready", "status": "Unknown"}],
        "capacity": {"example.com/gpu": "2", "hugepages-1Gi": "1Gi"},
        "volumesAttached": [{"name": "v", "devicePath": ""}],
    }
    status = render(before=from_object(NodeStatus, theirs))
    assert [c.type for c in status.conditions][:2] == ["NetworkUnavailable", "Ready"]
    assert status.capacity["example.com/gpu"] == "2"
    assert status.capacity["hugepages-1Gi"] == "1Gi"
    assert status.volumesAttached


@pytest.mark.parametrize(
    ("found", "reported"),
    [
        ("1.7.24", "1.7.24"),
        ("v2.1.1", "2.1.1"),
        ("1.6.20~ds1", "1.6.20"),
        ("1.34.0-rc.1+build.5 ", "1.34.0-rc.1+build.5"),
        ("1.34.0-rc.01", "1.34.0"),
        ("1.7", "1.7"),
        ("1.07.3.4", "1.7.3.4"),
        ("1.7.3_beta", "1.7.3"),
        ("7", "Unknown"),
        ("01.2.3", "Unknown"),
        ("development", "Unknown"),
        ("", "Unknown"),
        ("1." + "9" * 5000, "Unknown"),
    ],
)
def test_the_version_of_the_runtime_is_reported_as_far_as_it_is_one(found: str, reported: str) -> None:
    """As k8s.io/apimachinery's version.Parse reads it: semantic, else its numbers."""
    info = render(inputs=replace(INPUTS, runtime=replace(READY, version=found))).nodeInfo
    assert info is not None and info.containerRuntimeVersion == f"containerd://{reported}"


def test_volumes_in_use_stay_as_they_are_until_the_disk_was_read() -> None:
    before = NodeStatus(volumesInUse=("kubernetes.io/csi/driver^1",))
    assert render(before=before).volumesInUse == before.volumesInUse
    assert render(inputs=replace(INPUTS, volumes_in_use=("a", "b")), before=before).volumesInUse == ("a", "b")
    assert render(inputs=replace(INPUTS, volumes_in_use=()), before=before).volumesInUse == ()


def test_what_a_user_added_to_the_capacity_is_allocatable() -> None:
    """As the documentation "Advertise Extended Resources for a Node" has it."""
    theirs = NodeStatus(
        capacity={"example.com/dongle": "4"}, allocatable={"example.com/dongle": "3", "gone.com/x": "1"}
    )
    allocatable = render(before=theirs).allocatable
    assert allocatable["example.com/dongle"] == "4"
    assert "gone.com/x" not in allocatable


def test_images_are_the_largest_with_few_names() -> None:
    images = (node_image([f"i@sha256:{n}" for n in range(9)], 5), node_image(["big"], 9), node_image(["small"], 1))
    status = render(replace(ABOUT, max_images=2), replace(INPUTS, images=images))
    assert [(len(image.names), image.sizeBytes) for image in status.images] == [(1, 9), (5, 5)]
    assert len(render(replace(ABOUT, max_images=-1), replace(INPUTS, images=images)).images) == 3


def test_a_feature_that_needs_the_runtime_is_declared_if_the_runtime_has_it() -> None:
    about = replace(ABOUT, features=("Other", "VolumeBindMountOptions"))
    able = replace(INPUTS, runtime=replace(READY, mount_options=True))
    unasked = replace(INPUTS, runtime=RuntimeReady())
    assert render(about).declaredFeatures == ("Other",)
    assert render(about, able).declaredFeatures == about.features
    assert render(about, unasked).declaredFeatures == ("Other",)
    assert render(about, unasked, NodeStatus(declaredFeatures=about.features)).declaredFeatures == about.features


def test_runtime_handlers_and_features() -> None:
    runtime = replace(
        READY, handlers={"z": HandlerFeatures(True, False), "": HandlerFeatures()}, supplemental_groups_policy=True
    )
    status = render(inputs=replace(INPUTS, runtime=runtime))
    assert [handler.name for handler in status.runtimeHandlers] == ["", "z"]
    assert to_object(status.runtimeHandlers[1].features) == {"recursiveReadOnlyMounts": True, "userNamespaces": False}
    assert status.features is not None and status.features.supplementalGroupsPolicy


CLOUD = replace(ABOUT, external_cloud=True)


def test_an_external_cloud_provider_has_the_addresses() -> None:
    assert [a.type for a in render(CLOUD).addresses] == ["Hostname"]
    given = replace(CLOUD, node_ips=("10.0.0.1",))
    assert [a.type for a in render(given).addresses] == ["InternalIP", "Hostname"]
    family = replace(CLOUD, node_ips=("::",))
    found = render(family, replace(INPUTS, view=replace(VIEW, ips=("fd00::1",)))).addresses
    assert [a.address for a in found] == ["fd00::1", "host"]
    theirs = NodeStatus(addresses=(NodeAddress(type="ExternalIP", address="192.0.2.1"),))
    assert render(given, before=theirs).addresses == theirs.addresses


def test_annotations_of_ours_come_and_go() -> None:
    attach = "volumes.kubernetes.io/controller-managed-attach-detach"
    provided = "alpha.kubernetes.io/provided-node-ip"
    before = {"theirs": "1", provided: "old"}
    assert render_annotations(ABOUT, before) == {"theirs": "1", attach: "true"}
    given = replace(CLOUD, node_ips=("10.0.0.1", "fd00::1"), controller_attach=False)
    assert render_annotations(given, before) == {"theirs": "1", provided: "10.0.0.1,fd00::1"}
    assert provided not in render_annotations(replace(CLOUD, node_ips=("::",)), before)


def test_the_first_node_has_its_taints() -> None:
    made = first_node(replace(CLOUD, provider_id="p://1"), render())
    assert [(t.key, t.effect) for t in made.spec.taints] == [
        ("node.cloudprovider.kubernetes.io/uninitialized", "NoSchedule")
    ]
    assert made.spec.providerID == "p://1" and made.metadata.labels == {"kubernetes.io/hostname": "host"}


def test_labels_every_node_has_are_put_right_and_others_left_alone() -> None:
    given = {
        "kubernetes.io/hostname": "host",
        "topology.kubernetes.io/zone": "a",
        "node.kubernetes.io/instance-type": "",
        "mine": "1",
    }
    known = {"kubernetes.io/hostname": "old", "node.kubernetes.io/instance-type": "big", "mine": "2"}
    node = Node(metadata=ObjectMeta(name="n", labels=known))
    assert label_patch(replace(ABOUT, labels=given), node, first=True) == {
        "kubernetes.io/hostname": "host",
        "topology.kubernetes.io/zone": "a",
        "node.kubernetes.io/instance-type": None,
    }


def test_the_operating_system_is_put_right_at_any_time() -> None:
    given = {"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64", "kubernetes.io/hostname": "host"}
    about = replace(ABOUT, labels=given)
    node = Node(metadata=ObjectMeta(name="n", labels={**given, "kubernetes.io/os": "plan9"}))
    assert label_patch(about, node, first=False) == {"kubernetes.io/os": "linux"}
    assert label_patch(about, Node(metadata=ObjectMeta(name="n", labels=given)), first=False) == {}
    assert "kubernetes.io/hostname" not in label_patch(about, Node(metadata=ObjectMeta(name="n")), first=False)


def test_extended_resources_without_a_plugin_become_nothing() -> None:
    status = NodeStatus(capacity={"example.com/gpu": "2", "cpu": "1"}, allocatable={"example.com/gpu": "1"})
    reset = without_stale(ABOUT, status, VIEW.capacity)
    assert reset.capacity == {"example.com/gpu": "0", "cpu": "1"} and reset.allocatable == {"example.com/gpu": "0"}
    assert without_stale(replace(ABOUT, reset_extended=False), status, VIEW.capacity) == status
    assert without_stale(ABOUT, status, {*VIEW.capacity, "example.com/gpu"}) == status  # its plugin has registered


def test_huge_pages_the_kernel_no_longer_has_go_with_the_registration() -> None:
    status = NodeStatus(capacity={"hugepages-3Mi": "9Mi", "hugepages-2Mi": "0"}, allocatable={"hugepages-3Mi": "9Mi"})
    left = without_stale(ABOUT, status, VIEW.capacity)
    assert left.capacity == {"hugepages-2Mi": "0"} and left.allocatable == {}


def test_a_patch_makes_the_node_what_it_should_be() -> None:
    theirs = from_object(
        NodeStatus,
        {
            "addresses": [{"type": "InternalIP", "address": "10.9.9.9"}, {"type": "Hostname", "address": "host"}],
            "capacity": {"hugepages-1Gi": "1Gi", "cpu": "2500m"},
            "conditions": [{"type": "Other", "status": "True"}],
            "images": [{"names": ["gone"], "sizeBytes": 1}],
        },
    )
    before = Node(metadata=ObjectMeta(name="n", annotations={"theirs": "1"}), status=theirs)
    view = replace(VIEW, ips=("10.0.0.1", "10.0.0.2"))
    after = render(inputs=replace(INPUTS, view=view), before=theirs)
    annotations = render_annotations(ABOUT, before.metadata.annotations)
    patch = status_patch(before, after, annotations, {"a": "b"})
    patched = from_object(Node, strategic_patch(to_object(before), patch, schema_of("io.k8s.api.core.v1.Node")))
    assert same_but_heartbeats(patched.status, after)
    assert patched.status.addresses == after.addresses
    assert patched.metadata.annotations == annotations and patched.metadata.labels == {"a": "b"}
    assert "images" in patch["status"] and "nodeInfo" in patch["status"]


def test_a_patch_has_no_more_than_changed() -> None:
    first = render()
    before = Node(metadata=ObjectMeta(name="n"), status=first)
    patch = status_patch(before, render(before=first, now=LATER), {}, {})
    assert set(patch) == {"status"} and set(patch["status"]) == {"conditions"}


def test_changes_are_logged() -> None:
    first = render()
    assert [h.reason for h in condition_events("n", NodeStatus(), first)] == [
        "NodeHasSufficientMemory",
        "NodeHasNoDiskPressure",
        "NodeHasSufficientPID",
        "NodeReady",
    ]
    unready = render(inputs=replace(INPUTS, runtime=RuntimeReady()), before=first)
    assert "NodeNotReady" not in [h.reason for h in condition_events("n", NodeStatus(), unready)]
    (reported,) = condition_events("n", first, unready)
    assert (reported.reason, reported.message) == ("NodeNotReady", "Node n status is now: NodeNotReady")
    assert [h.reason for h in condition_events("n", unready, first)] == ["NodeReady"]


def test_a_reboot_is_a_warning() -> None:
    first = render()
    second = replace(first, nodeInfo=replace(INFO, bootID="b2"))
    (reported,) = condition_events("n", first, second)
    assert (reported.type, reported.reason) == ("Warning", "Rebooted")
    assert reported.message == "Node n has been rebooted, boot id: b2"
