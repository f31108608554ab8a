"""A stand-in for iscsiadm and the kernel's files about sessions: a login makes the link of a disk, which is a loop device."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pykubelet.edges.host.devices.scsi import ScsiPaths

IQN = "iqn.2026-11.com.example:disks"
#: The host with the session at a portal, in the order of logins.
FIRST_HOST = 3
_SCRIPT = """
import ipaddress, json, pathlib, shutil, sys
here = pathlib.Path(__file__).parent.parent
args = sys.argv[1:]
with (here / "calls").open("a") as calls:
    calls.write(json.dumps(args) + "\\n")
for words, code, text in json.loads((here / "fail").read_text()):
    if words in " ".join(args):
        print(text)
        sys.exit(code)
if args[:2] == ["-m", "iface"] and args[-1] == "show":
    print("# BEGIN RECORD\\niface.iscsi_ifacename = default\\niface.transport_name = tcp\\niface.mtu = <empty>\\n# END RECORD")
portal = args[args.index("-p") + 1] if "-p" in args else ""
iqn = args[args.index("-T") + 1] if "-T" in args else ""
address, _, port = portal.rpartition(":")
plain = f"{ipaddress.ip_address(address.strip('[]'))}:{port}" if address else ""
if "discoverydb" in args and args[-1] == "new":
    record = here / f"iscsi/send_targets/{address.strip('[]')},{port}/st_config"
    record.parent.mkdir(parents=True, exist_ok=True)
    record.write_text("# BEGIN RECORD 2.1.8\\ndiscovery.sendtargets.auth.authmethod = None\\n# END RECORD\\n")
if "--discover" in args:
    for name in json.loads((here / "targets").read_text()):
        record = here / f"iscsi/nodes/{name}/{address.strip('[]')},{port},1/{args[args.index('-I') + 1]}"
        record.parent.mkdir(parents=True, exist_ok=True)
        record.write_text("# BEGIN RECORD 2.1.8\\nnode.session.auth.username = old\\nnode.tpgt = 1\\n# END RECORD\\n")
if "--login" in args:
    number = 3 + len(list((here / "sys/class/iscsi_session").iterdir()))
    top = here / f"sys/devices/platform/host{number}/session{number}"
    own = top / f"iscsi_session/session{number}"
    connection = top / f"connection{number}:0/iscsi_connection/connection{number}:0"
    for folder in (own, connection):
        folder.mkdir(parents=True)
    (own / "targetname").write_text(iqn + "\\n")
    (connection / "persistent_address").write_text(address.strip("[]") + "\\n")
    (connection / "persistent_port").write_text(port + "\\n")
    (here / f"sys/class/iscsi_session/session{number}").symlink_to(own)
    scan = here / f"sys/class/scsi_host/host{number}/scan"
    scan.parent.mkdir(parents=True, exist_ok=True)
    scan.touch()
    for lun, disk in json.loads((here / "disks").read_text()).items():
        link = here / f"dev/disk/by-path/ip-{plain}-iscsi-{iqn}-lun-{lun}"
        link.symlink_to(disk)
if "--logout" in args:
    gone = [link for link in (here / "dev/disk/by-path").iterdir() if f"ip-{plain}-iscsi-{iqn}-" in link.name]
    for link in gone:
        link.unlink()
    for session in (here / "sys/class/iscsi_session").iterdir():
        for found in session.resolve().parents[1].glob("connection*/iscsi_connection/*/persistent_address"):
            if found.read_text().strip() == address.strip("[]"):
                shutil.rmtree(session.resolve().parents[1])
                session.unlink()
"""


class IscsiTools:
    """The stand-in below `folder`; `folder/bin` belongs into PATH. `disks`: the device of each logical unit."""

    def __init__(self, folder: Path, disks: dict[int, str]) -> None:
        self.folder = folder
        self.machine = ScsiPaths(f"{folder}/dev", f"{folder}/sys", (f"{folder}/iscsi", f"{folder}/nowhere"))
        for name in ("bin", "dev/disk/by-path", "dev/disk/by-id", "sys/class/iscsi_session", "sys/class/scsi_host"):
            (folder / name).mkdir(parents=True)
        for disk in disks.values():
            (folder / "sys/block" / Path(disk).name / "device").mkdir(parents=True, exist_ok=True)
            (folder / "sys/block" / Path(disk).name / "device/delete").touch()
        (folder / "disks").write_text(json.dumps(disks))
        (folder / "targets").write_text(json.dumps([IQN]))
        self.fail()
        program = folder / "bin/iscsiadm"
        # without the packages of the installation, which take the interpreter longer than the script takes
        program.write_text(f"#!{sys.executable} -IS{_SCRIPT}")
        program.chmod(0o755)

    def fail(self, *cases: tuple[str, int, str]) -> None:
        """Let calls whose arguments contain a text end with this code and output."""
        (self.folder / "fail").write_text(json.dumps(cases))

    def calls(self) -> list[list[str]]:
        """The arguments of all calls, in order."""
        calls = self.folder / "calls"
        return [json.loads(line) for line in calls.read_text().splitlines()] if calls.exists() else []

    def records(self) -> dict[str, str]:
        """The records of nodes and discoveries, by path."""
        top = self.folder / "iscsi"
        return {str(path.relative_to(top)): path.read_text() for path in sorted(top.rglob("*")) if path.is_file()}

    def verbs(self) -> list[str]:
        """What was done: `login <portal>`, `logout <portal>`, `discover <portal>`."""
        found = []
        for call in self.calls():
            for verb in ("discover", "login", "logout"):
                if f"--{verb}" in call:
                    found.append(f"{verb} {call[call.index('-p') + 1]}")
        return found

    def removed(self, disk: str) -> bool:
        """Whether the disk was taken off the node."""
        return (self.folder / "sys/block" / Path(disk).name / "device/delete").read_text() == "1"

    def scanned(self) -> dict[str, str]:
        """What each host was made to look for."""
        hosts = (self.folder / "sys/class/scsi_host").iterdir()
        return {host.name: (host / "scan").read_text() for host in hosts}
