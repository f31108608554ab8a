"""Decides which claims get a volume of the driver, and which volumes go. Pure.

Rules:
- A claim is served when the control plane has named the driver in its annotation: at once for the binding mode Immediate, and when
  the scheduler has chosen this node for WaitForFirstConsumer.
- The volume's name follows from the claim's UID, so a repeated creation finds it.
- A released volume of the driver is deleted if its reclaim policy is Delete.
Source: the Kubernetes documentation "Dynamic Volume Provisioning", "Storage Classes".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pykubelet.base.api import core
from pykubelet.base.api.quantity import Amount, Format, value
from pykubelet.base.api.storage import (
    CSIPersistentVolumeSource,
    PersistentVolume,
    PersistentVolumeClaim,
    PersistentVolumeSpec,
    StorageClass,
    VolumeNodeAffinity,
)
from pykubelet.base.kit.values import Value
from pykubelet.edges.csi import csi_pb2 as pb

PROVISIONERS = ("volume.kubernetes.io/storage-provisioner", "volume.beta.kubernetes.io/storage-provisioner")
SELECTED_NODE = "volume.kubernetes.io/selected-node"
PROVISIONED_BY = "pv.kubernetes.io/provisioned-by"
CLASS = "volume.beta.kubernetes.io/storage-class"
#: Parameters of a StorageClass that are for the provisioner, not for the driver.
OWN_PARAMETERS = "csi.storage.k8s.io/"
FS_TYPE = f"{OWN_PARAMETERS}fstype"
BLOCK = "Block"
_MODES = {
    "ReadOnlyMany": pb.VolumeCapability.AccessMode.SINGLE_NODE_READER_ONLY,
    "ReadWriteOnce": pb.VolumeCapability.AccessMode.SINGLE_NODE_WRITER,
    "ReadWriteOncePod": pb.VolumeCapability.AccessMode.SINGLE_NODE_WRITER,
    "ReadWriteMany": pb.VolumeCapability.AccessMode.MULTI_NODE_MULTI_WRITER,
}


class Provision(Value):
    """Create a volume for the claim."""

    claim: PersistentVolumeClaim
    storage_class: StorageClass

    @property
    def name(self) -> str:
        """The name of the volume, in the cluster and for the driver."""
        return f"pvc-{self.claim.metadata.uid}"


class Remove(Value):
    """Delete the volume and its data."""

    volume: PersistentVolume


def tasks(
    claims: Iterable[PersistentVolumeClaim],
    volumes: Iterable[PersistentVolume],
    classes: Mapping[str, StorageClass],
    driver: str,
    node_name: str,
) -> list[Provision | Remove]:
    """What there is to do, in a stable order. `classes`: by name."""
    found: list[Provision | Remove] = []
    for claim in claims:
        chosen = classes.get(_class_of(claim))
        if chosen is not None and _is_wanted(claim, chosen, driver, node_name):
            found.append(Provision(claim, chosen))
    found += [Remove(volume) for volume in volumes if _is_released(volume, driver)]
    return found


def _class_of(claim: PersistentVolumeClaim) -> str:
    return claim.metadata.annotations.get(CLASS, claim.spec.storageClassName)


def _is_wanted(claim: PersistentVolumeClaim, chosen: StorageClass, driver: str, node_name: str) -> bool:
    meta = claim.metadata
    if meta.deletionTimestamp or claim.spec.volumeName or chosen.provisioner != driver:
        return False
    if driver not in (meta.annotations.get(key) for key in PROVISIONERS):
        return False
    node = meta.annotations.get(SELECTED_NODE, "")
    return node == node_name or (not node and chosen.volumeBindingMode != "WaitForFirstConsumer")


def _is_released(volume: PersistentVolume, driver: str) -> bool:
    spec, status = volume.spec, volume.status
    return (
        volume.metadata.annotations.get(PROVISIONED_BY) == driver
        and spec.csi is not None
        and spec.csi.driver == driver
        and spec.persistentVolumeReclaimPolicy == "Delete"
        and status is not None
        and status.phase == "Released"
        and not volume.metadata.deletionTimestamp
    )


def creation(task: Provision) -> pb.CreateVolumeRequest:
    """The request to the driver. Raises QuantityError. A data source is passed on without its id: the driver refuses any."""
    spec, parameters = task.claim.spec, task.storage_class.parameters
    size = spec.resources.requests.get("storage") if spec.resources is not None else None
    modes = [pb.VolumeCapability.AccessMode(mode=_MODES.get(mode)) for mode in spec.accessModes]
    access = (
        {"block": pb.VolumeCapability.BlockVolume()}
        if spec.volumeMode == BLOCK
        else {
            "mount": pb.VolumeCapability.MountVolume(
                fs_type=parameters.get(FS_TYPE, ""), mount_flags=task.storage_class.mountOptions
            )
        }
    )
    return pb.CreateVolumeRequest(
        name=task.name,
        capacity_range=pb.CapacityRange(required_bytes=value(size)),
        volume_capabilities=[pb.VolumeCapability(access_mode=mode, **access) for mode in modes],
        parameters={key: text for key, text in parameters.items() if not key.startswith(OWN_PARAMETERS)},
        volume_content_source=pb.VolumeContentSource() if spec.dataSource or spec.dataSourceRef else None,
    )


def persistent_volume(task: Provision, made: pb.Volume, driver: str) -> PersistentVolume:
    """The object for a volume that the driver has created, reserved for the claim."""
    claim, chosen = task.claim, task.storage_class
    meta, spec = claim.metadata, claim.spec
    source = CSIPersistentVolumeSource(
        driver=driver,
        volumeHandle=made.volume_id,
        fsType="" if spec.volumeMode == BLOCK else chosen.parameters.get(FS_TYPE, ""),
        volumeAttributes=dict(made.volume_context),
    )
    reference = core.ObjectReference(
        apiVersion="v1", kind="PersistentVolumeClaim", namespace=meta.namespace, name=meta.name, uid=meta.uid
    )
    size = made.capacity_bytes or value(spec.resources.requests["storage"] if spec.resources is not None else 0)
    return PersistentVolume(
        metadata=core.ObjectMeta(name=task.name, annotations={PROVISIONED_BY: driver}),
        spec=PersistentVolumeSpec(
            accessModes=spec.accessModes,
            capacity={"storage": str(Amount(size * 1_000_000_000, Format.BINARY_SI))},
            claimRef=reference,
            csi=source,
            mountOptions=chosen.mountOptions,
            nodeAffinity=_affinity(made),
            persistentVolumeReclaimPolicy=chosen.reclaimPolicy or "Delete",
            storageClassName=chosen.metadata.name,
            volumeMode=spec.volumeMode,
        ),
    )


def _affinity(made: pb.Volume) -> VolumeNodeAffinity | None:
    """The nodes from which the volume can be reached."""
    terms = tuple(
        core.NodeSelectorTerm(
            matchExpressions=tuple(
                core.NodeSelectorRequirement(key=key, operator="In", values=(text,))
                for key, text in sorted(topology.segments.items())
            )
        )
        for topology in made.accessible_topology
    )
    return VolumeNodeAffinity(required=core.NodeSelector(nodeSelectorTerms=terms)) if terms else None
