"""`pykubelet images adopt`: images that Docker has in containerd, usable in pods on the same containerd, without a registry.

Exit codes: 0 all images were adopted, 1 one was not, 2 wrong command line.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import sys
from collections.abc import AsyncIterator, Sequence

from pykubelet.base.api.times import format_time
from pykubelet.base.kit.clock import SystemClock
from pykubelet.base.kit.text import escape_controls
from pykubelet.edges.host.proc.procfs import read_architecture
from pykubelet.net.grpc.channel import MAX_SOCKET_PATH, Channel, unix_dial
from pykubelet.net.grpc.status import Code, RpcError
from pykubelet.provide.images.names import InvalidImage, complete_name, parse_image
from pykubelet_images import runtime
from pykubelet_images.adopt import Adoption, AdoptionError, AdoptionLease, adopt
from pykubelet_images.containerd import LIMITS, Containerd
from pykubelet_images.contents import machine_platforms

SOCKET = "/run/containerd/containerd.sock"
DOCKER = "moby"
#: Seconds that the lease of an adoption lasts if it is interrupted.
LEASE_S = 600.0
#: Seconds that the CRI has to take an image in.
KNOWN_S = 10.0
_NO_CRI = (
    'this containerd does not serve the CRI, so no pod runs on it: remove "cri" from disabled_plugins in'
    " /etc/containerd/config.toml, and restart containerd"
)


def main(argv: Sequence[str]) -> int:
    """Run the command; returns its exit code."""
    options = build_parser().parse_args(argv)
    if bool(options.names) == options.all:
        options.refuse("give names of images, or --all")
    return asyncio.run(run(options))


def build_parser() -> argparse.ArgumentParser:
    """The options of the command line."""
    parser = argparse.ArgumentParser(
        prog="pykubelet images",
        description="Images of other namespaces of containerd, for pods.",
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    adopting = commands.add_parser(
        "adopt",
        help="use images of Docker on the same containerd in pods",
        description="Let pods use images that Docker has in the same containerd. Nothing is copied. Needs root.",
        allow_abbrev=False,
    )
    adopting.set_defaults(refuse=adopting.error)
    adopting.add_argument("names", metavar="NAME", nargs="*", help="an image, such as app, app:1 or localhost/app:1")
    adopting.add_argument("--all", action="store_true", help="all images that have a name")
    adopting.add_argument(
        "--containerd-socket", metavar="PATH", default=SOCKET, help="containerd's socket (default %(default)s)"
    )
    adopting.add_argument(
        "--from-namespace", metavar="NAME", default=DOCKER, help="where the images are (default %(default)s)"
    )
    adopting.add_argument(
        "--namespace", metavar="NAME", default=runtime.NAMESPACE, help="where pods need them (default %(default)s)"
    )
    return parser


async def run(options: argparse.Namespace) -> int:
    """Adopt images as the options state; returns the exit code."""
    path = options.containerd_socket.removeprefix("unix://")
    if not path.startswith("/") or len(os.fsencode(path)) > MAX_SOCKET_PATH:
        return _fail(f"--containerd-socket must be an absolute path of at most {MAX_SOCKET_PATH} bytes")
    channel = Channel(unix_dial(path), LIMITS)
    try:
        code = 0
        async for outcome in _outcomes(channel, options):
            if isinstance(outcome, Adoption):
                print(escape_controls(_line(outcome)), flush=True)
            else:
                code = _fail(outcome)
        return code
    except RpcError as error:
        return _fail(_explained(error, path))
    finally:
        channel.close()


async def _outcomes(channel: Channel, options: argparse.Namespace) -> AsyncIterator[Adoption | str]:
    """What became of each image: adopted, or the reason why not. Raises RpcError."""
    source, target = (Containerd(channel, name) for name in (options.from_namespace, options.namespace))
    is_for_pods = options.namespace == runtime.NAMESPACE
    listed = await source.image_names()
    if is_for_pods and not await runtime.is_served(channel):
        yield _NO_CRI
        return
    platforms = machine_platforms(read_architecture(), os.uname().machine)
    for given in _complete_names(listed) if options.all else options.names:
        try:
            parse_image(given)
            adopted = await adopt(source, target, complete_name(given), platforms, _new_lease())
        except (InvalidImage, AdoptionError) as error:
            yield str(error)
            continue
        if is_for_pods and not await runtime.wait_known(channel, adopted.name, adopted.image_id, KNOWN_S):
            yield f"{adopted.name} was adopted, but containerd's CRI does not know it after {KNOWN_S:g} s"
        else:
            yield adopted


def _complete_names(names: Sequence[str]) -> list[str]:
    """Those by which a pod can name an image. Docker has others for images without a name."""
    found = []
    for name in names:
        try:
            parse_image(name)
        except InvalidImage:
            continue
        if complete_name(name) == name and not name.startswith("moby-dangling@"):
            found.append(name)
    return found


def _new_lease() -> AdoptionLease:
    return AdoptionLease(f"pykubelet-adopt-{secrets.token_hex(8)}", format_time(SystemClock().wall() + LEASE_S))


def _line(adopted: Adoption) -> str:
    if adopted.before == adopted.digest:
        return f"{adopted.name} unchanged: {adopted.digest}"
    instead = f", instead of {adopted.before}" if adopted.before else ""
    return f"{adopted.name} adopted: {adopted.digest}{instead}"


def _explained(error: RpcError, path: str) -> str:
    is_no_grpc = error.message.startswith("connection error: ") and "while dialing" not in error.message
    if error.code is Code.UNIMPLEMENTED or is_no_grpc:
        return f"{path} is not containerd's socket: {error.message}"
    if error.code is Code.UNAVAILABLE:
        return f"containerd does not answer at {path}: {error.message}"
    return f"containerd: {error.message}"


def _fail(message: str) -> int:
    print(f"Error: {escape_controls(message)}", file=sys.stderr)
    return 1
