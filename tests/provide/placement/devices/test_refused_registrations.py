"""Device plugins that register again and again: their calls are limited, and refusals do not fill the log."""

from __future__ import annotations

from pathlib import Path

import pytest

from pykubelet.base.kit.cells import make_cell
from pykubelet.base.kit.clock import ManualClock
from pykubelet.base.kit.flight import SingleFlight
from pykubelet.base.model.observed import Observed
from pykubelet.base.model.plugins import Plugins
from pykubelet.edges.plugins import deviceplugin_pb2 as pb
from pykubelet.net.grpc.status import Code, RpcError
from pykubelet.provide.placement.devices.device_files import DeviceFiles
from pykubelet.provide.placement.devices.device_plugins import (
    LOGGED_AT_ONCE,
    LOGGED_EVERY_S,
    MAX_RESOURCES,
    REGISTRATIONS_PER_S,
    DeviceInputs,
    NodeDevicePlugins,
)


class Registry:
    """The plugins of a node, and what `Register` answers."""

    def __init__(self, root: Path) -> None:
        self.clock = ManualClock()
        flight = SingleFlight("test")
        inputs = DeviceInputs(make_cell("plugins", Plugins())[0], make_cell("observed", Observed(listed_at=0.0))[0])
        self._plugins = NodeDevicePlugins(DeviceFiles(str(root), flight), inputs, flight, self.clock)

    async def refusal(self, resource: str, version: str = "v1beta1") -> RpcError:
        request = pb.RegisterRequest(version=version, endpoint="missing.sock", resource_name=resource)
        with pytest.raises(RpcError) as caught:
            await self._plugins.register(request.SerializeToString())
        return caught.value

    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(tmp_path)


def logged(caplog: pytest.LogCaptureFixture) -> int:
    return sum("cannot be registered" in record.getMessage() for record in caplog.records)


async def test_the_same_refusal_is_logged_once(registry: Registry, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(500):
        registry.wait(1.0)
        assert "is invalid" in (await registry.refusal("device")).message
    assert logged(caplog) == 1
    await registry.refusal("device", "v7")
    assert logged(caplog) == 2  # another reason
    await registry.refusal("device")
    assert logged(caplog) == 3


async def test_refusals_that_differ_are_logged_seldom(registry: Registry, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(600):
        registry.wait(0.1)
        await registry.refusal(f"device{number}")
    assert LOGGED_AT_ONCE <= logged(caplog) <= LOGGED_AT_ONCE + 60 / LOGGED_EVERY_S + 1


async def test_calls_are_limited(registry: Registry) -> None:
    """All plugins of a node may register at once; beyond that there are a few calls a second."""
    codes = [(await registry.refusal("device")).code for _ in range(MAX_RESOURCES + 1)]
    assert codes == [*[Code.UNKNOWN] * MAX_RESOURCES, Code.RESOURCE_EXHAUSTED]
    assert (await registry.refusal("device")).message == "rejected by rate limit"
    registry.wait(1.0)
    codes = [(await registry.refusal("device")).code for _ in range(20)]
    assert codes.count(Code.UNKNOWN) == REGISTRATIONS_PER_S
