"""Plans, names and `vol_data.json` of CSI volumes, as every kubelet writes and reads them. Pure.

Owns: the layout below a volume's directory: `vol_data.json` beside `mount`, which the driver makes and mounts.
Source: the Kubernetes documentation "Volumes", csi; layout and names are those of the reference kubelet.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import ClassVar

from pykubelet.act.volumes.kind import VolumePlan
from pykubelet.base.kit.values import RedactedValue, Value, field
from pykubelet.base.model.ids import PodUID

DATA = "vol_data.json"
MOUNT = "mount"
PERSISTENT, EPHEMERAL = "Persistent", "Ephemeral"
#: The reference calls such drivers at each sync of a pod.
REPUBLISH_S = 60.0
NO_CLIENT = "kubernetes.io/csi: mounter.SetUpAt failed to get CSI client: "


class VolumeData(Value):
    """What must be known about a volume to unpublish it after a restart."""

    driver: str
    handle: str
    spec_name: str = ""
    node: str = ""
    mode: str = EPHEMERAL

    def text(self) -> bytes:
        """The content of `vol_data.json`."""
        fields = {
            "attachmentID": attachment_name(self.handle, self.driver, self.node),
            "driverName": self.driver,
            "nodeName": self.node,
            "specVolID": self.spec_name,
            "volumeHandle": self.handle,
            "volumeLifecycleMode": self.mode,
        }
        return compact_json(fields).encode() + b"\n"


def read_data(text: str) -> VolumeData | None:
    """The content of a `vol_data.json`; None if it does not name driver and volume."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    driver, handle, name, node, mode = (
        str(found.get(key, ""))
        for key in ("driverName", "volumeHandle", "specVolID", "nodeName", "volumeLifecycleMode")
    )
    return VolumeData(driver, handle, name, node, mode or PERSISTENT) if driver and handle else None


def compact_json(fields: Mapping[str, object]) -> str:
    """JSON with sorted keys and without blanks, as the reference kubelet writes it."""
    return json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def quoted_list(names: Iterable[str]) -> str:
    """`["a" "b"]`, as the reference kubelet prints lists."""
    return "[" + " ".join(json.dumps(name) for name in names) + "]"


def inline_handle(uid: PodUID, volume: str) -> str:
    """The volume id of an inline volume of a pod."""
    return f"csi-{sha256(f'{uid}{volume}'.encode()).hexdigest()}"


def attachment_name(handle: str, driver: str, node: str) -> str:
    """The name of the VolumeAttachment of a volume."""
    return f"csi-{sha256(f'{handle}{driver}{node}'.encode()).hexdigest()}"


class HiddenFields(RedactedValue):
    """The fields of a call that no log may show: secrets, and tokens in the volume context."""

    hidden: ClassVar = ("secrets", "context")
    secrets: Mapping[str, str] = field(default_factory=dict)
    context: Mapping[str, str] = field(default_factory=dict)


class CsiPlan(VolumePlan):
    """The plan of a CSI volume. `directory`: the volume's, which the target is in.

    `is_group_applied`: the agent gives all files the group `fs_group`, unless the driver does; `only_on_mismatch`: not if the
    top directory has it already. `republishes`: the driver wants to be called again from time to time, and when tokens change.
    """

    directory: str
    data: VolumeData
    fs_type: str = ""
    context: Mapping[str, str] = field(default_factory=dict)
    hidden: HiddenFields = field(default_factory=HiddenFields)
    fs_group: int | None = None
    is_group_applied: bool = False
    only_on_mismatch: bool = False
    republishes: bool = False

    @property
    def progress(self) -> str:
        """What is being done, for users."""
        return f"the CSI driver {self.data.driver} publishes it"

    @property
    def driver(self) -> str:
        """The name of the driver."""
        return self.data.driver

    @property
    def repeat_s(self) -> float:
        """Seconds until the driver is called again."""
        return REPUBLISH_S if self.republishes else 0.0


def driver_missing(name: str) -> str:
    """Why a volume of a driver that is not registered cannot be mounted."""
    return f"{NO_CLIENT}driver name {name} not found in the list of registered CSI drivers"
