"""A runc that does without what this machine refuses, for runtimes that have no settings for that.

containerd has such settings: restrict_oom_score_adj and tolerate_missing_hugetlb_controller. To a privileged container it
gives what it has itself; the others give all capabilities.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from testbed import host
from testbed.host import TestbedError
from testbed.private_runtime import Testbed

CAP_SYS_RESOURCE = 24
_SCRIPT = """#!/bin/sh
previous=
for argument in "$@"; do
  if [ "$previous" = --bundle ]; then
    sed -i -e 's/"oomScoreAdj": *-[0-9]*/"oomScoreAdj": 0/' -e 's/"hugepageLimits"/"noHugepageLimits"/' {more}\\
      "$argument/config.json"
  elif [ "$previous" = --process ]; then
    sed -i {more}-e '' "$argument"
  fi
  previous=$argument
done
exec {runc} "$@"
"""


def find_program(testbed: Testbed, name: str) -> str:
    """A program that the runtime needs, from its own folder or the system's path. Raises TestbedError."""
    found = shutil.which(name, path=testbed.env["PATH"])
    if found is None:
        raise TestbedError(f"{name} is missing: {testbed.kind} needs it beside itself or on the system's path")
    return found


def write_script(testbed: Testbed) -> Path:
    """Write the program below the test bed's folder; returns its path."""
    script = testbed.root / "bin" / "runc"
    script.parent.mkdir(exist_ok=True)
    more = "" if host.has_capability(CAP_SYS_RESOURCE) else """-e 's/"CAP_SYS_RESOURCE",//g' """
    script.write_text(_SCRIPT.format(runc=find_program(testbed, "runc"), more=more))
    script.chmod(0o755)
    return script
