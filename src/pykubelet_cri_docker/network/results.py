"""Reads what plugins print: results of all versions, and errors. Pure.

Source: the CNI specification, "Success" and "Error"; of versions before 0.3.0, the results with `ip4` and `ip6`.
"""

from __future__ import annotations

import ipaddress
from typing import Any

import msgspec

from pykubelet.base.kit.text import escape_controls, shorten
from pykubelet.base.kit.values import Value
from pykubelet_cri_docker.network.config import VERSIONS
from pykubelet_cri_docker.network.model import (
    CniError,
    JsonObject,
    NetworkAddress,
    NetworkInterface,
    NetworkResult,
    NetworkRoute,
)

#: Of each list in a result.
MAX_ENTRIES = 256
#: Of a message: characters.
MAX_MESSAGE = 1024


class _Interface(Value):
    name: str = ""
    mac: str = ""
    sandbox: str = ""
    mtu: int = 0


class _Address(Value):
    address: str
    gateway: str | None = None
    interface: int | None = None


class _Route(Value):
    dst: str
    gw: str | None = None


class _Dns(Value):
    nameservers: list[str] | None = None
    domain: str = ""
    search: list[str] | None = None
    options: list[str] | None = None


class _OldAddress(Value):
    """`ip4` or `ip6` of 0.1.0 and 0.2.0."""

    ip: str
    gateway: str | None = None
    routes: list[_Route] | None = None


class _Result(Value):
    cniVersion: str = ""
    interfaces: list[_Interface] | None = None
    ips: list[_Address] | None = None
    routes: list[_Route] | None = None
    dns: _Dns | None = None
    ip4: _OldAddress | None = None
    ip6: _OldAddress | None = None


class _Error(Value):
    code: int = 0
    msg: str = ""
    details: str = ""


def read_object(out: bytes) -> JsonObject:
    """The result that a plugin printed, to be passed to the next one. CniError if it is none."""
    try:
        found: Any = msgspec.json.decode(out)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise CniError(f"the plugin did not print a result in JSON ({error}): {shown(out)}") from error
    if not isinstance(found, dict):
        raise CniError(f"the plugin did not print a result: {shown(out)}")
    return found


def read_result(result: JsonObject, version: str) -> NetworkResult:
    """The meaning of a result. `version`: that of the network, which a result without a version has. CniError if it has none."""
    try:
        text = msgspec.convert(result, _Result)
    except (msgspec.DecodeError, RecursionError) as error:
        raise CniError(f"the result of the plugins cannot be read: {shorten(str(error), MAX_MESSAGE)}") from error
    if (text.cniVersion or version) not in VERSIONS:
        raise CniError(f"the result of the plugins has the unknown version {shorten(text.cniVersion, 64)}")
    old = [family for family in (text.ip4, text.ip6) if family is not None]
    addresses = [_Address(family.ip, family.gateway) for family in old] + (text.ips or [])
    routes = [route for family in old for route in family.routes or ()] + (text.routes or [])
    dns = text.dns or _Dns()
    interfaces = text.interfaces or []
    lists: tuple[list[Any], ...] = (
        addresses,
        routes,
        interfaces,
        *(known or [] for known in (dns.nameservers, dns.search, dns.options)),
    )
    if any(len(entries) > MAX_ENTRIES for entries in lists):
        raise CniError(f"the result of the plugins has more than {MAX_ENTRIES} entries in a list")
    return NetworkResult(
        interfaces=tuple(NetworkInterface(known.name, known.mac, known.sandbox, known.mtu) for known in interfaces),
        addresses=tuple(_read_address(entry) for entry in addresses),
        routes=tuple(NetworkRoute(route.dst, route.gw or "") for route in routes),
        name_servers=tuple(dns.nameservers or ()),
        domain=dns.domain,
        searches=tuple(dns.search or ()),
        options=tuple(dns.options or ()),
    )


def _read_address(entry: _Address) -> NetworkAddress:
    try:
        address = str(ipaddress.ip_interface(entry.address))
    except ValueError as error:
        raise CniError(
            f"the result of the plugins has the address {shorten(entry.address, 64)!r}, which is none"
        ) from error
    known = entry.interface is not None and entry.interface >= 0
    return NetworkAddress(address, entry.gateway or "", entry.interface if known else None)


def read_failure(out: bytes, err: bytes, code: int) -> CniError:
    """The error of a plugin that ended with an exit code of its own, or by a signal (negative)."""
    try:
        error = msgspec.json.decode(out, type=_Error)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        error = _Error()
    if error.msg or error.details:
        text = "; ".join(part for part in (error.msg, error.details) if part)
        return CniError(_clean(text) + (f" (code {error.code})" if error.code else ""), error.code)
    end = f"exit status {code}" if code >= 0 else f"ended by signal {-code}"
    printed = shown(out if out.strip() else err)
    return CniError(f"{end}: {printed}" if printed else f"{end} without a message", error.code)


def is_gone(error: CniError, netns: str) -> bool:
    """Whether DEL failed because what it was to remove is gone, which plugins report in different ways.

    Without a namespace, the interface is gone in any case: plugins may report that they did not find one.
    """
    text = str(error).lower()
    if "executable file not found" in text:
        return False  # a program that the plugin needs
    return "not found" in text or (not netns and "no such file or directory" in text)


def shown(output: bytes) -> str:
    """Output of a plugin for a message."""
    return _clean(output[: 4 * MAX_MESSAGE].decode(errors="replace").strip())


def _clean(text: str) -> str:
    return shorten(escape_controls(" ".join(text.split())), MAX_MESSAGE)
