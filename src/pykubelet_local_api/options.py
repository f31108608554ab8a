"""The command line of `pykubelet local-api`."""

from __future__ import annotations

import gc
import ipaddress
import os
import socket
import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from pykubelet.base.api.labels import dns_subdomain_errors
from pykubelet.base.kit.values import Value

if TYPE_CHECKING:
    import argparse

DATA_DIR, PORT = "/var/lib/pykubelet-local-api", 6443
#: The first address of the usual range of Services.
SERVICE_ADDRESS = "10.96.0.1"
HELP_WIDTH = 100


class LocalApiOptions(Value):
    """The options of the command line."""

    data_dir: str
    port: int
    node_name: str
    service_address: str = ""
    apply_dir: str = ""
    verbosity: int = 0

    def problem(self) -> str:
        """What is wrong with the options; empty if nothing is."""
        if not os.path.isabs(self.data_dir):
            return "--data-dir must be an absolute path"
        if self.apply_dir and not os.path.isabs(self.apply_dir):
            return "--apply-dir must be an absolute path"
        if not 0 <= self.port < 65536:
            return "--port must be between 0 and 65535"
        if self.service_address and not is_ipv4(self.service_address):
            return "--service-address must be an IPv4 address, or empty"
        found = dns_subdomain_errors(self.node_name)
        return f"--node-name {self.node_name!r}: {found[0]}" if found else ""


def is_ipv4(text: str) -> bool:
    """Whether this is an IPv4 address."""
    try:
        return bool(ipaddress.IPv4Address(text))
    except ValueError:
        return False


def build_parser() -> argparse.ArgumentParser:
    """The options of the command line."""
    import argparse  # see `read_options`

    parser = argparse.ArgumentParser(
        prog="pykubelet local-api",
        description="Serve the Kubernetes API for this one node, without a control plane.",
        epilog="`pykubelet local-api export` writes the objects as YAML for another cluster; `pykubelet local-api status` "
        "shows problems of the files of --apply-dir.",
        allow_abbrev=False,
        # asked for the width of a terminal, the module loads libraries of compression: a MiB of memory
        formatter_class=partial(argparse.HelpFormatter, width=HELP_WIDTH),
    )
    parser.add_argument(
        "--data-dir",
        default=DATA_DIR,
        metavar="DIR",
        help="where objects, certificates and kubeconfig files are kept (default %(default)s)",
    )
    parser.add_argument("--port", type=int, default=PORT, help="the port on 127.0.0.1; 0 for any (default %(default)s)")
    parser.add_argument(
        "--node-name",
        default=socket.gethostname().lower(),
        metavar="NAME",
        help="the name of the only node; its agent gets a kubeconfig file (default: the host name)",
    )
    parser.add_argument(
        "--service-address",
        default=SERVICE_ADDRESS,
        metavar="ADDRESS",
        help="where pods reach the API, on port 443: added to the interface lo; empty: nowhere (default %(default)s)",
    )
    parser.add_argument(
        "--apply-dir",
        default="",
        metavar="DIR",
        help="a folder whose files are applied; objects that leave it are deleted (default: none)",
    )
    parser.add_argument("-v", metavar="LEVEL", type=int, default=0, help="verbosity of the log")
    return parser


def read_options(argv: Sequence[str]) -> LocalApiOptions:
    """What the command line gives. Raises SystemExit if it cannot be read, or asks for help.

    Forgets the parser: what is imported next uses its memory, which is 0.4 MiB.
    """
    parsed = build_parser().parse_args(argv)
    options = LocalApiOptions(
        parsed.data_dir.rstrip("/") or "/",
        parsed.port,
        parsed.node_name,
        parsed.service_address,
        parsed.apply_dir,
        parsed.v,
    )
    del parsed, sys.modules["argparse"]
    gc.collect()
    return options
