"""What the Makefile calls: `python -m packager wheel|deb|image` in the project's environment, with `tools` on PYTHONPATH."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from testbed.checkout import CHECKOUT
from testbed.host import TestbedError

from packager import container, deb, wheel


def main() -> int:
    """Build one thing and print its files; a failure is one message and exit code 1."""
    parser = argparse.ArgumentParser(prog="packager", description="Build what users install.")
    parser.add_argument("--out", type=Path, default=CHECKOUT / "dist", help="the folder of the results")
    parser.add_argument("--version", default="", help="another version than the project's, for tests of upgrades (deb)")
    parser.add_argument(
        "what",
        choices=("wheel", "wheels", "deb", "image"),
        help="wheels: the wheel and those of its libraries, for machines without a network",
    )
    options = parser.parse_args()
    try:
        for path in _build(options.what, options.out.resolve(), options.version):
            print(os.path.relpath(path))
    except TestbedError as error:
        print(f"{options.what}: {error}", file=sys.stderr)
        return 1
    return 0


def _build(what: str, out: Path, version: str) -> list[Path]:
    if what == "wheel":
        return [wheel.build_wheel(CHECKOUT, out, wheel.find_uv(CHECKOUT))]
    if what == "wheels":
        return wheel.collect_wheels(CHECKOUT, out, wheel.find_uv(CHECKOUT), deb.PYTHON)
    if what == "deb":
        return deb.build(CHECKOUT, out, version)
    return [container.build(CHECKOUT, out)]


if __name__ == "__main__":
    sys.exit(main())
