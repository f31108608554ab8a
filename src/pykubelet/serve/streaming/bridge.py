"""The interface of translations between a WebSocket client and the runtime. Pure."""

from __future__ import annotations

from typing import Protocol

from pykubelet.base.kit.values import Value, field


class Step(Value):
    """The result of bytes from one side. `onward`: bytes for the other side. `back`: answers to the sender, which are dropped if
    it does not read. `ended`: only the Close frame is left to send."""

    onward: list[bytes] = field(default_factory=list)
    back: bytes = b""
    ended: bool = False


class Bridge(Protocol):
    """The translation of one stream."""

    @property
    def protocol(self) -> str:
        """The subprotocol that was negotiated with the client."""
        ...

    @property
    def runtime_protocol(self) -> str:
        """The subprotocol that is requested from the runtime."""
        ...

    @property
    def is_open(self) -> bool:
        """Whether the runtime has accepted all streams."""
        ...

    def start(self) -> tuple[bytes, bytes]:
        """The first bytes for the client and for the runtime."""

    def from_client(self, data: bytes) -> Step:
        """Translate bytes of the client."""
        ...

    def from_runtime(self, data: bytes) -> Step:
        """Translate bytes of the runtime."""
        ...

    def close_message(self, error: str) -> bytes:
        """The last bytes for the client. `error`: why the stream ends early; "" if it does not."""
