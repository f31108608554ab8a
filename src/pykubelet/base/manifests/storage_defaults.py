"""Defaulting of persistent volumes, claims and CSI drivers as kube-apiserver 1.36 does it. Pure.

Source: the API reference, "default" notes of PersistentVolume, PersistentVolumeClaim and CSIDriver.
"""

from __future__ import annotations

from pykubelet.base.api.storage import CSIDriver, PersistentVolume, PersistentVolumeClaim
from pykubelet.base.kit.values import replace

FILESYSTEM = "Filesystem"


def default_volume(volume: PersistentVolume) -> PersistentVolume:
    """The volume with its mode and reclaim policy."""
    spec = volume.spec
    spec = replace(
        spec,
        volumeMode=spec.volumeMode or FILESYSTEM,
        persistentVolumeReclaimPolicy=spec.persistentVolumeReclaimPolicy or "Retain",
    )
    return replace(volume, spec=spec)


def default_claim(claim: PersistentVolumeClaim) -> PersistentVolumeClaim:
    """The claim with its mode."""
    return replace(claim, spec=replace(claim.spec, volumeMode=claim.spec.volumeMode or FILESYSTEM))


def default_driver(driver: CSIDriver) -> CSIDriver:
    """The driver with its policies and modes. `attachRequired` is left as it is: its default depends on the control plane."""
    spec = driver.spec
    spec = replace(
        spec,
        fsGroupPolicy=spec.fsGroupPolicy or "ReadWriteOnceWithFSType",
        volumeLifecycleModes=spec.volumeLifecycleModes or ("Persistent",),
        podInfoOnMount=bool(spec.podInfoOnMount),
        requiresRepublish=bool(spec.requiresRepublish),
        seLinuxMount=bool(spec.seLinuxMount),
        storageCapacity=bool(spec.storageCapacity),
    )
    return replace(driver, spec=spec)
