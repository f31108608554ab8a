"""The wiring of placement: reads the machine and the state files, and creates the loops of act/placement."""

from __future__ import annotations

from pykubelet.act.placement.cpu_state import FIRST_FORMAT, ContainerIds
from pykubelet.act.placement.cpusets import CpusetLoop
from pykubelet.act.placement.loop import PlacementInputs, PlacementLoop
from pykubelet.act.placement.managers import Managers
from pykubelet.act.placement.metrics import show_initial
from pykubelet.act.placement.provider import StartError
from pykubelet.act.placement.start import StateTexts, start_managers
from pykubelet.act.placement.store import StateFiles
from pykubelet.app.parts import Cells, Loops, Machinery
from pykubelet.app.prepare import AgentStartError
from pykubelet.base.kit.flight import SingleFlight
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.values import replace
from pykubelet.base.model.labels import CONTAINER_NAME, POD_UID
from pykubelet.base.model.machine import Machine
from pykubelet.edges.cri.errors import CriError
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.proc.topology import read_topology

log = Log("app")


async def wire_placement(m: Machinery, cells: Cells) -> Loops:
    """act/placement: writes Placements, and applies cpusets. Raises AgentStartError."""
    files = StateFiles(m.settings.root_dir, SingleFlight("placement", workers=1))
    managers = await _managers(m, files)
    show_initial(managers)
    inputs = PlacementInputs(cells.roster.cell, cells.lifecycles.cell, cells.observed.cell)
    placement = PlacementLoop(managers, inputs, cells.placements.writer, files, m.clock)
    loops: Loops = [("placement", placement.run())]
    if managers.cpus is not None:
        period = m.settings.config.cpuManagerReconcilePeriod.s
        loops.append(("cpusets", CpusetLoop(cells.placements.cell, cells.observed.cell, m.cri, period).run()))
    return loops


async def _managers(m: Machinery, files: StateFiles) -> Managers:
    machine: Machine | None = None
    try:
        machine = read_topology()
    except HostError as error:
        if m.settings.has_placement_policy:
            raise AgentStartError(f"the CPUs and NUMA nodes of the machine cannot be read: {error}") from error
        log.warning("the CPUs and NUMA nodes of the machine cannot be read", error=error)
    try:
        cpu, memory = files.read()
    except HostError as error:
        raise AgentStartError(f"a state file of the resource managers cannot be read: {error}") from error
    texts = StateTexts(files.cpu_path, files.memory_path, cpu, memory)
    reserved = m.settings.eviction_reserved(m.machine.capacity())
    managers = start_managers(m.settings, machine or Machine((), ()), reserved, texts)
    if isinstance(managers, StartError) and FIRST_FORMAT in managers.text:
        texts = replace(texts, containers=await _containers(m))
        managers = start_managers(m.settings, machine or Machine((), ()), reserved, texts)
    if isinstance(managers, StartError):
        raise AgentStartError(managers.text)
    return replace(managers, machine=machine)


async def _containers(m: Machinery) -> ContainerIds:
    """Pod UID and name of the runtime's containers by id."""
    try:
        containers = await m.cri.list_containers()
    except CriError as error:
        what = "the CPU manager's state file has an old format, which only the container runtime can explain"
        raise AgentStartError(f"{what}: {error}") from error
    return {one.id: (one.labels.get(POD_UID, ""), one.labels.get(CONTAINER_NAME, "")) for one in containers}
