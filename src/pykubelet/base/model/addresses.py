"""Which of a pod's addresses people are told, and in which order. Pure.

Source: KEP-563 (dual stack): one address of each family at most, that of the node's primary family first.
"""

from __future__ import annotations

from collections.abc import Sequence


def is_v6(ip: str) -> bool:
    return ":" in ip


def reported_ips(ips: Sequence[str], host_ips: Sequence[str]) -> tuple[str, ...]:
    """`ips` as the runtime gives them; `host_ips`: the node's, of which the first tells the primary family."""
    primary = is_v6(host_ips[0]) if host_ips else bool(ips) and is_v6(ips[0])
    found = (next((ip for ip in ips if is_v6(ip) is family), "") for family in (primary, not primary))
    return tuple(ip for ip in found if ip)
