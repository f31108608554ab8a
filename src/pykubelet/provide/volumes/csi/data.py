"""Plans, names and `vol_data.json` of CSI volumes, as every kubelet writes and reads them. Pure.

Owns the layout. Of a pod's volume: `vol_data.json` beside `mount`, which the driver makes and mounts. Of a device, below
`plugins/kubernetes.io/csi`: `<driver>/<sha256 of the volume's handle>/vol_data.json` beside `globalmount`, which the driver
mounts; of a block volume `volumeDevices/<persistent volume>/data/vol_data.json` beside `dev`, the agent's map, and
`volumeDevices/staging/<persistent volume>` and `volumeDevices/publish/<persistent volume>/<pod uid>`, which the driver fills.
Source: the Kubernetes documentation "Volumes", csi; layout and names are those of the reference kubelet.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import ClassVar

from pykubelet.base.kit.values import RedactedValue, Value, field
from pykubelet.base.model.attachments import attachment_name, unique_csi_name
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.paths import Beneath
from pykubelet.provide.volumes.disks.block_paths import BlockMap
from pykubelet.provide.volumes.kind import DevicePlan, DirectoryPlan

DATA = "vol_data.json"
MOUNT = "mount"
GLOBAL_MOUNT = "globalmount"
BLOCK_DATA, BLOCK_MAP = "data", "dev"
#: Beside the directories of block volumes: those that all of them share.
STAGING, PUBLISH = "staging", "publish"
PERSISTENT, EPHEMERAL = "Persistent", "Ephemeral"
#: The reference calls such drivers at each sync of a pod.
REPUBLISH_S = 60.0
NO_CLIENT = "kubernetes.io/csi: mounter.SetUpAt failed to get CSI client: "
NO_DEVICE_CLIENT = "kubernetes.io/csi: attacher.MountDevice failed to create newCsiDriverClient: "
NO_BLOCK_CLIENT = "kubernetes.io/csi: blockMapper.SetUpDevice failed to get CSI client: "
NO_MAP_CLIENT = "kubernetes.io/csi: blockMapper.MapPodDevice failed to get CSI client: "


class VolumeData(Value):
    """What must be known about a volume to unpublish it after a restart. `context`: the SELinux context it is mounted with."""

    driver: str
    handle: str
    spec_name: str = ""
    node: str = ""
    mode: str = EPHEMERAL
    context: str = ""

    @property
    def unique_name(self) -> str:
        """The name of the volume's device; "" for a volume of a pod's own, which has none."""
        return unique_csi_name(self.driver, self.handle) if self.mode != EPHEMERAL else ""

    def text(self) -> bytes:
        """The content of `vol_data.json` beside a pod's mount."""
        return _line({**self._named(), "volumeLifecycleMode": self.mode, **self._labelled()})

    def device_text(self) -> bytes:
        """The content of `vol_data.json` beside a device's mount."""
        return _line({"driverName": self.driver, "volumeHandle": self.handle, **self._labelled()})

    def block_text(self) -> bytes:
        """The content of `vol_data.json` of a block volume."""
        return _line(self._named())

    def _labelled(self) -> dict[str, str]:
        return {"seLinuxMountContext": self.context} if self.context else {}

    def _named(self) -> dict[str, str]:
        return {
            "attachmentID": attachment_name(self.handle, self.driver, self.node),
            "driverName": self.driver,
            "nodeName": self.node,
            "specVolID": self.spec_name,
            "volumeHandle": self.handle,
        }


def _line(fields: Mapping[str, str]) -> bytes:
    return compact_json(fields).encode() + b"\n"


def read_data(text: str) -> VolumeData | None:
    """The content of a `vol_data.json`; None if it does not name driver and volume."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    names = ("driverName", "volumeHandle", "specVolID", "nodeName", "volumeLifecycleMode", "seLinuxMountContext")
    values = [found.get(name, "") for name in names]
    if not all(isinstance(value, str) and _is_text(value) for value in values):
        return None
    driver, handle, name, node, mode, context = values
    return VolumeData(driver, handle, name, node, mode or PERSISTENT, context) if driver and handle else None


def _is_text(value: str) -> bool:
    """Whether the text has no lone surrogates, which JSON may have and no call can send."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def compact_json(fields: Mapping[str, object]) -> str:
    """JSON with sorted keys and without blanks, as the reference kubelet writes it."""
    return json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def quoted_list(names: Iterable[str]) -> str:
    """`["a" "b"]`, as the reference kubelet prints lists."""
    return "[" + " ".join(json.dumps(name) for name in names) + "]"


def inline_handle(uid: PodUID, volume: str) -> str:
    """The volume id of an inline volume of a pod."""
    return f"csi-{sha256(f'{uid}{volume}'.encode()).hexdigest()}"


class DevicePaths(Value):
    """Where a device of the CSI driver is staged. `plugins`: the agent's directory of plugins."""

    plugins: str

    @property
    def top(self) -> Beneath:
        """The directory of all CSI devices."""
        return Beneath(self.plugins, "kubernetes.io/csi")

    @property
    def block(self) -> Beneath:
        """The directory of all block devices."""
        return self.top / "volumeDevices"

    def mounted(self, driver: str, handle: str) -> Beneath:
        """Where the device is mounted for all pods."""
        return self.top / driver / sha256(handle.encode()).hexdigest() / GLOBAL_MOUNT

    def block_map(self, name: str) -> Beneath:
        """The directory of the maps of a block volume. `name`: of the persistent volume."""
        return self.block / name / BLOCK_MAP

    def block_data(self, name: str) -> Beneath:
        """The directory of a block volume's `vol_data.json`."""
        return self.block / name / BLOCK_DATA

    def block_staging(self, name: str) -> Beneath:
        """The directory that the driver stages a block volume in."""
        return self.block / STAGING / name

    def block_published(self, name: str, uid: str = "") -> Beneath:
        """What the driver publishes a block volume at for a pod; without `uid`, the directory of all of them."""
        published = self.block / PUBLISH / name
        return published / uid if uid else published


class HiddenFields(RedactedValue):
    """The fields of a call that no log may show: secrets, and tokens in the volume context."""

    hidden: ClassVar = ("secrets", "context")
    secrets: Mapping[str, str] = field(default_factory=dict)
    context: Mapping[str, str] = field(default_factory=dict)


class CsiAccess(Value):
    """What staging and publishing a volume have in common. `access_mode`: the first of the persistent volume.

    `publish_context`: what the driver's controller has reported when it attached the volume. `is_migrated`: it is of an in-tree
    cloud plugin.
    """

    fs_type: str = ""
    mount_flags: tuple[str, ...] = ()
    access_mode: str = "ReadWriteOnce"
    fs_group: int | None = None
    is_block: bool = False
    is_migrated: bool = False
    publish_context: Mapping[str, str] = field(default_factory=dict)
    context: Mapping[str, str] = field(default_factory=dict)


class CsiDevicePlan(DevicePlan, kw_only=True):
    """The plan to stage a CSI volume. `problem`: why the secrets are unknown, "" if they are known or there are none.

    `staging`: the path that the driver stages the volume at.
    """

    data: VolumeData
    access: CsiAccess
    staging: Beneath
    hidden: HiddenFields = field(default_factory=HiddenFields)
    problem: str = ""

    @property
    def progress(self) -> str:
        """What is being done, for users."""
        return f"the CSI driver {self.data.driver} stages it"


class CsiPlan(DirectoryPlan):
    """The plan of a CSI volume. `directory`: the volume's, which the target is in. `target`: what the driver publishes.

    `staged`: the device of a persistent volume. `map`: that of a block volume for the pod. `is_group_applied`: the agent gives
    all files the group of `access`, unless the driver does; `only_on_mismatch`: not if the top directory has it already.
    `republishes`: the driver wants to be called again from time to time, and when tokens change. `expand_hidden`: the secrets
    for the call that grows the volume; `expand_problem`: why they are unknown, "" if they are known or there are none.
    """

    target: Beneath
    data: VolumeData
    access: CsiAccess = field(default_factory=CsiAccess)
    staged: CsiDevicePlan | None = None
    map: BlockMap | None = None
    hidden: HiddenFields = field(default_factory=HiddenFields)
    is_group_applied: bool = False
    only_on_mismatch: bool = False
    republishes: bool = False
    expand_hidden: HiddenFields = field(default_factory=HiddenFields)
    expand_problem: str = ""

    @property
    def progress(self) -> str:
        """What is being done, for users."""
        return f"the CSI driver {self.data.driver} publishes it"

    @property
    def driver(self) -> str:
        """The name of the driver."""
        return self.data.driver

    @property
    def device(self) -> CsiDevicePlan | None:
        """The device of a persistent volume."""
        return self.staged

    @property
    def is_refreshed(self) -> bool:
        """Whether the driver is called again."""
        return self.republishes

    @property
    def repeat_s(self) -> float:
        """Seconds until the driver is called again."""
        return REPUBLISH_S if self.republishes else 0.0


def driver_missing(name: str, head: str = NO_CLIENT) -> str:
    """Why a volume of a driver that is not registered cannot be mounted. `head`: what was tried."""
    return f"{head}driver name {name} not found in the list of registered CSI drivers"
