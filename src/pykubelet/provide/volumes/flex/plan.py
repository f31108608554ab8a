"""The plans of flexVolume volumes, and the names of their directories. Pure.

Source: as `kinds/flex_volume.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pykubelet.base.api.core import Pod
from pykubelet.base.kit.values import RedactedValue, field
from pykubelet.base.model.paths import Beneath, Paths
from pykubelet.base.model.plugins import FlexDriver
from pykubelet.provide.volumes.kind import DevicePlan, DirectoryPlan

KIND_NAME = "flexVolume"
#: What the `driver` of a volume begins with that a process extension provides; its name follows.
EXTENSION = "extension/"


class FlexSecrets(RedactedValue):
    """The volume's secret, which no log may show."""

    hidden: ClassVar = ("data",)
    data: Mapping[str, bytes] = field(default_factory=dict)


class FlexDevicePlan(DevicePlan, kw_only=True):
    """The plan to mount the volume for the node. `device`: as the Node's status names it, or "". `fs_type` "": ext4."""

    driver: FlexDriver
    options: Mapping[str, str]
    device: str = ""
    fs_type: str = ""
    read_only: bool = False

    @property
    def progress(self) -> str:
        """What is being done, for users."""
        return f"the flexVolume driver {self.driver.name} mounts its device"

    @property
    def device_path(self) -> str:
        """What the Node's status names."""
        return self.device


class FlexPlan(DirectoryPlan):
    """The plan to mount the volume for a pod. `options`: what the driver gets. `pod_options`: in addition, when it mounts.

    `fs_group` None: files keep their group. `is_group_lasting`: `OnRootMismatch`.
    """

    flex: FlexDriver
    options: Mapping[str, str]
    pod_options: Mapping[str, str]
    secrets: FlexSecrets
    staged: FlexDevicePlan | None = None
    fs_group: int | None = None
    is_group_lasting: bool = False

    @property
    def progress(self) -> str:
        """What is being done, for users."""
        return f"the flexVolume driver {self.flex.name} mounts it"

    @property
    def device(self) -> FlexDevicePlan | None:
        """What is mounted for the node first; None for a driver that mounts for pods alone."""
        return self.staged

    @property
    def plugin_directory(self) -> str:
        """The directory below the pod's `volumes`, which names the driver."""
        return directory_of(self.flex.name)


class ExtensionPlan(DirectoryPlan):
    """The plan to have a process extension set a volume up for a pod. `note`: a directory that shows later that it was one of these.

    `options`: as the pod or the PersistentVolume states them.
    """

    extension: str
    note: Beneath
    pod: Pod
    options: Mapping[str, str]
    secrets: FlexSecrets
    fs_type: str = ""

    @property
    def progress(self) -> str:
        """What is being done, for users."""
        return f"the extension {self.extension} sets it up"

    @property
    def driver(self) -> str:
        """The name of the driver, as the pod states it."""
        return EXTENSION + self.extension

    @property
    def plugin_directory(self) -> str:
        """The directory below the pod's `volumes`, which names the extension."""
        return directory_of(self.driver)


def extension_in(directory: str) -> str:
    """The name of the extension whose volumes are in this directory below a pod's `volumes`; "" if it is that of another driver."""
    prefix = directory_of(EXTENSION)
    return directory.removeprefix(prefix) if directory.startswith(prefix) else ""


def directory_of(driver: str) -> str:
    """The directory of a driver's volumes below a pod's `volumes`."""
    return driver.replace("/", "~")


def devices_of(paths: Paths) -> Beneath:
    """The directory with the devices of all drivers."""
    return Beneath(paths.plugins, "kubernetes.io/flexvolume")
