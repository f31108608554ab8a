"""Agents that are brought into a state in which they cannot end by themselves, or that end (`support/blocking_agent.py`)."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from support.agent import Agent
from testbed import host

from pykubelet.edges.host.services.ending import END_S

LAUNCHER = Path(__file__).with_name("blocking_agent.py")
#: Conformance allows 15 s. A busy machine is late.
MOST_S = END_S + 5.0


class BlockingAgent(Agent):
    """An agent that `block` brings into a state, or, after `block_at`, a function that is called for a pod."""

    def command(self, *more: str) -> list[str]:
        return ["setpriv", "--pdeathsig", "KILL", "--", sys.executable, str(LAUNCHER), *super().command(*more)[1:]]

    def block(self) -> None:
        before = self.blocks()
        self.signal(signal.SIGUSR1)
        assert host.wait_until(lambda: self.blocks() > before, 60), self.log_tail()

    def block_at(self, state: str, function: str, text: str) -> None:
        """From the next start on, `function` (its file and name) brings it into the state when called with a text in its arguments."""
        self.environment |= {"PYKUBELET_BLOCK": state, "PYKUBELET_BLOCK_AT": f"{function} {text}"}

    def blocks(self) -> int:
        """How often it was brought into its state."""
        return self.log_text().count("==== state begins")

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def wait(self, within_s: float = MOST_S) -> int:
        """The exit code; negative: the signal that has ended it."""
        assert self.process is not None
        try:
            return self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.environment}: the agent does not end\n{self.log_tail()}") from None
