"""The one error of a start: each step raises it, from rendering to the postStart hook, and the pod worker takes it up. Pure."""

from __future__ import annotations

from pykubelet.base.model.ids import ContainerID
from pykubelet.base.model.lifecycle import StartError
from pykubelet.base.model.reasons import CREATE_CONTAINER_CONFIG_ERROR


class ContainerStartError(Exception):
    """A container, or the sandbox that it needs, cannot be started: the waiting reason and its message.

    `retry_at`, `instance`, `unstarted`: as in `StartFailed`. `refusals`: why earlier attempts of this start have failed, each of which
    is reported too. `is_reported`: the failure is counted, and has its Event.
    `extension`: as in `StartError`.
    """

    def __init__(
        self,
        message: str,
        reason: str = CREATE_CONTAINER_CONFIG_ERROR,
        *,
        retry_at: float | None = None,
        instance: ContainerID | None = None,
        unstarted: ContainerID | None = None,
        refusals: tuple[str, ...] = (),
        is_reported: bool = False,
        extension: str = "",
    ) -> None:
        super().__init__(message)
        self.reason, self.message = reason, message
        self.retry_at = retry_at
        self.instance = instance
        self.unstarted = unstarted
        self.refusals = refusals
        self.is_reported = is_reported
        self.extension = extension

    @property
    def value(self) -> StartError:
        """The reason and the message, for the state of the pod."""
        return StartError(self.reason, self.message, self.extension)
