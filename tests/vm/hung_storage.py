"""What goes on beside storage that hangs: the same for every kind."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from support.agent import make_pod
from support.unit import LONG_S, UnitAgent

#: `record_property` of pytest: what it is given stands in the results of the run.
Record = Callable[[str, object], None]


@contextmanager
def timed(record: Record, what: str) -> Iterator[None]:
    """Record how many seconds the block took."""
    began = time.monotonic()
    yield
    record(f"{what}, seconds", round(time.monotonic() - began, 1))


async def others_run(agent: UnitAgent, hung: str, record: Record) -> None:
    """Beside the pod `hung`, the pods `other` and `another` start, and the agent is killed in between and measures all pods."""
    with timed(record, "another pod starts"):
        agent.put(make_pod("other"))
        await agent.wait_running("other", within=LONG_S)
    old = agent.main_pid()
    agent.kill9()
    agent.wait_restarted(old)
    with timed(record, "a pod starts after the agent's restart"):
        agent.put(make_pod("another"))
        await agent.wait_running("another", "other", hung, within=LONG_S)
    with timed(record, "the Summary API answers"):
        assert agent.summary()["pods"]


async def others_end(agent: UnitAgent, hung: str, record: Record) -> None:
    """The pods `hung` and `other` are removed: the second ends, and `another` runs on."""
    agent.remove(hung, "other")
    with timed(record, "another pod ends"):
        await agent.wait_gone("other", within=LONG_S)
    await agent.wait_running("another", within=LONG_S)
