"""How it stands with the API server, for people who ask and for rooms that wait for it. Written by report/node alone."""

from __future__ import annotations

from pykubelet.base.kit.values import Value


class ApiState(Value):
    """`server`: its URL, empty without an API server. `error`: why it is not to be had, empty when all is well.

    `ok_at`: wall seconds of the last good answer. `since`: those from which on `error`, or its absence, holds. `next_at`:
    those of the next question. `node_error`: why the Node's status cannot be told, empty when it can; `node_since`: since
    when; `node_next_at`: when that is tried again, or the Node made.
    """

    server: str = ""
    error: str = ""
    ok_at: float | None = None
    since: float | None = None
    next_at: float | None = None
    node_error: str = ""
    node_since: float | None = None
    node_next_at: float | None = None

    def is_back_since(self, before: ApiState) -> bool:
        """Whether the lease or the Node's status got a good answer again."""
        return bool(before.error and not self.error) or bool(before.node_error and not self.node_error)
