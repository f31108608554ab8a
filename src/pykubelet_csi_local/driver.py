"""`pykubelet csi-local`: runs the CSI driver for volumes on this machine until a signal to stop.

Exit codes: 0 stopped by a signal, 1 an option cannot be used or the driver crashed, 2 wrong command line.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import socket
import sys
from collections.abc import Coroutine, Sequence
from typing import Any

from pykubelet.base.api.quantity import QuantityError, parse
from pykubelet.base.kit.clock import SystemClock
from pykubelet.base.kit.log import Log, set_up_logging
from pykubelet.base.kit.supervise import Supervisor, run_until
from pykubelet.base.kit.values import Value
from pykubelet.base.model.version import FULL
from pykubelet.edges.host.services.ending import Ending
from pykubelet.edges.host.services.monitor import Monitor
from pykubelet.edges.host.services.unix_socket import keep_serving_socket
from pykubelet.edges.kubeapi.client import ApiClient
from pykubelet.edges.kubeapi.kubeconfig import ClusterAccess, KubeconfigError, load_access
from pykubelet.net.grpc.channel import MAX_SOCKET_PATH
from pykubelet.net.grpc.server import RpcServer
from pykubelet.net.grpc.services import Method, RpcLimits, Services
from pykubelet_csi_local import volume_commands
from pykubelet_csi_local.controller import ControllerService
from pykubelet_csi_local.ephemeral import EphemeralLimits
from pykubelet_csi_local.node import NodeIdentity, NodeService
from pykubelet_csi_local.provisioner import Provisioner
from pykubelet_csi_local.registration import RegistrationService
from pykubelet_csi_local.volume_commands import format_size
from pykubelet_csi_local.volumes import LocalVolumes

log = Log("csi-local")
#: Connections to the driver. An agent may use one for each volume that it sets up or tears down at a time.
MAX_CONNECTIONS = 1000
NAME, ROOT_DIR = "local.csi.pykubelet", "/var/lib/kubelet"
_NAME = re.compile(r"[a-z0-9A-Z]([-a-zA-Z0-9.]{0,61}[a-zA-Z0-9])?")


class DriverOptions(Value):
    """The options of the command line."""

    name: str
    root_dir: str
    data_dir: str
    node_id: str
    max_volumes: int = 0
    kubeconfig: str = ""
    ephemeral: EphemeralLimits = EphemeralLimits()

    @property
    def endpoint(self) -> str:
        """The socket of the driver's services."""
        return f"{self.root_dir}/plugins/{self.name}/csi.sock"

    @property
    def registration(self) -> str:
        """The socket that the agent finds."""
        return f"{self.root_dir}/plugins_registry/{self.name}-reg.sock"

    def problem(self) -> str:
        """What is wrong with the options; empty if nothing is."""
        if not _NAME.fullmatch(self.name):
            return f"--driver-name {self.name!r}: must have at most 63 letters, digits, '-' and '.'"
        if not self.root_dir.startswith("/") or not self.data_dir.startswith("/"):
            return "--root-dir and --data-dir must be absolute paths"
        longest = max(len(os.fsencode(path)) for path in (self.endpoint, self.registration))
        if longest > MAX_SOCKET_PATH:
            return f"--root-dir and --driver-name: the sockets' paths are longer than {MAX_SOCKET_PATH} bytes"
        if not 0 <= self.max_volumes < 1 << 31:
            return f"--max-volumes {self.max_volumes}: must be 0 (no limit) or a positive number"
        return self.ephemeral.problem()


def main(argv: Sequence[str]) -> int:
    """Run the command; returns its exit code."""
    if argv and argv[0] in volume_commands.COMMANDS:
        return volume_commands.main(argv, NAME, ROOT_DIR)
    parsed = build_parser().parse_args(argv)
    root, data = parsed.root_dir.rstrip("/"), parsed.data_dir.rstrip("/")
    limits = EphemeralLimits(parsed.max_ephemeral_size, parsed.default_ephemeral_size)
    options = DriverOptions(
        parsed.driver_name, root, data, parsed.node_id, parsed.max_volumes, parsed.kubeconfig, limits
    )
    if problem := options.problem():
        print(f"Error: {problem}", file=sys.stderr)
        return 1
    try:
        access = load_access(options.kubeconfig) if options.kubeconfig else None
    except KubeconfigError as error:
        print(f"Error: --kubeconfig: {error}", file=sys.stderr)
        return 1
    set_up_logging(parsed.v)
    log.info("starting", version=FULL, driver=options.name, data_dir=options.data_dir)
    return asyncio.run(_serve(options, access))


def build_methods(options: DriverOptions) -> dict[str, Method]:
    """All methods of the driver's own socket."""
    return build_services(options)[1]


def build_services(options: DriverOptions) -> tuple[ControllerService, dict[str, Method]]:
    """The Controller service, and all methods of the driver's own socket."""
    volumes = LocalVolumes(f"{options.data_dir}/volumes")
    topology = {f"topology.{options.name}/node": options.node_id}
    identity = NodeIdentity(options.node_id, options.max_volumes, topology)
    controller = ControllerService(volumes, options.name, FULL, topology)
    return controller, controller.methods() | NodeService(volumes, identity, options.ephemeral).methods()


async def serve_driver(options: DriverOptions, methods: dict[str, Method]) -> None:
    """Serve the driver's socket, and then the one by which the agent finds it, until cancelled."""
    registration = RegistrationService(options.name, options.endpoint)
    async with Supervisor("csi-local") as tasks:
        server = RpcServer(Services(methods), RpcLimits(connections=MAX_CONNECTIONS))
        driver = keep_serving_socket(server.serve, options.endpoint, "CSI")
        registrar = keep_serving_socket(
            RpcServer(Services(registration.methods())).serve, options.registration, "plugin registration"
        )
        tasks.start_root("csi", driver)
        tasks.start_root("registration", registrar)
        raise await tasks.wait_failed()


async def _serve(options: DriverOptions, access: ClusterAccess | None) -> int:
    stop, clock = asyncio.Event(), SystemClock()
    ending = Ending(stop.set, clock)
    ending.install(asyncio.get_running_loop())
    controller, methods = build_services(options)
    parts: dict[str, Coroutine[Any, Any, None]] = {"serve": serve_driver(options, methods)}
    parts["monitor"] = Monitor(ending, clock).run()
    if access is not None:
        client = ApiClient(access, clock, user_agent=options.name)
        parts["provision"] = Provisioner(client, controller, options.name, options.node_id, clock).run()
    failure = await run_until(stop, parts)
    if failure is not None:
        log.error("ending because a part of the driver crashed; volumes stay mounted", error=repr(failure))
        return 1
    log.info("stopped; volumes stay mounted")
    return 0


def build_parser() -> argparse.ArgumentParser:
    """The options of the command line."""
    parser = argparse.ArgumentParser(
        prog="pykubelet csi-local",
        description="Run a CSI driver whose volumes are directories and image files on this machine. Needs root.",
        epilog=f"Volumes of the running driver: pykubelet csi-local {'|'.join(volume_commands.COMMANDS)} --help",
        allow_abbrev=False,
    )
    parser.add_argument("--driver-name", metavar="NAME", default=NAME, help=f"the driver's name (default {NAME})")
    parser.add_argument(
        "--root-dir", metavar="DIR", default=ROOT_DIR, help="the agent's root directory (default %(default)s)"
    )
    parser.add_argument(
        "--data-dir",
        metavar="DIR",
        default="/var/lib/pykubelet-csi-local",
        help="where the volumes are kept (default %(default)s)",
    )
    parser.add_argument(
        "--node-id", metavar="ID", default=socket.gethostname(), help="the machine's id (default: its host name)"
    )
    parser.add_argument(
        "--max-volumes", metavar="N", type=int, default=0, help="the most volumes on this machine (default: no limit)"
    )
    limits = EphemeralLimits()
    parser.add_argument(
        "--max-ephemeral-size",
        metavar="SIZE",
        type=_size,
        default=limits.max_bytes,
        help=f"the largest inline volume of a pod; 0: there are none (default {format_size(limits.max_bytes)})",
    )
    parser.add_argument(
        "--default-ephemeral-size",
        metavar="SIZE",
        type=_size,
        default=limits.default_bytes,
        help=f"the size of an inline volume that has none (default {format_size(limits.default_bytes)})",
    )
    parser.add_argument(
        "--kubeconfig",
        metavar="FILE",
        default="",
        help="create and delete volumes for the claims of this cluster, whose only node is this machine (--node-id: its name)",
    )
    parser.add_argument("-v", metavar="LEVEL", type=int, default=0, help="verbosity of the log")
    return parser


def _size(text: str) -> int:
    try:
        return parse(text).value()
    except QuantityError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def build_volumes_parser() -> argparse.ArgumentParser:
    """The options of the commands on the volumes of the running driver."""
    return volume_commands.build_parser(NAME, ROOT_DIR)
