"""Reads CNI configuration lists, and configurations of single plugins. Pure.

Source: the CNI specification, "Network configuration format"; of versions before 1.0.0, also the single configurations.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from pykubelet.base.kit.text import shorten
from pykubelet.base.kit.values import Value, field
from pykubelet_cri_docker.network.model import CniError, JsonObject

#: The versions of the specification, in their order.
VERSIONS = ("0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")
#: Of a configuration: bytes.
MAX_CONFIG_BYTES = 1 << 20
MAX_PLUGINS = 64
_SHOWN = 256
_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,127}")


class NetworkPlugin(Value):
    """A plugin of a network. `type`: the name of its program. `config`: its object in the list."""

    type: str
    config: JsonObject
    capabilities: frozenset[str] = frozenset()


class NetworkList(Value):
    """A network: its plugins in the order of ADD. `version`: that of the specification. `text`: the list as JSON."""

    name: str
    version: str
    plugins: tuple[NetworkPlugin, ...]
    text: bytes
    disable_check: bool = False
    disable_gc: bool = False

    def is_at_least(self, version: str) -> bool:
        """Whether its plugins follow this version of the specification or a later one."""
        return VERSIONS.index(self.version) >= VERSIONS.index(version)


class _ListText(Value):
    """A configuration list, as JSON has it."""

    name: str
    plugins: list[dict[str, Any]]
    cniVersion: str = ""
    cniVersions: list[str] = field(default_factory=list)
    disableCheck: bool | str = False
    disableGC: bool | str = False


class _PluginText(Value):
    """What is known of the configuration of every plugin."""

    type: str
    name: str = ""
    cniVersion: str = ""
    capabilities: dict[str, bool] = field(default_factory=dict)


def read_list(data: bytes) -> NetworkList:
    """The network of a `.conflist`. CniError with the problem."""
    try:
        text = msgspec.json.decode(data, type=_ListText)
        plugins = tuple(_read_plugin(config) for config in text.plugins[: MAX_PLUGINS + 1])
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise CniError(_shown(error)) from error
    if not plugins:
        raise CniError("the list has no plugins")
    if len(plugins) > MAX_PLUGINS:
        raise CniError(f"the list has more than {MAX_PLUGINS} plugins")
    check_name("network name", text.name)
    version = _choose_version(text.cniVersion, text.cniVersions)
    is_unchecked = _switch("disableCheck", text.disableCheck)
    return NetworkList(text.name, version, plugins, data, is_unchecked, _switch("disableGC", text.disableGC))


def read_single(data: bytes) -> NetworkList:
    """The network of a `.conf` or `.json` with the configuration of one plugin. CniError with the problem."""
    try:
        config = msgspec.json.decode(data)
        if isinstance(config, dict) and "plugins" in config and "type" not in config:
            raise CniError("it is a configuration list: its name must end with .conflist")
        plugin = msgspec.convert(config, _PluginText)
        whole = {"name": plugin.name, "cniVersion": plugin.cniVersion, "plugins": [config]}
        return read_list(msgspec.json.encode(whole))
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise CniError(_shown(error)) from error


def read_kept(data: bytes) -> NetworkList:
    """The network of a configuration that was kept with an attachment, also by other runtimes. CniError with the problem."""
    try:
        return read_list(data)
    except CniError:
        if b'"plugins"' in data:
            raise
        return read_single(data)


def check_name(what: str, name: str) -> None:
    """Raise CniError unless it is a name of the specification: of a network, or of a container."""
    if not _NAME.fullmatch(name):
        raise CniError(f'the {what} "{shorten(name, _SHOWN)}" must have letters, digits, "_", "." and "-" only')


def _read_plugin(config: JsonObject) -> NetworkPlugin:
    """The plugin of an entry of a list. Raises CniError, and msgspec's errors."""
    text = msgspec.convert(config, _PluginText)
    if not text.type or "/" in text.type or "\0" in text.type or text.type in (".", ".."):
        raise CniError(f'"{shorten(text.type, _SHOWN)}" is no type of a plugin: it must be the name of a program')
    return NetworkPlugin(text.type, config, frozenset(name for name, is_on in text.capabilities.items() if is_on))


def _choose_version(version: str, versions: list[str]) -> str:
    """The highest known version of those that the list names. A list without any follows the first."""
    named = [name for name in (version, *versions) if name] or [VERSIONS[0]]
    known = [name for name in VERSIONS if name in named]
    if not known:
        raise CniError(
            f"cniVersion {shorten(', '.join(named), _SHOWN)} is not supported: the last one is {VERSIONS[-1]}"
        )
    return known[-1]


def _switch(name: str, value: bool | str) -> bool:
    """A boolean, which the specification once had as text."""
    if isinstance(value, bool):
        return value
    if value.lower() not in ("true", "false"):
        raise CniError(f'{name} must be true or false, not "{shorten(value, _SHOWN)}"')
    return value.lower() == "true"


def _shown(error: Exception) -> str:
    return shorten(str(error) or type(error).__name__, _SHOWN)
