"""The claim manager and everything that it needs, with pods and an API server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from provide.claims.samples import GPU, claim_body
from support.api_server import FakeApiServer

from pykubelet.base.api.core import Pod
from pykubelet.base.api.resource_claims import claims_path
from pykubelet.base.kit.backoff import BackoffPolicy
from pykubelet.base.kit.cells import Cell, Sink, make_cell
from pykubelet.base.kit.flight import SingleFlight
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.model.claims import Claims, PodClaims
from pykubelet.base.model.ids import PodUID, SandboxID
from pykubelet.base.model.kube_events import KubeEvent
from pykubelet.base.model.lifecycle import Lifecycles, PodLifecycle, Stage
from pykubelet.base.model.observed import Observed, PodView, SandboxView
from pykubelet.base.model.plugins import Plugin, Plugins, PluginType
from pykubelet.base.model.roster import Roster, RosterPod, pod_ref
from pykubelet.edges.kubeapi.client import ApiClient
from pykubelet.observe.plugins.loop import PluginsLoop
from pykubelet.provide.claims.drivers import Drivers, DriversState
from pykubelet.provide.claims.health import HealthReports
from pykubelet.provide.claims.loop import RETRY, ClaimInputs, ClaimsLoop
from pykubelet.provide.claims.operations import ClaimOperations
from pykubelet.provide.claims.slices import SliceCleaner
from pykubelet.provide.claims.store import ClaimStore

CLAIMS = claims_path("default")
#: Seconds within which what is waited for happens, whatever the pauses are.
LIMIT_S = 120.0
DEVICE = {"pool": "pool", "device": "dev-0", "requests": ["gpu"], "cdi": [f"{GPU}/gpu={{name}}"]}


class Stand:
    """The claim manager and everything that it needs, with the pods of the test."""

    def __init__(self, root: Path, server: FakeApiServer) -> None:
        self.root = root
        self.server = server
        self.recorder: Sink[KubeEvent] = Sink()
        self.roster, self._roster = make_cell("roster", Roster(sources_ready=True))
        self.lives, self._lives = make_cell("lifecycles", Lifecycles())
        self.observed, self._observed = make_cell("observed", Observed(listed_at=1.0))
        self.plugins, self._plugins = make_cell("plugins", Plugins())
        self.claims: Cell[Claims] = make_cell("claims", Claims())[0]
        self.drivers: Cell[DriversState] = make_cell("drivers", DriversState())[0]

    @asynccontextmanager
    async def running(
        self,
        retry: BackoffPolicy = RETRY,
        operations_type: type[ClaimOperations] = ClaimOperations,
    ) -> AsyncIterator[None]:
        """Run the claim manager, as the agent does after a start."""
        flight, clock = SingleFlight("test"), self.server.clock
        client = ApiClient(self.server.access(), clock)
        store = ClaimStore(f"{self.root}/dra_manager_state", flight)
        drivers = Drivers(self.plugins, HealthReports(with_messages=True))
        self.drivers = drivers.state
        operations = operations_type(store.load(), drivers, store, client, extended=True, skips=True)
        self.claims, writer = make_cell("claims", Claims())
        inputs = ClaimInputs(self.roster, self.lives, self.observed)
        loop = ClaimsLoop(inputs, writer, operations, drivers, self.recorder, clock, retry)
        plugins = PluginsLoop(f"{self.root}/plugins_registry", self._plugins, flight, clock)
        slices = SliceCleaner(client, "n1", drivers.state)
        async with Supervisor("test") as tasks:
            tasks.start_root("plugins", plugins.run())
            tasks.start_root("claims", loop.run())
            tasks.start_root("slices", slices.run())
            yield
        self._plugins.publish(Plugins())
        await client.close()
        await flight.run_next("claims", lambda: None, LIMIT_S)  # an agent that has ended writes no file any more

    def create(self, name: str = "one", *pods: str, **more: Any) -> None:
        self.server.create(CLAIMS, claim_body(name, *pods, **more))

    def plug(self, *sockets: str) -> None:
        """Exactly these plugins of the driver are registered, each with its own endpoint."""
        made = {path: Plugin(PluginType.DRA, GPU, path, path, ("v1.DRAPlugin",), 1.0) for path in sockets}
        self._plugins.publish(Plugins(made))

    def want(self, *pods: Pod) -> None:
        entries = {PodUID(pod.metadata.uid): RosterPod(pod, "api", 1.0) for pod in pods}
        self._roster.publish(Roster({**self.roster.get().pods, **entries}, sources_ready=True))

    def unwant(self, name: str) -> None:
        pods = {uid: entry for uid, entry in self.roster.get().pods.items() if entry.pod.metadata.name != name}
        self._roster.publish(Roster(pods, sources_ready=True))

    def life(self, pod: Pod, stage: Stage, *, is_stopped: bool = False) -> None:
        life = PodLifecycle(pod_ref(pod), pod, stage, 1.0, 1.0, is_stopped=is_stopped)
        self._lives.publish(Lifecycles({**self.lives.get().pods, PodUID(pod.metadata.uid): life}))

    def forget(self, pod: Pod) -> None:
        """The pod has no pod worker any more."""
        self._lives.publish(Lifecycles({u: life for u, life in self.lives.get().pods.items() if u != pod.metadata.uid}))

    def unlisted(self) -> None:
        """The runtime has not answered yet."""
        self._observed.publish(Observed())

    def runs(self, *pods: Pod) -> None:
        """The runtime has a ready sandbox of these pods and of no others."""
        sandbox = SandboxView(SandboxID("s"), 0, True, 1)
        views = {PodUID(pod.metadata.uid): PodView(pod_ref(pod), (sandbox,)) for pod in pods}
        self._observed.publish(Observed(views, listed_at=2.0))

    async def until(self, name: str, condition: Callable[[PodClaims | None], bool]) -> PodClaims | None:
        uid = PodUID(f"uid-{name}")
        async with asyncio.timeout(LIMIT_S):
            now = await self.claims.wait_for(lambda now: condition(now.pods.get(uid)))
        return now.pods.get(uid)

    async def ready(self, name: str = "web") -> PodClaims:
        found = await self.until(name, lambda pod: pod is not None and pod.ready)
        assert found is not None
        return found

    async def gone(self, name: str = "web") -> None:
        await self.until(name, lambda pod: pod is None)

    async def fails(self, error: str, name: str = "web") -> None:
        """Wait until the last try has failed with an error that begins like this."""
        await self.until(name, lambda pod: pod is not None and any(wait.detail.startswith(error) for wait in pod.waits))

    def kept(self) -> dict[str, list[str]]:
        """The claims in the state file, with the pods that use each."""
        state = json.loads(json.loads((self.root / "dra_manager_state").read_text())["Data"])
        return {claim["ClaimName"]: sorted(claim["PodUIDs"]) for claim in state["ClaimInfoStateList"] or ()}
