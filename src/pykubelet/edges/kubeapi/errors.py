"""The only error of requests to the API server."""

from __future__ import annotations

#: `ApiError.reason` of a request that was not sent, because too many were waiting already.
QUEUE_FULL = "QueueFull"


class ApiError(Exception):
    """A failed request. `status`: the HTTP status; 0: no answer. `reason`: that of `metav1.Status`; "": none.

    `retry_after_s`: the pause that the server asks for before another attempt. The text is the server's message.
    """

    def __init__(self, status: int, reason: str, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after_s = retry_after_s

    @property
    def is_not_found(self) -> bool:
        """Whether the object or the path does not exist (404)."""
        return self.status == 404

    @property
    def already_exists(self) -> bool:
        """Whether an object of that name exists (409, reason AlreadyExists)."""
        return self.status == 409 and self.reason == "AlreadyExists"

    @property
    def is_conflict(self) -> bool:
        """Whether the object was changed since it was read (409, reason Conflict)."""
        return self.status == 409 and self.reason == "Conflict"

    @property
    def is_expired(self) -> bool:
        """Whether the resource version is too old, so that the objects must be listed again."""
        return self.status == 410

    @property
    def was_queue_full(self) -> bool:
        """Whether the request was not sent, because too many requests of this client were waiting."""
        return self.status == 0 and self.reason == QUEUE_FULL

    @property
    def is_transient(self) -> bool:
        """Whether the same request may succeed later: no answer, too many requests, or an error of the server."""
        return self.status in (0, 408, 429) or self.status >= 500
