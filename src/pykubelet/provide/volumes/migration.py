"""Translates volumes of in-tree cloud plugins into volumes of CSI drivers, whatever else is done with them. Pure.

Owns: the table of the seven plugins. A PersistentVolume keeps its name, and its source is replaced; a pod's own volume becomes
a PersistentVolume that exists only here.
Rules: the zones of an in-tree volume, from its node affinity or else its labels, become node affinity on the driver's
topology key. Text that is wrong is refused, never guessed. The name of a volume made from a pod's own is that of a directory.
Source: KEP-625 (CSI migration); names and values are those of csi-translation-lib.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

from pykubelet.base.api.core import (
    AWSElasticBlockStoreVolumeSource,
    AzureDiskVolumeSource,
    AzureFileVolumeSource,
    CinderVolumeSource,
    GCEPersistentDiskVolumeSource,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    ObjectMeta,
    PortworxVolumeSource,
    Volume,
    VsphereVirtualDiskVolumeSource,
)
from pykubelet.base.api.storage import (
    AzureFilePersistentVolumeSource,
    CinderPersistentVolumeSource,
    CSIPersistentVolumeSource,
    PersistentVolume,
    PersistentVolumeSpec,
    SecretReference,
    VolumeNodeAffinity,
)
from pykubelet.base.kit.values import Value, replace

FAILED = "failed to translate in-tree pv to CSI: "
#: Bytes of a directory's name.
MAX_NAME = 255
RWO, ROX, RWX = "ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany"
UNSPECIFIED = "UNSPECIFIED"
_ZONE, _REGION = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"
_OLD_ZONE, _OLD_REGION = "failure-domain.beta.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/region"
#: Between the zones of a label that names several.
_ZONES = "__"
_AWS_VOLUME = re.compile(r"vol-[^/]*", re.ASCII)
_AZURE_SECRET = ("azure-storage-account-", "-secret")
_AZURE_GROUP = "kubernetes.io/azure-file-resource-group"
_PORTWORX_SECRET = ("openstorage.io/auth-secret-name", "openstorage.io/auth-secret-namespace")


class MigrationError(Exception):
    """A volume cannot be translated; the text is shown to users."""


class _Inline(Value):
    """A pod's own volume that is translated: its name, and the pod's namespace."""

    name: str
    namespace: str


class _Translated(Value):
    """The result for one source. `modes` None: those of the PersistentVolume stay. `name`: of the PersistentVolume of a pod's volume."""

    csi: CSIPersistentVolumeSource
    name: str
    modes: tuple[str, ...] | None = None


_Origin = PersistentVolume | _Inline


class _Translate(Protocol):
    """Translates the source of a volume. MigrationError."""

    def __call__(self, driver: str, source: object, origin: _Origin) -> _Translated: ...


class Migration(Value):
    """One in-tree plugin: its CSI driver, and the driver's topology keys for zones and regions."""

    driver: str
    translate: _Translate
    zone_key: str = ""
    region_key: str = ""


def migrated_field(source: Volume | PersistentVolumeSpec) -> str:
    """The name of the in-tree cloud source that is set, such as `gcePersistentDisk`; "" for other volumes."""
    return next((name for name in MIGRATIONS if getattr(source, name) is not None), "")


def migrate(volume: PersistentVolume) -> PersistentVolume:
    """The volume with its CSI source. A volume of another kind is returned as it is. MigrationError."""
    name = migrated_field(volume.spec)
    if not name:
        return volume
    migration = MIGRATIONS[name]
    made = migration.translate(migration.driver, getattr(volume.spec, name), volume)
    spec = replace(
        volume.spec,
        csi=made.csi,
        nodeAffinity=_affinity(volume, migration),
        accessModes=volume.spec.accessModes if made.modes is None else made.modes,
    )
    no_source: dict[str, Any] = {name: None}
    return replace(volume, spec=replace(spec, **no_source))


def migrate_inline(volume: Volume, namespace: str) -> PersistentVolume:
    """The PersistentVolume for a pod's own volume of an in-tree cloud plugin. `namespace`: the pod's. MigrationError."""
    name = migrated_field(volume)
    migration = MIGRATIONS[name]
    made = migration.translate(migration.driver, getattr(volume, name), _Inline(volume.name, namespace))
    return PersistentVolume(
        metadata=ObjectMeta(name=_directory_name(made.name)),
        spec=PersistentVolumeSpec(accessModes=made.modes or (RWO,), csi=made.csi, volumeMode="Filesystem"),
    )


def _directory_name(name: str) -> str:
    """The name with `~` in place of `/`, as the reference kubelet names the directory. MigrationError if no directory can have it."""
    escaped = name.replace("/", "~")
    if escaped in {".", ".."} or not escaped.isprintable() or len(escaped.encode()) > MAX_NAME:
        raise MigrationError(f"{FAILED}the volume cannot have the name {name[:MAX_NAME]!r}")
    return escaped


# The plugins


def _aws(driver: str, source: object, origin: _Origin) -> _Translated:
    assert isinstance(source, AWSElasticBlockStoreVolumeSource)
    handle = source.volumeID
    if handle.startswith("aws://"):
        handle = _url_path(handle).strip("/")
        if _AWS_VOLUME.fullmatch(handle) is None:
            raise MigrationError(f"{FAILED}Invalid format for AWS volume ({source.volumeID})")
    attributes = {"partition": str(source.partition or 0)}
    csi = _csi(driver, handle, source.fsType, source.readOnly, attributes)
    return _Translated(csi, f"{driver}-{handle}", _inline_modes(origin, (RWO,)))


def _url_path(text: str) -> str:
    try:
        return urlsplit(text).path
    except ValueError as error:
        raise MigrationError(f"{FAILED}Invalid disk name ({text}): {error}") from error


def _gce(driver: str, source: object, origin: _Origin) -> _Translated:
    assert isinstance(source, GCEPersistentDiskVolumeSource)
    disk = source.pdName
    place = f"zones/{UNSPECIFIED}"
    modes: tuple[str, ...] = (ROX,) if source.readOnly else (RWO,)
    if isinstance(origin, PersistentVolume):
        place, modes = _gce_place(origin), _gce_modes(origin.spec.accessModes)
    attributes = {"partition": str(source.partition) if source.partition else ""}
    csi = _csi(driver, f"projects/{UNSPECIFIED}/{place}/disks/{disk}", source.fsType, source.readOnly, attributes)
    return _Translated(csi, f"{driver}-{disk}", modes)


def _gce_place(volume: PersistentVolume) -> str:
    """The part of the handle for the place of the disk: one zone, or several of one region."""
    labels = volume.metadata.labels
    text = labels.get(_OLD_ZONE) or labels.get(_ZONE)
    if not text:
        return f"zones/{UNSPECIFIED}"
    zones = [zone.strip() for zone in text.split(_ZONES)]
    if len(zones) == 1:
        return f"zones/{zones[0]}"
    regions = {zone.rpartition("-")[0] for zone in zones}
    if len(regions) != 1 or not min(regions):
        raise MigrationError(f"{FAILED}failed to get region from zones: {_bracketed(zones)}")
    return f"regions/{regions.pop()}"


def _gce_modes(modes: tuple[str, ...]) -> tuple[str, ...]:
    """The access modes that the driver knows; a disk that many nodes write to is one that one node writes to."""
    if not modes:
        return ()
    return (ROX,) if set(modes) == {ROX} else (RWO,)


def _cinder(driver: str, source: object, origin: _Origin) -> _Translated:
    assert isinstance(source, (CinderVolumeSource, CinderPersistentVolumeSource))
    csi = _csi(driver, source.volumeID, source.fsType, source.readOnly)
    return _Translated(csi, f"{driver}-{source.volumeID}", _inline_modes(origin, (RWO,)))


def _azure_disk(driver: str, source: object, origin: _Origin) -> _Translated:
    assert isinstance(source, AzureDiskVolumeSource)
    if source.kind and source.kind.lower() != "managed":
        raise MigrationError(f"{FAILED}kind({source.kind}) is not supported in csi migration")
    attributes = {"kind": "Managed", "cachingmode": source.cachingMode, "fstype": source.fsType}
    given = {key: value for key, value in attributes.items() if value}
    csi = _csi(driver, source.diskURI, source.fsType, source.readOnly, given)
    return _Translated(csi, source.diskURI, _inline_modes(origin, (RWO,)))


def _azure_file(driver: str, source: object, origin: _Origin) -> _Translated:
    assert isinstance(source, (AzureFileVolumeSource, AzureFilePersistentVolumeSource))
    account, share = _azure_account(source.secretName), source.shareName
    group = ""
    if isinstance(origin, PersistentVolume):
        name, namespace = origin.metadata.name, _azure_namespace(source, origin)
        group = origin.metadata.annotations.get(_AZURE_GROUP, "")
    else:
        name, namespace = origin.name, origin.namespace or "default"
    handle = f"{group}#{account}#{share}#{name}#{namespace}"
    csi = _csi(driver, handle, "", source.readOnly, {"shareName": share})
    csi = replace(csi, nodeStageSecretRef=SecretReference(name=source.secretName, namespace=namespace))
    return _Translated(csi, handle, _inline_modes(origin, (RWX,)))


def _azure_account(secret: str) -> str:
    """The account in the name of a Secret of the usual form; other names are accounts themselves."""
    before, after = _AZURE_SECRET
    begin, end = secret.find(before), secret.rfind(after)
    return secret[begin + len(before) : end] if 0 <= begin < end - len(before) else secret


def _azure_namespace(source: object, volume: PersistentVolume) -> str:
    stated = source.secretNamespace if isinstance(source, AzureFilePersistentVolumeSource) else ""
    claim = volume.spec.claimRef
    namespace = stated or (claim.namespace if claim is not None else "")
    if not namespace:
        raise MigrationError(f"{FAILED}could not find a namespace for the secret of PV {volume.metadata.name}")
    return namespace


def _vsphere(driver: str, source: object, origin: _Origin) -> _Translated:
    assert isinstance(source, VsphereVirtualDiskVolumeSource)
    attributes = {"storagepolicyname": source.storagePolicyName} if source.storagePolicyName else {}
    csi = _csi(driver, source.volumePath, source.fsType, None, attributes)
    return _Translated(csi, f"{driver}-{source.volumePath}", _inline_modes(origin, (RWO,)))


def _portworx(driver: str, source: object, origin: _Origin) -> _Translated:
    assert isinstance(source, PortworxVolumeSource)
    csi = _csi(driver, source.volumeID, source.fsType, source.readOnly if isinstance(origin, _Inline) else None)
    if isinstance(origin, PersistentVolume):
        name, namespace = (origin.metadata.annotations.get(key) for key in _PORTWORX_SECRET)
        if name is not None and namespace is not None:
            secret = SecretReference(name=name, namespace=namespace)
            csi = replace(
                csi,
                controllerPublishSecretRef=secret,
                nodeStageSecretRef=secret,
                nodePublishSecretRef=secret,
                controllerExpandSecretRef=secret,
                nodeExpandSecretRef=secret,
            )
    modes: tuple[str, ...] = (ROX,) if source.readOnly else (RWO,)
    return _Translated(csi, f"{driver}-{source.volumeID}", _inline_modes(origin, modes))


def _csi(
    driver: str, handle: str, fs_type: str, read_only: bool | None, attributes: Mapping[str, str] | None = None
) -> CSIPersistentVolumeSource:
    return CSIPersistentVolumeSource(
        driver=driver,
        volumeHandle=handle,
        fsType=fs_type,
        readOnly=bool(read_only) or None,
        volumeAttributes=dict(attributes or {}),
    )


def _inline_modes(origin: _Origin, modes: tuple[str, ...]) -> tuple[str, ...] | None:
    return modes if isinstance(origin, _Inline) else None


def _bracketed(names: Iterable[str]) -> str:
    return f"[{' '.join(names)}]"


# Topology


def _affinity(volume: PersistentVolume, migration: Migration) -> VolumeNodeAffinity | None:
    """The volume's node affinity with the driver's topology keys."""
    affinity = volume.spec.nodeAffinity
    terms = affinity.required.nodeSelectorTerms if affinity is not None and affinity.required is not None else ()
    if not migration.zone_key:
        return affinity
    labels = volume.metadata.labels
    zone, region = _topology_labels(terms, labels)
    terms = _translate_key(terms, labels, zone, migration.zone_key)
    if migration.region_key:
        terms = _translate_key(terms, labels, region, migration.region_key)
    elif region == _OLD_REGION:
        terms = _renamed(terms, _OLD_REGION, _REGION)
    return VolumeNodeAffinity(required=NodeSelector(nodeSelectorTerms=terms)) if terms else affinity


def _topology_labels(terms: tuple[NodeSelectorTerm, ...], labels: Mapping[str, str]) -> tuple[str, str]:
    """The labels for zone and region that the volume uses: the current ones, or those from before Kubernetes 1.17."""
    used = {expression.key for term in terms for expression in term.matchExpressions}
    for keys in (used, labels.keys()):
        for pair in ((_ZONE, _REGION), (_OLD_ZONE, _OLD_REGION)):
            if pair[0] in keys:
                return pair
    return _ZONE, _REGION


def _translate_key(
    terms: tuple[NodeSelectorTerm, ...], labels: Mapping[str, str], label: str, key: str
) -> tuple[NodeSelectorTerm, ...]:
    """The terms with `key` in place of `label`; if they do not have that, with the values of the volume's label."""
    if any(expression.key == label and expression.values for term in terms for expression in term.matchExpressions):
        return _renamed(terms, label, key)
    values = {value.strip() for value in labels.get(label, "").split(_ZONES)} - {""}
    if not values:
        return terms
    more = NodeSelectorRequirement(key=key, operator="In", values=tuple(sorted(values)))
    return tuple(
        replace(term, matchExpressions=(*term.matchExpressions, more)) for term in terms or (NodeSelectorTerm(),)
    )


def _renamed(terms: tuple[NodeSelectorTerm, ...], old: str, new: str) -> tuple[NodeSelectorTerm, ...]:
    return tuple(
        replace(
            term,
            matchExpressions=tuple(
                replace(expression, key=new) if expression.key == old else expression
                for expression in term.matchExpressions
            ),
        )
        for term in terms
    )


MIGRATIONS: Final[Mapping[str, Migration]] = {
    "awsElasticBlockStore": Migration("ebs.csi.aws.com", _aws, "topology.ebs.csi.aws.com/zone"),
    "gcePersistentDisk": Migration("pd.csi.storage.gke.io", _gce, "topology.gke.io/zone"),
    "cinder": Migration("cinder.csi.openstack.org", _cinder, "topology.cinder.csi.openstack.org/zone"),
    "azureDisk": Migration("disk.csi.azure.com", _azure_disk),
    "azureFile": Migration("file.csi.azure.com", _azure_file),
    "vsphereVolume": Migration(
        "csi.vsphere.vmware.com", _vsphere, "topology.csi.vmware.com/zone", "topology.csi.vmware.com/region"
    ),
    "portworxVolume": Migration("pxd.portworx.com", _portworx),
}
