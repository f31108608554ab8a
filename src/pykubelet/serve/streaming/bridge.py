"""What stands between a WebSocket client and the runtime, and what follows from bytes that come. Pure."""

from __future__ import annotations

from typing import Protocol

from pykubelet.base.kit.values import Value, field


class Step(Value):
    """What follows from bytes of one side. `onward`: for the other one. `back`: answers to the one they came from, which
    it may miss when it does not read. `ended`: nothing is left to be said but the farewell."""

    onward: list[bytes] = field(default_factory=list)
    back: bytes = b""
    ended: bool = False


class Bridge(Protocol):
    """One stream. `protocol`: what is agreed on with the client; `runtime_protocol`: what the runtime is asked for.
    `is_open`: the runtime has agreed to all streams that were opened.
    """

    @property
    def protocol(self) -> str: ...

    @property
    def runtime_protocol(self) -> str: ...

    @property
    def is_open(self) -> bool: ...

    def start(self) -> tuple[bytes, bytes]:
        """What is said first to the client and to the runtime."""

    def from_client(self, data: bytes) -> Step: ...

    def from_runtime(self, data: bytes) -> Step: ...

    def farewell(self, trouble: str) -> bytes:
        """The last words for the client. `trouble`: why the stream ends early, "" where it does not."""
