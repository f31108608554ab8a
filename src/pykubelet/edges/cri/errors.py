"""The only error of calls to the runtime, whether it comes from the runtime or from the connection.

Owns: `CriError`, its codes, and the recognition of runtime messages that have no code of their own. All library errors are
translated here, so that callers see only `CriError`.
"""

from __future__ import annotations

import re
from enum import StrEnum

from pykubelet.net.grpc.status import Code

_RESERVED = re.compile(r'name "(?P<name>[^"]*)" is reserved for "(?P<id>[^"]*)"')
_RUNNING_TASK = re.compile(r"cannot delete running task (?P<id>\w+)")
_CHANGING = "failed to set removing state"
_NOT_INITIALIZED = "server is not initialized yet"
_NOT_IMPLEMENTED = "not implemented"


class CriCode(StrEnum):
    """The gRPC status codes, spelled as the reference kubelet prints them in events and messages."""

    CANCELED = "Canceled"
    UNKNOWN = "Unknown"
    INVALID_ARGUMENT = "InvalidArgument"
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    NOT_FOUND = "NotFound"
    ALREADY_EXISTS = "AlreadyExists"
    PERMISSION_DENIED = "PermissionDenied"
    RESOURCE_EXHAUSTED = "ResourceExhausted"
    FAILED_PRECONDITION = "FailedPrecondition"
    ABORTED = "Aborted"
    OUT_OF_RANGE = "OutOfRange"
    UNIMPLEMENTED = "Unimplemented"
    INTERNAL = "Internal"
    UNAVAILABLE = "Unavailable"
    DATA_LOSS = "DataLoss"
    UNAUTHENTICATED = "Unauthenticated"


class CriError(Exception):
    """A call to the runtime failed.

    `code` is the status, `message` the runtime's text, `call` the method (`RunPodSandbox`). As text it reads
    `rpc error: code = NotFound desc = ...`, which is what users find in the reference's events and statuses.
    """

    def __init__(self, code: CriCode, message: str, call: str) -> None:
        super().__init__(code, message, call)
        self.code = code
        self.message = message
        self.call = call

    def __str__(self) -> str:
        return f"rpc error: code = {self.code} desc = {self.message}"

    @property
    def is_not_found(self) -> bool:
        """Whether the container, sandbox or image does not exist."""
        return self.code is CriCode.NOT_FOUND

    @property
    def is_unavailable(self) -> bool:
        """Whether the runtime cannot be reached or is still starting. The call may have taken effect; try again later."""
        return self.code is CriCode.UNAVAILABLE

    @property
    def is_deadline(self) -> bool:
        """Whether a deadline passed, the client's or the runtime's own. The call may still take effect in the runtime."""
        return self.code is CriCode.DEADLINE_EXCEEDED

    @property
    def is_unimplemented(self) -> bool:
        """Whether the runtime does not have the call. containerd 2.2 answers some such calls with code Unknown."""
        is_unknown = self.code is CriCode.UNKNOWN and _NOT_IMPLEMENTED in self.message
        return is_unknown or self.code is CriCode.UNIMPLEMENTED

    @property
    def reserved_for(self) -> str | None:
        """The id of the object that has the name, if containerd answers `name "..." is reserved for "<id>"`."""
        match = _RESERVED.search(self.message)
        return match["id"] if match else None

    @property
    def running_task(self) -> str | None:
        """The id of a container that cannot be removed because containerd still has its process, whatever its status is."""
        match = _RUNNING_TASK.search(self.message)
        return match["id"] if match else None

    @property
    def is_changing(self) -> bool:
        """Whether containerd refuses to remove a container because another call starts, ends or removes it now."""
        return _CHANGING in self.message


def translated(status: Code, details: str, call: str) -> CriError:
    """The `CriError` for a failed call. Raise it `from` the original error."""
    code = CriCode[status.name] if status is not Code.OK else CriCode.UNKNOWN
    if _NOT_INITIALIZED in details:
        code = CriCode.UNAVAILABLE  # right after its start, containerd answers with code Unknown
    return CriError(code, details, call)
