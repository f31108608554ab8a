"""Whether the socket of the Pods API exists, by the release and the gate. What it answers is tested in `tests/serve/endpoints`."""

from __future__ import annotations

import pytest

from pykubelet.app.wiring_server import wire_pods_api
from pykubelet.base.kit.cells import make_cell
from pykubelet.base.kit.clock import ManualClock
from pykubelet.base.model.lifecycle import Lifecycles
from pykubelet.base.model.observed import Observed
from pykubelet.base.model.roster import Roster
from pykubelet.base.model.statuses import Statuses
from pykubelet.base.model.version import Release
from pykubelet.config.gates import FeatureGates
from pykubelet.config.settings import Settings
from pykubelet.serve.endpoints.known_pods import KnownPods


@pytest.mark.parametrize(
    ("release", "given", "exists"),
    [
        (Release.V1_36, {}, False),
        (Release.V1_36, {"PodsAPI": True}, True),
        (Release.V1_37, {}, True),
        (Release.V1_37, {"PodsAPI": False}, True),
    ],
)
async def test_the_socket(release: Release, given: dict[str, bool], exists: bool) -> None:
    pods = KnownPods(
        make_cell("roster", Roster())[0],
        make_cell("lifecycles", Lifecycles())[0],
        make_cell("observed", Observed())[0],
        make_cell("statuses", Statuses())[0],
    )
    settings = Settings(gates=FeatureGates(given, release))
    loops = wire_pods_api(settings, pods, ManualClock())
    for _, loop in loops:
        loop.close()
    assert [name for name, _ in loops] == ["pods-api"] * exists
