"""`pykubelet cri-docker`: serves the CRI over Docker Engine until a signal to stop. Containers run on without it.

Exit codes: 0 stopped by a signal, 1 an option cannot be used or the program crashed, 2 wrong command line.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine, Sequence
from typing import Any

from pykubelet.base.kit.clock import SystemClock
from pykubelet.base.kit.log import Log, set_up_logging
from pykubelet.base.kit.supervise import run_until
from pykubelet.base.model.version import FULL
from pykubelet.edges.host.services.ending import Ending
from pykubelet.edges.host.services.monitor import Monitor
from pykubelet.edges.host.services.unix_socket import keep_serving_socket
from pykubelet.net.grpc.server import RpcServer
from pykubelet.net.grpc.services import RpcLimits
from pykubelet_cri_docker.options import Options, read_options

log = Log("cri-docker")
#: Clients are root's own programs: an agent, `crictl`. A connection may wait for a call for as long as it wants.
LIMITS = RpcLimits(connections=1000, idle_s=1e9, calls=1000, request=16 << 20)


def main(argv: Sequence[str]) -> int:
    """Run the command; returns its exit code."""
    options = read_options(argv)
    if problem := options.problem():
        print(f"Error: {problem}", file=sys.stderr)
        return 1
    set_up_logging(options.verbosity)
    log.info("starting", version=FULL, docker=options.docker_socket)
    return asyncio.run(_serve(options))


async def _serve(options: Options) -> int:
    from pykubelet_cri_docker.wiring import build  # after the options were checked

    stop, clock = asyncio.Event(), SystemClock()
    ending = Ending(stop.set, clock)
    ending.install(asyncio.get_running_loop())
    program = build(options)
    parts: dict[str, Coroutine[Any, Any, None]] = {
        "cri": keep_serving_socket(RpcServer(program.services, LIMITS).serve, options.socket, "the CRI"),
        "monitor": Monitor(ending, clock).run(),
        "logs": program.keep_logs(),
        "streams": program.streaming.serve(),
    }
    failure = await run_until(stop, parts)
    if failure is not None:
        log.error("ending because a part of the program crashed; containers run on", error=repr(failure))
        return 1
    log.info("stopped; containers run on")
    return 0
