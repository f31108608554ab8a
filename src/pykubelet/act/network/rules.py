"""The chains of a kubelet in the host's packet filter, as text for `iptables-restore`. Pure.

`KUBE-IPTABLES-HINT` shows other programs (network plugins, kube-proxy) which of the two iptables of a host is in use. `KUBE-FIREWALL`
drops packets from elsewhere to the loopback range, which kube-proxy's `route_localnet` would let in. `KUBE-KUBELET-CANARY`
has no rules: when it is gone, another program has flushed the filter.

Source: KEP-3178; CVE-2020-8558 for the firewall rule.
"""

from __future__ import annotations

from enum import StrEnum

HINT_CHAIN = "KUBE-IPTABLES-HINT"
FIREWALL_CHAIN = "KUBE-FIREWALL"
CANARY_CHAIN = "KUBE-KUBELET-CANARY"
CANARY_TABLES = ("mangle", "nat", "filter")
JUMP = ("-j", FIREWALL_CHAIN)
_FIREWALL_RULE = (
    '-m comment --comment "block incoming localnet connections" -d 127.0.0.0/8 ! -s 127.0.0.0/8 '
    "-m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP"
)


class IPFamily(StrEnum):
    """An IP family. The value is the name of its iptables program."""

    V4 = "iptables"
    V6 = "ip6tables"


def jump_chains(family: IPFamily) -> tuple[str, ...]:
    """The built-in chains of the table `filter` that must begin with a jump to the firewall."""
    return ("INPUT", "OUTPUT") if family is IPFamily.V4 else ()


def render_chains(family: IPFamily, missing_jumps: tuple[str, ...]) -> str:
    """Input for `iptables-restore --noflush`. It may be applied repeatedly, because naming a chain empties it first."""
    tables = {table: [f":{CANARY_CHAIN} - [0:0]"] for table in CANARY_TABLES}
    tables["mangle"].append(f":{HINT_CHAIN} - [0:0]")
    if family is IPFamily.V4:
        tables["filter"] += [f":{FIREWALL_CHAIN} - [0:0]", f"-A {FIREWALL_CHAIN} {_FIREWALL_RULE}"]
    tables["filter"] += [f"-I {chain} 1 {' '.join(JUMP)}" for chain in missing_jumps]
    return "".join("\n".join((f"*{table}", *lines, "COMMIT", "")) for table, lines in tables.items())
