"""Names of CSI volumes on a node, and of the VolumeAttachments that state where they are attached. Pure.

Source: KEP-178 (CSI volumes); the names are those of the reference kubelet and of the attach-detach controller.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from hashlib import sha256

from pykubelet.base.model.content import ContentKind, ObjectKey

_CSI = "kubernetes.io/csi/"
#: A node has at most a few hundred volumes.
_REMEMBERED = 4096


def unique_csi_name(driver: str, handle: str) -> str:
    """The unique name of a CSI volume, as the Node's status lists it."""
    return f"{_CSI}{driver}^{handle}"


def attachment_name(handle: str, driver: str, node: str) -> str:
    """The name of the VolumeAttachment of a volume."""
    return f"csi-{sha256(f'{handle}{driver}{node}'.encode()).hexdigest()}"


def attachment_key(handle: str, driver: str, node: str) -> ObjectKey:
    """The key of the VolumeAttachment of a volume."""
    return ObjectKey(ContentKind.ATTACHMENT, "", attachment_name(handle, driver, node))


def attachment_names(volumes: Iterable[str], node: str) -> frozenset[str]:
    """The names of the VolumeAttachments of those of the `volumes`, by unique name, that are CSI volumes."""
    return frozenset(_attachment_of(volume, node) for volume in volumes if volume.startswith(_CSI))


@lru_cache(maxsize=_REMEMBERED)
def _attachment_of(volume: str, node: str) -> str:
    driver, _, handle = volume.removeprefix(_CSI).partition("^")
    return attachment_name(handle, driver, node)
