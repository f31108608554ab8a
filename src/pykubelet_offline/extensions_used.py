"""The extensions of a command line, for simulations and replays: loaded and asked as by the agent, with its limits and checks."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import TracebackType

from pykubelet.app.extensions.guard import Board
from pykubelet.app.extensions.load import check_policy, load_extensions
from pykubelet.app.extensions.wiring import ask_points
from pykubelet.app.parts import Points
from pykubelet.base.kit.cells import Sink, make_cell
from pykubelet.base.kit.clock import Clock, SystemClock
from pykubelet.base.kit.text import escape_controls
from pykubelet.base.model.extensions import ExtensionStates
from pykubelet.base.model.kube_events import KubeEvent
from pykubelet.config.errors import ConfigError
from pykubelet.config.settings import Settings
from pykubelet.edges.host.services.limited_call import CallLimits, LimitedCalls
from pykubelet.provide.placement.cpu_policy import ChooseCpus
from pykubelet_offline.simulate_input import InputError


class ExtensionsUsed:
    """The points of the extensions. Raises InputError for one that the agent would refuse."""

    def __init__(self, given: Iterable[str], clock: Clock | None = None) -> None:
        try:
            loaded = load_extensions(given)
        except ConfigError as error:
            raise InputError(str(error)) from None
        if loaded.programs:
            raise InputError(f"{loaded.programs[0].path}: a process is not simulated: it takes part in no decision")
        self._loaded = loaded
        self._calls = LimitedCalls(CallLimits())
        self._states, writer = make_cell("extensions", ExtensionStates())
        board = Board(writer, Sink[KubeEvent](), clock or SystemClock())
        self.points: Points = ask_points(loaded, self._calls, board, lambda name, content: "")[0]  # noqa: ARG005

    def report_failures(self) -> None:
        """Print what went wrong in them."""
        for failure in self.failures:
            print(f"Error: an extension has failed: {escape_controls(failure)}", file=sys.stderr)

    @property
    def failures(self) -> list[str]:
        """What went wrong in them."""
        return [f"{state.name}: {state.error}" for state in self._states.get().extensions if state.error]

    @property
    def policy(self) -> tuple[str, ChooseCpus] | None:
        """The CPU policy of the first one that has one: its name, and how it is asked."""
        return next(iter(self.points.place.items()), None)

    def check_policy(self, settings: Settings) -> None:
        """Raise InputError unless the CPU policy of the configuration is a built-in one, or one of the extensions."""
        try:
            check_policy(settings.config, self._loaded)
        except ConfigError as error:
            raise InputError(str(error)) from None

    def __enter__(self) -> ExtensionsUsed:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._calls.close()
