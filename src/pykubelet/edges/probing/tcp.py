"""The TCP probe, which passes if a connection can be made.

Source: the Kubernetes documentation "Configure Liveness, Readiness and Startup Probes".
"""

from __future__ import annotations

import asyncio

from pykubelet.base.kit.readiness import Overdue
from pykubelet.edges.probing.dial import MAX_HOST, DialError, dial, join_host_port
from pykubelet.edges.probing.outcome import Outcome, failed, passed


async def probe_tcp(host: str, port: int, timeout_s: float) -> Outcome:
    """Connect within `timeout_s`, and close."""
    if len(host) > MAX_HOST:  # each message about it would have the whole text
        return failed(f"dial tcp: lookup {host[:MAX_HOST]}...: the name is longer than {MAX_HOST} characters")
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    try:
        connection = await dial(host, port, deadline)
    except Overdue:
        return failed(f"dial tcp {join_host_port(host, port)}: i/o timeout", late_s=loop.time() - deadline)
    except DialError as error:
        return failed(str(error))
    connection.close()
    return passed()
