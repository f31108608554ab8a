"""What the Makefile calls: `python3 -m testvm run|exec|shell|image` with `tools` on PYTHONPATH. Needs root."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
import time
from pathlib import Path

from testbed.checkout import CHECKOUT
from testbed.host import TestbedError

from testvm import builds, image, machine, report
from testvm.parts import BOOT_LIMIT_S, LIMITS_S, PARTS, POWER_CUT, REBOOT


def main() -> int:
    """Do one of the commands; a failure is one message and exit code 1."""
    parser = argparse.ArgumentParser(prog="testvm", description="A virtual machine for tests that need systemd.")
    parser.add_argument("--folder", type=Path, default=CHECKOUT / ".vm", help="where the image is kept")
    parser.add_argument("--as-is", action="store_true", help="take the image as it is, whatever has changed since")
    parser.add_argument("--results", type=Path, default=CHECKOUT / ".vm/results", help="where results are put")
    parser.add_argument("--ssh-port", type=int, default=0, help="let the machine's ssh answer on this port of loopback")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("image", help="build the image if it is missing or old")
    commands.add_parser("shell", help="boot it with its console on this terminal")
    run = commands.add_parser("run", help="run parts of the tests")
    run.add_argument("parts", nargs="*", metavar="PART", help=f"some of: {' '.join(PARTS)}; all when none is given")
    command = commands.add_parser("exec", help="run one shell command in the checkout inside")
    command.add_argument("--limit", type=float, default=3600, metavar="SECONDS")
    command.add_argument("script")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the machine is ended too, as after Ctrl-C
    try:
        return _do(options)
    except TestbedError as error:
        print(f"testvm: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _do(options: argparse.Namespace) -> int:
    if os.geteuid() != 0:
        raise TestbedError("run as root: the image is made by mmdebstrap, with the files' own owners")
    if unknown := sorted(set(getattr(options, "parts", ())) - set(PARTS)):
        raise TestbedError(f"no such part: {' '.join(unknown)}; there are {' '.join(PARTS)}")
    if not options.as_is:
        image.ensure(options.folder.resolve())
    virtual = machine.Machine(options.folder.resolve(), ssh_port=options.ssh_port)
    results = options.results.resolve()
    if options.command == "shell":
        return machine.shell(virtual)
    if options.command == "exec":
        return machine.run(virtual, options.script, results, options.limit)
    if options.command == "run":
        return _run_parts(virtual, options.parts or list(PARTS), results)
    return 0


def _run_parts(virtual: machine.Machine, parts: list[str], results: Path) -> int:
    script = f"PYTHONPATH=tools PYTHONUNBUFFERED=1 python3 -m testvm.inside {shlex.join(parts)}"
    limit_s = BOOT_LIMIT_S + sum(LIMITS_S[part] for part in parts)
    built = virtual.folder / "built-packages" if builds.INSTALLED.keys() & set(parts) else None
    if built is not None:
        builds.build(built, parts)
    began = time.monotonic()
    reboots = any(step in ((REBOOT,), (POWER_CUT,)) for part in parts for step in PARTS[part])
    code = machine.run(virtual, script, results, limit_s, reboots=reboots, built=built)
    report.show(results, time.monotonic() - began)
    return code


if __name__ == "__main__":
    sys.exit(main())
