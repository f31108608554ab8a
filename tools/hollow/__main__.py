"""`python -m hollow nodes|kubeconfigs|figures|runtime` with `tools` on PYTHONPATH; `--help` lists the options. See docs/hollow-nodes.md."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from hollow import nodes, runtime
from hollow.credentials import Authority, write_kubeconfigs
from hollow.figures import Figures, FiguresError, Kubectl
from hollow.node import NODES_MAX, Shape
from pykubelet.base.api.quantity import QuantityError, milli_value, value


def main() -> int:
    """Do one of the commands; a failure is one message and exit code 1."""
    words = sys.argv[1:]
    flags = words[words.index("--") + 1 :] if "--" in words else []
    options = parser().parse_args(words[: words.index("--")] if "--" in words else words)
    try:
        if options.command == "runtime":
            asyncio.run(_serve(options.socket, options.image))
            return 0
        if options.command == "kubeconfigs":
            names = map(Shape(options.out, options.prefix).name, range(options.first, options.first + options.count))
            authority = Authority(options.ca_cert, options.ca_key)
            print(write_kubeconfigs(authority, options.server, names, options.out), "written")
            return 0
        if options.command == "figures":
            Figures(Kubectl(options.kubectl, options.kubeconfig)).run(options.pods, options.seconds)
            return 0
        return _run_nodes(options, words, flags)
    except (OSError, ValueError, FiguresError) as error:
        print(f"hollow {options.command}: {error}", file=sys.stderr)
        return 1


def parser() -> argparse.ArgumentParser:
    """The options. Flags of the agents follow after `--`."""
    whole = argparse.ArgumentParser(prog="hollow", description="Nodes without machines, for trying a control plane.")
    commands = whole.add_subparsers(dest="command", required=True)
    many = commands.add_parser(
        "nodes",
        help="run hollow nodes until Ctrl-C",
        usage="hollow nodes [options] -- --bootstrap-kubeconfig FILE [flags of the agents; {node} is the node's name]",
    )
    _add_names(many)
    many.add_argument("--processes", type=int, default=1, help="how many processes share them")
    many.add_argument("--folder", type=Path, default=Path(".hollow"), help="where nodes have their files and logs")
    many.add_argument("--rate", type=float, default=10.0, help="how many nodes of a process are started in a second")
    many.add_argument("--cpu", default="8", help="the CPUs of a node")
    many.add_argument("--memory", default="32Gi", help="the memory of a node")
    many.add_argument("--max-pods", type=int, default=110, help="the pods that a node takes")
    many.add_argument("--port-base", type=int, default=0, help="node n listens at this port plus n; 0: none listens")
    many.add_argument("--config", type=Path, help="a JSON file with fields of KubeletConfiguration for all nodes")
    many.add_argument("-v", type=int, default=0, dest="verbosity", help="the verbosity of the log")
    many.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    keys = commands.add_parser("kubeconfigs", help="sign client certificates of nodes with the cluster's authority")
    _add_names(keys)
    keys.add_argument("--ca-cert", type=Path, required=True, help="the certificate of the authority")
    keys.add_argument("--ca-key", type=Path, required=True, help="its key")
    keys.add_argument("--server", required=True, help="the API server's URL")
    keys.add_argument("--out", type=Path, required=True, help="the folder for <node>.kubeconfig")
    cost = commands.add_parser("figures", help="measure the hollow nodes of this machine and their API server")
    cost.add_argument("--kubeconfig", required=True, help="that of an administrator")
    cost.add_argument("--kubectl", default="kubectl", help="the program")
    cost.add_argument("--pods", type=int, default=0, help="the pods of a Deployment that is made and deleted; 0: none")
    cost.add_argument("--seconds", type=float, default=60.0, help="how long nodes at rest are measured")
    serving = commands.add_parser("runtime", help="serve CRI at a socket for one agent that is a process of its own")
    serving.add_argument("socket", help="the path of the socket")
    serving.add_argument("--image", action="append", default=[], help="an image that is there without a pull")
    return whole


def _add_names(command: argparse.ArgumentParser) -> None:
    command.add_argument("--count", type=int, default=10, help="how many nodes")
    command.add_argument("--first", type=int, default=0, help="the number of the first node")
    command.add_argument("--prefix", default="hollow-", help="what the nodes' names begin with")


async def _serve(path: str, images: list[str]) -> None:
    serving = asyncio.ensure_future(runtime.serve(path, images))
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, serving.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await serving


def _run_nodes(options: argparse.Namespace, words: list[str], flags: list[str]) -> int:
    if options.count < 1 or options.processes < 1 or options.rate <= 0:
        raise ValueError("--count, --processes and --rate must be positive")
    if options.first < 0 or options.first + options.count > NODES_MAX:
        raise ValueError(f"the numbers of nodes must be between 0 and {NODES_MAX - 1}")
    shape = Shape(
        folder=options.folder.resolve(),
        prefix=options.prefix,
        cpu_milli=_amount("--cpu", options.cpu, milli_value),
        memory=_amount("--memory", options.memory, value),
        max_pods=options.max_pods,
        port_base=options.port_base,
        config=json.loads(options.config.read_text()) if options.config else {},
        flags=flags,
    )
    if options.here:
        return nodes.run_process(shape, options.first, options.count, options.rate, options.verbosity)
    if shutil.which("unshare") is None:
        raise ValueError("unshare is missing: install the Debian package util-linux")
    if warning := nodes.missing_watches(options.count):
        print(f"hollow: {warning}", file=sys.stderr)
    shape.folder.mkdir(parents=True, exist_ok=True)
    shares = nodes.split(options.first, options.count, options.processes)
    for first, count in shares:
        log = shape.folder / f"hollow-{first:04d}.log"
        print(f"{shape.name(first)} to {shape.name(first + count - 1)}: log {log}", flush=True)
    return nodes.run_all(shares, _handed_on(words), shape.folder)


def _amount(option: str, text: str, read: Callable[[str], int]) -> int:
    try:
        return read(text)
    except QuantityError as error:
        raise ValueError(f"{option} {text}: {error}") from error


def _handed_on(words: list[str]) -> list[str]:
    """The words for the processes: without the command and what `run_all` decides; later ones would win."""
    kept, skipped = [], False
    decided = ("--count", "--first", "--processes")
    end = words.index("--") if "--" in words else len(words)
    for word in words[1:end]:
        if skipped:
            skipped = False
        elif word in decided:
            skipped = True
        elif not word.startswith(tuple(f"{name}=" for name in decided)):
            kept.append(word)
    return [*kept, *words[end:]]


if __name__ == "__main__":
    sys.exit(main())
