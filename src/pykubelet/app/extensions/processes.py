"""The wiring of extensions that are processes of their own (`docs/extensions/protocol.md`). Imported only if there are some."""

from __future__ import annotations

from collections.abc import Sequence

from pykubelet.app.parts import Cells, Loops, SharedParts
from pykubelet.base.kit.flight import SingleFlight
from pykubelet.base.kit.values import Value
from pykubelet.desired.sources.decode import manifest_rules
from pykubelet.desired.sources.extension import ExtensionSource, extension_source
from pykubelet.edges.plugins.extension_launch import ProcessLauncher
from pykubelet.edges.plugins.extension_limits import ExtensionLimits
from pykubelet.edges.plugins.extension_process import ExtensionProcess, ExtensionProgram
from pykubelet.provide.cgroups.names import driver_path, split_root

#: The cgroup of all process extensions, below `cgroupRoot`; each has its own in it.
GROUP = "extensions"


class WiredProcesses(Value):
    """What the processes add to the agent. `sources`: their names, for the roster, which waits for them for a while."""

    processes: tuple[ExtensionProcess, ...]
    loops: Loops
    sources: frozenset[str]


def wire_processes(m: SharedParts, cells: Cells, programs: Sequence[ExtensionProgram]) -> WiredProcesses:
    """edges/plugins: the processes, each with its loop; desired/sources: their sets of pods."""
    node = cells.node.cell.get().name
    rules = manifest_rules(m.settings, node, m.quarantine.problem)
    flight = SingleFlight("extensions", workers=len(programs))
    processes = []
    loops: Loops = []
    for program in programs:
        group = driver_path((*split_root(m.settings.cgroup_root), GROUP, program.name), m.driver)
        limits = ExtensionLimits(group, m.cgroups)
        launch = ProcessLauncher(program.name, program.path, limits, flight, m.clock)
        process = ExtensionProcess(program, node, launch, m.clock)
        processes.append(process)
        loops.append((f"extension-{program.name}", process.run()))
        source = ExtensionSource(process, rules, m.pod_updates, m.clock)
        loops.append((f"extension-source-{program.name}", source.run()))
    sources = frozenset(extension_source(program.name) for program in programs)
    return WiredProcesses(tuple(processes), loops, sources)
