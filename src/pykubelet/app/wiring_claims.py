"""The wiring of dynamic resource allocation. It contains no logic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pykubelet.app.parts import Cells, Loops, SharedParts
from pykubelet.app.prepare import AgentStartError
from pykubelet.provide.claims.drivers import Drivers
from pykubelet.provide.claims.health import HealthReports
from pykubelet.provide.claims.loop import ClaimInputs, ClaimsLoop
from pykubelet.provide.claims.model import Cache
from pykubelet.provide.claims.operations import ClaimOperations
from pykubelet.provide.claims.slices import SliceCleaner
from pykubelet.provide.claims.state import StateError
from pykubelet.provide.claims.store import STATE_FILE, ClaimStore

if TYPE_CHECKING:  # a node that stands alone does not need it
    from pykubelet.edges.kubeapi.client import ApiClient


def load_claims(m: SharedParts) -> tuple[ClaimStore, Cache]:
    """The claims of an earlier run of the agent. Raises AgentStartError for a bad state file."""
    store = ClaimStore(f"{m.settings.root_dir}/{STATE_FILE}", m.flight)
    try:
        return store, store.load()
    except StateError as error:
        raise AgentStartError(str(error)) from error


def wire_claims(m: SharedParts, cells: Cells, loaded: tuple[ClaimStore, Cache], client: ApiClient | None) -> Loops:
    """provide/claims: writes Claims. `client`: None without an API server."""
    store, cache = loaded
    enabled = m.settings.enabled
    reports = None
    if enabled("ResourceHealthStatus"):
        reports = HealthReports(with_messages=enabled("ResourceHealthStatusMessage"))
    drivers = Drivers(cells.plugins.cell, reports)
    operations = ClaimOperations(cache, drivers, store, client, extended=enabled("DRAExtendedResource"))
    inputs = ClaimInputs(cells.roster.cell, cells.lifecycles.cell, cells.observed.cell)
    claims = ClaimsLoop(inputs, cells.claims.writer, operations, drivers, m.recorder, m.clock)
    loops: Loops = [("claims", claims.run())]
    if client is not None:
        loops.append(("slices", SliceCleaner(client, cells.node.cell.get().name, drivers.state).run()))
    return loops
