"""Writes names and passwords into the records of iscsiadm, so that they are no arguments, which every user can read. Blocks.

iscsiadm has no other way to get a value than its command line. Its records are files of lines `name = value`, below a
directory that depends on the distribution. Source: the files that open-iscsi 2.1 writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pykubelet.edges.host.devices.iscsi_target import IscsiTarget
from pykubelet.edges.host.devices.scsi import ScsiPaths
from pykubelet.edges.host.fs import files
from pykubelet.edges.host.fs.errors import HostError

_LIMIT, _MODE = 1 << 16, 0o600
_END = "# END RECORD"


def write_session_secret(machine: ScsiPaths, target: IscsiTarget, portal: str, values: Mapping[str, str]) -> bool:
    """Set fields of the record of a target at a portal. False if there is no such record. HostError."""
    return _write(_session_records(machine, target, portal), values)


def write_discovery_secret(machine: ScsiPaths, portal: str, values: Mapping[str, str]) -> bool:
    """Set fields of the record for the discovery at a portal. False if there is no such record. HostError."""
    address, port = _split(portal)
    return _write((f"{root}/send_targets/{address},{port}/st_config" for root in machine.iscsi), values)


def _session_records(machine: ScsiPaths, target: IscsiTarget, portal: str) -> Iterator[str]:
    """A record is `<address>,<port>`, or `<address>,<port>,<group>/<interface>`."""
    address, port = _split(portal)
    for root in machine.iscsi:
        folder = f"{root}/nodes/{target.iqn}"
        for name in files.names_in(folder):
            if name.split(",")[:2] == [address, port]:
                yield f"{folder}/{name}"
                yield f"{folder}/{name}/{target.interface}"


def _split(portal: str) -> tuple[str, str]:
    address, _, port = portal.rpartition(":")
    return address.strip("[]"), port


def _write(paths: Iterator[str], values: Mapping[str, str]) -> bool:
    is_written = False
    for path in paths:
        found = files.stat_file(path)
        if found is None or not found.is_file:
            continue
        lines = [line for line in files.read_text(path, _LIMIT).split("\n") if line.partition(" =")[0] not in values]
        if _END not in lines:
            raise HostError("write", path, "EINVAL", "it is no record of iscsiadm")
        at = lines.index(_END)
        lines[at:at] = [f"{name} = {value}" for name, value in values.items()]
        files.write_atomic(path, "\n".join(lines).encode(), _MODE)
        is_written = True
    return is_written
