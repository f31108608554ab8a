"""The node's certificates, for people who ask. `Credentials` is written by edges/identity alone."""

from __future__ import annotations

from collections.abc import Mapping

from pykubelet.base.kit.values import Value, field


class CertificateState(Value):
    """One certificate that is asked for at the API server. Times are wall seconds.

    `expires_at`: None while there is none. `request`: the name of the signing request that is waited for. `problem`:
    why the last try failed. `since`: from when on `request` or `problem` holds. `next_at`: when the next is asked for.
    """

    file: str
    expires_at: float | None = None
    request: str = ""
    problem: str = ""
    since: float = 0.0
    next_at: float | None = None


class Credentials(Value):
    """By use: `client` and `serving`; only those that the agent keeps new itself."""

    certificates: Mapping[str, CertificateState] = field(default_factory=dict)
