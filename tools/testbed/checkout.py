"""The checkout that these tools are part of, and copies of its files."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from testbed.host import TestbedError

CHECKOUT = Path(__file__).resolve().parents[2]


def checkout_files(checkout: Path = CHECKOUT) -> list[str]:
    """The files of the checkout, tracked or new, but not ignored. Raises TestbedError outside of a git checkout."""
    command = ["git", "-c", "safe.directory=*", "-C", str(checkout), "ls-files", "-co", "--exclude-standard", "-z"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise TestbedError(f"{' '.join(command)}: {done.stderr.strip()}")
    return [name for name in done.stdout.split("\0") if name and (checkout / name).is_file()]


def copy_checkout(target: Path, checkout: Path = CHECKOUT) -> None:
    """Copy the checkout's files with their times: what is compiled already stays valid."""
    for name in checkout_files(checkout):
        out = target / name
        out.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(checkout / name, out)
