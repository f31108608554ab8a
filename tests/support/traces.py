"""What a testbed may have left on the machine."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from testbed import host
from testbed.private_runtime import Testbed


def traces(testbed: Testbed) -> list[str]:
    """Everything on the machine that still names the testbed."""
    found = [f"mount {point}" for point in host.mounts_below(Path(testbed.folder))]
    found += [f"process {p.pid} {p.argv}" for p in host.processes() if any(testbed.folder in a for a in p.argv)]
    for root in host.hierarchies():
        # other tests' groups come and go while we look: os.walk passes over what has vanished, Path.glob raises
        for folder, names, _ in os.walk(root):
            found += [f"cgroup {folder}/{name}" for name in names if name.startswith(testbed.name)]
    found += [f"link {link.name}" for link in Path("/sys/class/net").glob(f"{testbed.name}*")]
    rules = subprocess.run(["iptables-save"], capture_output=True, text=True, check=True).stdout
    found += [f"rule {rule}" for rule in rules.splitlines() if testbed.name in rule]
    found += [f"cached result {path}" for path in Path("/var/lib/cni/results").glob(f"{testbed.name}*")]
    found += [f"log link {link}" for link in host.links_into(Path(testbed.folder))]
    if Path(testbed.folder).exists():
        found.append(f"folder {testbed.folder}")
    return found
