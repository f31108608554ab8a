"""The driver's registration service: reports type, name and endpoint to the agent, and logs what the agent answers.

Source: KEP-595 (plugin watcher).
"""

from __future__ import annotations

from pykubelet.base.kit.log import Log
from pykubelet.edges.plugins import pluginregistration_pb2 as pb
from pykubelet.net.grpc.services import Method
from pykubelet_csi_local.rpc import method

log = Log("csi-local")
TYPE = "CSIPlugin"
VERSIONS = ("1.0.0",)


class RegistrationService:
    """The calls of the registration service. `endpoint`: the path of the driver's socket."""

    def __init__(self, driver: str, endpoint: str) -> None:
        self._driver = driver
        self._endpoint = endpoint

    def methods(self) -> dict[str, Method]:
        """The methods by path."""
        calls = {
            "GetInfo": method(pb.InfoRequest, self.info),
            "NotifyRegistrationStatus": method(pb.RegistrationStatus, self.notify),
        }
        return {f"/pluginregistration.Registration/{name}": call for name, call in calls.items()}

    async def info(self, _: pb.InfoRequest) -> pb.PluginInfo:
        """Type, name, endpoint and versions of the driver."""
        return pb.PluginInfo(type=TYPE, name=self._driver, endpoint=self._endpoint, supported_versions=list(VERSIONS))

    async def notify(self, status: pb.RegistrationStatus) -> pb.RegistrationStatusResponse:
        """Log whether the agent has registered the driver."""
        if status.plugin_registered:
            log.info("registered with the agent", driver=self._driver)
        else:
            log.warning("the agent refuses the driver", driver=self._driver, reason=status.error)
        return pb.RegistrationStatusResponse()
