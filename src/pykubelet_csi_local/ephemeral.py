"""What pods may ask for in their own (inline, ephemeral) volumes, within the limits that the administrator has set. Pure.

Any user who may create a pod may ask for such a volume, also under the Pod Security Standard `restricted`. Therefore each has
a size that the file system enforces, and all of them together leave a part of the disk free. Source: KEP-596.
"""

from __future__ import annotations

from collections.abc import Mapping

from pykubelet.base.api.quantity import QuantityError, parse
from pykubelet.base.kit.values import Value
from pykubelet.net.grpc.status import Code, RpcError
from pykubelet_csi_local.backing import MAX_IMAGE_BYTES, MIN_IMAGE_BYTES, SIZE, Backing, LocalVolume, read_backing

#: The part of the file system that ephemeral volumes leave free. The agent's default eviction thresholds are 10% and 15%.
KEPT_FREE = 0.15


class EphemeralLimits(Value):
    """The largest size of an ephemeral volume in bytes (0: there are no ephemeral volumes), and the size of one that has none."""

    max_bytes: int = 10 << 30
    default_bytes: int = 1 << 30

    def problem(self) -> str:
        """What is wrong with the limits; empty if nothing is."""
        if not 0 <= self.max_bytes <= MAX_IMAGE_BYTES or 0 < self.max_bytes < MIN_IMAGE_BYTES:
            return f"--max-ephemeral-size: must be 0 or between {MIN_IMAGE_BYTES} and {MAX_IMAGE_BYTES} bytes"
        if self.max_bytes and not MIN_IMAGE_BYTES <= self.default_bytes <= self.max_bytes:
            return f"--default-ephemeral-size: must be between {MIN_IMAGE_BYTES} bytes and --max-ephemeral-size"
        return ""


def read_ephemeral(
    volume_id: str, attributes: Mapping[str, str], limits: EphemeralLimits, found: LocalVolume | None
) -> LocalVolume:
    """The ephemeral volume that the pod asks for. Raises RpcError if it may not have it.

    `found`: the volume, if it exists already. What the attributes leave open is as it is there, or else as in `limits`.
    """
    fallback = LocalVolume(volume_id, Backing.IMAGE, limits.default_bytes) if found is None else found
    size = _read_size(attributes[SIZE]) if SIZE in attributes else fallback.capacity_bytes
    backing = read_backing(attributes, fallback.backing)
    if found is None and not limits.max_bytes:
        raise RpcError(
            Code.INVALID_ARGUMENT, "ephemeral volumes are switched off by --max-ephemeral-size of the driver"
        )
    if size > limits.max_bytes and (found is None or size != found.capacity_bytes):
        text = (
            f"volume attribute {SIZE}: ephemeral volumes have at most {limits.max_bytes} bytes (--max-ephemeral-size)"
        )
        raise RpcError(Code.OUT_OF_RANGE, text)
    return LocalVolume(volume_id, backing, size, is_ephemeral=True)


def missing_bytes(wanted: int, available: int, capacity: int, promised: int) -> int:
    """The bytes that are missing for an ephemeral volume of `wanted` bytes; not above 0 if there are enough.

    `available`, `capacity`: of the file system. `promised`: what the other ephemeral volumes may still write.
    """
    return wanted + promised + int(capacity * KEPT_FREE) - available


def _read_size(text: str) -> int:
    try:
        size = parse(text).value()
    except QuantityError as error:
        raise RpcError(Code.INVALID_ARGUMENT, f"volume attribute {SIZE}: {error}") from error
    if size <= 0:
        raise RpcError(Code.INVALID_ARGUMENT, f"volume attribute {SIZE}: must be greater than zero")
    return size
