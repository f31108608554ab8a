"""The wiring of extensions that are processes of their own (`docs/extensions/protocol.md`). Imported only if there are some."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pykubelet.act.pods.need_extension import make_extension_need
from pykubelet.act.pods.tools import MakeNeed
from pykubelet.app.extensions.guard import Board
from pykubelet.app.parts import Cells, Loops, SharedParts
from pykubelet.base.kit.flight import SingleFlight
from pykubelet.base.kit.values import Value, replace
from pykubelet.base.model.extension_process import ProcessPhase
from pykubelet.base.model.extensions import ExtensionState
from pykubelet.base.model.kube_events import warning
from pykubelet.base.model.reasons import EVENT_EXTENSION_FAILED
from pykubelet.desired.sources.decode import manifest_rules
from pykubelet.desired.sources.extension import ExtensionSource, extension_source
from pykubelet.edges.plugins.extension_launch import ProcessLauncher
from pykubelet.edges.plugins.extension_limits import ExtensionLimits
from pykubelet.edges.plugins.extension_memory import OfferMemory
from pykubelet.edges.plugins.extension_process import ExtensionProcess, ExtensionProgram
from pykubelet.observe.probes.execute import Prober
from pykubelet.observe.probes.extension import ExtensionProber
from pykubelet.provide.cgroups.decide import driver_path, split_root
from pykubelet.provide.volumes.flex.extension_calls import ProcessVolumes
from pykubelet.provide.volumes.kind import ExtensionVolumes
from pykubelet.report.observers.loop import ObserverLoop

STARTING = "it has not answered hello yet"
ENDED = "it has ended, and is started again"
#: The cgroup of all process extensions, below `cgroupRoot`; each has its own in it.
GROUP = "kubelet-extensions"


class WiredProcesses(Value):
    """What the processes add to the agent.

    `sources`: their names, for the roster, which waits for them for a while. `needs`: further needs of pods, after all others.
    `volumes`: what volumes are asked for, by name.
    """

    processes: tuple[ExtensionProcess, ...]
    loops: Loops
    sources: frozenset[str]
    needs: tuple[MakeNeed, ...]
    volumes: Mapping[str, ExtensionVolumes]

    def prober(self, others: Prober) -> Prober:
        """What carries out probes: the processes theirs, and `others` all others."""
        return ExtensionProber(others, {process.name: process for process in self.processes})


def wire_processes(m: SharedParts, cells: Cells, programs: Sequence[ExtensionProgram], board: Board) -> WiredProcesses:
    """edges/plugins: the processes; desired/sources: their sets of pods; act/pods: their needs; report/observers: their notifications."""
    node = cells.node.cell.get().name
    lifecycles, statuses = cells.lifecycles.cell, cells.statuses.cell
    rules = manifest_rules(m.settings, node, m.quarantine.problem)
    flight = SingleFlight("extensions", workers=len(programs))
    memory = OfferMemory(m.settings.flags.root_dir, m.flight)
    earlier = memory.load()
    processes = []
    loops: Loops = []
    for program in programs:
        group = driver_path((*split_root(m.settings.cgroup_root), GROUP, program.name), m.driver)
        limits = ExtensionLimits(group, m.cgroups)
        launch = ProcessLauncher(program.name, program.path, limits, flight, m.clock)
        process = ExtensionProcess(program, node, launch, m.clock, earlier.get(program.name))
        processes.append(process)
        board.put(first_shown(process, program.path))  # volumes of its pods wait for it
        loops += [
            (f"extension-{program.name}", process.run()),
            (f"extension-state-{program.name}", show_state(process, program.path, board)),
            (f"extension-source-{program.name}", ExtensionSource(process, rules, m.pod_updates, m.clock).run()),
            (f"extension-observer-{program.name}", ObserverLoop(process, lifecycles, statuses, m.clock).run()),
        ]
    loops.append(("extension-offers", memory.follow([process.state for process in processes])))
    sources = frozenset(extension_source(program.name) for program in programs)
    needs = tuple(make_extension_need(process, lifecycles) for process in processes)
    volumes = {process.name: ProcessVolumes(process, m.clock) for process in processes}
    return WiredProcesses(tuple(processes), loops, sources, needs, volumes)


def first_shown(process: ExtensionProcess, path: str) -> ExtensionState:
    """The state of a process that was not started yet. It may be known what it offers."""
    return ExtensionState(process.name, "", path, tuple(sorted(process.state.get().offers)), STARTING)


async def show_state(process: ExtensionProcess, path: str, board: Board) -> None:
    """Keep the state of a process on the board, and report its failures as Events of the node. Never returns."""
    shown = first_shown(process, path)
    async for state in process.state.changes():
        points = tuple(sorted(state.offers))
        off = "" if state.is_running else ENDED if state.phase is ProcessPhase.AWAY else STARTING
        version = f"protocol {state.version}" if state.version else ""
        before, shown = shown, replace(shown, version=version, points=points, off=off)
        if state.error and (state.error, off) != (before.error, before.off):
            shown = replace(shown, error=state.error, error_at=board.clock.wall())
        if shown.error != before.error:
            board.recorder.post(warning(EVENT_EXTENSION_FAILED, f"Extension {process.name}: {shown.error}"))
        board.put(shown)
