"""In-tree cloud volumes become volumes of CSI drivers: handles, attributes, access modes and topology."""

from __future__ import annotations

from typing import Any

import pytest
from provide.volumes.samples import NODE

from pykubelet.base.api.codec import from_object, to_object
from pykubelet.base.api.core import Pod, Volume
from pykubelet.base.api.storage import CSIDriver, PersistentVolume
from pykubelet.base.model.content import Content, ContentKind, ObjectKey, Present
from pykubelet.base.model.paths import Paths
from pykubelet.base.model.plugins import CsiNodeInfo, Plugin, Plugins, PluginType
from pykubelet.provide.volumes.csi.data import CsiPlan
from pykubelet.provide.volumes.kind import RefusedPlan, ResolvedVolume
from pykubelet.provide.volumes.migration import MigrationError, migrate, migrate_inline
from pykubelet.provide.volumes.model import Inputs
from pykubelet.provide.volumes.plan import plan_volume, resolve, volume_keys

SECRET = {"name": "s", "namespace": "n"}
GA, BETA = "topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"
GA_REGION, BETA_REGION = "topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/region"


def a_volume(source: dict[str, Any], metadata: dict[str, Any] | None = None, **spec: Any) -> PersistentVolume:
    return from_object(PersistentVolume, {"metadata": {"name": "pv", **(metadata or {})}, "spec": {**source, **spec}})


def csi_of(volume: PersistentVolume) -> dict[str, Any]:
    found: dict[str, Any] = to_object(volume.spec)["csi"]
    return found


@pytest.mark.parametrize(
    ("source", "metadata", "csi"),
    [
        (
            {"awsElasticBlockStore": {"volumeID": "vol-1", "fsType": "xfs", "readOnly": True}},
            {},
            {"driver": "ebs.csi.aws.com", "volumeHandle": "vol-1", "fsType": "xfs", "readOnly": True,
             "volumeAttributes": {"partition": "0"}},
        ),
        (
            {"awsElasticBlockStore": {"volumeID": "aws://eu-1a/vol-02", "partition": 3}},
            {},
            {"driver": "ebs.csi.aws.com", "volumeHandle": "vol-02", "volumeAttributes": {"partition": "3"}},
        ),
        (
            {"gcePersistentDisk": {"pdName": "d"}},
            {},
            {"driver": "pd.csi.storage.gke.io", "volumeHandle": "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d",
             "volumeAttributes": {"partition": ""}},
        ),
        (
            {"gcePersistentDisk": {"pdName": "d", "partition": 2}},
            {"labels": {BETA: "us-a", GA: "us-b"}},
            {"driver": "pd.csi.storage.gke.io", "volumeHandle": "projects/UNSPECIFIED/zones/us-a/disks/d",
             "volumeAttributes": {"partition": "2"}},
        ),
        (
            {"gcePersistentDisk": {"pdName": "d"}},
            {"labels": {GA: "us-east1-a__us-east1-b"}},
            {"driver": "pd.csi.storage.gke.io", "volumeHandle": "projects/UNSPECIFIED/regions/us-east1/disks/d",
             "volumeAttributes": {"partition": ""}},
        ),
        (
            {"cinder": {"volumeID": "c", "fsType": "ext4"}},
            {},
            {"driver": "cinder.csi.openstack.org", "volumeHandle": "c", "fsType": "ext4"},
        ),
        (
            {"azureDisk": {"diskURI": "/sub/d", "diskName": "d", "kind": "managed", "cachingMode": "None", "fsType": "xfs"}},
            {},
            {"driver": "disk.csi.azure.com", "volumeHandle": "/sub/d", "fsType": "xfs",
             "volumeAttributes": {"kind": "Managed", "cachingmode": "None", "fstype": "xfs"}},
        ),
        (
            {"azureFile": {"secretName": "azure-storage-account-acc-secret", "shareName": "sh", "secretNamespace": "n"}},
            {"annotations": {"kubernetes.io/azure-file-resource-group": "rg"}},
            {"driver": "file.csi.azure.com", "volumeHandle": "rg#acc#sh#pv#n", "volumeAttributes": {"shareName": "sh"},
             "nodeStageSecretRef": {"name": "azure-storage-account-acc-secret", "namespace": "n"}},
        ),
        (
            {"azureFile": {"secretName": "acc", "shareName": "sh"}, "claimRef": {"namespace": "shop"}},
            {},
            {"driver": "file.csi.azure.com", "volumeHandle": "#acc#sh#pv#shop", "volumeAttributes": {"shareName": "sh"},
             "nodeStageSecretRef": {"name": "acc", "namespace": "shop"}},
        ),
        (
            {"vsphereVolume": {"volumePath": "[ds] v", "fsType": "ext4", "storagePolicyName": "gold"}},
            {},
            {"driver": "csi.vsphere.vmware.com", "volumeHandle": "[ds] v", "fsType": "ext4",
             "volumeAttributes": {"storagepolicyname": "gold"}},
        ),
        (
            {"portworxVolume": {"volumeID": "p"}},
            {"annotations": {"openstorage.io/auth-secret-name": "s"}},
            {"driver": "pxd.portworx.com", "volumeHandle": "p"},
        ),
        (
            {"portworxVolume": {"volumeID": "p"}},
            {"annotations": {"openstorage.io/auth-secret-name": "s", "openstorage.io/auth-secret-namespace": "n"}},
            {"driver": "pxd.portworx.com", "volumeHandle": "p", "controllerPublishSecretRef": SECRET,
             "nodeStageSecretRef": SECRET, "nodePublishSecretRef": SECRET, "controllerExpandSecretRef": SECRET,
             "nodeExpandSecretRef": SECRET},
        ),
    ],
)  # fmt: skip
def test_source_of_a_persistent_volume(source: dict[str, Any], metadata: dict[str, Any], csi: dict[str, Any]) -> None:
    given = a_volume(source, metadata, mountOptions=["noatime"], capacity={"storage": "1Gi"})
    made = migrate(given)

    assert csi_of(made) == csi
    assert made.metadata == given.metadata
    assert made.spec.mountOptions == given.spec.mountOptions and made.spec.capacity == given.spec.capacity
    assert set(to_object(made.spec)) & {*source} <= {"claimRef"}


@pytest.mark.parametrize(
    ("source", "name", "handle", "modes"),
    [
        ({"awsElasticBlockStore": {"volumeID": "aws:///vol-1"}}, "ebs.csi.aws.com-vol-1", "vol-1", ["ReadWriteOnce"]),
        (
            {"gcePersistentDisk": {"pdName": "d"}},
            "pd.csi.storage.gke.io-d",
            "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d",
            ["ReadWriteOnce"],
        ),
        (
            {"gcePersistentDisk": {"pdName": "d", "readOnly": True}},
            "pd.csi.storage.gke.io-d",
            "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d",
            ["ReadOnlyMany"],
        ),
        ({"cinder": {"volumeID": "c"}}, "cinder.csi.openstack.org-c", "c", ["ReadWriteOnce"]),
        ({"azureDisk": {"diskURI": "/sub/d", "diskName": "d"}}, "~sub~d", "/sub/d", ["ReadWriteOnce"]),
        ({"azureFile": {"secretName": "acc", "shareName": "sh"}}, "#acc#sh#v#shop", "#acc#sh#v#shop", ["ReadWriteMany"]),
        ({"vsphereVolume": {"volumePath": "x"}}, "csi.vsphere.vmware.com-x", "x", ["ReadWriteOnce"]),
        ({"portworxVolume": {"volumeID": "p", "readOnly": True}}, "pxd.portworx.com-p", "p", ["ReadOnlyMany"]),
    ],
)  # fmt: skip
def test_volume_of_a_pod(source: dict[str, Any], name: str, handle: str, modes: list[str]) -> None:
    made = migrate_inline(from_object(Volume, {"name": "v", **source}), "shop")

    assert made.metadata.name == name
    assert csi_of(made)["volumeHandle"] == handle
    assert list(made.spec.accessModes) == modes
    assert made.spec.volumeMode == "Filesystem"


@pytest.mark.parametrize(
    ("modes", "made"),
    [
        ([], []),
        (["ReadWriteMany"], ["ReadWriteOnce"]),
        (["ReadOnlyMany"], ["ReadOnlyMany"]),
        (["ReadOnlyMany", "ReadWriteOnce"], ["ReadWriteOnce"]),
        (["ReadWriteOncePod"], ["ReadWriteOnce"]),
    ],
)
def test_access_modes_of_a_gce_disk(modes: list[str], made: list[str]) -> None:
    assert list(migrate(a_volume({"gcePersistentDisk": {"pdName": "d"}}, accessModes=modes)).spec.accessModes) == made


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ({"awsElasticBlockStore": {"volumeID": "aws://a/b/c"}}, "Invalid format for AWS volume (aws://a/b/c)"),
        ({"azureDisk": {"diskURI": "/d", "kind": "Dedicated"}}, "kind(Dedicated) is not supported in csi migration"),
        ({"azureFile": {"secretName": "a", "shareName": "s"}}, "could not find a namespace for the secret of PV pv"),
    ],
)
def test_wrong_source_is_refused(source: dict[str, Any], text: str) -> None:
    with pytest.raises(MigrationError) as raised:
        migrate(a_volume(source))
    assert str(raised.value) == f"failed to translate in-tree pv to CSI: {text}"


def test_zones_of_several_regions_are_refused() -> None:
    with pytest.raises(MigrationError, match="region"):
        migrate(a_volume({"gcePersistentDisk": {"pdName": "d"}}, {"labels": {GA: "us-a__eu-a"}}))


def affinity(*terms: dict[str, list[str]]) -> dict[str, Any]:
    return {
        "required": {
            "nodeSelectorTerms": [
                {"matchExpressions": [{"key": k, "operator": "In", "values": v} for k, v in term.items()]}
                for term in terms
            ]
        }
    }


EBS, VSPHERE = "topology.ebs.csi.aws.com/zone", "topology.csi.vmware.com/"
AWS = {"awsElasticBlockStore": {"volumeID": "vol-1"}}
VMWARE = {"vsphereVolume": {"volumePath": "x"}}


@pytest.mark.parametrize(
    ("source", "labels", "given", "made"),
    [
        (AWS, {}, None, None),
        (AWS, {}, affinity({GA: ["a"]}, {GA: ["b"], "x": ["y"]}), affinity({EBS: ["a"]}, {EBS: ["b"], "x": ["y"]})),
        (AWS, {GA: "other"}, affinity({BETA: ["a"]}), affinity({EBS: ["a"]})),
        (AWS, {GA: "b__a"}, None, affinity({EBS: ["a", "b"]})),
        (AWS, {BETA: "a"}, affinity({"x": ["y"]}, {"z": ["w"]}), affinity({"x": ["y"], EBS: ["a"]}, {"z": ["w"], EBS: ["a"]})),
        (AWS, {}, affinity({BETA: ["a"], BETA_REGION: ["r"]}), affinity({EBS: ["a"], GA_REGION: ["r"]})),
        (AWS, {GA: "__"}, None, None),
        (
            VMWARE,
            {},
            affinity({BETA: ["a"], BETA_REGION: ["r"]}),
            affinity({f"{VSPHERE}zone": ["a"], f"{VSPHERE}region": ["r"]}),
        ),
        (VMWARE, {GA: "a", GA_REGION: "r"}, None, affinity({f"{VSPHERE}zone": ["a"], f"{VSPHERE}region": ["r"]})),
        ({"azureDisk": {"diskURI": "/d"}}, {GA: "a"}, affinity({GA: ["a"]}), affinity({GA: ["a"]})),
    ],
)  # fmt: skip
def test_topology(
    source: dict[str, Any], labels: dict[str, str], given: dict[str, Any] | None, made: dict[str, Any] | None
) -> None:
    spec = {"nodeAffinity": given} if given is not None else {}
    found = to_object(migrate(a_volume(source, {"labels": labels}, **spec)).spec)
    assert found.get("nodeAffinity") == made


def test_other_volumes_are_left_alone() -> None:
    given = a_volume({"nfs": {"server": "s", "path": "/"}})
    assert migrate(given) is given


@pytest.mark.parametrize("uri", [".", "..", "a" * 256, "a\x00b"])
def test_name_that_no_directory_can_have_is_refused(uri: str) -> None:
    with pytest.raises(MigrationError, match="cannot have the name"):
        migrate_inline(from_object(Volume, {"name": "v", "azureDisk": {"diskURI": uri}}), "shop")


def in_a_pod(source: dict[str, Any]) -> ResolvedVolume | object:
    body = {"metadata": {"namespace": "shop"}, "spec": {"volumes": [{"name": "v", **source}]}}
    pod = from_object(Pod, body)
    return resolve(pod, pod.spec.volumes[0], Content())


def test_volume_of_a_pod_needs_no_api_object() -> None:
    found = in_a_pod({"cinder": {"volumeID": "c", "readOnly": True}})

    assert isinstance(found, ResolvedVolume) and found.name == "cinder.csi.openstack.org-c"
    assert (found.is_migrated, found.read_only, found.mount_options) == (True, True, ())


def test_volume_of_a_pod_that_cannot_be_translated_is_refused_with_the_reason() -> None:
    text = "failed to translate in-tree pv to CSI: Invalid format for AWS volume (aws://)"
    assert in_a_pod({"awsElasticBlockStore": {"volumeID": "aws://"}}) == RefusedPlan(text, step="")


def test_volumes_need_the_objects_of_their_driver_and_are_planned_as_its_volumes() -> None:
    body = {
        "metadata": {"name": "web", "namespace": "shop", "uid": "u1"},
        "spec": {"nodeName": "node", "volumes": [{"name": "v", "cinder": {"volumeID": "c"}}]},
    }
    pod, driver = from_object(Pod, body), "cinder.csi.openstack.org"
    (volume,) = pod.spec.volumes
    key = ObjectKey(ContentKind.CSI_DRIVER, "", driver)
    assert key in set(volume_keys(pod, volume, Content(True)))
    spec = {"metadata": {"name": driver}, "spec": {"attachRequired": False}}
    plugin = Plugin(PluginType.CSI, driver, "/r", "/p", ("1.0.0",), 1.0, CsiNodeInfo("n"))
    inputs = Inputs(
        node=NODE,
        content=Content(True, {key: Present(from_object(CSIDriver, spec))}),
        plugins=Plugins({plugin.socket: plugin}, is_settled=True),
    )
    made = plan_volume(pod, volume, inputs, Paths("/k", "/logs"))
    assert isinstance(made, CsiPlan)
    assert (made.data.handle, made.mounted.is_migrated, made.access.is_migrated) == ("c", True, True)
    assert made.mounted.host_path == "/k/pods/u1/volumes/kubernetes.io~csi/cinder.csi.openstack.org-c/mount"
