"""Decides whether a plugin can be registered: one entry in `KINDS` for each type of plugin. Pure.

Source: KEP-595 (plugin watcher); the Kubernetes documentation "Device Plugins" and "Dynamic Resource Allocation"; the
Kubernetes CSI documentation, "node-driver-registrar".
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping

from pykubelet.base.api.quantity import is_extended
from pykubelet.base.kit.text import parse_decimal
from pykubelet.base.kit.values import Value
from pykubelet.base.model.plugins import (
    DRA_SERVICES,
    CsiNodeInfo,
    Plugin,
    PluginType,
    csi_node_problem,
    dra_service,
    driver_name_problem,
    shown_name,
)

DEVICE_PLUGIN_VERSION = "v1beta1"
_VERSION = re.compile(r"\s*v?([0-9]+(?:\.[0-9]+)+)")
_NO_HANDLER = "RegisterPlugin error -- no handler registered for plugin type: {} at socket {}"
_INVALID = "RegisterPlugin error -- plugin validation failed with err: {}"
_NOT_REGISTERED = "RegisterPlugin error -- plugin registration failed with err: {}"


class PluginOffer(Value):
    """The data that a plugin gave about itself. `type`: as it was sent. `endpoint`: its registration socket if it gave none."""

    type: str
    name: str
    socket: str
    endpoint: str
    versions: tuple[str, ...]

    def registered(self, at: float, csi: CsiNodeInfo | None = None) -> Plugin:
        """The plugin, registered at `at` (wall seconds). Its type must be known."""
        return Plugin(PluginType(self.type), self.name, self.socket, self.endpoint, self.versions, at, csi)


class PluginKind(Value):
    """How one type of plugin is registered. `validate`: the error of name, endpoint and versions, or an empty string.

    `conflict`: the error, because of another registered plugin, or an empty string. `is_reached`: the agent connects to the
    endpoint before the plugin is registered. `is_asked`: it asks the driver about this node before.
    """

    validate: Callable[[str, str, tuple[str, ...]], str]
    conflict: Callable[[PluginOffer, Plugin], str] = lambda _offer, _other: ""
    is_reached: bool = False
    is_asked: bool = False


def _device(name: str, _: str, versions: tuple[str, ...]) -> str:
    if DEVICE_PLUGIN_VERSION not in versions:
        offered = " ".join(versions)
        return f"manager version, {DEVICE_PLUGIN_VERSION}, is not among plugin supported versions [{offered}]"
    if not is_extended(name):
        return f'invalid name of device plugin socket: the ResourceName "{name}" is invalid'
    return ""


def _dra(name: str, endpoint: str, versions: tuple[str, ...]) -> str:
    if problem := driver_name_problem(name):
        return f"DRA driver plugin {shown_name(name)} at endpoint {endpoint}: {problem}"
    head = f"invalid supported gRPC versions of DRA driver plugin {name} at endpoint {endpoint}"
    if not versions:
        return f"{head}: empty list of supported gRPC services (aka supported versions)"
    if not dra_service(versions):
        offered, known = _quoted(versions), _quoted(DRA_SERVICES)
        return f"{head}: none of services supported by the plugin ({offered}) are supported by the kubelet ({known})"
    return ""


def _quoted(names: tuple[str, ...]) -> str:
    return "[" + " ".join(json.dumps(name, ensure_ascii=False) for name in names) + "]"


def _csi(name: str, endpoint: str, versions: tuple[str, ...]) -> str:
    if problem := driver_name_problem(name):
        return f"CSI driver {shown_name(name)} at endpoint {endpoint}: {problem}"
    head = f"{_csi_head(name, endpoint)}ValidatePlugin for CSI driver {json.dumps(name)} failed. "
    if not versions:
        return f"{head}Plugin returned an empty list for supported versions"
    if _csi_version(versions) is None:
        return (
            f"{head}None of the versions specified {_quoted(versions)} are supported. err={_version_problem(versions)}"
        )
    return ""


def _csi_conflict(offer: PluginOffer, other: Plugin) -> str:
    present, wanted = _csi_version(other.versions), _csi_version(offer.versions)
    if other.name != offer.name or present is None or wanted is None or present < wanted:
        return ""
    return _INVALID.format(
        f"{_csi_head(offer.name, offer.endpoint)}ValidatePlugin for CSI driver {json.dumps(offer.name)} failed. Another "
        "driver with the same name is already registered with a higher supported version: "
        f'"{".".join(map(str, present))}"'
    )


def _csi_head(name: str, endpoint: str) -> str:
    return f"validation failed for CSI Driver {name} at endpoint {endpoint}: kubernetes.io/csi: "


def _csi_version(versions: tuple[str, ...]) -> tuple[int, ...] | None:
    """The highest supported version, of the major version 1; None if there is none."""
    found = (_parts(version) for version in versions)
    return max((parts for parts in found if parts is not None and parts[0] == 1), default=None)


def _parts(version: str) -> tuple[int, ...] | None:
    match = _VERSION.match(version)
    if match is None:
        return None
    parts = tuple(parse_decimal(part) for part in match[1].split("."))
    return tuple(part for part in parts if part is not None) if None not in parts else None


def _version_problem(versions: tuple[str, ...]) -> str:
    known = [parts for version in versions if (parts := _parts(version)) is not None]
    old = max((parts for parts in known if not parts[0]), default=None)
    if old is not None:
        return f"highest supported version reported is {'.'.join(map(str, old))}, must be v1.x"
    broken = next((version for version in versions if _parts(version) is None), None)
    why = "<nil>" if broken is None else f"could not parse {json.dumps(broken)} as version"
    return f"could not find a highest supported version from versions ([{' '.join(versions)}]) reported: {why}"


def _dra_conflict(offer: PluginOffer, other: Plugin) -> str:
    if (offer.name, offer.endpoint) != (other.name, other.endpoint):
        return ""
    return _NOT_REGISTERED.format(f"endpoint {offer.endpoint} already registered for DRA driver plugin {offer.name}")


#: A type without an entry has no handler: this is reported to its plugins, and they are tried again.
KINDS: Mapping[str, PluginKind] = {
    PluginType.DEVICE: PluginKind(_device, is_reached=True),
    PluginType.DRA: PluginKind(_dra, _dra_conflict),
    PluginType.CSI: PluginKind(_csi, _csi_conflict, is_asked=True),
}


def refusal(offer: PluginOffer, others: Collection[Plugin]) -> str:
    """Why a plugin cannot be registered, in the words of the report to it; empty if it can. `others`: the registered plugins."""
    kind = KINDS.get(offer.type)
    if kind is None:
        return _NO_HANDLER.format(offer.type, offer.socket)
    problem = kind.validate(offer.name, offer.endpoint, offer.versions)
    if problem:
        return _INVALID.format(problem)
    rivals = (other for other in others if other.type == offer.type and other.socket != offer.socket)
    return next((problem for other in rivals if (problem := kind.conflict(offer, other))), "")


def unreachable(reason: object) -> str:
    """The words for a plugin with an endpoint that cannot be reached."""
    return _NOT_REGISTERED.format(reason)


def node_info_problem(name: str, info: CsiNodeInfo) -> str:
    """The words for a CSI driver that reports something of this node that cannot be stored; empty if it can."""
    problem = csi_node_problem(name, info)
    return _NOT_REGISTERED.format(f"error adding CSI driver node info: {problem}") if problem else ""
