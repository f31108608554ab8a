"""Logs in to iSCSI targets and out again with the host's iscsiadm, and finds the disks behind them. Blocks.

Owns: the records of iscsiadm for targets, portals and interfaces, and which sessions belong to a target. One operation on a
target at a time. Names and passwords are written into the records, so that they are no arguments, which every user can read: iscsiadm
has no other way to get a value. Source: iscsiadm(8); RFC 7143; the files that open-iscsi 2.1 writes; `/sys/class/iscsi_session`.
"""

from __future__ import annotations

import glob
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from ipaddress import ip_address

from pykubelet.edges.host.devices.iscsi_target import Chap, IscsiTarget
from pykubelet.edges.host.devices.scsi import PROGRAM_S, ScsiPaths, disks_by_path, scan_host
from pykubelet.edges.host.fs import files
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.programs import run_program

LOCK_S = 60.0
#: How long iscsiadm may wait for a portal, as it gives up by itself after some minutes only.
LOGIN_S = 45.0
#: Exit codes of iscsiadm: the object was there before; there is no such session; there are no such records.
_EXISTS, _NO_SESSION, _NO_RECORDS = 15, 2, 21
_HOST = re.compile(r"/host(\d+)/session")
_locks: dict[str, threading.Lock] = {}


@contextmanager
def locked_target(iqn: str) -> Iterator[None]:
    """Hold the target while it is logged in or out. HostError when that is not possible within `LOCK_S`."""
    lock = _locks.setdefault(iqn, threading.Lock())
    if not lock.acquire(timeout=LOCK_S):
        raise HostError("iscsiadm", iqn, "EBUSY", "another operation on the target has not come back")
    try:
        yield
    finally:
        lock.release()


def log_in(machine: ScsiPaths, target: IscsiTarget, chap: Chap) -> list[HostError]:
    """Log in to the target at all portals, unless there is a session, and let the sessions look for the logical unit.

    Returns why it was not possible at some portals. HostError when not even iscsiadm can be used.
    """
    transport = _prepare_interface(target)
    errors: list[HostError] = []
    for portal in target.portals:
        try:
            if _plain(portal) not in sessions(machine, target.iqn):
                _log_in(machine, target, portal, chap)
            host = sessions(machine, target.iqn).get(_plain(portal))
            if host is not None:
                scan_host(machine, host, target.lun)
        except HostError as error:
            errors.append(error)
    if not transport:
        errors.append(HostError("iscsiadm", target.interface, "ENOENT", "the interface has no transport"))
    return errors


def find_disks(machine: ScsiPaths, target: IscsiTarget) -> list[str]:
    """The disks of the logical unit, one for each portal at most."""
    found: list[str] = []
    for portal in target.portals:
        name = glob.escape(f"ip-{_plain(portal)}-iscsi-{target.iqn}-lun-{target.lun}")
        found += disks_by_path(machine, name) or disks_by_path(machine, f"pci-*-{name}")
    return list(dict.fromkeys(found))


def _plain(portal: str) -> str:
    """The portal as udev names its disks: an IPv6 address is in its short form, and without brackets."""
    host, _, port = portal.rpartition(":")
    try:
        host = str(ip_address(host.strip("[]")))
    except ValueError:
        pass  # the name of a host
    return f"{host}:{port}"


def sessions(machine: ScsiPaths, iqn: str) -> dict[str, int]:
    """The number of the SCSI host by portal, which is in the form of `_plain`, for each session with the target."""
    found: dict[str, int] = {}
    for path in sorted(glob.glob(f"{machine.sys}/class/iscsi_session/session*")):
        real = files.real_path(path)
        host = _HOST.search(real)
        if host is None or _read(f"{real}/targetname") != iqn:
            continue
        for connection in glob.glob(f"{real.partition('/iscsi_session/')[0]}/connection*/iscsi_connection/*"):
            for kind in ("persistent_address", "address"):
                address, port = _read(f"{connection}/{kind}"), _read(f"{connection}/{kind.replace('address', 'port')}")
                if address and port:
                    found[_plain(f"{address}:{port}")] = int(host[1])
    return found


def log_out(target: IscsiTarget) -> None:
    """End the sessions with the target and forget it. Without a session or record there is nothing to do. HostError."""
    for portal in target.portals:
        node = ("-m", "node", "-p", portal, "-T", target.iqn, "-I", target.interface)
        _iscsiadm(*node, "--logout", fine=(_NO_SESSION, _NO_RECORDS), deadline_s=LOGIN_S)
        _iscsiadm(*node, "-o", "delete", fine=(_NO_SESSION, _NO_RECORDS))
    if target.copied:
        _iscsiadm("-m", "iface", "-I", target.interface, "-o", "delete", fine=(_NO_SESSION, _NO_RECORDS))


def _log_in(machine: ScsiPaths, target: IscsiTarget, portal: str, chap: Chap) -> None:
    found = ("-m", "discoverydb", "-t", "sendtargets", "-p", portal, "-I", target.interface)
    _iscsiadm(*found, "-o", "new")
    if chap.discovery:
        _update(found, {"discovery.sendtargets.auth.authmethod": "CHAP"})
        if not write_discovery_secret(machine, portal, chap.for_discovery):
            _update(found, chap.for_discovery, is_secret=True)
    try:
        _iscsiadm(*found, "--discover", deadline_s=LOGIN_S)
    except HostError:
        _forget(found)
        raise
    node = ("-m", "node", "-p", portal, "-T", target.iqn, "-I", target.interface)
    _update(node, {"node.session.scan": "manual"})
    if chap.session:
        _update(node, {"node.session.auth.authmethod": "CHAP"})
        if not write_session_secret(machine, target, portal, chap.for_session):
            _update(node, chap.for_session, is_secret=True)
    try:
        _iscsiadm(*node, "--login", fine=(_EXISTS,), deadline_s=LOGIN_S)
    except HostError:
        _forget(node)
        raise
    _update(node, {"node.startup": "manual"})


def _update(record: tuple[str, ...], values: Mapping[str, str], *, is_secret: bool = False) -> None:
    """Set fields of a record of iscsiadm by its arguments. No error shows a value that `is_secret`."""
    for name, value in values.items():
        _iscsiadm(*record, "-o", "update", "-n", name, "-v", value, hidden=value if is_secret else "")


def _forget(record: tuple[str, ...]) -> None:
    """Delete a record of iscsiadm that is of no use. Its error would only hide the first one."""
    run_program("iscsiadm", (*record, "-o", "delete"), PROGRAM_S)


def _prepare_interface(target: IscsiTarget) -> str:
    """The transport of the interface, which is made first if it has an initiator's name of its own."""
    shown = _parameters(_iscsiadm("-m", "iface", "-I", target.copied or target.interface, "-o", "show"))
    if target.copied:
        wanted = {**shown, "iface.initiatorname": target.initiator}
        wanted.pop("iface.iscsi_ifacename", None)
        interface = ("-m", "iface", "-I", target.interface)
        _iscsiadm(*interface, "-o", "new", fine=(_EXISTS,))
        _update(interface, wanted)
    return shown.get("iface.transport_name", "")


def _parameters(text: str) -> dict[str, str]:
    lines = (line.partition(" = ") for line in text.splitlines() if not line.startswith("#"))
    return {name.strip(): value.strip() for name, _, value in lines if value and value.strip() != "<empty>"}


def _iscsiadm(*arguments: str, fine: tuple[int, ...] = (), deadline_s: float = PROGRAM_S, hidden: str = "") -> str:
    """What iscsiadm prints. HostError for other exit codes than 0 and `fine`. `hidden`: no error shows this."""
    ran = run_program("iscsiadm", arguments, deadline_s, subject=arguments[arguments.index("-I") + 1])
    if ran.status not in (0, *fine):
        words = " ".join(word for word in arguments if not hidden or word != hidden)
        output = ran.output.strip().replace(hidden, "***") if hidden else ran.output.strip()
        raise HostError("iscsiadm", words, "EIO", f"{ran.reason}: {output}")
    return ran.output


def _read(path: str) -> str:
    try:
        return files.read_text(path, 4096).strip()
    except HostError:
        return ""


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
