"""The handles with which tests look at a fake runtime and disturb it: recorded calls and injected faults.

Owns: `FakeHandles`, the part of a fake that its transports (`fake.py`: gRPC, `in_memory.py`: none) share.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.values import Value
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.client import CriClient
from pykubelet.edges.cri.errors import CriCode
from pykubelet.testing.cri.fake_answers import Answer, FakeAnswers, FakeFeatures
from pykubelet.testing.cri.fake_state import FakeContainer, FakeImage, Notify, Refused
from pykubelet.testing.ordered import OrderedSet


@dataclass(slots=True)
class RuntimeFault:
    """A fault of the calls of one method (`*`: any), for all pods or for one by name or UID.

    `delay_s`: delays the call. `hang`: waits until the caller gives up. `code`: then fails the call. `after`: this happens after
    the call has taken effect, as if its answer were lost. `times` None: until withdrawn. `die`: stops the whole runtime
    instead, with its socket.
    """

    method: str
    pod: str = ""
    code: CriCode | None = None
    message: str = "injected"
    delay_s: float = 0.0
    hang: bool = False
    after: bool = False
    die: bool = False
    times: int | None = None
    met: int = 0


class Call(Value):
    """One received call: the method, the request, the pod's name if known, and the caller's span if it is traced."""

    method: str
    request: Any
    pod: str
    traceparent: str = ""


class FakeHandles(FakeAnswers):
    """A fake runtime with the handles for tests: `state`, `registry`, `calls`, `inject`. `records`: whether calls are kept."""

    def __init__(self, path: str, clock: Clock | None, features: FakeFeatures | None, notify: Notify) -> None:
        super().__init__(clock, features, notify)
        self.path = path
        self.endpoint = f"unix://{path}"
        self.records = True
        self.calls: list[Call] = []
        self._faults: list[RuntimeFault] = []
        self._waiting: OrderedSet[asyncio.Event] = OrderedSet()

    @abstractmethod
    def connect(self, timeout_s: float = 120.0) -> CriClient:
        """A client of this runtime. `timeout_s`: as of `CriClient`."""

    @property
    @abstractmethod
    def subscribers(self) -> int:
        """The number of open event streams."""

    @abstractmethod
    def die(self) -> None:
        """Stop in the middle of a call: calls and streams fail and the socket is removed, but the state is kept."""

    def add_image(self, name: str, size: int = 1_000_000, user: str = "") -> FakeImage:
        """Add an image to the store, as if it had been pulled."""
        image = FakeImage(name, size, user)
        self.state.images[name] = image
        return image

    def inject(self, fault: RuntimeFault) -> RuntimeFault:
        """Inject a fault, and return it for `withdraw`."""
        self._faults.append(fault)
        return fault

    def withdraw(self, fault: RuntimeFault) -> None:
        """Remove an injected fault."""
        self._faults.remove(fault)

    def called(self, method: str) -> list[Call]:
        """The recorded calls of one method, oldest first."""
        return [call for call in self.calls if call.method == method]

    async def wait_for(self, condition: Callable[[], object]) -> None:
        """Wait until a condition on calls or subscribers is true."""
        changed = asyncio.Event()
        self._waiting.add(changed)
        try:
            while not condition():
                await changed.wait()
                changed.clear()
        finally:
            self._waiting.discard(changed)

    def changed(self) -> None:
        """Let `wait_for` look again."""
        for waiting in self._waiting:
            waiting.set()

    def find(self, name: str, pod: str = "") -> FakeContainer | None:
        """The newest instance of a container by name, in the pod with this name or UID if given; None if there is none."""
        for container in reversed(self.state.containers.values()):
            meta = container.sandbox.config.metadata
            if container.config.metadata.name == name and pod in ("", meta.name, meta.uid):
                return container
        return None

    def container(self, name: str, pod: str = "") -> FakeContainer:
        """As `find`. Raises KeyError if there is none."""
        found = self.find(name, pod)
        if found is None:
            raise KeyError(name)
        return found

    async def answer(self, method: str, request: Any, answer: Answer, traceparent: str = "") -> Any:
        """Answer a call: record it, and let it suffer the fault that is due. Raises `Refused`."""
        if not self.records and not self._faults:
            return await answer(request)
        pod = self._pod_of(request)
        self.calls.append(Call(method, request, pod[0], traceparent))
        self.changed()
        fault = self._fault_for(method, pod)
        if fault is not None and not fault.after:
            await self._suffer(fault)
        result = await answer(request)
        if fault is not None and fault.after:
            await self._suffer(fault)
        return result

    def _fault_for(self, method: str, pod: tuple[str, str]) -> RuntimeFault | None:
        for fault in self._faults:
            spent = fault.times is not None and fault.met >= fault.times
            if not spent and fault.method in ("*", method) and (not fault.pod or fault.pod in pod):
                fault.met += 1
                return fault
        return None

    async def _suffer(self, fault: RuntimeFault) -> None:
        if fault.die:
            self.die()
        if fault.hang or fault.die:
            await asyncio.Event().wait()
        if fault.delay_s:
            await asyncio.sleep(fault.delay_s)
        if fault.code is not None:
            raise Refused(fault.code, fault.message)

    def _pod_of(self, request: Any) -> tuple[str, str]:
        """The name and UID of the pod that a request concerns; empty if there is none."""
        config = getattr(request, "config", None) or getattr(request, "sandbox_config", None)
        if isinstance(config, pb.PodSandboxConfig):
            return config.metadata.name, config.metadata.uid
        container = self.state.containers.get(getattr(request, "container_id", ""))
        sandbox = container.sandbox if container else self.state.sandboxes.get(getattr(request, "pod_sandbox_id", ""))
        return (sandbox.config.metadata.name, sandbox.config.metadata.uid) if sandbox else ("", "")
