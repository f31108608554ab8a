"""Registers plugins by the sockets that appear in their directory. Owns the cell `Plugins`.

Owns: one watch of the directory, and one task for each socket that is not registered yet. File events are only hints: each
leads to a scan of the whole directory, and a periodic scan is the safety net. A socket that was removed takes its plugin
with it; one that was created again registers again. An attempt that fails is repeated after a growing pause.
Source: KEP-595 (plugin watcher).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial

from pykubelet.base.kit.backoff import BackoffPolicy
from pykubelet.base.kit.cells import CellWriter
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.flight import Done, SingleFlight
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import replace
from pykubelet.base.model.plugins import CsiNodeInfo, Plugin, Plugins
from pykubelet.edges.csi.node import CsiNode
from pykubelet.edges.plugins.channels import reach
from pykubelet.edges.plugins.registration import PluginRegistration
from pykubelet.edges.plugins.sockets import SocketFile, SocketScan, scan_sockets
from pykubelet.net.grpc.status import RpcError
from pykubelet.observe.plugins.decide import KINDS, PluginOffer, node_info_problem, refusal, unreachable
from pykubelet.observe.plugins.watch import DirectoryWatch

log = Log("plugins")
RETRY = BackoffPolicy(initial_s=0.5, cap_s=122.0)
#: Seconds between scans that no event asks for.
SCAN_PERIOD_S = 60.0
SCAN_DEADLINE_S = 30.0
REACH_S = 10.0


class PluginsLoop:
    """Watches `directory` and publishes the plugins that have registered. `period_s`: between scans that no event asks for."""

    def __init__(
        self,
        directory: str,
        plugins: CellWriter[Plugins],
        flight: SingleFlight,
        clock: Clock,
        period_s: float = SCAN_PERIOD_S,
    ) -> None:
        self._period_s = period_s
        self._directory = directory
        self._plugins = plugins
        self._flight = flight
        self._clock = clock
        self._watch = DirectoryWatch(directory, clock)
        self._sockets: dict[str, tuple[SocketFile, asyncio.Task[None]]] = {}

    async def run(self) -> None:
        """Follow the directory until cancelled."""
        async with Supervisor("plugins") as tasks:
            tasks.start_root("plugins watch", self._watch.run())
            tasks.start_root("plugins loop", self._watch.follow(partial(self._scan, tasks), self._period_s))
            raise await tasks.wait_failed()

    async def _scan(self, tasks: Supervisor) -> Iterable[str] | None:
        outcome = await self._flight.run_next("plugins", lambda: scan_sockets(self._directory), SCAN_DEADLINE_S)
        if isinstance(outcome, Done):
            if outcome.value.is_cut:
                self._watch.report("there are too many sockets or directories; the rest is ignored")
            elif outcome.value.unread:
                self._watch.report(f"some plugins cannot be found: {'; '.join(outcome.value.unread.values())}")
            else:
                self._watch.report("")
            self._take(outcome.value, tasks)
            return outcome.value.directories
        self._watch.report(f"plugins cannot be found: {getattr(outcome, 'error', 'the directory does not answer')}")
        return None

    # The sockets

    def _take(self, scan: SocketScan, tasks: Supervisor) -> None:
        """Forget the plugins without a socket, and register those with a new one."""
        for path, (socket, task) in list(self._sockets.items()):
            if scan.sockets.get(path) != socket and (path in scan.sockets or not scan.is_unread(path)):
                task.cancel()
                del self._sockets[path]
                self._forget(path)
        for path, socket in scan.sockets.items():
            if path not in self._sockets:
                task = tasks.start_child(f"plugin {path}", self._register(path), lambda _: self._watch.wakeup.set())
                self._sockets[path] = socket, task
        self._settle()

    def _settle(self) -> None:
        now = self._plugins.get()
        if not now.is_settled and all(path in now.plugins or path in now.problems for path in self._sockets):
            self._plugins.publish(replace(now, is_settled=True))

    async def _register(self, path: str) -> None:
        """Try to register the plugin until it succeeds."""
        failures = 0
        while True:
            outcome = await self._attempt(path)
            if isinstance(outcome, Plugin):
                now = self._plugins.get()
                problems = {socket: why for socket, why in now.problems.items() if socket != path}
                self._plugins.publish(replace(now, plugins={**now.plugins, path: outcome}, problems=problems))
                log.info("plugin registered", type=outcome.type, name=outcome.name, endpoint=outcome.endpoint)
                self._settle()
                return
            failures += 1
            now = self._plugins.get()
            if now.problems.get(path) != outcome:
                log.warning("plugin not registered", socket=path, reason=outcome)
                self._plugins.publish(replace(now, problems={**now.problems, path: outcome}))
                self._settle()
            await asyncio.sleep(RETRY.delay_s(failures))

    async def _attempt(self, path: str) -> Plugin | str:
        """One attempt: the plugin, or why it failed."""
        step = "dial"
        try:
            with PluginRegistration(path) as registration:
                step = "GetInfo"
                info = await registration.get_info()
                versions = tuple(info.supported_versions)
                offer = PluginOffer(info.type, info.name, path, info.endpoint or path, versions)
                problem = refusal(offer, self._plugins.get().plugins.values()) or await _unreached(offer)
                about_node, problem = (None, problem) if problem else await _ask_node(offer)
                step = "NotifyRegistrationStatus"
                await registration.notify(problem)
        except RpcError as error:
            return f"{step}: {error}"
        return problem or offer.registered(self._clock.wall(), about_node)

    def _forget(self, path: str) -> None:
        now = self._plugins.get()
        plugin = now.plugins.get(path)
        if plugin is None and path not in now.problems:
            return
        if plugin is not None:
            log.info("plugin gone", type=plugin.type, name=plugin.name, endpoint=plugin.endpoint)
        self._plugins.publish(
            replace(
                now,
                plugins={socket: known for socket, known in now.plugins.items() if socket != path},
                problems={socket: why for socket, why in now.problems.items() if socket != path},
            )
        )


async def _unreached(offer: PluginOffer) -> str:
    """Why the endpoint cannot be reached, in the words of the report to it; empty if it can, or if it need not be."""
    if not KINDS[offer.type].is_reached:
        return ""
    try:
        await reach(offer.endpoint, REACH_S)
    except RpcError as error:
        return unreachable(error.message)
    return ""


async def _ask_node(offer: PluginOffer) -> tuple[CsiNodeInfo | None, str]:
    """What a CSI driver reports about this node, or why it does not, in the words of the report to it."""
    if not KINDS[offer.type].is_asked:
        return None, ""
    try:
        with CsiNode(offer.name, offer.endpoint) as node:
            found = await node.info()
    except RpcError as error:
        return None, unreachable(error)
    problem = node_info_problem(offer.name, found)
    return (None, problem) if problem else (found, "")
