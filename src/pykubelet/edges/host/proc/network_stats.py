"""Reads the counters of network interfaces, of this machine or of another process's network namespace.

Owns: the format of /proc/<pid>/net/dev. Source: proc(5).
"""

from __future__ import annotations

from pykubelet.base.model.usage import InterfaceUse, NetworkUse
from pykubelet.edges.host.fs.text_files import read_file

_FIELDS = 16
#: Loopback, and the machine's ends of the links to containers, which come and go with them. As in cAdvisor.
_NOT_COUNTED = ("lo", "veth", "docker", "nerdctl")


def read_network_use(
    at: float, pid: int | None = None, default: str = "eth0", proc: str = "/proc"
) -> NetworkUse | None:
    """The interfaces that `pid` sees (None: this process), `default` first. Returns None if the process is gone."""
    text = read_file(f"{proc}/{'self' if pid is None else pid}/net/dev")
    if not text:
        return None
    return NetworkUse(at, parse_interfaces(text, default))


def parse_interfaces(text: str, default: str) -> tuple[InterfaceUse, ...]:
    """Parse the counters of all interfaces but loopback and the links to containers. Pure."""
    found = []
    for line in text.splitlines():
        name, colon, rest = line.partition(":")
        numbers = rest.split()
        name = name.strip()
        if not colon or len(numbers) < _FIELDS or name.startswith(_NOT_COUNTED):
            continue
        rx_bytes, rx_packets, rx_errors, rx_dropped = map(int, numbers[:4])
        tx_bytes, tx_packets, tx_errors, tx_dropped = map(int, numbers[8:12])
        found.append(
            InterfaceUse(name, rx_bytes, rx_packets, rx_errors, rx_dropped, tx_bytes, tx_packets, tx_errors, tx_dropped)
        )
    found.sort(key=lambda interface: interface.name != default)
    return tuple(found)
