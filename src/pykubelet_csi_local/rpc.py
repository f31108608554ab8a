"""Makes methods of an `RpcServer` from handlers of decoded requests, and runs blocking work one by one for each volume."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from google.protobuf.message import Message

from pykubelet.base.kit.flight import SingleFlight, value_of
from pykubelet.base.kit.log import Log
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.services.process import run_program
from pykubelet.net.grpc.call import typed_method
from pykubelet.net.grpc.services import Method
from pykubelet.net.grpc.status import Code, RpcError

log = Log("csi-local")
T = TypeVar("T")
R = TypeVar("R", bound=Message)
WORK_S = 100.0
MAX_PATH = 4095


def method(request: type[R], handler: Callable[[R], Awaitable[Message]]) -> Method:
    """A method of the server that logs its failures. A refusal of the host becomes status INTERNAL."""
    name = request.__name__.removesuffix("Request")

    async def call(decoded: R) -> Message:
        try:
            return await handler(decoded)
        except HostError as error:
            log.warning("call failed", call=name, error=error)
            raise RpcError(Code.INTERNAL, str(error)) from error
        except RpcError as error:
            log.info("call refused", call=name, error=error.message)
            raise

    return typed_method(request, call)


def path_of(value: str, name: str) -> str:
    """The absolute path in a field. Raises RpcError for any other value."""
    path = required(value, name)
    if not path.startswith("/") or "\0" in path or len(path.encode()) > MAX_PATH:
        raise RpcError(Code.INVALID_ARGUMENT, f"{name} must be an absolute path of at most {MAX_PATH} bytes")
    return path


def required(value: str, name: str) -> str:
    """The value of a field. Raises RpcError if it is empty."""
    if not value:
        raise RpcError(Code.INVALID_ARGUMENT, f"{name} is missing in the request")
    return value


async def blocking(flight: SingleFlight, volume_id: str, work: Callable[[], T]) -> T:
    """Run blocking work on a volume. Raises RpcError (ABORTED) while earlier work on it still runs, or if it takes too long."""
    return value_of(
        await flight.run(volume_id, work, WORK_S),
        lambda _: RpcError(Code.ABORTED, f"earlier work on volume {volume_id} is still under way"),
    )


async def run_tool(*argv: str, good: tuple[int, ...] = (0,)) -> None:
    """Run a program of the host. Raises HostError with its output if its exit status is none of `good`, or it is missing."""
    result = await run_program(argv, timeout_s=WORK_S, limit=8 << 10)
    if result.code not in good:
        output = (result.err or result.out).decode(errors="replace").strip()
        raise HostError("exec", " ".join(argv), "", f"exit status {result.code}: {output}")
