"""ExecSync: a command in a container, with its output and exit code.

Source: the CRI API.
"""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress

from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.net.grpc.status import Code, RpcError
from pykubelet_cri_docker.engine import messages as docker
from pykubelet_cri_docker.engine.client import Engine
from pykubelet_cri_docker.engine.output import OutputReader
from pykubelet_cri_docker.engine.transport import RawStream

#: Bytes of each output; what follows is read and dropped. Both fit into the largest message that a kubelet takes (16 MiB).
OUTPUT_BYTES = 7 << 20
#: Docker notes the exit code a moment after the end of the output.
EXIT_READS, EXIT_PAUSE_S = 50, 0.02


async def exec_sync(engine: Engine, container_id: str, command: list[str], timeout_s: int) -> pb.ExecSyncResponse:
    """Run a command. After `timeout_s` (0: no limit) it is killed, and the call fails with DEADLINE_EXCEEDED."""
    wanted = docker.NewExec(command, attach_stdout=True, attach_stderr=True)
    exec_id = await engine.create_exec(container_id, wanted)
    stream = await engine.start_exec(exec_id, tty=False)
    try:
        async with asyncio.timeout(timeout_s or None):
            stdout, stderr = await _read(stream)
            return pb.ExecSyncResponse(stdout=stdout, stderr=stderr, exit_code=await read_exit_code(engine, exec_id))
    except TimeoutError as error:
        message = f"command {' '.join(command)!r} timed out: timeout {timeout_s}s exceeded: context deadline exceeded"
        raise RpcError(Code.DEADLINE_EXCEEDED, message) from error
    finally:
        stream.close()
        await end_exec(engine, exec_id)


async def _read(stream: RawStream) -> tuple[bytes, bytes]:
    outputs, reader = (bytearray(), bytearray()), OutputReader()
    while data := await stream.read():
        for is_stderr, piece in reader.feed(data):
            output = outputs[is_stderr]
            output += piece[: max(0, OUTPUT_BYTES - len(output))]
    return bytes(outputs[0]), bytes(outputs[1])


async def read_exit_code(engine: Engine, exec_id: str) -> int:
    """The exit code of a command after the end of its output. Raises RpcError if it still runs."""
    for _ in range(EXIT_READS):
        state = await engine.inspect_exec(exec_id)
        if not state.running and state.exit_code is not None:
            return state.exit_code
        await asyncio.sleep(EXIT_PAUSE_S)
    raise RpcError(Code.UNKNOWN, "the command closed its output and still runs")


async def end_exec(engine: Engine, exec_id: str) -> None:
    """Kill a command that still runs, and wait for its end. Docker has no call for it, so the process on the host gets the signal.

    Docker shows a command as running a moment before its process is there.
    """
    killed = 0
    for _ in range(EXIT_READS):
        state = await engine.inspect_exec(exec_id)
        if not state.running:
            return
        if state.pid > 0 and state.pid != killed:
            killed = state.pid
            with suppress(ProcessLookupError):
                os.kill(killed, signal.SIGKILL)
        await asyncio.sleep(EXIT_PAUSE_S)
