"""What the part `packages` installs in the machine, built outside, because the machine reaches no network.

In the folder that `build` fills: `now/` and `next/`, the Debian packages of this version and of a made-up next one; `wheels/`, ours
and those of its libraries; `image/`, the container image.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from testbed import environment
from testbed.checkout import CHECKOUT
from testbed.debian import run_quiet

#: A version after every other that has the same first numbers.
NEXT = "0.999.0"
NOW, AFTER, WHEELS, IMAGE = "now", "next", "wheels", "image"


def build(folder: Path) -> None:
    """Fill `folder` anew, with the checkout as it is. Some minutes."""
    environment.ensure(CHECKOUT)
    shutil.rmtree(folder, ignore_errors=True)
    python = CHECKOUT / ".venv/bin/python"
    env = os.environ | {"PYTHONPATH": str(CHECKOUT / "tools"), "PYTHONDONTWRITEBYTECODE": "1"}
    for name, words in (
        (NOW, ["deb"]),
        (AFTER, ["deb", "--version", NEXT]),
        (WHEELS, ["wheels"]),
        (IMAGE, ["image"]),
    ):
        print(f"building the packages: {name}", flush=True)
        run_quiet(python, "-m", "packager", *words, "--out", folder / name, cwd=CHECKOUT, env=env)
