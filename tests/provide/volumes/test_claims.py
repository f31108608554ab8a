"""Claims of pods: what they resolve to, the texts of refusals, and the plans of persistent volumes."""

from __future__ import annotations

from typing import Any

import pytest
from provide.volumes.samples import NODE

from pykubelet.base.api.codec import from_object
from pykubelet.base.api.core import Pod
from pykubelet.base.api.storage import PersistentVolume, PersistentVolumeClaim
from pykubelet.base.kit.values import replace
from pykubelet.base.model.content import Absent, Content, ContentKind, Found, ObjectKey, Present, Unreadable
from pykubelet.base.model.paths import Paths
from pykubelet.provide.volumes.kind import Plan, RefusedPlan, UndecidedPlan, VolumePlan
from pykubelet.provide.volumes.kinds.local import LocalPlan
from pykubelet.provide.volumes.kinds.nfs import NfsPlan
from pykubelet.provide.volumes.model import Inputs
from pykubelet.provide.volumes.plan import claim_keys, plan_volume

CLAIM = ObjectKey(ContentKind.VOLUME_CLAIM, "shop", "data")
VOLUME = ObjectKey(ContentKind.VOLUME, "", "pv")
PREFIX = "error processing PVC shop/data: "


def a_pod(volume: dict[str, Any] | None = None, **container: Any) -> Pod:
    mounted = container or {"volumeMounts": [{"name": "v", "mountPath": "/v"}]}
    return from_object(
        Pod,
        {
            "metadata": {"name": "web", "namespace": "shop", "uid": "u1"},
            "spec": {
                "containers": [{"name": "main", "image": "x", **mounted}],
                "volumes": [{"name": "v", **(volume or {"persistentVolumeClaim": {"claimName": "data"}})}],
            },
        },
    )


def a_claim(name: str = "data", phase: str = "Bound", volume: str = "pv", **metadata: Any) -> Present:
    body = {
        "metadata": {"name": name, "namespace": "shop", "uid": "c1", **metadata},
        "spec": {"volumeName": volume},
        "status": {"phase": phase},
    }
    return Present(from_object(PersistentVolumeClaim, body))


def a_volume(annotations: dict[str, str] | None = None, **spec: Any) -> Present:
    body = {
        "metadata": {"name": "pv", "annotations": annotations or {}},
        "spec": {"claimRef": {"uid": "c1"}, "hostPath": {"path": "/data"}, **spec},
    }
    return Present(from_object(PersistentVolume, body))


def plan(pod: Pod | None = None, claim: Found | None = None, volume: Found | None = None, name: str = "data") -> Plan:
    key = ObjectKey(ContentKind.VOLUME_CLAIM, "shop", name)
    found = {k: v for k, v in ((key, claim or a_claim(name)), (VOLUME, volume or a_volume())) if v is not None}
    pod = pod or a_pod()
    return plan_volume(pod, pod.spec.volumes[0], Inputs(node=NODE, content=Content(True, found)), Paths("/k", "/logs"))


@pytest.mark.parametrize(
    ("claim", "volume", "text"),
    [
        (Absent('persistentvolumeclaims "data" not found'), None, "failed to fetch PVC from API server: {}"),
        (Unreadable("no relationship found", 1.0), None, "failed to fetch PVC from API server: {}"),
        (a_claim(phase="Pending"), None, "PVC is not bound"),
        (a_claim(phase="Lost"), None, "PVC is not bound"),
        (a_claim(volume=""), None, "PVC has empty pvc.Spec.VolumeName"),
        (a_claim(deletionTimestamp="2026-01-01T00:00:00Z"), None, "PVC is being deleted"),
        (a_claim(), Absent('persistentvolumes "pv" not found'), "failed to fetch PV pv from API server: {}"),
        (
            a_claim(),
            a_volume(claimRef=None),
            "found PV object pv but it has a nil pv.Spec.ClaimRef indicating it is not yet bound to the claim",
        ),
        (
            a_claim(),
            a_volume(claimRef={"uid": "c2"}),
            "found PV object pv but its pv.Spec.ClaimRef.UID c2 does not point to claim.UID c1",
        ),
    ],
)
def test_a_claim_that_cannot_be_used_is_refused_before_anything_is_mounted(
    claim: Found, volume: Found | None, text: str
) -> None:
    failed = next((found.message for found in (claim, volume) if isinstance(found, (Absent, Unreadable))), "")
    refused = plan(claim=claim, volume=volume)
    assert isinstance(refused, RefusedPlan)
    assert replace(refused, until="") == RefusedPlan(PREFIX + text.format(failed), step="")


@pytest.mark.parametrize(
    ("claim", "until"),
    [
        (a_claim(phase="Pending", volume=""), "is bound (Pending, no storage class; its Events say more)"),
        (a_claim(phase="Lost"), "is bound again (Lost: its volume pv is gone)"),
    ],
)
def test_what_a_claim_waits_for_is_reported(claim: Found, until: str) -> None:
    refused = plan(claim=claim, volume=None)
    assert isinstance(refused, RefusedPlan) and refused.until == f"the claim shop/data {until}"


@pytest.mark.parametrize(
    ("mode", "container", "text"),
    [
        (
            "Block",
            {"volumeMounts": [{"name": "v", "mountPath": "/v"}]},
            "volume v has volumeMode Block, but is specified in volumeMounts",
        ),
        (
            "Filesystem",
            {"volumeDevices": [{"name": "v", "devicePath": "/dev/v"}]},
            "volume v has volumeMode Filesystem, but is specified in volumeDevices",
        ),
    ],
)
def test_a_volume_of_the_other_mode_is_refused(mode: str, container: dict[str, Any], text: str) -> None:
    assert plan(a_pod(**container), volume=a_volume(volumeMode=mode)) == RefusedPlan(text, step="")


def test_a_protected_claim_works_while_it_is_being_deleted() -> None:
    claim = a_claim(deletionTimestamp="2026-01-01T00:00:00Z", finalizers=["kubernetes.io/pvc-protection"])
    planned = plan(claim=claim)
    assert isinstance(planned, VolumePlan) and (planned.path, planned.spec_name) == ("/data", "pv")


def test_objects_are_found_in_rounds() -> None:
    pod = a_pod()
    volume = pod.spec.volumes[0]

    def look(content: Content) -> tuple[list[ObjectKey], Plan]:
        keys = list(claim_keys(pod, volume, content))
        return keys, plan_volume(pod, volume, Inputs(node=NODE, content=content), Paths("/k", "/logs"))

    keys, first = look(Content(True))
    assert keys == [CLAIM] and isinstance(first, UndecidedPlan) and first.awaited == (CLAIM,)
    keys, first = look(Content(True, {CLAIM: a_claim(phase="Pending")}))
    assert keys == [CLAIM] and isinstance(first, RefusedPlan)
    keys, first = look(Content(True, {CLAIM: a_claim()}))
    assert keys == [CLAIM, VOLUME] and isinstance(first, UndecidedPlan) and first.awaited == (VOLUME,)
    keys, first = look(Content(True, {CLAIM: a_claim(), VOLUME: a_volume()}))
    assert keys == [CLAIM, VOLUME] and isinstance(first, VolumePlan)


def test_the_claim_of_an_ephemeral_volume_must_belong_to_its_pod() -> None:
    pod = a_pod({"ephemeral": {"volumeClaimTemplate": {"spec": {}}}})
    refused = "PVC shop/web-v was not created for pod shop/web (pod is not owner)"
    assert plan(pod, name="web-v") == RefusedPlan(refused, step="")
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "web", "uid": "u1", "controller": True}
    assert isinstance(plan(pod, a_claim("web-v", ownerReferences=[owner]), name="web-v"), VolumePlan)


def test_without_an_api_server_there_are_no_claims() -> None:
    pod = a_pod()
    refused = plan_volume(pod, pod.spec.volumes[0], Inputs(node=NODE), Paths("/k", "/logs"))
    text = f"{PREFIX}failed to fetch PVC from API server: kube client is not configured"
    assert refused == RefusedPlan(text, step="")


def test_mount_options_come_from_the_annotation_or_else_the_spec_and_not_every_kind_has_them() -> None:
    nfs: dict[str, Any] = {"hostPath": None, "nfs": {"server": "fd00::1", "path": "/x", "readOnly": True}}
    planned = plan(volume=a_volume(mountOptions=["vers=4", "hard", "hard"], **nfs))
    assert isinstance(planned, NfsPlan)
    assert (planned.remote, planned.options) == ("[fd00::1]:/x", ("hard", "vers=4"))  # the claim is not read-only
    annotated = a_volume({"volume.beta.kubernetes.io/mount-options": "soft,,nolock"}, mountOptions=["hard"], **nfs)
    pod = a_pod({"persistentVolumeClaim": {"claimName": "data", "readOnly": True}})
    planned = plan(pod, volume=annotated)
    assert isinstance(planned, NfsPlan) and planned.options == ("nolock", "ro", "soft") and planned.mounted.read_only
    refused = plan(volume=a_volume(mountOptions=["hard"]))
    text = "mount options are not supported for this volume type"
    assert refused == RefusedPlan(text, step="MountOptionSupport check", spec_name="pv")


def test_a_volume_that_no_kind_provides_or_that_is_elsewhere_is_refused() -> None:
    text = 'failed to get Plugin from volumeSpec for volume "pv" err=no volume plugin matched'
    assert plan(volume=a_volume(hostPath=None, glusterfs={"path": "x"})) == RefusedPlan(
        f'{text}: Kubernetes has no "glusterfs" volumes any more', step=""
    )
    cloud = plan(volume=a_volume(hostPath=None, gcePersistentDisk={"pdName": "d"}))
    driver = ObjectKey(ContentKind.CSI_DRIVER, "", "pd.csi.storage.gke.io")
    assert isinstance(cloud, UndecidedPlan) and cloud.awaited == (driver,)
    terms = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]
    elsewhere = a_volume(nodeAffinity={"required": {"nodeSelectorTerms": terms}})
    assert plan(volume=elsewhere) == RefusedPlan(
        "no matching NodeSelectorTerms", step="NodeAffinity check", spec_name="pv"
    )


def test_a_local_volume_is_bound_below_the_pod_under_its_own_name() -> None:
    planned = plan(volume=a_volume(hostPath=None, local={"path": "/disks/one"}))
    assert isinstance(planned, LocalPlan) and planned.source.path == "/disks/one"
    assert planned.path == "/k/pods/u1/volumes/kubernetes.io~local-volume/pv"
    refused = plan(volume=a_volume(hostPath=None, local={"path": "/disks/../etc"}))
    assert isinstance(refused, RefusedPlan) and refused.step == "NewMounter initialization"


@pytest.mark.parametrize(
    ("text", "group"),
    [("1234", 1234), ("0", 0), ("", None), ("-1", None), ("0x10", None), ("staff", None), ("4294967296", None)],
)
def test_the_group_that_a_volume_asks_for(text: str, group: int | None) -> None:
    made = plan(volume=a_volume({"pv.beta.kubernetes.io/gid": text}))
    assert isinstance(made, VolumePlan) and made.mounted.group == group
