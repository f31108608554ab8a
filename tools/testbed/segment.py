"""A network segment of our own: a bridge, and machines on it, each a network namespace with one cable to the bridge.

Owns the bridge `<name>`, the namespaces `<name>-<i>` and their cables `<name>.<i>`. This machine has the segment's first
address. A namespace outlives its processes; `down` removes all. What a process changes of the packet filter in its
namespace goes with that.
"""

from __future__ import annotations

import ipaddress
import json
import os
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path

from testbed import claims
from testbed.network import choose_subnet, run_ip, used_subnets

_FILE = "segment.json"
_NAMESPACES = Path("/run/netns")


@dataclass(frozen=True, slots=True)
class Segment:
    """Written to its folder by `up`, so that later calls find the same one."""

    name: str
    subnet: str

    @property
    def cgroup(self) -> str:
        """What runs on the machines runs below it, so that it can be ended together."""
        return f"/{self.name}"

    @property
    def address(self) -> str:
        """This machine's address on the segment."""
        return self.address_of(0)

    def address_of(self, number: int) -> str:
        """The address of a machine, which are counted from 1."""
        return str(ipaddress.IPv4Network(self.subnet).network_address + 1 + number)

    def namespace(self, number: int) -> str:
        """The name of a machine's network namespace."""
        return f"{self.name}-{number}"

    def enter(self, number: int) -> list[str]:
        """What to put before a command that is to run on the machine. The process is that of the command itself."""
        return ["nsenter", f"--net={_NAMESPACES / self.namespace(number)}", "--"]

    def plug_in(self, number: int) -> None:
        """Make the machine's namespace and its cable, if they are missing, and connect it."""
        namespace, cable = self.namespace(number), f"{self.name}.{number}"
        if not (_NAMESPACES / namespace).exists():
            prefix = ipaddress.IPv4Network(self.subnet).prefixlen
            inside = ["-n", namespace]
            run_ip("netns", "add", namespace)
            run_ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", namespace)
            run_ip("link", "set", cable, "master", self.name)
            run_ip(*inside, "link", "set", "lo", "up")
            run_ip(*inside, "address", "add", f"{self.address_of(number)}/{prefix}", "dev", "eth0")
            run_ip(*inside, "link", "set", "eth0", "up")
            run_ip("link", "set", cable, "up")
            run_ip(*inside, "route", "add", "default", "via", self.address)
        run_ip("link", "set", cable, "up")

    def unplug(self, number: int) -> None:
        """Nothing passes any more in either direction, and neither end gets a sign of it: the machine's own interface stays up."""
        # a bridge port that is set aside drops everything; `link set down` would take the machine's carrier away, too
        run_ip("link", "set", f"{self.name}.{number}", "nomaster")

    def plug_in_again(self, number: int) -> None:
        """Undo `unplug`."""
        run_ip("link", "set", f"{self.name}.{number}", "master", self.name)


def up(folder: Path) -> Segment:
    """The segment of `folder`, made if it is missing. Raises TestbedError."""
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    segment = load(folder)
    if segment is None:
        seed = zlib.crc32(os.fsencode(folder))
        holder = claims.folder(folder)
        name = claims.claim("name", (f"pks{(seed + i) % 2**24:06x}" for i in range(1000)), holder)
        assert name is not None
        segment = Segment(name, choose_subnet(seed, used_subnets(), holder))
        (folder / _FILE).write_text(json.dumps(asdict(segment)))
    if not Path("/sys/class/net", segment.name).exists():
        run_ip("link", "add", segment.name, "type", "bridge")
        prefix = ipaddress.IPv4Network(segment.subnet).prefixlen
        run_ip("address", "add", f"{segment.address}/{prefix}", "dev", segment.name)
        run_ip("link", "set", segment.name, "up")
    return segment


def load(folder: Path) -> Segment | None:
    """The segment that `up` made in `folder`."""
    try:
        return Segment(**json.loads((folder.resolve() / _FILE).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def down(folder: Path) -> None:
    """Remove the segment of `folder`, whatever is left of it. Its processes must have ended."""
    segment = load(folder)
    if segment is None:
        return
    for interface in Path("/sys/class/net").glob(
        f"{segment.name}.*"
    ):  # first: those of a namespace vanish some time after it
        run_ip("link", "delete", interface.name)
    for namespace in _NAMESPACES.glob(f"{segment.name}-*") if _NAMESPACES.is_dir() else ():
        run_ip("netns", "delete", namespace.name)
    if Path("/sys/class/net", segment.name).exists():
        run_ip("link", "delete", segment.name)
    (folder / _FILE).unlink(missing_ok=True)
