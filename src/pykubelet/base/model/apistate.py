"""Whether the API server answers, for users and for components that wait for it. Written by report/node alone."""

from __future__ import annotations

from pykubelet.base.kit.values import Value


class ApiState(Value):
    """The state of the connection to the API server. Times are wall seconds.

    `server`: its URL; empty without an API server. `error`: why it cannot be reached; empty while it answers. `ok_at`: the
    last good answer. `since`: when `error` began to hold, or to be empty. `next_at`: the next request. `node_error`: why the
    Node's status cannot be reported; empty if it can. `node_since`: when `node_error` began to hold. `node_next_at`: the next
    attempt to report the status or to create the Node.
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
