"""Selects and orders the addresses that are reported for a pod. Pure.

At most one address of each family is reported, that of the node's primary family first. Source: KEP-563 (dual stack).
"""

from __future__ import annotations

from collections.abc import Sequence


def is_v6(ip: str) -> bool:
    """Whether an IP address in text form is of IPv6."""
    return ":" in ip


def reported_ips(ips: Sequence[str], host_ips: Sequence[str]) -> tuple[str, ...]:
    """The addresses to report. `ips`: the pod's, as the runtime lists them; `host_ips`: the node's, primary family first."""
    primary = is_v6(host_ips[0]) if host_ips else bool(ips) and is_v6(ips[0])
    found = (next((ip for ip in ips if is_v6(ip) is family), "") for family in (primary, not primary))
    return tuple(ip for ip in found if ip)
