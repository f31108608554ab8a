"""Decides whether a plugin can be registered: one entry in `KINDS` for each type of plugin. Pure.

Source: KEP-595 (plugin watcher); the Kubernetes documentation "Device Plugins" and "Dynamic Resource Allocation".
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping

from pykubelet.base.api.validation.resources import is_extended
from pykubelet.base.kit.values import Value
from pykubelet.base.model.plugins import DRA_SERVICES, Plugin, PluginType, dra_service

DEVICE_PLUGIN_VERSION = "v1beta1"
_NO_HANDLER = "RegisterPlugin error -- no handler registered for plugin type: {} at socket {}"
_INVALID = "RegisterPlugin error -- plugin validation failed with err: {}"
_NOT_REGISTERED = "RegisterPlugin error -- plugin registration failed with err: {}"


class PluginKind(Value):
    """How one type of plugin is registered. `validate`: the error of name, endpoint and versions, or an empty string.

    `is_reached`: the agent connects to the endpoint before the plugin is registered. `is_exclusive`: an endpoint can be
    registered once for each name.
    """

    validate: Callable[[str, str, tuple[str, ...]], str]
    is_reached: bool = False
    is_exclusive: bool = False


def _device(name: str, _: str, versions: tuple[str, ...]) -> str:
    if DEVICE_PLUGIN_VERSION not in versions:
        offered = " ".join(versions)
        return f"manager version, {DEVICE_PLUGIN_VERSION}, is not among plugin supported versions [{offered}]"
    if not is_extended(name):
        return f'invalid name of device plugin socket: the ResourceName "{name}" is invalid'
    return ""


def _dra(name: str, endpoint: str, versions: tuple[str, ...]) -> str:
    head = f"invalid supported gRPC versions of DRA driver plugin {name} at endpoint {endpoint}"
    if not versions:
        return f"{head}: empty list of supported gRPC services (aka supported versions)"
    if not dra_service(versions):
        offered, known = _quoted(versions), _quoted(DRA_SERVICES)
        return f"{head}: none of services supported by the plugin ({offered}) are supported by the kubelet ({known})"
    return ""


def _quoted(names: tuple[str, ...]) -> str:
    return "[" + " ".join(json.dumps(name, ensure_ascii=False) for name in names) + "]"


#: A type without an entry has no handler: this is reported to its plugins, and they are tried again.
KINDS: Mapping[str, PluginKind] = {
    PluginType.DEVICE: PluginKind(_device, is_reached=True),
    PluginType.DRA: PluginKind(_dra, is_exclusive=True),
}


class PluginOffer(Value):
    """The data that a plugin gave about itself. `type`: as it was sent. `endpoint`: its registration socket if it gave none."""

    type: str
    name: str
    socket: str
    endpoint: str
    versions: tuple[str, ...]

    def registered(self, at: float) -> Plugin:
        """The plugin, registered at `at` (wall seconds). Its type must be known."""
        return Plugin(PluginType(self.type), self.name, self.socket, self.endpoint, self.versions, at)


def refusal(offer: PluginOffer, others: Collection[Plugin]) -> str:
    """Why a plugin cannot be registered, in the words of the report to it; empty if it can. `others`: the registered plugins."""
    kind = KINDS.get(offer.type)
    if kind is None:
        return _NO_HANDLER.format(offer.type, offer.socket)
    problem = kind.validate(offer.name, offer.endpoint, offer.versions)
    if problem:
        return _INVALID.format(problem)
    if kind.is_exclusive and any(_is_same_service(offer, other) for other in others):
        problem = f"endpoint {offer.endpoint} already registered for DRA driver plugin {offer.name}"
        return _NOT_REGISTERED.format(problem)
    return ""


def unreachable(reason: object) -> str:
    """The words for a plugin whose endpoint cannot be reached."""
    return _NOT_REGISTERED.format(reason)


def _is_same_service(offer: PluginOffer, other: Plugin) -> bool:
    is_same = (offer.type, offer.name, offer.endpoint) == (other.type, other.name, other.endpoint)
    return is_same and offer.socket != other.socket
