"""What can go wrong with a request to the API server, as one error."""

from __future__ import annotations

#: `ApiError.reason` of a request that was not sent, because too many were waiting already.
QUEUE_FULL = "QueueFull"


class ApiError(Exception):
    """`status`: the HTTP status, 0 when no answer came. `reason`: `metav1.Status.reason`, "" where there is none.

    `retry_after_s`: what the server asks for before another try. The text is the server's message, as people read it.
    """

    def __init__(self, status: int, reason: str, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after_s = retry_after_s

    @property
    def is_not_found(self) -> bool:
        return self.status == 404

    @property
    def already_exists(self) -> bool:
        return self.status == 409 and self.reason == "AlreadyExists"

    @property
    def is_conflict(self) -> bool:
        return self.status == 409 and self.reason == "Conflict"

    @property
    def is_expired(self) -> bool:
        """The resource version is too old: list again."""
        return self.status == 410

    @property
    def was_queue_full(self) -> bool:
        """It was not sent: too many requests of this client were waiting already."""
        return self.status == 0 and self.reason == QUEUE_FULL

    @property
    def is_transient(self) -> bool:
        """Worth another try with the same words: not reached, too many requests, or the server is in trouble."""
        return self.status in (0, 408, 429) or self.status >= 500
