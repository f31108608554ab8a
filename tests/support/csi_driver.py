"""A CSI driver for tests. `support/csi.py` starts it: as a process of its own (`python -m support.csi_driver`), or in virtual time
within the process.

It is `pykubelet csi-local` that writes all calls to a file of JSON lines, and whose calls hang, fail or end the process when
lines of JSON on the standard input order it. Each line is answered by a line. With the variables of `support/crashing_agent.py`
it kills itself at its effects on the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from google.protobuf.json_format import MessageToDict
from support.crashing_agent import CrashPoints, Wrapped

from pykubelet.edges.csi import csi_pb2 as pb
from pykubelet.edges.host.fs import libc
from pykubelet.net.grpc.services import Method
from pykubelet.net.grpc.status import Code, RpcError
from pykubelet_csi_local.driver import DriverOptions, build_methods, serve_driver


class Observed:
    """Wraps the methods of the driver. A call is written to `log` when it has `begun`, and when it is `done` or has `failed`.

    `behavior`: by call (`NodePublishVolume`), how it is answered:

    `hang`, `crash`, `fail CODE text`, `flood`, `lie` (does nothing); `hang after` and `crash after` do the work before.

    `end`: ends the driver at once, in the middle of a call.
    """

    def __init__(self, log: Path, end: Callable[[], object]) -> None:
        self.log = log
        self.behavior: dict[str, str] = {}
        self._end_driver = end
        self._numbers = itertools.count(1)
        self.info: dict[str, Any] = {}
        self.hidden: list[pb.NodeServiceCapability.RPC.Type] = []
        self.added: list[pb.NodeServiceCapability.RPC.Type] = []

    def wrapped(self, methods: dict[str, Method]) -> dict[str, Method]:
        return {path: self._wrap(path.rpartition("/")[2], call) for path, call in methods.items()}

    def _wrap(self, name: str, call: Method) -> Method:
        async def wrapped(data: bytes) -> bytes:
            request = getattr(pb, f"{name}Request").FromString(data)
            call_id = f"{os.getpid()}-{next(self._numbers)}"
            self._write(name, "begun", call_id, request=MessageToDict(request, preserving_proto_field_name=True))
            how = self.behavior.get(name, "")
            if how.startswith("fail"):
                _, code, text = (*how.split(" ", 2), "")[:3]
                self._write(name, "failed", call_id, code=code)
                raise RpcError(Code[code], text)
            if how in ("hang", "crash"):
                await self._end(how)
            if how == "flood":
                return b"x" * (8 << 20)
            if how == "lie":
                return b""
            try:
                answer = await call(data)
            except RpcError as error:
                self._write(name, "failed", call_id, code=error.code.name)
                raise
            self._write(name, "done", call_id)
            if how in ("hang after", "crash after"):
                await self._end(how)
            return self._changed(name, answer)

        return wrapped

    def _changed(self, name: str, answer: bytes) -> bytes:
        if name == "NodeGetInfo" and self.info:
            found = pb.NodeGetInfoResponse.FromString(answer)
            found.max_volumes_per_node = self.info.get("max", found.max_volumes_per_node)
            found.node_id = self.info.get("id", found.node_id)
            for key, value in self.info.get("topology", {}).items():
                found.accessible_topology.segments[key] = value
            return found.SerializeToString()
        if name == "NodeGetCapabilities" and (self.hidden or self.added):
            known = pb.NodeGetCapabilitiesResponse.FromString(answer)
            left = [capability for capability in known.capabilities if capability.rpc.type not in self.hidden]
            left += [
                pb.NodeServiceCapability(rpc=pb.NodeServiceCapability.RPC(type=capability)) for capability in self.added
            ]
            return pb.NodeGetCapabilitiesResponse(capabilities=left).SerializeToString()
        return answer

    async def _end(self, how: str) -> None:
        if how.startswith("crash"):
            self._end_driver()
        await asyncio.sleep(3600)

    def _write(self, name: str, what: str, call_id: str, **more: Any) -> None:
        with self.log.open("a") as out:
            out.write(json.dumps({"call": name, "is": what, "id": call_id, **more}) + "\n")

    def take(self, command: dict[str, Any]) -> None:
        """Carry out one command of the test."""
        behavior = command["behavior"]
        self.info = behavior.pop("info", self.info)
        self.hidden = behavior.pop("hidden", self.hidden)
        self.added = behavior.pop("added", self.added)
        self.behavior.update(behavior)


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser()
    for name in ("--name", "--root", "--data", "--node", "--log"):
        parser.add_argument(name, required=True)
    parser.add_argument("--max", type=int, default=0)
    parser.add_argument("--behavior", default="{}")
    return parser.parse_args(arguments)


def prepare(given: argparse.Namespace, end: Callable[[], object]) -> tuple[DriverOptions, Observed]:
    """The driver, and what observes its calls."""
    options = DriverOptions(given.name, given.root, given.data, given.node, given.max)
    assert not options.problem(), options.problem()
    observed = Observed(Path(given.log), end)
    observed.take({"behavior": json.loads(given.behavior)})
    return options, observed


async def _main() -> None:
    given = parse_options()
    if "PYKUBELET_CRASH_DONE" in os.environ:
        wrapped = Wrapped(CrashPoints(dict(os.environ)))
        wrapped.install()
        wrapped.install_libc(libc)
    options, observed = prepare(given, lambda: os._exit(3))
    serving = asyncio.get_running_loop().create_task(serve_driver(options, observed.wrapped(build_methods(options))))
    while not all(os.path.exists(path) for path in (options.endpoint, options.registration)):  # noqa: ASYNC110 - a file has no event
        await asyncio.sleep(0.01)
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    print("ready", flush=True)
    while line := await reader.readline():
        observed.take(json.loads(line))
        print("done", flush=True)
    serving.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await serving


if __name__ == "__main__":
    asyncio.run(_main())
