"""The kernel's notification that the memory usage of a cgroup v1 has crossed a threshold.

Owns: the eventfd and its registration. Source: the kernel's cgroup-v1 memory document, section "Memory thresholds".
"""

from __future__ import annotations

import asyncio
import os

from pykubelet.edges.host.fs.errors import Translating
from pykubelet.edges.host.fs.files import OpenDescriptor


class MemoryNotifier:
    """One threshold of one cgroup. `directory`: that of the cgroup in the memory hierarchy."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._eventfd = -1

    def arm(self, usage_bytes: int, crossed: asyncio.Event) -> None:
        """Set `crossed` as soon as the usage crosses this amount in either direction. Replaces an earlier threshold.

        Raises HostError.
        """
        self.disarm()
        with Translating("register a memory threshold of", self._directory):
            eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            try:
                with OpenDescriptor(
                    os.open(f"{self._directory}/memory.usage_in_bytes", os.O_RDONLY | os.O_CLOEXEC)
                ) as usage:
                    _write(f"{self._directory}/cgroup.event_control", f"{eventfd} {usage} {usage_bytes}")
            except OSError:
                os.close(eventfd)
                raise
        self._eventfd = eventfd
        asyncio.get_running_loop().add_reader(eventfd, self._read, crossed)

    def disarm(self) -> None:
        """Remove the threshold."""
        if self._eventfd >= 0:
            asyncio.get_running_loop().remove_reader(self._eventfd)
            os.close(self._eventfd)
            self._eventfd = -1

    def _read(self, crossed: asyncio.Event) -> None:
        os.eventfd_read(self._eventfd)
        crossed.set()


def _write(path: str, text: str) -> None:
    with OpenDescriptor(os.open(path, os.O_WRONLY | os.O_CLOEXEC)) as descriptor:
        os.write(descriptor, text.encode())
