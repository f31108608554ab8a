"""Failures of Docker Engine and of the host as statuses of the CRI. Pure."""

from __future__ import annotations

from pykubelet.net.grpc.status import Code, RpcError
from pykubelet_cri_docker.engine.transport import UNREACHABLE, EngineError

_CODES = {
    UNREACHABLE: Code.UNAVAILABLE,
    400: Code.INVALID_ARGUMENT,
    404: Code.NOT_FOUND,
    409: Code.ALREADY_EXISTS,
    501: Code.UNIMPLEMENTED,
}


def rpc_error(error: EngineError) -> RpcError:
    """The status of a refusal of Docker Engine."""
    return RpcError(_CODES.get(error.status, Code.UNKNOWN), error.message)


def name_in_use(kind: str, name: str, holder: str) -> RpcError:
    """A name that a sandbox or container (`kind`) already has, in containerd's words: clients read the ID of the holder from them."""
    return RpcError(
        Code.ALREADY_EXISTS, f'failed to reserve {kind} name "{name}": name "{name}" is reserved for "{holder}"'
    )


def not_running(kind: str, state: str) -> RpcError:
    """A call that needs a running container, in containerd's words."""
    return RpcError(Code.UNKNOWN, f"{kind}: container is in {state} state")


def invalid(field: str, problem: str) -> RpcError:
    """A field of a request that cannot be used."""
    return RpcError(Code.INVALID_ARGUMENT, f"{field}: {problem}")


def unimplemented(what: str) -> RpcError:
    """Something that Docker Engine cannot do."""
    return RpcError(Code.UNIMPLEMENTED, f"{what}: not possible with Docker Engine")
