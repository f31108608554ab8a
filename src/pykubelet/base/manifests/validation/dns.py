"""Validates the names and addresses of a pod: DNS policy and config, host aliases, host names. Pure."""

from __future__ import annotations

import ipaddress

from pykubelet.base.api import labels as names
from pykubelet.base.api.core import HostAlias, PodDNSConfig, PodSpec
from pykubelet.base.manifests.validation.errors import (
    Errors,
    forbidden,
    invalid,
    invalids,
    one_of,
    required,
    too_long,
)

DNS_POLICIES = ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None")
MAX_NAMESERVERS = 3
MAX_SEARCHES = 32
MAX_SEARCH_CHARS = 2048
MAX_HOSTNAME = 64


def ip_errors(address: str, path: str) -> Errors:
    """An IPv4 or IPv6 address. Leading zeros in IPv4 parts are allowed, as in the reference."""
    try:
        plain = ".".join(map(_without_zeros, address.split("."))) if ":" not in address else address.lower()
        ipaddress.ip_address(plain)
        if "%" in address:
            raise ValueError
    except ValueError:
        return [invalid(path, address, "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)")]
    return []


def _without_zeros(number: str) -> str:
    return number.lstrip("0") or "0" if number.isascii() and number.isdecimal() else number


def _validate_dns_config(config: PodDNSConfig | None, policy: str, path: str) -> Errors:
    if policy == "None":
        if config is None:
            return [required(path, "must provide `dnsConfig` when `dnsPolicy` is None")]
        if not config.nameservers:
            detail = "must provide at least one DNS nameserver when `dnsPolicy` is None"
            return [required(f"{path}.nameservers", detail)]
    if config is None:
        return []
    errors: Errors = []
    if len(config.nameservers) > MAX_NAMESERVERS:
        detail = f"must not have more than {MAX_NAMESERVERS} nameservers"
        errors.append(invalid(f"{path}.nameservers", config.nameservers, detail))
    for i, server in enumerate(config.nameservers):
        errors += ip_errors(server, f"{path}.nameservers[{i}]")
    if len(config.searches) > MAX_SEARCHES:
        detail = f"must not have more than {MAX_SEARCHES} search paths"
        errors.append(invalid(f"{path}.searches", config.searches, detail))
    if len(" ".join(config.searches)) > MAX_SEARCH_CHARS:
        detail = f"must not have more than {MAX_SEARCH_CHARS} characters (including spaces) in the search list"
        errors.append(invalid(f"{path}.searches", config.searches, detail))
    for i, search in enumerate(config.searches):
        if search != ".":
            domain = search.removesuffix(".")
            errors += invalids(f"{path}.searches[{i}]", domain, names.dns_search_errors(domain))
    for i, option in enumerate(config.options):
        if not option.name:
            errors.append(required(f"{path}.options[{i}]", "must not be empty"))
    return errors


def _validate_host_aliases(aliases: tuple[HostAlias, ...], path: str) -> Errors:
    errors: Errors = []
    for i, alias in enumerate(aliases):
        errors += ip_errors(alias.ip, f"{path}[{i}].ip")
        for j, name in enumerate(alias.hostnames):
            errors += invalids(f"{path}[{i}].hostnames[{j}]", name, names.dns_subdomain_errors(name))
    return errors


def validate_dns_policy(spec: PodSpec, path: str) -> Errors:
    """spec.dnsPolicy."""
    return one_of(f"{path}.dnsPolicy", spec.dnsPolicy, DNS_POLICIES)


def validate_dns_config(spec: PodSpec, path: str) -> Errors:
    """spec.dnsConfig."""
    return _validate_dns_config(spec.dnsConfig, spec.dnsPolicy, f"{path}.dnsConfig")


def validate_host_names(spec: PodSpec, path: str) -> Errors:
    """spec.hostname, subdomain, hostnameOverride and hostAliases."""
    errors: Errors = []
    if spec.hostname:
        errors += invalids(f"{path}.hostname", spec.hostname, names.dns_label_errors(spec.hostname))
    if spec.subdomain:
        errors += invalids(f"{path}.subdomain", spec.subdomain, names.dns_label_errors(spec.subdomain))
    if spec.hostnameOverride:
        at = f"{path}.hostnameOverride"
        if spec.hostNetwork:
            errors.append(forbidden(at, "may not be specified when `hostNetwork` is true"))
        if spec.setHostnameAsFQDN:
            errors.append(forbidden(at, "may not be specified when `setHostnameAsFQDN` is true"))
        if len(spec.hostnameOverride) > MAX_HOSTNAME:
            errors.append(too_long(at, MAX_HOSTNAME))
        errors += invalids(at, spec.hostnameOverride, names.dns_subdomain_errors(spec.hostnameOverride))
    return errors + _validate_host_aliases(spec.hostAliases, f"{path}.hostAliases")
