"""The ports' endpoints over cells that tests fill, and over handlers that only say which endpoint was reached."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from serve.world import NOW, make_world

from pykubelet.base.kit.clock import ManualClock
from pykubelet.base.kit.values import replace
from pykubelet.config.gates import FeatureGates
from pykubelet.config.kubelet import KubeletConfiguration
from pykubelet.config.settings import Flags, Settings
from pykubelet.net.http.server import Answer, Request, text
from pykubelet.serve.endpoints.endpoint import Endpoint, EndpointHandler
from pykubelet.serve.endpoints.health import Check, default_checks
from pykubelet.serve.endpoints.known_pods import KnownPods
from pykubelet.serve.endpoints.table import ENDPOINTS, EndpointInputs

#: The gates without which some endpoint is not there.
GATES_OF_ENDPOINTS = {"ComponentFlagz": True, "ComponentStatusz": True, "KubeletAllocatedPodsEndpoint": True}


def settings_of(gates: Mapping[str, bool] | None = None, page_port: int = 0, **config: Any) -> Settings:
    return Settings(KubeletConfiguration(**config), Flags(cadvisor_port=page_port), FeatureGates(gates or {}))


def inputs_of(
    settings: Settings | None = None, pods: KnownPods | None = None, checks: Mapping[str, Check] | None = None
) -> EndpointInputs:
    """The runtime and the files of this node are not there: no handler that needs them can be called."""
    world, nothing = make_world(), _Nothing()
    cells = world.inputs
    stub: Any = nothing
    return EndpointInputs(
        settings=settings or settings_of(),
        clock=ManualClock(wall=NOW),
        flight=stub,
        runtime=stub,
        pods=pods or KnownPods(cells.roster, cells.lifecycles, cells.observed, cells.statuses),
        checks=default_checks() if checks is None else checks,
        usage=stub,
        metrics=stub,
        explain=stub,
        page=stub,
        started_at=NOW,
    )


class _Nothing:
    """Has every attribute, and can do nothing."""

    def __getattr__(self, name: str) -> None:
        return None


def reached(path: str) -> EndpointHandler:
    async def handle(_: Request) -> Answer:
        return text(200, f"reached {path}")

    return handle


def _handler(path: str) -> Callable[[EndpointInputs], EndpointHandler]:
    return lambda _: reached(path)


#: The table of the agent with handlers that answer `reached <path>`.
REACHED: tuple[Endpoint[EndpointInputs], ...] = tuple(
    replace(entry, handler=_handler(entry.path)) for entry in ENDPOINTS
)
