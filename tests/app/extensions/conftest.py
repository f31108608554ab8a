"""Extensions as the agent has them, for the tests of each point."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from pykubelet.app.extensions.guard import Board, Guard
from pykubelet.app.extensions.load import POINTS, LoadedExtension
from pykubelet.app.extensions.points import Asker
from pykubelet.app.parts import Points
from pykubelet.base.kit.cells import Cell, Mailbox, make_cell
from pykubelet.base.kit.clock import ManualClock
from pykubelet.base.model.extensions import ExtensionState, ExtensionStates
from pykubelet.base.model.kube_events import KubeEvent
from pykubelet.edges.host.services.limited_call import CallLimits, LimitedCalls
from pykubelet.extension import Extension


class Host:
    """Extensions as the agent has them."""

    def __init__(self, *extensions: Extension) -> None:
        self.cell: Cell[ExtensionStates]
        self.cell, writer = make_cell("extensions", ExtensionStates())
        self.events: Mailbox[KubeEvent] = Mailbox("events")
        self.calls = LimitedCalls(CallLimits())
        board = Board(writer, self.events, ManualClock())
        loaded = []
        for extension in extensions:
            points = tuple(name for name in POINTS if name in vars(type(extension)))
            state = ExtensionState(extension.name, "", "x.py", points)
            loaded.append(
                (LoadedExtension(extension, "x.py", b"", points, extension.annotation), Guard(state, self.calls, board))
            )
        self.guards = [guard for _, guard in loaded]
        self.points: Points = Asker(loaded).points()

    @property
    def state(self) -> ExtensionState:
        return self.cell.get().extensions[0]


@pytest.fixture
def hosts() -> Iterator[Callable[..., Host]]:
    made: list[Host] = []

    def make(*extensions: Extension) -> Host:
        made.append(Host(*extensions))
        return made[-1]

    yield make
    for host in made:
        host.calls.close()
