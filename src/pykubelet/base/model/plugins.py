"""The plugins that have registered with the node. `Plugins` is written by observe/plugins alone.

Source: KEP-595 (plugin watcher) and the Kubernetes documentation "Device Plugins".
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from pykubelet.base.api.labels import dns_subdomain_errors, label_value_errors, qualified_name_errors
from pykubelet.base.kit.values import Value, field

#: Bytes of a driver's name, and of a CSI driver's id of the node that a CSINode may have.
MAX_DRIVER_NAME, MAX_NODE_ID = 63, 192
#: Characters of an invalid text that are shown.
_SHOWN = 80


class PluginType(StrEnum):
    """The `type` of `PluginInfo`, the answer to `GetInfo`."""

    DEVICE = "DevicePlugin"
    DRA = "DRAPlugin"
    CSI = "CSIPlugin"


class CsiNodeInfo(Value):
    """What a CSI driver reports about this node. `max_volumes`: 0 for no limit. `topology`: labels of the Node."""

    node_id: str
    max_volumes: int = 0
    topology: Mapping[str, str] = field(default_factory=dict)


def driver_name_problem(name: str) -> str:
    """Why a CSI or DRA driver cannot have this name, which becomes part of paths, requests and objects; "" if it can."""
    errors = dns_subdomain_errors(name.lower() if name.isascii() else name)
    if len(name.encode()) <= MAX_DRIVER_NAME and not errors:
        return ""
    return f"invalid driver name: must be {MAX_DRIVER_NAME} bytes or less" + "".join(f"; {error}" for error in errors)


def shown_name(name: str) -> str:
    """A name that may be any text, quoted and cut short for a message."""
    return ascii(name[:_SHOWN])


def csi_node_problem(driver: str, info: CsiNodeInfo) -> str:
    """Why the API server refuses what the driver reports about this node; "" if it does not."""
    if not info.node_id:
        return "driverNodeID must not be empty"
    if len(info.node_id.encode()) > MAX_NODE_ID:
        return f"driverNodeID must be {MAX_NODE_ID} bytes or less"
    if problem := driver_name_problem(driver):
        return problem
    for key, value in sorted(info.topology.items()):
        if errors := qualified_name_errors(key):
            return f"invalid topology key {key[:_SHOWN]!r}: {errors[0]}"
        if errors := label_value_errors(value):
            return f"invalid value {value[:_SHOWN]!r} of topology key {key}: {errors[0]}"
    return ""


class Plugin(Value):
    """One registered plugin. `socket`: the one in the plugins' directory, which identifies it. `endpoint`: the socket of its service.

    `versions`: the supported versions or services it named. `registered_at`: wall seconds; a plugin that registers again
    has a new time. `csi`: of CSI drivers only.
    """

    type: PluginType
    name: str
    socket: str
    endpoint: str
    versions: tuple[str, ...]
    registered_at: float
    csi: CsiNodeInfo | None = None


class FlexDriver(Value):
    """A driver of flexVolume volumes. `name`: such as `example.com/nfs`. `program`: the path of its executable.

    The rest are its capabilities: volumes are attached to the node, may be relabeled for SELinux, have statistics, belong to the
    pod's fsGroup, and have a file system that grows with the volume.
    """

    name: str
    program: str
    attaches: bool = True
    relabels: bool = True
    is_measured: bool = False
    applies_group: bool = True
    grows: bool = True


class FlexDrivers(Value):
    """The usable drivers of flexVolume volumes by name. `problems`: why others cannot be used.

    `is_settled`: every driver that was there when the agent started has been tried.
    """

    usable: Mapping[str, FlexDriver] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)
    is_settled: bool = False


class Plugins(Value):
    """All registered plugins by socket. `problems`: sockets whose plugin could not be registered, and why.

    `is_settled`: every plugin that was there when the agent started has registered, or has failed to. `flex`: see there.
    """

    plugins: Mapping[str, Plugin] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)
    is_settled: bool = False
    flex: FlexDrivers = field(default_factory=FlexDrivers)

    def of(self, type_: PluginType) -> tuple[Plugin, ...]:
        """The plugins of one type, by name and then by time of registration."""
        found = (plugin for plugin in self.plugins.values() if plugin.type is type_)
        return tuple(sorted(found, key=lambda plugin: (plugin.name, plugin.registered_at)))

    def csi_driver(self, name: str) -> Plugin | None:
        """The registered CSI driver with this name. While a successor registers, there may be two; the newest counts."""
        return next((plugin for plugin in reversed(self.of(PluginType.CSI)) if plugin.name == name), None)


#: The services of DRA drivers that the agent can call.
DRA_SERVICES = ("v1.DRAPlugin", "v1beta1.DRAPlugin")


def dra_service(versions: tuple[str, ...]) -> str:
    """The first of a driver's services that the agent can call; empty if there is none."""
    return next((version for version in versions if version in DRA_SERVICES), "")


#: The services that report the health of devices, the best first (KEP-4680).
DRA_HEALTH_SERVICES = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")


def dra_health_service(versions: tuple[str, ...], unlisted: str = "") -> str:
    """The best of a driver's services for health; `unlisted` if it has registered none of them."""
    return next((service for service in DRA_HEALTH_SERVICES if service in versions), unlisted)
