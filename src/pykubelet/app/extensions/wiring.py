"""The wiring of extensions: loads them, and gives the components the points at which they are asked."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Protocol

from pykubelet.app.extensions.cgroup_files import CgroupKernel
from pykubelet.app.extensions.guard import Board, Guard
from pykubelet.app.extensions.load import LoadedExtensions
from pykubelet.app.extensions.points import Asker
from pykubelet.app.extensions.views import NodeNow
from pykubelet.app.parts import Cells, Loops, Points, SharedParts
from pykubelet.base.kit.cells import Mailbox
from pykubelet.base.kit.values import replace
from pykubelet.base.model.extensions import ExtensionState, ExtensionWanted, extension_key
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.services.limited_call import CallLimits, LimitedCalls
from pykubelet.provide.cgroups.decide import driver_path, node_group
from pykubelet.provide.cgroups.model import resource_settings


def wire_extensions(
    m: SharedParts, cells: Cells, loaded: LoadedExtensions, closing: AsyncExitStack
) -> tuple[Points, Loops]:
    """The points of the extensions, and their loops. The main thread calls this."""
    calls = LimitedCalls(call_limits(m.settings.flags.extension_cpu_time_s))
    closing.callback(calls.close)
    board = Board(cells.extensions.writer, m.recorder, m.clock)
    node = NodeNow(cells.node.cell, cells.roster.cell, cells.lifecycles.cell, cells.pressure.cell, m.clock)
    points, guards = ask_points(loaded, calls, board, m.quarantine.reason, partial(read_cgroup_kernel, m), node)
    loops: Loops = []
    enabled: list[Enabled] = [*guards]
    if loaded.programs:
        from pykubelet.app.extensions.processes import wire_processes  # not for extensions that are functions

        wired = wire_processes(m, cells, loaded.programs, board)
        points = replace(points, sources=wired.sources, needs=wired.needs, prober=wired.prober, volumes=wired.volumes)
        loops += wired.loops
        enabled += wired.processes
    return points, [("extensions", enable_wanted(m.extensions_wanted, enabled)), *loops]


def call_limits(cpu_s: float) -> CallLimits:
    """The limits of a call that may use `cpu_s` seconds of CPU time. Pure."""
    default = CallLimits()
    return CallLimits(cpu_s=cpu_s, wall_s=max(default.wall_s, 5 * cpu_s))


def ask_points(
    loaded: LoadedExtensions,
    calls: LimitedCalls,
    board: Board,
    why_off: Callable[[str, bytes], str],
    read_kernel: Callable[[], CgroupKernel] | None = None,
    node: NodeNow | None = None,
) -> tuple[Points, list[Guard]]:
    """The points of the extensions, and the guard of each. `why_off`: why what has this key and content is off; "" if it is not.

    `read_kernel`, `node`: as of `Asker`.
    """
    guards = []
    for item in loaded.extensions:
        extension = item.extension
        off = why_off(extension_key(extension.name), item.content)
        state = ExtensionState(extension.name, extension.version, item.file, item.points, off)
        guards.append((item, Guard(state, calls, board)))
    return Asker(guards, read_kernel, node).points(), [guard for _, guard in guards]


def read_cgroup_kernel(m: SharedParts) -> CgroupKernel:
    """The cgroup files that the machine has: those of the group of all pods. Its pods have the same."""
    group = driver_path(node_group(resource_settings(m.settings, {}, m.driver)), m.driver)
    try:
        return CgroupKernel(m.cgroups.version, m.cgroups.files(group))
    except HostError:
        return CgroupKernel(m.cgroups.version)


class Enabled(Protocol):
    """What `pykubelet extensions enable` enables: the guard of an extension, or its process."""

    @property
    def name(self) -> str:
        """The extension's name."""
        ...

    def enable(self) -> None:
        """Ask the extension again, or start it at once."""
        ...


async def enable_wanted(wanted: Mailbox[ExtensionWanted], extensions: list[Enabled]) -> None:
    """Enable the extensions that are asked for. Never returns."""
    while True:
        names = {event.name for event in await wanted.get_all()}
        for extension in extensions:
            if extension.name in names:
                extension.enable()
