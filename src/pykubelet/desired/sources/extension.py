"""The source of a process extension: the process sends its whole set of pods whenever it changes.

Owns: what happens while the process is away. Its last set stays. Before it has sent one, the roster waits for it until the process has
missed its answer to `hello`, or has not sent a set in time after it; then the roster is ready without it, and pods that the process
had before a restart of the agent are left as they are.
"""

from __future__ import annotations

import asyncio

from pykubelet.base.kit.cells import Post, set_on_change, within
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.flight import SingleFlight
from pykubelet.base.model.extension_process import ExtensionProcessState, Point
from pykubelet.base.model.roster import SourceChanged
from pykubelet.desired.sources.decode import ManifestRules
from pykubelet.desired.sources.listed import ListedPods
from pykubelet.desired.sources.static import Origin
from pykubelet.edges.plugins.extension_process import ExtensionProcess

#: How long the roster waits for the first set of a process that has answered `hello`: seconds.
FIRST_SET_S = 10.0
#: The pause after a set was decoded, by the time that this took: sets that change all the time leave the CPU to others.
PAUSE_SHARE = 4.0
_HEAD, _TAIL = b'{"apiVersion":"v1","kind":"PodList","items":', b"}"


def extension_source(name: str) -> str:
    """The name of the source of an extension."""
    return f"extension:{name}"


class ExtensionSource:
    """The pods of one process, posted to `out`."""

    def __init__(self, process: ExtensionProcess, rules: ManifestRules, out: Post[SourceChanged], clock: Clock) -> None:
        source = extension_source(process.name)
        flight = SingleFlight(source, 1)
        self._process = process
        self._clock = clock
        self._listed = ListedPods(Origin(source, source, source), rules, out, clock, flight)
        self._taken = 0
        self._run = 0
        self._overdue_at: float | None = None

    async def run(self) -> None:
        """Follow the process until cancelled."""
        wakeup = asyncio.Event()
        with set_on_change(wakeup, self._process.state, self._process.pods):
            while True:
                if not await within(self._left_s(), wakeup.wait()):
                    self._overdue_at = None
                    self._listed.give_up("it has not sent its pods yet")
                    continue
                wakeup.clear()
                await self._follow()

    async def _follow(self) -> None:
        state, pods = self._process.state.get(), self._process.pods.get()
        if pods.number != self._taken:
            self._taken, began = pods.number, self._clock.monotonic()
            await self._listed.take(b"".join((_HEAD, pods.data, _TAIL)))
            await asyncio.sleep(PAUSE_SHARE * (self._clock.monotonic() - began))
        elif state.is_running and not state.offered(Point.SOURCE):
            await self._listed.take(b"")
        if self._listed.is_known:
            self._overdue_at = None
        if not state.is_running:
            self._away(state)
        elif state.run != self._run:
            self._run = state.run
            self._listed.answered()
            if not self._listed.is_known:
                self._overdue_at = self._clock.monotonic() + FIRST_SET_S

    def _away(self, state: ExtensionProcessState) -> None:
        """Note why the process is away, if it was a source or may be one."""
        if state.missed:
            self._listed.give_up(f"it is away: {state.error}")
        elif state.error and state.offered(Point.SOURCE):
            self._listed.failed(f"it is away: {state.error}")

    def _left_s(self) -> float | None:
        return None if self._overdue_at is None else max(0.0, self._overdue_at - self._clock.monotonic())
