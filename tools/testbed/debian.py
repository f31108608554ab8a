"""Trees of files installed from Debian 12 by mmdebstrap, for a virtual machine and for a container image. Needs root."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from testbed import packages
from testbed.host import TestbedError

SUITE = "bookworm"
#: The version of Python in the suite.
PYTHON = (3, 11)
HOST_PACKAGES = {
    "mmdebstrap": packages.has("mmdebstrap"),
    "debian-archive-keyring": Path("/usr/share/keyrings/debian-archive-keyring.gpg").exists,
}


def bootstrap(archive: Path, include: Sequence[str], hooks: Sequence[str] = ()) -> None:
    """Write a tar of the suite with `include` to `archive`, from the archives that apt on this machine uses.

    `hooks`: further options of mmdebstrap. Raises TestbedError with the end of its output.
    """
    options = [f"--aptopt={line}" for line in _apt_options()]
    options += [f"--dpkgopt=path-exclude=/usr/share/{part}/*" for part in ("man", "doc", "locale")]
    command = ["mmdebstrap", "--variant=minbase", "--mode=root", "--quiet", f"--include={','.join(include)}"]
    run_quiet(*command, *options, *hooks, SUITE, str(archive), *_sources())


def run_quiet(*command: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> None:
    """Run to the end; the end of its output is shown only when it fails, by TestbedError."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        end = "\n".join(done.stdout.splitlines()[-25:])
        raise TestbedError(f"{command[0]} failed with {done.returncode}:\n{end}")


def _apt_options() -> list[str]:
    """How this machine's apt reaches its mirrors: proxies, time-outs, old snapshots."""
    dump = subprocess.run(["apt-config", "dump"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
    wanted = re.compile(r"Acquire::(http|https|Retries|Check)[:\w-]* \"(?!\")")
    return ['Acquire::Languages "none"', *(line.rstrip(";") for line in dump.stdout.splitlines() if wanted.match(line))]


def archive() -> str:
    """Where this machine gets Debian's packages from, of whatever suite. Raises TestbedError on another system."""
    for line in _sources():
        _, uri, release, _ = line.split(" ")
        if release == SUITE:
            return uri
    raise TestbedError(f"apt on this machine has no archive of Debian's suite {SUITE}")


def _sources() -> list[str]:
    """The archives of the suite that this machine is installed from; none on another system, for Debian's own."""
    command = ["apt-get", "indextargets", "--format", "$(RELEASE) $(COMPONENT) $(REPO_URI)", "Identifier: Packages"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    rows = {tuple(line.split(" ", 2)) for line in done.stdout.splitlines()}
    suites = (SUITE, f"{SUITE}-updates", f"{SUITE}-security")
    found = sorted((row for row in rows if row[0] in suites and row[1] == "main"), key=lambda row: row[0])
    return [f"deb {uri} {release} {component}" for release, component, uri in found] if found else []
