"""The wiring of what pods get of the machine: reads it and the state files, and creates the loops of provide/placement and of
provide/claims (dynamic resource allocation).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pykubelet.app.parts import Cells, Loops, Points, SharedParts
from pykubelet.app.prepare import AgentStartError
from pykubelet.base.kit.flight import SingleFlight
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.values import replace
from pykubelet.base.model.labels import CONTAINER_NAME, POD_UID
from pykubelet.base.model.machine import MachineTopology
from pykubelet.base.model.plugins import DRA_HEALTH_SERVICES
from pykubelet.edges.cri.errors import CriError
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.proc.topology import read_topology
from pykubelet.edges.host.services.unix_socket import keep_serving_socket
from pykubelet.net.grpc.server import RpcServer
from pykubelet.net.grpc.services import Services
from pykubelet.provide.claims.drivers import Drivers
from pykubelet.provide.claims.health import HealthReports
from pykubelet.provide.claims.loop import ClaimInputs, ClaimsLoop
from pykubelet.provide.claims.model import Cache
from pykubelet.provide.claims.operations import ClaimOperations
from pykubelet.provide.claims.slices import SliceCleaner
from pykubelet.provide.claims.store import ClaimStore
from pykubelet.provide.placement.cpu_state import FIRST_FORMAT, ContainerIds
from pykubelet.provide.placement.cpusets import CpusetLoop
from pykubelet.provide.placement.devices.device_files import DeviceFiles
from pykubelet.provide.placement.devices.device_plugins import DeviceInputs, NodeDevicePlugins
from pykubelet.provide.placement.loop import PlacementInputs, PlacementLoop
from pykubelet.provide.placement.managers import Managers
from pykubelet.provide.placement.metrics import show_initial
from pykubelet.provide.placement.provider import ManagerStartError
from pykubelet.provide.placement.start import StateTexts, start_managers
from pykubelet.provide.placement.store import StateFiles

if TYPE_CHECKING:  # a node that stands alone does not need it
    from pykubelet.edges.kubeapi.client import ApiClient


log = Log("app")


async def wire_placement(m: SharedParts, cells: Cells, points: Points) -> tuple[Loops, NodeDevicePlugins]:
    """provide/placement: writes Placements, applies cpusets, and serves device plugins. Raises AgentStartError."""
    has_data = m.settings.behavior.state_files_have_data
    files = StateFiles(m.settings.flags.root_dir, SingleFlight("placement", workers=1), has_data=has_data)
    flight, directory = SingleFlight("device-plugins", workers=4), m.settings.paths.device_plugins
    inputs_of_devices = DeviceInputs(cells.plugins.cell, cells.observed.cell)
    plugins = NodeDevicePlugins(DeviceFiles(directory, flight), inputs_of_devices, flight, m.clock)
    managers = await _managers(m, files, plugins, points)
    show_initial(managers)
    inputs = PlacementInputs(cells.roster.cell, cells.lifecycles.cell, cells.observed.cell)
    outputs = (cells.placements.writer, cells.placement_diagnostics.writer)
    placement = PlacementLoop(managers, inputs, outputs, files, m.clock, plugins)
    registration = keep_serving_socket(
        RpcServer(Services(plugins.methods())).serve, f"{directory}/kubelet.sock", "device plugins"
    )
    loops: Loops = [("placement", placement.run()), ("device-plugins", registration)]
    if managers.cpus is not None:
        period = m.settings.config.cpuManagerReconcilePeriod.s
        cpusets = CpusetLoop(cells.placements.cell, cells.roster.cell, cells.observed.cell, m.cri, period)
        loops.append(("cpusets", cpusets.run()))
    return loops, plugins


async def _managers(m: SharedParts, files: StateFiles, plugins: NodeDevicePlugins, points: Points) -> Managers:
    machine: MachineTopology | None = None
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
    try:
        devices = plugins.start(tuple(node.id for node in machine.nodes) if machine is not None else ())
    except HostError as error:
        raise AgentStartError(f"the directory of device plugins cannot be prepared: {error}") from error
    texts = StateTexts(files.cpu_path, files.memory_path, cpu, memory)
    reserved = m.settings.eviction_reserved(m.machine.capacity())
    config = m.settings.config
    choose = points.place.get(config.cpuManagerPolicy), points.place_memory.get(config.memoryManagerPolicy)
    topology = machine or MachineTopology((), ())
    managers = start_managers(m.settings, topology, reserved, texts, devices, *choose)
    if isinstance(managers, ManagerStartError) and FIRST_FORMAT in managers.text:
        texts = replace(texts, containers=await _containers(m))
        managers = start_managers(m.settings, topology, reserved, texts, devices, *choose)
    if isinstance(managers, ManagerStartError):
        raise AgentStartError(managers.text)
    return replace(managers, machine=machine)


async def _containers(m: SharedParts) -> ContainerIds:
    """Pod UID and name of the runtime's containers by id."""
    try:
        containers = await m.cri.list_containers()
    except CriError as error:
        what = "the CPU manager's state file has an old format, which only the container runtime can explain"
        raise AgentStartError(f"{what}: {error}") from error
    return {
        container.id: (container.labels.get(POD_UID, ""), container.labels.get(CONTAINER_NAME, ""))
        for container in containers
    }


def wire_claims(m: SharedParts, cells: Cells, loaded: tuple[ClaimStore, Cache], client: ApiClient | None) -> Loops:
    """provide/claims: writes Claims. `client`: None without an API server."""
    store, cache = loaded
    enabled = m.settings.enabled
    reports = None
    if enabled("ResourceHealthStatus"):
        reports = HealthReports(with_messages=enabled("ResourceHealthStatusMessage"))
    behavior = m.settings.behavior
    unlisted_health = DRA_HEALTH_SERVICES[-1] if behavior.asks_unlisted_health else ""
    drivers = Drivers(cells.plugins.cell, reports, unlisted_health)
    operations = ClaimOperations(
        cache,
        drivers,
        store,
        client,
        extended=enabled("DRAExtendedResource"),
        reports_extended=behavior.reports_extended_claims,
        skips=enabled("DRAOptionalNodeOperations"),
    )
    inputs = ClaimInputs(cells.roster.cell, cells.lifecycles.cell, cells.observed.cell)
    claims = ClaimsLoop(inputs, cells.claims.writer, operations, drivers, m.recorder, m.clock)
    loops: Loops = [("claims", claims.run())]
    if client is not None:
        loops.append(("slices", SliceCleaner(client, cells.node.cell.get().name, drivers.state).run()))
    return loops
