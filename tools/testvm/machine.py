"""Boots the image with qemu, gives it a share with the checkout and a script, and brings the results back.

Plain emulation, on purpose: the same everywhere, also where there is no KVM. What the machine writes to its disk is lost.
"""

from __future__ import annotations

import compileall
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from testbed.checkout import copy_checkout
from testbed.debian import PYTHON
from testbed.host import TestbedError

from testvm import image

_SHARE = 4 << 30
_SECOND = "second-root"
#: Inside: a disk with the same root file system as the machine's, as it is in the image.
SECOND_ROOT = f"/dev/disk/by-id/virtio-{_SECOND}"
_CONSOLE_LINES = 60
#: First in the share's script: the checkout's files take the place of those in the image; compiled files stay beside them.
_PREPARE = f"""cd /{image.INSIDE}
find . -mindepth 1 \\( -path ./.venv -o -name __pycache__ \\) -prune -o -type f -exec rm -f {{}} +
cp -a /share/checkout/. .
"""


@dataclass(frozen=True, slots=True)
class Machine:
    """What qemu is given. Memory and CPUs are divided between two NUMA nodes; `ssh_port` is one of loopback, 0 for none."""

    folder: Path
    memory_gib: int = 6
    cpus: int = 4
    ssh_port: int = 0

    def command(self, share: Path | None, script: bool, serial: Sequence[str]) -> list[str]:
        """The command line of qemu."""
        half, cpus = self.memory_gib // 2, self.cpus // 2
        # no network but qemu's own, which leads nowhere (restrict)
        forward = f",hostfwd=tcp:127.0.0.1:{self.ssh_port}-:22" if self.ssh_port else ""
        words = ["qemu-system-x86_64", "-nodefaults", "-machine", "q35", "-display", "none"]
        words += ["-accel", "tcg,thread=multi,tb-size=512", "-cpu", "Nehalem,-vmx,+rdtscp"]
        words += ["-m", f"{2 * half}G", "-smp", f"{2 * cpus},sockets=2,cores={cpus},threads=1"]
        for node in (0, 1):
            words += ["-object", f"memory-backend-ram,id=m{node},size={half}G"]
            words += ["-numa", f"node,nodeid={node},cpus={node * cpus}-{node * cpus + cpus - 1},memdev=m{node}"]
        words += ["-numa", "dist,src=0,dst=1,val=21", "-device", "virtio-rng-pci"]
        words += ["-nic", f"user,model=virtio-net-pci,restrict=on{forward}"]
        root = self.folder / "disk.raw"
        disks = [("root", root, "on"), ("swap", self.folder / "swap.raw", "on"), (_SECOND, root, "on")]
        for name, path, snapshot in [*disks, *([("share", share, "off")] if share else [])]:
            words += ["-drive", f"file={path},id={name},if=none,format=raw,cache=unsafe,snapshot={snapshot}"]
            words += ["-device", f"virtio-blk-pci,drive={name},serial={name}"]
        append = "root=/dev/vda rw console=ttyS0 psi=1 mitigations=off net.ifnames=0 panic=-1 quiet hugepages=16"
        # a host that is busy loses ticks, and the kernel's check of the timer fails by that
        append += " tsc=reliable clocksource=tsc no_timer_check" + (" testvm.run" if script else "")
        words += ["-kernel", str(self.folder / "vmlinuz"), "-initrd", str(self.folder / "initrd"), "-append", append]
        return [*words, *serial]


def run(
    machine: Machine, script: str, results: Path, limit_s: float, reboots: bool = False, built: Path | None = None
) -> int:
    """Boot, run `script` in the current checkout inside as root, switch off; returns its exit code.

    What it prints is printed here as it comes; what it writes to /share/results comes back to `results`, with the console's
    log. `reboots`: the script does so, and is run again at each boot. `built`: a folder that is at /share/built inside.
    Raises TestbedError, and shows the console, after `limit_s`, or when the machine goes off without an end of the script.
    """
    shutil.rmtree(results, ignore_errors=True)
    results.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="run-", dir=machine.folder) as temporary:
        content, disk = Path(temporary, "share"), Path(temporary, "share.raw")
        (content / "results").mkdir(parents=True)
        _copy_compiled(content / "checkout")
        if built is not None:
            shutil.copytree(built, content / "built")
        (content / "run").write_text(f"{_PREPARE}\n(\n{script}\n)\necho $? > /share/results/code\nsync\n")
        image.make_disk(disk, _SHARE, content, "share")
        shutil.rmtree(content)
        console, output = results / "console.log", results / "output.log"
        serial = [word for path in (console, output) for word in ("-serial", f"file:{path}")]
        serial += [] if reboots else ["-no-reboot"]  # a kernel that panics must not begin again for ever
        ended = _follow(machine.command(disk, True, serial), output, limit_s)
        fetch(disk, results)
    code = results / "code"
    if code.exists() and ended:
        return int(code.read_text())
    _show_end(console)
    raise TestbedError(
        f"the machine went off before the end; its results are in {results}"
        if ended
        else f"not done within {limit_s:.0f} s; what there is of results is in {results}"
    )


def _copy_compiled(target: Path) -> None:
    """The checkout, with byte code where this Python is of the machine's version: to compile there takes minutes."""
    copy_checkout(target)
    if sys.version_info[:2] == PYTHON:
        for part in ("src", "tools", "tests"):
            folder = target / part
            compileall.compile_dir(folder, quiet=2, stripdir=str(target), prependdir=f"/{image.INSIDE}")


def _follow(command: list[str], output: Path, limit_s: float) -> bool:
    """Run qemu, and print what appears in `output`; False when it had to be ended after `limit_s`.

    The kernel ends it when this process ends, whenever and however that happens.
    """
    output.touch()
    deadline = time.monotonic() + limit_s
    command = ["setpriv", "--pdeathsig", "TERM", *command]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        with output.open("rb") as lines:
            while process.poll() is None and time.monotonic() < deadline:
                _print(lines.read())
                time.sleep(0.2)
            _print(lines.read())
        if process.poll() not in (None, 0):
            raise TestbedError(f"qemu ended with {process.returncode}")
        return process.poll() is not None
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(30)


def _print(data: bytes) -> None:
    if data:
        sys.stdout.write(data.decode(errors="replace").replace("\r", ""))
        sys.stdout.flush()


def _show_end(console: Path) -> None:
    print(f"the end of {console}:")
    for line in console.read_text(errors="replace").splitlines()[-_CONSOLE_LINES:]:
        print(f"  {line}")


def fetch(disk: Path, results: Path) -> None:
    """Copy /results off the share; its journal is replayed first, for a machine that was cut short."""
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run(["e2fsck", "-fy", str(disk)], **quiet, check=False)  # type: ignore[call-overload]
    with tempfile.TemporaryDirectory(dir=disk.parent) as temporary:
        command = ["debugfs", "-R", f"rdump /results {temporary}", str(disk)]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if not Path(temporary, "results").is_dir():
            raise TestbedError(f"debugfs cannot read the results: {done.stderr}")
        shutil.copytree(Path(temporary, "results"), results, dirs_exist_ok=True)


def shell(machine: Machine) -> int:
    """The machine with its console on this terminal, for looking around; Ctrl-A X ends it."""
    with tempfile.TemporaryDirectory(prefix="run-", dir=machine.folder) as temporary:
        content, disk = Path(temporary, "share"), Path(temporary, "share.raw")
        copy_checkout(content / "checkout")
        (content / "run").write_text(_PREPARE)
        image.make_disk(disk, _SHARE, content, "share")
        print("after login: mount -L share /share && sh /share/run   (puts the current checkout in place)", flush=True)
        return subprocess.run(machine.command(disk, False, ["-serial", "mon:stdio"]), check=False).returncode
