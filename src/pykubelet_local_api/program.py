"""`pykubelet local-api`: serves the Kubernetes API for this node until a signal to stop. Pods run on without it.

Exit codes: 0 stopped by a signal, 1 an option or a file cannot be used or the program crashed, 2 wrong command line.
"""

from __future__ import annotations

import asyncio
import gc
import ipaddress
import os
import socket
import sys
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from pykubelet.base.api.labels import dns_subdomain_errors
from pykubelet.base.kit.clock import SystemClock
from pykubelet.base.kit.log import Log, set_up_logging
from pykubelet.base.kit.supervise import run_until
from pykubelet.base.kit.values import Value
from pykubelet.base.model.version import FULL
from pykubelet.edges.host.services.allocator import spare_memory
from pykubelet.edges.host.services.ending import Ending
from pykubelet.edges.host.services.monitor import Monitor

if TYPE_CHECKING:
    import argparse

log = Log("local-api")
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


def read_options(argv: Sequence[str]) -> tuple[LocalApiOptions, int]:
    """The options, and the verbosity of the log. Forgets the parser: what is imported next uses its memory, which is 0.4 MiB."""
    parsed = build_parser().parse_args(argv)
    options = LocalApiOptions(
        parsed.data_dir.rstrip("/") or "/", parsed.port, parsed.node_name, parsed.service_address, parsed.apply_dir
    )
    verbosity: int = parsed.v
    del parsed, sys.modules["argparse"]
    gc.collect()
    return options, verbosity


def main(argv: Sequence[str]) -> int:
    """Run the command; returns its exit code."""
    if argv[:1] == ["export"]:
        from pykubelet_local_api.export.command import export

        return export(argv[1:], DATA_DIR)
    if argv[:1] == ["status"]:
        from pykubelet_local_api.status import status

        return status(argv[1:], DATA_DIR)
    options, verbosity = read_options(argv)
    if problem := options.problem():
        print(f"Error: {problem}", file=sys.stderr)
        return 1
    spare_memory()
    set_up_logging(verbosity)
    log.info("starting", version=FULL, data_dir=options.data_dir)
    import uvloop  # after the options were checked

    return uvloop.run(_serve(options))


async def _serve(options: LocalApiOptions) -> int:
    from pykubelet_local_api.begin import LocalApiStartError, begin

    stop, clock = asyncio.Event(), SystemClock()
    ending = Ending(stop.set, clock)
    ending.install(asyncio.get_running_loop())
    try:
        begun = begin(options, clock.wall())
        from pykubelet_local_api.wiring import build  # while the certificates are made

        program = build(options, clock, begun)
    except LocalApiStartError as error:
        log.fatal(str(error))
        return 1
    log.info("serving", url=program.url, kubeconfig=program.kubeconfig)
    parts: dict[str, Coroutine[Any, Any, None]] = {"monitor": Monitor(ending, clock).run(), **program.parts()}
    failure = await run_until(stop, parts)
    program.close()
    if failure is not None:
        log.error("ending because a part of the program crashed; pods run on", error=repr(failure))
        return 1
    log.info("stopped; pods run on")
    return 0
