"""Validates persistent volumes, claims and CSI drivers at creation, as kube-apiserver 1.36 does. Pure.

Source: the API reference of PersistentVolume, PersistentVolumeClaim and CSIDriver.
"""

from __future__ import annotations

from pykubelet.base.api import labels as names
from pykubelet.base.api.storage import (
    CSIDriver,
    CSIPersistentVolumeSource,
    LocalVolumeSource,
    PersistentVolume,
    PersistentVolumeClaim,
    PersistentVolumeSpec,
)
from pykubelet.base.manifests.validation.errors import (
    Errors,
    backstep_errors,
    duplicate,
    forbidden,
    invalid,
    invalids,
    not_supported,
    one_of,
    required,
    validate_metadata,
)
from pykubelet.base.manifests.validation.scheduling import validate_label_selector, validate_node_selector
from pykubelet.base.manifests.validation.volumes import (
    validate_access_modes,
    validate_claim_basics,
    validate_persistent_source,
    validate_positive,
)

#: The sources of persistent volumes, in the order in which the reference checks them: the first counts.
SOURCES = (
    *("hostPath", "gcePersistentDisk", "awsElasticBlockStore", "glusterfs", "flocker", "nfs", "rbd", "quobyte"),
    *("cephfs", "iscsi", "cinder", "fc", "flexVolume", "azureFile", "vsphereVolume", "photonPersistentDisk"),
    *("portworxVolume", "azureDisk", "scaleIO", "local", "storageos", "csi"),
)
VOLUME_MODES = ("Block", "Filesystem")
RECLAIM_POLICIES = ("Delete", "Recycle", "Retain")
GROUP_POLICIES = ("File", "None", "ReadWriteOnceWithFSType")
LIFECYCLE_MODES = ("Persistent", "Ephemeral")
DRIVER_NAME_BYTES = 63


def validate_volume(volume: PersistentVolume) -> Errors:
    """All errors of a defaulted persistent volume. An empty list means that the API server would accept it."""
    spec, path = volume.spec, "spec"
    errors = validate_metadata(volume.metadata, "metadata", is_namespaced=False)
    errors += (
        validate_access_modes(spec.accessModes, f"{path}.accessModes")
        if spec.accessModes
        else [required(f"{path}.accessModes")]
    )
    if not spec.capacity:
        errors.append(required(f"{path}.capacity"))
    if set(spec.capacity) != {"storage"}:
        errors.append(not_supported(f"{path}.capacity", dict(sorted(spec.capacity.items())) or None, ("storage",)))
    if "storage" in spec.capacity:
        errors += validate_positive(spec.capacity["storage"], f"{path}.capacity[storage]")
    errors += one_of(f"{path}.persistentVolumeReclaimPolicy", spec.persistentVolumeReclaimPolicy, RECLAIM_POLICIES)
    errors += _class_errors(spec.storageClassName, f"{path}.storageClassName")
    required_affinity = spec.nodeAffinity.required if spec.nodeAffinity is not None else None
    if required_affinity is not None:
        errors += validate_node_selector(required_affinity, f"{path}.nodeAffinity.required")
    elif spec.nodeAffinity is not None:
        errors.append(required(f"{path}.nodeAffinity.required", "must specify required node constraints"))
    elif spec.local is not None:
        errors.append(required(f"{path}.nodeAffinity", "Local volume requires node affinity"))
    errors += _source_errors(spec, path)
    return errors + one_of(f"{path}.volumeMode", spec.volumeMode, VOLUME_MODES)


def _source_errors(spec: PersistentVolumeSpec, path: str) -> Errors:
    given = [kind for kind in SOURCES if getattr(spec, kind) is not None]
    if not given:
        return [required(path, "must specify a volume type")]
    source, at = getattr(spec, given[0]), f"{path}.{given[0]}"
    match source:
        case LocalVolumeSource(path=where):
            errors = backstep_errors(where, f"{at}.path") if where else [required(f"{at}.path")]
        case CSIPersistentVolumeSource():
            errors = _csi_errors(source, at)
        case _:
            errors = validate_persistent_source(given[0], source, at)
    return errors + [forbidden(f"{path}.{other}", "may not specify more than 1 volume type") for other in given[1:]]


def _csi_errors(source: CSIPersistentVolumeSource, path: str) -> Errors:
    errors = _driver_name_errors(source.driver, f"{path}.driver")
    if not source.volumeHandle:
        errors.append(required(f"{path}.volumeHandle"))
    return errors


def _driver_name_errors(name: str, path: str) -> Errors:
    if not name:
        return [required(path)]
    errors = invalids(path, name, names.dns_subdomain_errors(name.lower()))
    if len(name.encode()) > DRIVER_NAME_BYTES:
        errors.append(invalid(path, name, f"must be no more than {DRIVER_NAME_BYTES} bytes"))
    return errors


def _class_errors(name: str, path: str) -> Errors:
    return invalids(path, name, names.dns_subdomain_errors(name)) if name else []


def validate_claim(claim: PersistentVolumeClaim) -> Errors:
    """All errors of a defaulted claim. An empty list means that the API server would accept it."""
    spec, path = claim.spec, "spec"
    errors = validate_metadata(claim.metadata, "metadata")
    errors += validate_label_selector(spec.selector, f"{path}.selector")
    errors += validate_claim_basics(spec, path)
    errors += _class_errors(spec.storageClassName, f"{path}.storageClassName")
    errors += one_of(f"{path}.volumeMode", spec.volumeMode, VOLUME_MODES)
    if spec.volumeName:
        errors += invalids(f"{path}.volumeName", spec.volumeName, names.dns_subdomain_errors(spec.volumeName))
    return errors


def validate_driver(driver: CSIDriver) -> Errors:
    """All errors of a defaulted CSIDriver. An empty list means that the API server would accept it."""
    spec, path = driver.spec, "spec"
    errors = validate_metadata(driver.metadata, "metadata", is_namespaced=False)
    if driver.metadata.name:
        errors += _driver_name_errors(driver.metadata.name, "metadata.name")
    errors += one_of(f"{path}.fsGroupPolicy", spec.fsGroupPolicy, GROUP_POLICIES)
    seen: set[str] = set()
    for i, request in enumerate(spec.tokenRequests):
        if request.audience in seen:
            errors.append(duplicate(f"{path}.tokenRequests[{i}].audience", request.audience))
        seen.add(request.audience)
    for mode in spec.volumeLifecycleModes:
        errors += one_of(f"{path}.volumeLifecycleModes", mode, LIFECYCLE_MODES)
    return errors
