"""Makes methods of an `RpcServer` from handlers of decoded requests, and runs blocking work one by one for each volume."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from pykubelet.base.kit.flight import Done, Failed, SingleFlight
from pykubelet.base.kit.log import Log
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.services.process import run_program
from pykubelet.net.grpc.server import Method
from pykubelet.net.grpc.status import Code, RpcError

log = Log("csi-local")
T = TypeVar("T")
R = TypeVar("R", bound=Message)
WORK_S = 100.0
MAX_PATH = 4095
#: Characters of an error's message.
MAX_MESSAGE = 4096


def method(request: type[R], handler: Callable[[R], Awaitable[Message]]) -> Method:
    """A method of the server that decodes the request and encodes the answer. A refusal of the host becomes status INTERNAL."""

    async def call(data: bytes) -> bytes:
        try:
            decoded = request.FromString(data)
        except DecodeError as error:
            raise RpcError(Code.INVALID_ARGUMENT, f"cannot read the request: {error}") from error
        try:
            return (await handler(decoded)).SerializeToString()
        except HostError as error:
            log.warning("call failed", call=request.__name__.removesuffix("Request"), error=error)
            raise RpcError(Code.INTERNAL, _as_text(str(error))) from error
        except RpcError as error:
            log.info("call refused", call=request.__name__.removesuffix("Request"), error=error.message)
            raise RpcError(error.code, _as_text(error.message)) from error

    return call


def _as_text(message: str) -> str:
    """The message without what cannot be sent: names of files may have bytes that are no UTF-8."""
    return message.encode("utf-8", "backslashreplace").decode()[:MAX_MESSAGE]


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
    outcome = await flight.run(volume_id, work, WORK_S)
    match outcome:
        case Done(value):
            return value
        case Failed(error):
            raise error
        case _:
            raise RpcError(Code.ABORTED, f"earlier work on volume {volume_id} is still under way")


async def run_tool(*argv: str, good: tuple[int, ...] = (0,)) -> None:
    """Run a program of the host. Raises HostError with its output if its exit status is none of `good`, or it is missing."""
    result = await run_program(argv, timeout_s=WORK_S, limit=8 << 10)
    if result.code not in good:
        output = (result.err or result.out).decode(errors="replace").strip()
        raise HostError("exec", " ".join(argv), "", f"exit status {result.code}: {output}")
