"""The asynchronous side of devices, as the loop of placement uses it."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any, Protocol

from pykubelet.act.placement.provider import AllocationError, Question


class DevicePlugins(Protocol):
    """The asynchronous side of devices: the plugins. Implemented in act/placement/devices.

    Its own tasks set `changed`; `refresh` then takes what the plugins have reported into the provider. Each call has a deadline.
    """

    changed: asyncio.Event

    def refresh(self, devices: Any) -> Any:
        """The provider with all that plugins have reported since the last call; the same object if nothing has changed."""

    async def prefer(self, question: Question) -> Collection[str] | AllocationError:
        """The devices that the plugin prefers; none if it does not care."""

    async def allocate(self, pod_uid: str, call: Any) -> bytes | AllocationError:
        """The plugin's response to `Allocate`."""

    def is_saved(self, devices: Any) -> bool:
        """Whether the checkpoint has the state."""

    async def save(self, devices: Any) -> bool:
        """Write the checkpoint, if the state has changed. Returns whether the file has the state. Never raises."""

    async def run(self) -> None:
        """Keep the connections to the plugins. Never returns."""
