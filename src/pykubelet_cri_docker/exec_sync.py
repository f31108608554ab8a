"""ExecSync: a command in a container, with its output and exit code.

Source: the CRI API; the Docker Engine API reference, "Attach to a container", for the heads of output.
"""

from __future__ import annotations

import asyncio
import os
import signal
import struct
from contextlib import suppress

from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.net.grpc.status import Code, RpcError
from pykubelet_cri_docker.engine import messages as docker
from pykubelet_cri_docker.engine.client import Engine
from pykubelet_cri_docker.engine.transport import RawStream

#: Bytes of each output; what follows is read and dropped.
OUTPUT_BYTES = 8 << 20
#: Docker notes the exit code a moment after the end of the output.
EXIT_READS, EXIT_PAUSE_S = 50, 0.02
STDERR = 2
_HEAD = struct.Struct(">BxxxL")
_PIECE = 64 << 10


async def exec_sync(engine: Engine, container_id: str, command: list[str], timeout_s: int) -> pb.ExecSyncResponse:
    """Run a command. After `timeout_s` (0: no limit) it is killed, and the call fails with DEADLINE_EXCEEDED."""
    wanted = docker.NewExec(command, attach_stdout=True, attach_stderr=True)
    exec_id = await engine.create_exec(container_id, wanted)
    stream = await engine.start_exec(exec_id, tty=False)
    try:
        async with asyncio.timeout(timeout_s or None):
            stdout, stderr = await _read(stream)
            return pb.ExecSyncResponse(stdout=stdout, stderr=stderr, exit_code=await _exit_code(engine, exec_id))
    except TimeoutError as error:
        message = f"command {' '.join(command)!r} timed out: timeout {timeout_s}s exceeded: context deadline exceeded"
        raise RpcError(Code.DEADLINE_EXCEEDED, message) from error
    finally:
        stream.close()
        await _end(engine, exec_id)


async def _read(stream: RawStream) -> tuple[bytes, bytes]:
    outputs = bytearray(), bytearray()
    while True:
        try:
            source, size = _HEAD.unpack(await stream.reader.readexactly(_HEAD.size))
        except asyncio.IncompleteReadError:
            return bytes(outputs[0]), bytes(outputs[1])
        output = outputs[source == STDERR]
        while size:
            piece = await stream.reader.read(min(size, _PIECE))
            if not piece:
                break
            size -= len(piece)
            output += piece[: max(0, OUTPUT_BYTES - len(output))]


async def _exit_code(engine: Engine, exec_id: str) -> int:
    for _ in range(EXIT_READS):
        state = await engine.inspect_exec(exec_id)
        if not state.running and state.exit_code is not None:
            return state.exit_code
        await asyncio.sleep(EXIT_PAUSE_S)
    raise RpcError(Code.UNKNOWN, "the command closed its output and still runs")


async def _end(engine: Engine, exec_id: str) -> None:
    """Kill a command that still runs: Docker has no call for it, so the process on the host gets the signal."""
    state = await engine.inspect_exec(exec_id)
    if state.running and state.pid > 0:
        with suppress(ProcessLookupError):
            os.kill(state.pid, signal.SIGKILL)
