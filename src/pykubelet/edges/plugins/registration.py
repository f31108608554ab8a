"""The client side of plugin registration: asks a plugin for its type and name, and notifies it of the result.

Source: KEP-595 (plugin watcher), `pluginregistration.Registration` v1.
"""

from __future__ import annotations

from pykubelet.edges.plugins import pluginregistration_pb2 as pb
from pykubelet.edges.plugins.channels import plugin_channel
from pykubelet.net.grpc.call import call
from pykubelet.net.grpc.limits import Http2Limits

SERVICE = "/pluginregistration.Registration/"
INFO_S = 1.0
NOTIFY_S = 5.0
REGISTRATION_LIMITS = Http2Limits(
    header_list=8 << 10,
    message=16 << 10,
    stream_window=65535,
    connection_window=65535,
    all_headers=16 << 10,
    steps=500,
    empty_frames=500,
)


class PluginRegistration:
    """One attempt to register the plugin behind a socket, on one connection. Use it as a context manager."""

    def __init__(self, socket: str) -> None:
        self._channel = plugin_channel(socket, REGISTRATION_LIMITS)

    def __enter__(self) -> PluginRegistration:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    async def get_info(self) -> pb.PluginInfo:
        """The plugin's type, name, endpoint and supported versions. Raises RpcError."""
        return await call(self._channel, f"{SERVICE}GetInfo", pb.InfoRequest(), pb.PluginInfo, INFO_S)

    async def notify(self, error: str = "") -> None:
        """Report to the plugin that it is registered, or why not. Raises RpcError."""
        status = pb.RegistrationStatus(plugin_registered=not error, error=error)
        answer = pb.RegistrationStatusResponse
        await call(self._channel, f"{SERVICE}NotifyRegistrationStatus", status, answer, NOTIFY_S)
