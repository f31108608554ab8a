"""What the Makefile calls: `python3 -m testbed COMMAND` with `tools` on PYTHONPATH; `--help` lists the commands."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path

from testbed import (
    cluster,
    containerd,
    controlplane,
    controlplane_programs,
    environment,
    images,
    node,
    packages,
    runtimes,
)
from testbed.host import TestbedError

CHECKOUT = Path(__file__).resolve().parents[2]
STORAGE = "run-storage"


def main() -> int:
    """Do one of the commands; a failure is one message and exit code 1."""
    parser = argparse.ArgumentParser(prog="testbed", description="The surroundings of a node.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("env", help="make .venv")
    commands.add_parser("packages", help="install what the tests need from Debian")
    commands.add_parser("programs", help="find or build the programs of a control plane; prints their version")
    for name, text in (
        ("run", "start the node and show its pods until Ctrl-C"),
        ("run-cluster", "start a cluster of one node and show its pods until Ctrl-C"),
        (STORAGE, "start a cluster of one node with a CSI driver, and show its pods until Ctrl-C"),
        ("control-plane", "start only a control plane; prints its administrator's kubeconfig"),
        ("up", "start only the private containerd, with all images; prints its socket"),
        ("down", "remove the node and everything it made"),
    ):
        command = commands.add_parser(name, help=text)
        folder = (
            f".{name}" if name in ("run-cluster", STORAGE) else ".run-cluster" if name == "control-plane" else ".run"
        )
        command.add_argument("--folder", type=Path, default=CHECKOUT / folder)
        if name == "run":
            command.add_argument("--manifests", type=Path, default=CHECKOUT / "examples")
            command.add_argument(
                "--api", action="store_true", help="with the local API, to which the manifests are applied"
            )
            command.add_argument("--runtime", choices=runtimes.OFFERED, help="default: containerd, or what there is")
            command.add_argument("--flags", type=shlex.split, default=(), help="more flags of the agent")
        if name == "run-cluster":
            command.add_argument("--examples", type=Path, default=CHECKOUT / "examples" / "cluster")
        if name == STORAGE:
            command.add_argument("--examples", type=Path, default=CHECKOUT / "examples" / "storage")
    command = commands.add_parser("test-runtimes", help="run the tests that depend on the runtime on each runtime")
    command.add_argument("--folder", type=Path, default=CHECKOUT / ".runtimes", help="where runtimes are unpacked")
    command.add_argument("--workers", type=int, default=2)
    command.add_argument("names", nargs="*", help="installed, a suite of Debian, or a folder of programs")
    options = parser.parse_args()
    try:
        return _do(options)
    except (TestbedError, images.ImageError) as error:
        print(f"{options.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _need_root() -> None:
    if os.geteuid() != 0:
        raise TestbedError("run as root: a node makes mounts, cgroups and network interfaces")


def _do(options: argparse.Namespace) -> int:
    match options.command:
        case "env":
            environment.ensure(CHECKOUT)
        case "packages":
            packages.ensure(packages.NODE, packages.DOCKER, packages.ROOTLESS, packages.TESTS)
            packages.unpack_missing()
        case "run":
            _need_root()
            bin_dir = runtimes.prepare(options.runtime, options.folder)
            program = environment.ensure(CHECKOUT)
            return node.run(program, options.folder, options.manifests, bin_dir, options.flags, has_api=options.api)
        case "run-cluster":
            _need_root()
            packages.ensure(packages.NODE, packages.CLUSTER)
            return cluster.run(environment.ensure(CHECKOUT), options.folder, options.examples)
        case "run-storage":
            _need_root()
            packages.ensure(packages.NODE, packages.CLUSTER)
            again = f"make {STORAGE}"
            return cluster.run(environment.ensure(CHECKOUT), options.folder, options.examples, again, has_storage=True)
        case "test-runtimes":
            _need_root()
            python = environment.ensure(CHECKOUT).with_name("python")
            return runtimes.test(CHECKOUT, python, options.folder, options.names, options.workers)
        case "programs":
            print(f"control plane 1.{controlplane_programs.find().minor}")
        case "control-plane":
            print(controlplane.up(options.folder).admin)
        case "up":
            _need_root()
            packages.ensure(packages.NODE)
            print(containerd.up(options.folder, tuple(images.BUILDERS)).socket)
        case "down":
            _need_root()
            node.down(options.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
