"""Many hollow nodes: some processes with some hundred nodes each.

Owns the division into processes, the pace of the start, and the name of the node in each line of the log. A node whose
agent ends with an error is started again after a while, as a service manager does it.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import resource
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

import uvloop

from hollow.node import HollowNode, Shape
from pykubelet.app.prepare import AgentStartError
from pykubelet.base.kit.log import Log, set_up_logging
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.config.errors import ConfigError

log = Log("hollow")
#: Sockets, connections to the API server, watched directories; more while pods start.
FILES_PER_NODE = 30
#: Each node watches the directories of plugins.
WATCHES_PER_NODE = 2
AGAIN_S = 10.0
_WATCHES = Path("/proc/sys/fs/inotify/max_user_instances")
_NODE: contextvars.ContextVar[str] = contextvars.ContextVar("node", default="-")


def split(first: int, count: int, processes: int) -> list[tuple[int, int]]:
    """First number and count of nodes of each process, as even as can be. Pure."""
    each, more = divmod(count, processes)
    shares, at = [], first
    for process in range(processes):
        size = each + (process < more)
        if size:
            shares.append((at, size))
            at += size
    return shares


class NodeLines:
    """A stream that begins each line with the name of the node that it is about; `-` for none."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write whole lines."""
        name = _NODE.get()
        self._stream.write("".join(f"{name} {line}" for line in text.splitlines(keepends=True)))
        return len(text)

    def flush(self) -> None:
        """Hand on what was written."""
        self._stream.flush()

    def fileno(self) -> int:
        """The descriptor behind it."""
        return self._stream.fileno()


def missing_watches(count: int) -> str:
    """What to do if the kernel lets a user have too few inotify instances for so many nodes; "" if there are enough."""
    wanted = WATCHES_PER_NODE * count + 100
    try:
        allowed = int(_WATCHES.read_text())
    except (OSError, ValueError):
        return ""
    if allowed >= wanted:
        return ""
    return (
        f"fs.inotify.max_user_instances is {allowed}: nodes beyond that look for plugins once a minute only, and other programs "
        f"of this user may fail. Run: sysctl -w fs.inotify.max_user_instances={wanted}"
    )


async def run(shape: Shape, first: int, count: int, rate: float) -> int:
    """Run nodes in this process until SIGTERM or SIGINT. `rate`: how many are started a second."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stop.set)
    async with Supervisor("hollow") as supervisor:
        waiting = supervisor.start_child("signal", stop.wait())
        for number in range(first, first + count):
            supervisor.start_child(shape.name(number), _live(HollowNode(shape, number)))
            await asyncio.wait((waiting,), timeout=1 / rate)
            if stop.is_set():
                return 0
        log.info("all nodes were started", first=shape.name(first), nodes=count)
        gc.freeze()
        gc.set_threshold(50_000, 20, 50)
        await waiting
    return 0


async def _live(node: HollowNode) -> None:
    """One life of the node's agent after the other."""
    _NODE.set(node.name)
    while True:
        try:
            async with node.make() as agent:
                await agent.start()
                error: object = await agent.supervisor.wait_failed()
        except (AgentStartError, ConfigError) as problem:
            error = problem
        log.error("the agent has ended", error=error, again_s=AGAIN_S)
        await asyncio.sleep(AGAIN_S)


def run_process(shape: Shape, first: int, count: int, rate: float, verbosity: int) -> int:
    """The main function of a process with some hundred nodes."""
    sys.stderr = NodeLines(sys.stderr)
    set_up_logging(verbosity)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if most < FILES_PER_NODE * count:
        log.warning("open files are limited (ulimit -n): later nodes fail", limit=most, wanted=FILES_PER_NODE * count)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run(shape, first, count, rate))


def run_all(shares: Sequence[tuple[int, int]], argv: Sequence[str], folder: Path) -> int:
    """Start a process for each share, in a mount namespace of its own, and wait. `argv`: the options of each.

    What the nodes mount is gone with the process. Returns the exit code: that of the first process that failed.
    """
    started: list[subprocess.Popen[bytes]] = []
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        for first, count in shares:
            own = ["--first", str(first), "--count", str(count), "--processes", "1", "--here"]
            command = ["unshare", "--mount", "--propagation", "private", "--"]
            command += [sys.executable, "-m", "hollow", "nodes", *own, *argv]
            with (folder / f"hollow-{first:04d}.log").open("ab") as output:
                started.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output))
        codes = [process.wait() for process in started]
    except KeyboardInterrupt:
        for process in started:
            process.terminate()
        codes = [process.wait() for process in started]
    return next((code for code in codes if code), 0)
