"""CDI spec files as values. Pure.

Source: the Container Device Interface specification, version 1.1 ("CDI JSON Specification"); its Go package for what is invalid.
"""

from __future__ import annotations

import re

import msgspec

from pykubelet.base.api.document import DocumentError
from pykubelet.base.api.documents import load_document
from pykubelet.base.kit.values import Value, field

NO_PERMISSIONS = "none"
_VERSION = re.compile(r"v?[01]\.[0-9]{1,4}\.[0-9]{1,4}", re.ASCII)
_NAME = r"[A-Za-z0-9]([A-Za-z0-9_.:-]{0,251}[A-Za-z0-9])?"
_KIND = re.compile(rf"{_NAME}/{_NAME}", re.ASCII)
_DEVICE = re.compile(_NAME, re.ASCII)


class CdiError(Exception):
    """A file that is no spec of this version, or a device that cannot be resolved."""


class SpecPart(Value, forbid_unknown_fields=True, rename="camel"):
    """The base of what is in a spec. A field that is not known makes the file invalid: it may matter."""


class CdiNode(SpecPart):
    """A device node. `path`: in the container. `host_path`: empty if it is the same. Other fields are those of the host by default."""

    path: str
    host_path: str = ""
    type: str = ""
    major: int = 0
    minor: int = 0
    file_mode: int | None = None
    permissions: str = ""
    uid: int | None = None
    gid: int | None = None

    @property
    def on_host(self) -> str:
        """Its path on the host."""
        return self.host_path or self.path


class CdiMount(SpecPart):
    """A mount."""

    host_path: str
    container_path: str
    options: tuple[str, ...] = ()
    type: str = ""


class ContainerEdits(SpecPart):
    """What is added to a container. The parts that are objects here are not possible with Docker Engine."""

    env: tuple[str, ...] = ()
    device_nodes: tuple[CdiNode, ...] = ()
    mounts: tuple[CdiMount, ...] = ()
    additional_gids: tuple[int, ...] = ()
    hooks: tuple[object, ...] = ()
    net_devices: tuple[object, ...] = ()
    intel_rdt: object = None


class CdiDevice(SpecPart):
    """A device."""

    name: str
    container_edits: ContainerEdits = ContainerEdits()
    annotations: dict[str, str] = field(default_factory=dict)


class CdiSpec(SpecPart):
    """A file. `container_edits`: of each container that has at least one of its devices."""

    cdi_version: str
    kind: str
    devices: tuple[CdiDevice, ...]
    container_edits: ContainerEdits = ContainerEdits()
    annotations: dict[str, str] = field(default_factory=dict)


def read_spec(data: bytes) -> CdiSpec:
    """The spec in a file, JSON or YAML. Raises CdiError."""
    try:
        spec = msgspec.convert(load_document(data), CdiSpec)
    except (DocumentError, msgspec.ValidationError) as error:
        raise CdiError(str(error)) from error
    if not _VERSION.fullmatch(spec.cdi_version):
        raise CdiError(f"unknown cdiVersion {spec.cdi_version[:64]!r}")
    if not _KIND.fullmatch(spec.kind):
        raise CdiError(f"invalid kind {spec.kind[:64]!r}")
    names = [device.name for device in spec.devices]
    if not names:
        raise CdiError("has no devices")
    for name in names:
        if not _DEVICE.fullmatch(name):
            raise CdiError(f"invalid device name {name[:64]!r}")
    if len({*names}) < len(names):
        raise CdiError("has a device twice")
    for edits in (spec.container_edits, *(device.container_edits for device in spec.devices)):
        _check(edits)
    return spec


def _check(edits: ContainerEdits) -> None:
    for variable in edits.env:
        if variable.find("=") < 1 or "\0" in variable:
            raise CdiError(f"invalid env {variable[:64]!r}")
    paths = [path for node in edits.device_nodes for path in (node.path, node.on_host)]
    paths += [path for mount in edits.mounts for path in (mount.host_path, mount.container_path)]
    for path in paths:
        if not path.startswith("/") or "\0" in path:
            raise CdiError(f"{path[:64]!r} is no absolute path")
    for node in edits.device_nodes:
        if node.permissions != NO_PERMISSIONS and not {*node.permissions} <= {*"rwm"}:
            raise CdiError(f"invalid permissions {node.permissions[:64]!r}")
    if any(not 0 <= gid < 1 << 32 for gid in edits.additional_gids):
        raise CdiError("an additional GID is out of range")
