"""A pod network of the testbed's own: a bridge, a free subnet, the CNI configuration, and the removal of all of it.

The CNI plugins leave things outside of any folder: a bridge, NAT rules and chains, cached results. All carry the
network's name, and only those are removed.
"""

from __future__ import annotations

import ipaddress
import json
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from testbed import claims
from testbed.host import TestbedError

_RESULTS = Path("/var/lib/cni/results")
_POOL = ipaddress.IPv4Network("10.192.0.0/10")
_PREFIX = 22
_SHARED_CHAINS = ("CNI-HOSTPORT-DNAT", "CNI-HOSTPORT-SETMARK", "CNI-HOSTPORT-MASQ")


@dataclass(frozen=True, slots=True)
class Network:
    """Name of the CNI network (also the bridge's), and its subnet (a.b.c.d/n)."""

    name: str
    subnet: str


def _run(command: list[str], text: str = "") -> str:
    try:
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    except FileNotFoundError as error:
        raise TestbedError(f"{command[0]} is missing") from error
    except subprocess.CalledProcessError as error:
        raise TestbedError(f"{' '.join(command)}: {error.stderr.strip()}") from error
    return done.stdout


def run_ip(*words: str) -> None:
    """One command of ip(8). Raises TestbedError."""
    _run(["ip", *words])


def used_subnets() -> list[ipaddress.IPv4Network]:
    """Destinations of this machine's IPv4 routes, the default route aside."""
    found = []
    for route in json.loads(_run(["ip", "-j", "-4", "route", "show", "table", "all"])):
        if route["dst"] != "default":
            found.append(ipaddress.IPv4Network(route["dst"], strict=False))
    return found


def choose_subnet(seed: int, used: Iterable[ipaddress.IPv4Network], holder: str) -> str:
    """A subnet for some 1,000 pods that overlaps nothing in `used` and that no other holder has (see `claims`).

    Different seeds begin at different places.
    """
    taken = list(used)
    count = 1 << (_PREFIX - _POOL.prefixlen)

    def candidates() -> Iterator[str]:
        for i in range(count):
            base = int(_POOL.network_address) + ((seed + i) % count << (32 - _PREFIX))
            yield str(ipaddress.IPv4Network((base, _PREFIX)))

    def is_free(candidate: str) -> bool:
        return not any(ipaddress.IPv4Network(candidate).overlaps(other) for other in taken)

    subnet = claims.claim("subnet", candidates(), holder, is_free)
    if subnet is None:
        raise TestbedError(f"no free subnet in {_POOL}")
    return subnet


def write_cni_config(network: Network, folder: Path, ipam_folder: Path) -> None:
    """Put the network's configuration list into `folder`; addresses in use are kept in `ipam_folder`."""
    bridge = {
        "type": "bridge",
        "bridge": network.name,
        "isGateway": True,
        "ipMasq": True,
        "hairpinMode": True,
        "ipam": {
            "type": "host-local",
            "dataDir": str(ipam_folder),
            "ranges": [[{"subnet": network.subnet}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    portmap = {"type": "portmap", "capabilities": {"portMappings": True}}
    document = {"cniVersion": "0.4.0", "name": network.name, "plugins": [bridge, portmap]}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "10-testbed.conflist").write_text(json.dumps(document, indent=2) + "\n")


def bridge_exists(network: Network) -> bool:
    """Whether the network's bridge is there: the first pod makes it."""
    return Path("/sys/class/net", network.name).exists()


def remove_network(network: Network, remove_shared: bool) -> None:
    """Remove the bridge, NAT rules, chains and cached results of `network`.

    `remove_shared` also removes the host-port chains that all CNI networks share, when nothing uses them any more.
    """
    if bridge_exists(network):
        _run(["ip", "link", "delete", network.name])
    if shutil.which("iptables-save") is not None:
        script = plan_nat_removal(_run(["iptables-save", "-t", "nat"]), network.name, remove_shared)
        if script:
            _run(["iptables-restore", "--noflush", "--wait"], script)
    for cached in _RESULTS.glob(f"{network.name}-*"):
        cached.unlink(missing_ok=True)


def has_shared_chains() -> bool:
    """Whether some CNI network of this machine has had host ports."""
    if shutil.which("iptables-save") is None:
        return False
    return _SHARED_CHAINS[0] in _run(["iptables-save", "-t", "nat"])


def plan_nat_removal(saved: str, name: str, remove_shared: bool) -> str:
    """Input for `iptables-restore --noflush` that removes the rules and chains of the network `name`; "" if there are none.

    `saved` is the output of `iptables-save -t nat`. Rules are recognised by the comment every CNI plugin writes.
    """
    rules = [line for line in saved.splitlines() if line.startswith("-A ")]
    mark = f'name: \\"{name}\\"'
    ours = [rule for rule in rules if mark in rule]
    chains = {target for rule in ours if (target := _target(rule)).startswith("CNI-")} - set(_SHARED_CHAINS)
    deletions = [rule for rule in ours if rule.split(" ")[1] not in chains]
    if remove_shared:
        rest = [rule for rule in rules if rule not in ours and rule.split(" ")[1] not in chains]
        declared = {line[1:].split(" ")[0] for line in saved.splitlines() if line.startswith(":")}
        if not any(rule.startswith("-A CNI-HOSTPORT-DNAT ") for rule in rest):
            chains |= declared & set(_SHARED_CHAINS)
            deletions += [r for r in rest if _target(r) in _SHARED_CHAINS and r.split(" ")[1] not in chains]
    if not deletions and not chains:
        return ""
    lines = ["*nat", *("-D" + rule[2:] for rule in deletions)]
    lines += [f"-F {chain}" for chain in sorted(chains)]
    lines += [f"-X {chain}" for chain in sorted(chains)]
    return "\n".join([*lines, "COMMIT", ""])


def _target(rule: str) -> str:
    found = re.search(r" -j (\S+)", rule)
    return found.group(1) if found else ""
