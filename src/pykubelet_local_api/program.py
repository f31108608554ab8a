"""`pykubelet local-api`: the program's options, and its start."""

from __future__ import annotations

import argparse
from collections.abc import Sequence


def build_parser() -> argparse.ArgumentParser:
    """The options of the command line."""
    parser = argparse.ArgumentParser(
        prog="pykubelet local-api",
        description="Serve the Kubernetes API for this one node, without a control plane.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--data-dir",
        default="/var/lib/pykubelet-local-api",
        metavar="FOLDER",
        help="where objects, certificates and kubeconfig files are kept (default %(default)s)",
    )
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the command; returns its exit code."""
    build_parser().parse_args(argv)
    raise SystemExit("not built yet")
