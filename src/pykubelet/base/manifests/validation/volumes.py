"""Validates the volumes of a pod: each has one source, with its own rules. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pykubelet.base.api import labels as names
from pykubelet.base.api.core import (
    CSIVolumeSource,
    DownwardAPIVolumeFile,
    EmptyDirVolumeSource,
    EphemeralVolumeSource,
    FCVolumeSource,
    FlexVolumeSource,
    FlockerVolumeSource,
    GitRepoVolumeSource,
    HostPathVolumeSource,
    ImageVolumeSource,
    ISCSIVolumeSource,
    KeyToPath,
    NFSVolumeSource,
    ObjectMeta,
    PersistentVolumeClaimSpec,
    ProjectedVolumeSource,
    Volume,
)
from pykubelet.base.api.quantity import QuantityError, parse
from pykubelet.base.manifests.validation.env import VOLUME_FIELDS, validate_field_ref, validate_resource_ref
from pykubelet.base.manifests.validation.errors import (
    Errors,
    backstep_errors,
    descending_path_errors,
    duplicate,
    forbidden,
    invalid,
    invalids,
    local_path_errors,
    mode_errors,
    not_supported,
    one_of,
    owner_errors,
    required,
    too_long,
    validate_template_metadata,
)
from pykubelet.base.manifests.validation.projected import validate_projections

HOST_PATH_TYPES = (
    "",
    "BlockDevice",
    "CharDevice",
    "Directory",
    "DirectoryOrCreate",
    "File",
    "FileOrCreate",
    "Socket",
)
PULL_POLICIES = ("Always", "IfNotPresent", "Never")
ACCESS_MODES = ("ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod")

# Required fields of sources.
_NEEDED: dict[str, tuple[str, ...]] = {
    "awsElasticBlockStore": ("volumeID",),
    "azureDisk": ("diskName", "diskURI"),
    "azureFile": ("secretName", "shareName"),
    "cephfs": ("monitors",),
    "cinder": ("volumeID",),
    "configMap": ("name",),
    "csi": ("driver",),
    "flexVolume": ("driver",),
    "gcePersistentDisk": ("pdName",),
    "gitRepo": ("repository",),
    "glusterfs": ("endpoints", "path"),
    "image": ("reference",),
    "iscsi": ("targetPortal", "iqn"),
    "nfs": ("server", "path"),
    "persistentVolumeClaim": ("claimName",),
    "photonPersistentDisk": ("pdID",),
    "portworxVolume": ("volumeID",),
    "quobyte": ("registry", "volume"),
    "rbd": ("monitors", "image"),
    "scaleIO": ("gateway", "system", "volumeName"),
    "secret": ("secretName",),
    "storageos": ("volumeName",),
    "vsphereVolume": ("volumePath",),
}
# The order in which the reference checks sources: the first given one is valid, the others are forbidden.
_ORDER = (
    *("emptyDir", "hostPath", "gitRepo", "gcePersistentDisk", "awsElasticBlockStore", "secret", "nfs", "iscsi"),
    *("glusterfs", "flocker", "persistentVolumeClaim", "rbd", "cinder", "cephfs", "quobyte", "downwardAPI", "fc"),
    *("flexVolume", "configMap", "azureFile", "vsphereVolume", "photonPersistentDisk", "portworxVolume"),
    *("azureDisk", "storageos", "projected", "scaleIO", "csi", "ephemeral", "image"),
)


def validate_volumes(volumes: tuple[Volume, ...], meta: ObjectMeta, path: str) -> tuple[dict[str, Volume], Errors]:
    """The valid volumes by name, and the errors of the others."""
    errors: Errors = []
    usable: dict[str, Volume] = {}
    made_claims = {f"{meta.name}-{volume.name}" for volume in volumes if volume.ephemeral is not None}
    for i, volume in enumerate(volumes):
        at = f"{path}[{i}]"
        own = _validate_source(volume, meta, at)
        if not volume.name:
            own.append(required(f"{at}.name"))
        else:
            own += invalids(f"{at}.name", volume.name, names.dns_label_errors(volume.name))
        if volume.name in usable:
            own.append(duplicate(f"{at}.name", volume.name))
        if own:
            errors += own
        else:
            usable[volume.name] = volume
        claim = volume.persistentVolumeClaim
        if claim is not None and claim.claimName in made_claims:
            detail = "must not reference a PVC that gets created for an ephemeral volume"
            errors.append(invalid(f"{at}.persistentVolumeClaim.claimName", claim.claimName, detail))
    return usable, errors


def _validate_source(volume: Volume, meta: ObjectMeta, path: str) -> Errors:
    given = [kind for kind in _ORDER if getattr(volume, kind) is not None]
    if not given:
        return [required(path, "must specify a volume type")]
    kind = given[0]
    source = getattr(volume, kind)
    errors = validate_persistent_source(kind, source, f"{path}.{kind}")
    if kind == "iscsi" and source.initiatorName and len(f"{volume.name}:{source.targetPortal}") > 64:
        detail = (
            "Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters "
            "if iscsi.initiatorName is specified."
        )
        errors.append(invalid(f"{path}.name", volume.name, detail))
    if kind == "ephemeral" and meta.name and volume.name:
        claim = f"{meta.name}-{volume.name}"
        for reason in names.dns_subdomain_errors(claim):
            errors.append(invalid(f"{path}.name", volume.name, f'PVC name "{claim}": {reason}'))
    return errors + [forbidden(f"{path}.{other}", "may not specify more than 1 volume type") for other in given[1:]]


def validate_persistent_source(kind: str, source: object, path: str) -> Errors:
    """The source of a persistent volume, of a kind whose source is like that of a pod's volume (nfs, hostPath, ...)."""
    errors: Errors = [required(f"{path}.{field}") for field in _NEEDED.get(kind, ()) if not getattr(source, field)]
    return errors + _RULES.get(kind, _partition_errors)(source, path)


def _partition_errors(source: object, path: str) -> Errors:
    partition = getattr(source, "partition", None)
    if partition is None or 0 <= partition <= 255:
        return []
    return [invalid(f"{path}.partition", partition, names.range_error(1, 255))]


#: The permissions and the sticky bit (KEP-5502).
_HIGHEST_DIRECTORY_MODE = 0o1777


def _validate_empty_dir(source: EmptyDirVolumeSource, path: str) -> Errors:
    return _validate_size_limit(source, path) + mode_errors(source.mode, f"{path}.mode", _HIGHEST_DIRECTORY_MODE)


def _validate_size_limit(source: EmptyDirVolumeSource, path: str) -> Errors:
    if source.sizeLimit is None:
        return []
    try:
        if parse(source.sizeLimit).nano >= 0:
            return []
    except QuantityError as error:
        return [invalid(f"{path}.sizeLimit", source.sizeLimit, str(error))]
    return [forbidden(f"{path}.sizeLimit", "SizeLimit field must be a valid resource quantity")]


def _validate_host_path(source: HostPathVolumeSource, path: str) -> Errors:
    if not source.path:
        return [required(f"{path}.path")]
    errors = backstep_errors(source.path, f"{path}.path")
    if source.type not in HOST_PATH_TYPES:
        errors.append(not_supported(f"{path}.type", source.type, HOST_PATH_TYPES))
    return errors


def _validate_git_repo(source: GitRepoVolumeSource, path: str) -> Errors:
    return descending_path_errors(source.directory, f"{path}.directory")


def _validate_nfs(source: NFSVolumeSource, path: str) -> Errors:
    if source.path.startswith("/"):
        return []
    return [invalid(f"{path}.path", source.path, "must be an absolute path")]


def _validate_iscsi(source: ISCSIVolumeSource, path: str) -> Errors:
    errors: Errors = []
    if source.iqn and not source.iqn.startswith(("iqn", "eui", "naa")):
        errors.append(invalid(f"{path}.iqn", source.iqn, "must be valid format starting with iqn, eui, or naa"))
    if not 0 <= source.lun <= 255:
        errors.append(invalid(f"{path}.lun", source.lun, names.range_error(0, 255)))
    if (source.chapAuthDiscovery or source.chapAuthSession) and source.secretRef is None:
        errors.append(required(f"{path}.secretRef"))
    return errors


def _validate_fc(source: FCVolumeSource, path: str) -> Errors:
    errors: Errors = []
    at = f"{path}.targetWWNs"
    if not source.targetWWNs and not source.wwids:
        errors.append(required(at, "must specify either targetWWNs or wwids, but not both"))
    if source.targetWWNs and source.wwids:
        errors.append(invalid(at, source.targetWWNs, "targetWWNs and wwids can not be specified simultaneously"))
    if source.targetWWNs:
        if source.lun is None:
            errors.append(required(f"{path}.lun", "lun is required if targetWWNs is specified"))
        elif not 0 <= source.lun <= 255:
            errors.append(invalid(f"{path}.lun", source.lun, names.range_error(0, 255)))
    return errors


def _validate_flocker(source: FlockerVolumeSource, path: str) -> Errors:
    errors: Errors = []
    if not source.datasetName and not source.datasetUUID:
        errors.append(required(path, "one of datasetName and datasetUUID is required"))
    if source.datasetName and source.datasetUUID:
        detail = "datasetName and datasetUUID can not be specified simultaneously"
        errors.append(invalid(path, "resource", detail))
    if "/" in source.datasetName:
        errors.append(invalid(f"{path}.datasetName", source.datasetName, "must not contain '/'"))
    return errors


def _validate_flex(source: FlexVolumeSource, path: str) -> Errors:
    errors: Errors = []
    for key in sorted(source.options):
        if f".{key.partition('/')[0].lower()}".endswith((".kubernetes.io", ".k8s.io")):
            detail = "kubernetes.io and k8s.io namespaces are reserved"
            errors.append(invalid(f"{path}.options[{key}]", key, detail))
    return errors


def validate_items(items: tuple[KeyToPath, ...], path: str) -> Errors:
    """The keys of a ConfigMap or Secret and the paths of their files."""
    errors: Errors = []
    for i, item in enumerate(items):
        at = f"{path}[{i}]"
        errors += [required(f"{at}.{field}") for field in ("key", "path") if not getattr(item, field)]
        errors += local_path_errors(item.path, f"{at}.path")
        errors += mode_errors(item.mode, f"{at}.mode")
        errors += owner_errors(item.user, f"{at}.user")
    return errors


def _validate_defaults(source: Any, path: str) -> Errors:
    """The mode and the owner of the files of which nothing else is stated."""
    errors = mode_errors(source.defaultMode, f"{path}.defaultMode")
    return errors + owner_errors(source.defaultUser, f"{path}.defaultUser")


def _validate_keyed(source: Any, path: str) -> Errors:
    return _validate_defaults(source, path) + validate_items(source.items, f"{path}.items")


def validate_downward_file(file: DownwardAPIVolumeFile, path: str) -> Errors:
    """One file of the downward API."""
    errors: Errors = [] if file.path else [required(f"{path}.path")]
    errors += local_path_errors(file.path, f"{path}.path")
    if file.fieldRef is not None:
        errors += validate_field_ref(file.fieldRef, VOLUME_FIELDS, f"{path}.fieldRef")
        if file.resourceFieldRef is not None:
            detail = "fieldRef and resourceFieldRef can not be specified simultaneously"
            errors.append(invalid(path, "resource", detail))
    elif file.resourceFieldRef is not None:
        errors += validate_resource_ref(file.resourceFieldRef, True, f"{path}.resourceFieldRef")
    else:
        errors.append(required(path, "one of fieldRef and resourceFieldRef is required"))
    return errors + mode_errors(file.mode, f"{path}.mode") + owner_errors(file.user, f"{path}.user")


def _validate_downward(source: Any, path: str) -> Errors:
    errors = _validate_defaults(source, path)
    for file in source.items:
        errors += validate_downward_file(file, path)
    return errors


def _validate_projected(source: ProjectedVolumeSource, path: str) -> Errors:
    projected = validate_projections(source, validate_items, validate_downward_file, path)
    return _validate_defaults(source, path) + projected


def _validate_csi(source: CSIVolumeSource, path: str) -> Errors:
    errors: Errors = []
    if len(source.driver.encode()) > 63:
        errors.append(too_long(f"{path}.driver", 63))
    errors += invalids(f"{path}.driver", source.driver, names.dns_subdomain_errors(source.driver.lower()))
    secret = source.nodePublishSecretRef
    if secret is not None and not secret.name:
        errors.append(required(f"{path}.nodePublishSecretRef.name"))
    elif secret is not None:
        errors += invalids(f"{path}.name", secret.name, names.dns_subdomain_errors(secret.name))
    return errors


def _validate_ephemeral(source: EphemeralVolumeSource, path: str) -> Errors:
    template = source.volumeClaimTemplate
    if template is None:
        return [required(f"{path}.volumeClaimTemplate")]
    at = f"{path}.volumeClaimTemplate"
    errors: Errors = []
    if template.metadata is not None:
        errors += validate_template_metadata(template.metadata, f"{at}.metadata")
    return errors + validate_claim_basics(template.spec, f"{at}.spec")


def validate_claim_basics(spec: PersistentVolumeClaimSpec, path: str) -> Errors:
    """The access modes and the requested size of a claim."""
    errors = validate_access_modes(spec.accessModes, f"{path}.accessModes")
    storage = spec.resources.requests.get("storage") if spec.resources else None
    if storage is None:
        return [*errors, required(f"{path}.resources[storage]")]
    return errors + validate_positive(storage, f"{path}.resources[storage]")


def validate_access_modes(modes: tuple[str, ...], path: str) -> Errors:
    """The access modes of a claim or a persistent volume."""
    errors: Errors = [] if modes else [required(path, "at least 1 access mode is required")]
    errors += [not_supported(path, mode, ACCESS_MODES) for mode in modes if mode not in ACCESS_MODES]
    if "ReadWriteOncePod" in modes and len(set(modes) & set(ACCESS_MODES)) > 1:
        errors.append(forbidden(path, "may not use ReadWriteOncePod with other access modes"))
    return errors


def validate_positive(amount: str | int | float, path: str) -> Errors:
    """A quantity above zero."""
    try:
        if parse(amount).nano > 0:
            return []
    except QuantityError as error:
        return [invalid(path, amount, str(error))]
    return [invalid(path, str(parse(amount)), "must be greater than zero")]


def _validate_image(source: ImageVolumeSource, path: str) -> Errors:
    return one_of(f"{path}.pullPolicy", source.pullPolicy, PULL_POLICIES)


_RULES: dict[str, Callable[[Any, str], Errors]] = {
    "configMap": _validate_keyed,
    "csi": _validate_csi,
    "downwardAPI": _validate_downward,
    "emptyDir": _validate_empty_dir,
    "ephemeral": _validate_ephemeral,
    "fc": _validate_fc,
    "flexVolume": _validate_flex,
    "flocker": _validate_flocker,
    "gitRepo": _validate_git_repo,
    "hostPath": _validate_host_path,
    "image": _validate_image,
    "iscsi": _validate_iscsi,
    "nfs": _validate_nfs,
    "projected": _validate_projected,
    "secret": _validate_keyed,
}
