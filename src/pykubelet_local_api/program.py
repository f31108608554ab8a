"""`pykubelet local-api`: serves the Kubernetes API for this node until a signal to stop. Pods run on without it.

Exit codes: 0 stopped by a signal, 1 an option or a file cannot be used or the program crashed, 2 wrong command line.
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
from pykubelet.edges.host.services.allocator import spare_memory
from pykubelet.edges.host.services.ending import Ending
from pykubelet.edges.host.services.monitor import Monitor
from pykubelet_local_api.options import DATA_DIR, LocalApiOptions, read_options

log = Log("local-api")


def main(argv: Sequence[str]) -> int:
    """Run the command; returns its exit code."""
    if argv[:1] == ["export"]:
        from pykubelet_local_api.export.command import export

        return export(argv[1:], DATA_DIR)
    if argv[:1] == ["status"]:
        from pykubelet_local_api.status import status

        return status(argv[1:], DATA_DIR)
    options = read_options(argv)
    if problem := options.problem():
        print(f"Error: {problem}", file=sys.stderr)
        return 1
    spare_memory()
    set_up_logging(options.verbosity)
    log.info("starting", version=FULL, data_dir=options.data_dir)
    import uvloop  # after the options were checked

    return uvloop.run(_serve(options))


async def _serve(options: LocalApiOptions) -> int:
    from pykubelet_local_api.begin import LocalApiStartError, begin

    stop, clock = asyncio.Event(), SystemClock()
    ending = Ending(stop.set, clock)
    ending.install(asyncio.get_running_loop())
    try:
        begun = begin(options, clock.wall())
        from pykubelet_local_api.wiring import build  # while the certificates are made

        program = build(options, clock, begun)
    except LocalApiStartError as error:
        log.fatal(str(error))
        return 1
    log.info("serving", url=program.url, kubeconfig=program.kubeconfig)
    parts: dict[str, Coroutine[Any, Any, None]] = {"monitor": Monitor(ending, clock).run(), **program.parts()}
    failure = await run_until(stop, parts)
    program.close()
    if failure is not None:
        log.error("ending because a part of the program crashed; pods run on", error=repr(failure))
        return 1
    log.info("stopped; pods run on")
    return 0
