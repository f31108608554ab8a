"""What a volume is made of, and how parameters ask for it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from pykubelet.base.kit.values import Value
from pykubelet.net.grpc.status import Code, RpcError

#: Parameters with this prefix are Kubernetes', not the driver's.
KUBERNETES = "csi.storage.k8s.io/"
BACKING, SIZE = "backing", "size"
DEFAULT_IMAGE_BYTES = 1 << 30
#: The smallest image that gets a file system, and the largest that ext4 can have as a file.
MIN_IMAGE_BYTES, MAX_IMAGE_BYTES = 1 << 20, (16 << 40) - 4096


class Backing(StrEnum):
    """Where the data are: in a directory of the machine's file system, or in an image file with a file system of its own."""

    DIRECTORY = "directory"
    IMAGE = "image"


class LocalVolume(Value):
    """One volume. `capacity_bytes`: 0 for no limit. `is_ephemeral`: it ends with its pod. `is_block`: an image without a file system."""

    id: str
    backing: Backing
    capacity_bytes: int = 0
    is_ephemeral: bool = False
    is_block: bool = False


def read_backing(parameters: Mapping[str, str], default: Backing) -> Backing:
    """The backing that `parameters` ask for, or `default`. Raises RpcError.

    Parameters with the prefix of Kubernetes are ignored; any other one is refused, since it is a mistake.
    """
    unknown = sorted(key for key in parameters if key not in (BACKING, SIZE) and not key.startswith(KUBERNETES))
    if unknown:
        raise RpcError(Code.INVALID_ARGUMENT, f"parameter {unknown[0]!r} is not known: use {BACKING}")
    try:
        return Backing(parameters.get(BACKING, str(default)))
    except ValueError:
        known = " or ".join(Backing)
        raise RpcError(
            Code.INVALID_ARGUMENT, f"parameter {BACKING} is {parameters[BACKING]!r}: must be {known}"
        ) from None


def read_persistent(volume_id: str, parameters: Mapping[str, str], size: int, *, is_block: bool) -> LocalVolume:
    """A persistent volume as `parameters` ask for it. `size`: in bytes, 0 if none was asked for. Raises RpcError."""
    backing = read_backing(parameters, Backing.IMAGE if is_block else Backing.DIRECTORY)
    if is_block and backing is not Backing.IMAGE:
        raise RpcError(Code.INVALID_ARGUMENT, f"parameter {BACKING}: a block volume needs an image")
    if backing is Backing.IMAGE and size == 0:
        size = DEFAULT_IMAGE_BYTES
    return LocalVolume(volume_id, backing, size, is_block=is_block)


def check_size(volume: LocalVolume) -> None:
    """Raise RpcError (OUT_OF_RANGE) if an image cannot have the size."""
    if volume.backing is Backing.IMAGE and not MIN_IMAGE_BYTES <= volume.capacity_bytes <= MAX_IMAGE_BYTES:
        text = f"the size of an image must be between {MIN_IMAGE_BYTES} and {MAX_IMAGE_BYTES} bytes"
        raise RpcError(Code.OUT_OF_RANGE, text)
