"""How it stands with the API server, for people who ask. `ApiState` is written by report/node alone."""

from __future__ import annotations

from pykubelet.base.kit.values import Value


class ApiState(Value):
    """`server`: its URL, empty without an API server. `error`: why it is not to be had, empty when all is well.

    `ok_at`: wall seconds of the last good answer. `since`: those from which on `error`, or its absence, holds.
    """

    server: str = ""
    error: str = ""
    ok_at: float | None = None
    since: float | None = None
