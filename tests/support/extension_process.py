"""A process extension without a process: a double of `ProcessChannel`, for virtual time."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from pykubelet.base.kit.clock import Clock
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.plugins.extension_memory import KeptOffer
from pykubelet.edges.plugins.extension_process import ChannelEndedError, ExtensionProcess, ExtensionProgram

Message = dict[str, Any]
QUEUE_LINES = 1000


class FakeChannel:
    """One run. `got`: what the agent has sent. `is_deaf`: it reads nothing, so its queue is full."""

    def __init__(self) -> None:
        self.got: list[Message] = []
        self.is_deaf = False
        self.is_ended = False
        self._out: deque[bytes] = deque()
        self._why = ""
        self._wakeup = asyncio.Event()
        self._heard = asyncio.Event()

    # For the agent

    async def read_line(self) -> bytes:
        while not self._out:
            if self._why:
                raise ChannelEndedError(self._why)
            self._wakeup.clear()
            await self._wakeup.wait()
        return self._out.popleft()

    def send(self, line: bytes) -> bool:
        if self.is_deaf or self._why:
            return False
        self.got.append(json.loads(line))
        self._heard.set()
        return True

    def fail(self, reason: str) -> None:
        self._why = self._why or reason
        self._wakeup.set()

    async def end(self, *, at_once: bool) -> None:
        self.fail("it was ended")
        self.is_ended = True

    # For tests

    def emit(self, message: Mapping[str, Any] | bytes) -> None:
        """Have the process send a message, or a line."""
        self._out.append(message if isinstance(message, bytes) else json.dumps(message).encode())
        self._wakeup.set()

    async def hears(self, wanted: Callable[[Message], bool]) -> Message:
        """Wait for a message from the agent."""
        while not (found := [message for message in self.got if wanted(message)]):
            self._heard.clear()
            await self._heard.wait()
        return found[-1]

    async def asked(self, call: str) -> Message:
        """Wait for the newest request of a kind, and take it."""
        found = await self.hears(lambda message: message.get("call") == call)
        self.got.remove(found)
        return found

    def answer(self, request: Message, result: Any) -> None:
        self.emit({"id": request["id"], "result": result})


class FakeProgram:
    """Starts doubles. `offers`: they answer `hello` with these; None: not at all. `broken`: why none can be started."""

    def __init__(self, offers: tuple[str, ...] | None = ("need",), **answer: str) -> None:
        self.offers = offers
        self.answer = answer
        self.broken = ""
        self.runs: list[FakeChannel] = []
        self._started = asyncio.Event()

    async def __call__(self) -> FakeChannel:
        if self.broken:
            raise HostError("exec", "/opt/ext", "ENOENT", self.broken)
        channel = FakeChannel()
        if self.offers is not None:
            channel.emit({"offers": list(self.offers), "version": "1.0", **self.answer})
        self.runs.append(channel)
        self._started.set()
        return channel

    async def started(self, number: int = 1) -> FakeChannel:
        """Wait for the start of this number."""
        while len(self.runs) < number:
            self._started.clear()
            await self._started.wait()
        return self.runs[number - 1]

    def process(
        self, clock: Clock, settings: Mapping[str, Any] | None = None, earlier: KeptOffer | None = None
    ) -> ExtensionProcess:
        """The process that starts these doubles, named `ext`."""
        program = ExtensionProgram("ext", "/opt/ext", settings or {})
        return ExtensionProcess(program, "node-1", self, clock, earlier)
