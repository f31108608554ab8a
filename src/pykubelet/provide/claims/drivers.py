"""Keeps one connection to each registered DRA driver. Reads the cell `Plugins`.

Owns: the connections, and which of several plugins of one driver is called: the one that registered last and is connected.
`state` shows which drivers are registered and which are connected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing

from pykubelet.base.kit.backoff import BackoffPolicy
from pykubelet.base.kit.cells import Cell, make_cell
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import Value, field
from pykubelet.base.model.plugins import Plugin, Plugins, PluginType, dra_health_service, dra_service
from pykubelet.edges.plugins.dra_client import MAX_HEALTH, DraClaim, DraConnection, PreparedClaim, grpc_code
from pykubelet.net.grpc.status import RpcError
from pykubelet.provide.claims.health import HealthReports
from pykubelet.provide.claims.metrics import GRPC_OPERATIONS
from pykubelet.provide.claims.model import ClaimError

log = Log("claims")
HEALTH_RETRY_S = 5.0
#: Seconds between two messages of a driver's health stream that are read, so that a driver cannot keep the agent busy.
HEALTH_PAUSE_S = 0.05
RECONNECT = BackoffPolicy(initial_s=0.5, cap_s=10.0)
#: Seconds that a connection must last to count as a success: a socket that accepts is no driver that works.
LASTING_S = 5.0


class DriversState(Value):
    """`plugins`: the registered plugins by socket. `connected`: the sockets of those whose connection is open."""

    plugins: Mapping[str, Plugin] = field(default_factory=dict)
    connected: frozenset[str] = frozenset()

    def usable(self) -> frozenset[str]:
        """The drivers that have a connected plugin."""
        return frozenset(self.plugins[socket].name for socket in self.connected if socket in self.plugins)

    def chosen(self, driver: str) -> str | None:
        """The socket of the plugin to call; None if the driver is not registered."""
        found = [socket for socket, plugin in self.plugins.items() if plugin.name == driver]
        return max(
            found, key=lambda socket: (socket in self.connected, self.plugins[socket].registered_at), default=None
        )


class Drivers:
    """The registered drivers. `run` never returns. `reports`: takes the reports on devices; None with the gate off.

    `unlisted_health`: the service of health that drivers are asked for which have registered none; empty for no question.
    """

    def __init__(self, plugins: Cell[Plugins], reports: HealthReports | None = None, unlisted_health: str = "") -> None:
        self._plugins = plugins
        self._unlisted_health = unlisted_health
        self.reports = reports
        #: Counts the changes of `reports`.
        self.health, self._health_writer = make_cell("driver-health", 0)
        self.state, self._writer = make_cell("drivers", DriversState())
        self._connections: dict[str, tuple[Plugin, DraConnection, asyncio.Task[None]]] = {}

    async def run(self) -> None:
        """Follow the registered plugins until cancelled."""
        async with Supervisor("drivers") as tasks:
            try:
                async for now in self._plugins.changes():
                    self._follow({plugin.socket: plugin for plugin in now.of(PluginType.DRA)}, tasks)
            finally:
                for _, connection, _ in self._connections.values():
                    connection.close()

    def connection(self, driver: str) -> DraConnection:
        """The connection to call the driver on. Raises ClaimError if it is not registered."""
        socket = self.state.get().chosen(driver)
        if socket is None or socket not in self._connections:
            raise ClaimError(f"DRA driver {driver} is not registered", driver)
        return self._connections[socket][1]

    async def prepare(self, driver: str, claims: Sequence[DraClaim]) -> dict[str, PreparedClaim]:
        """Let a driver prepare claims. Raises ClaimError."""
        connection = self.connection(driver)
        with _Measured(driver, connection.method("NodePrepareResources")) as measured:
            try:
                return await connection.prepare(driver, claims)
            except RpcError as error:
                measured.error = error
                raise ClaimError(f"NodePrepareResources: {error}", driver) from error

    async def unprepare(self, driver: str, claims: Sequence[DraClaim]) -> dict[str, str]:
        """Let a driver unprepare claims. Raises ClaimError."""
        connection = self.connection(driver)
        with _Measured(driver, connection.method("NodeUnprepareResources")) as measured:
            try:
                return await connection.unprepare(claims)
            except RpcError as error:
                measured.error = error
                raise ClaimError(f"NodeUnprepareResources: {error}", driver) from error

    def _follow(self, plugins: Mapping[str, Plugin], tasks: Supervisor) -> None:
        for socket, (plugin, connection, task) in list(self._connections.items()):
            if plugins.get(socket) != plugin:
                task.cancel()
                connection.close()
                del self._connections[socket]
        for socket, plugin in plugins.items():
            if socket not in self._connections:
                try:
                    connection = DraConnection(plugin.endpoint, dra_service(plugin.versions))
                except RpcError as error:
                    log.warning("DRA driver has no usable endpoint", driver=plugin.name, error=error.message)
                    continue
                work = self._serve(plugin, connection)
                task = tasks.start_child(f"driver {plugin.name}", work, _ignore)
                self._connections[socket] = plugin, connection, task
        self._publish()

    async def _serve(self, plugin: Plugin, connection: DraConnection) -> None:
        async with Supervisor("driver") as tasks:
            service = dra_health_service(plugin.versions, self._unlisted_health)
            if self.reports is not None and service:
                watch = self._watch_health(plugin, connection, service, self.reports)
                tasks.start_root("driver health", watch)
            tasks.start_root("driver connection", self._keep_open(plugin.socket, connection))
            raise await tasks.wait_failed()

    async def _watch_health(
        self, plugin: Plugin, connection: DraConnection, service: str, reports: HealthReports
    ) -> None:
        """Follow the driver's reports on the same connection. A driver without them is asked again, as in the reference."""
        socket, loop = plugin.socket, asyncio.get_running_loop()
        while True:
            try:
                async with aclosing(connection.watch_health(service)) as messages:
                    async for message in messages:
                        reports.take(socket, plugin.name, message, loop.time())
                        self._health_writer.publish(self._health_writer.get() + 1)
                        if reports.size(socket) > MAX_HEALTH:
                            log.warning("DRA driver reports on too many devices", driver=plugin.name, limit=MAX_HEALTH)
                            break
                        await asyncio.sleep(HEALTH_PAUSE_S)
            except RpcError as error:
                log.debug("DRA driver reports no health", driver=plugin.name, error=error.message)
            finally:
                reports.clear(socket)
                self._health_writer.publish(self._health_writer.get() + 1)
            await asyncio.sleep(HEALTH_RETRY_S)

    async def _keep_open(self, socket: str, connection: DraConnection) -> None:
        """Connect, and connect again whenever the connection is lost: at once if it lasted, otherwise after a growing pause."""
        failures, loop = 0, asyncio.get_running_loop()
        while True:
            try:
                await connection.connect()
            except RpcError as error:
                log.debug("DRA driver does not answer", socket=socket, error=error.message)
            else:
                began = loop.time()
                self._publish()
                await connection.wait_lost()
                self._publish()
                if loop.time() - began >= LASTING_S:
                    failures = 0
                    continue
            failures += 1
            await asyncio.sleep(RECONNECT.delay_s(failures))

    def _publish(self) -> None:
        plugins = {socket: plugin for socket, (plugin, _, _) in self._connections.items()}
        connected = frozenset(
            socket for socket, (_, connection, _) in self._connections.items() if connection.is_connected
        )
        state = DriversState(plugins, connected)
        if state != self.state.get():
            self._writer.publish(state)


def _ignore(_: BaseException) -> None:
    """The supervisor has logged it."""


class _Measured:
    """Measures one call for the metrics."""

    def __init__(self, driver: str, method: str) -> None:
        self.error: RpcError | None = None
        self._labels = (driver, method)
        self._began = asyncio.get_running_loop().time()

    def __enter__(self) -> _Measured:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None or self.error is not None:
            took = asyncio.get_running_loop().time() - self._began
            GRPC_OPERATIONS.observe(took, *self._labels, grpc_code(self.error))
