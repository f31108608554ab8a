"""`pykubelet csi-local create|list|expand|delete`: volumes of the running driver, for people without a cluster that provisions.

Calls the driver's Controller service. Exit codes: 0 done, 1 refused or the driver does not answer, 2 wrong command line.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import sys
from collections.abc import Sequence

from pykubelet.base.api.quantity import Amount, Format, QuantityError, parse
from pykubelet.edges.csi import csi_pb2 as pb
from pykubelet.net.grpc.call import Message, R, call
from pykubelet.net.grpc.channel import MAX_SOCKET_PATH, Channel, unix_dial
from pykubelet.net.grpc.limits import Http2Limits
from pykubelet.net.grpc.status import Code, RpcError

COMMANDS = ("create", "list", "expand", "delete")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?")
_MODE = pb.VolumeCapability.AccessMode(mode="SINGLE_NODE_WRITER")
CALL_S = 120.0
#: The driver is trusted; a page of its list of volumes is far smaller.
LIMITS = Http2Limits(header_list=16 << 10, message=1 << 20, stream_window=1 << 20, connection_window=1 << 20)


def main(argv: Sequence[str], name: str, root_dir: str) -> int:
    """Run the command; returns its exit code. `name`, `root_dir`: the defaults of the driver's options."""
    options = build_parser(name, root_dir).parse_args(argv)
    try:
        text = asyncio.run(_run(options))
    except (RpcError, QuantityError, ValueError) as error:
        is_away = isinstance(error, RpcError) and error.code is Code.UNAVAILABLE
        hint = ". Does the driver run? `pykubelet csi-local` starts it" if is_away else ""
        print(f"Error: {error}{hint}", file=sys.stderr)
        return 1
    print(text, end="")
    return 0


async def _run(options: argparse.Namespace) -> str:
    endpoint = f"{options.root_dir.rstrip('/')}/plugins/{options.driver_name}/csi.sock"
    if not endpoint.startswith("/") or len(os.fsencode(endpoint)) > MAX_SOCKET_PATH:
        raise ValueError(
            f"--root-dir and --driver-name: {endpoint!r} is no absolute path of at most {MAX_SOCKET_PATH} bytes"
        )
    driver = _Driver(endpoint)
    match options.command:
        case "create":
            return await _create(driver, options)
        case "list":
            return await _list(driver)
        case "expand":
            size = pb.CapacityRange(required_bytes=_bytes(options.size))
            request = pb.ControllerExpandVolumeRequest(volume_id=options.name, capacity_range=size)
            answer = await driver.call("ControllerExpandVolume", request, pb.ControllerExpandVolumeResponse)
            later = "; its file system grows when it is mounted next" if answer.node_expansion_required else ""
            return f"{options.name} has {format_size(answer.capacity_bytes)}{later}\n"
        case _:
            await driver.call("DeleteVolume", pb.DeleteVolumeRequest(volume_id=options.name), pb.DeleteVolumeResponse)
            return f"{options.name} deleted\n"


class _Driver:
    """The Controller service at `endpoint`."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint

    async def call(self, method: str, request: Message, answer: type[R]) -> R:
        """Call a method once. Raises RpcError."""
        channel = Channel(unix_dial(self._endpoint), LIMITS)
        try:
            return await call(channel, f"/csi.v1.Controller/{method}", request, answer, CALL_S)
        finally:
            channel.close()


async def _create(driver: _Driver, options: argparse.Namespace) -> str:
    """Create the volume. Returns the manifest of its PersistentVolume."""
    if not _NAME.fullmatch(options.name):
        raise ValueError(f"{options.name!r}: must have at most 63 lower-case letters, digits, '-' and '.'")
    capability = pb.VolumeCapability(access_mode=_MODE)
    (capability.block if options.block else capability.mount).SetInParent()
    request = pb.CreateVolumeRequest(
        name=options.name,
        capacity_range=pb.CapacityRange(required_bytes=_bytes(options.size)),
        volume_capabilities=[capability],
        parameters={"backing": options.backing} if options.backing else {},
    )
    made = (await driver.call("CreateVolume", request, pb.CreateVolumeResponse)).volume
    return (
        "apiVersion: v1\n"
        "kind: PersistentVolume\n"
        f"metadata: {{name: {options.name!r}}}\n"
        "spec:\n"
        "  accessModes: [ReadWriteOnce]\n"
        f"  capacity: {{storage: {format_size(made.capacity_bytes)}}}\n"
        f"  csi: {{driver: {options.driver_name}, volumeHandle: {made.volume_id!r}}}\n"
        "  persistentVolumeReclaimPolicy: Retain\n"
        f"  volumeMode: {'Block' if options.block else 'Filesystem'}\n"
    )


async def _list(driver: _Driver) -> str:
    rows, token = [("NAME", "SIZE", "BACKING")], ""
    while True:
        request = pb.ListVolumesRequest(starting_token=token)
        answer = await driver.call("ListVolumes", request, pb.ListVolumesResponse)
        volumes = [entry.volume for entry in answer.entries]
        rows += [
            (volume.volume_id, format_size(volume.capacity_bytes), volume.volume_context["backing"])
            for volume in volumes
        ]
        token = answer.next_token
        if not token:
            break
    width = max(len(name) for name, _, _ in rows)
    return "".join(f"{name:{width}}  {size:10}  {backing}\n" for name, size, backing in rows)


def _bytes(quantity: str) -> int:
    size = parse(quantity).value()
    if size <= 0:
        raise ValueError(f"--size {quantity}: must be greater than zero")
    return size


def format_size(size: int) -> str:
    """A size in bytes as a quantity; 0: there is no limit."""
    return str(Amount(size * 1_000_000_000, Format.BINARY_SI)) if size else "no limit"


def build_parser(name: str, root_dir: str) -> argparse.ArgumentParser:
    """The options of the command line. `name`, `root_dir`: their defaults."""
    parser = argparse.ArgumentParser(
        prog="pykubelet csi-local", description="Manage the volumes of the running driver.", allow_abbrev=False
    )
    commands = parser.add_subparsers(dest="command", required=True)
    made = {
        command: commands.add_parser(command, help=text, description=f"{text[:1].upper()}{text[1:]}.")
        for command, text in _HELP.items()
    }
    for command, its in made.items():
        its.add_argument("--driver-name", metavar="NAME", default=name, help="the driver's name (default %(default)s)")
        its.add_argument(
            "--root-dir", metavar="DIR", default=root_dir, help="the agent's root directory (default %(default)s)"
        )
        if command != "list":
            its.add_argument("name", metavar="VOLUME", help="the name of the volume")
    made["expand"].add_argument("--size", metavar="SIZE", required=True, help="the new size, such as 5Gi")
    made["create"].add_argument("--size", metavar="SIZE", default="1Gi", help="the size (default %(default)s)")
    made["create"].add_argument("--backing", choices=("directory", "image"), help="where the data are")
    made["create"].add_argument("--block", action="store_true", help="a block volume instead of a file system")
    return parser


_HELP = {
    "create": "create a volume, and print the manifest of a PersistentVolume for it",
    "list": "list the persistent volumes",
    "expand": "give a volume a larger size",
    "delete": "delete a volume with its data, unless it is mounted",
}
