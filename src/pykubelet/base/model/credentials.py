"""The state of the node's certificates, as users see it. `Credentials` is written by edges/identity alone."""

from __future__ import annotations

from collections.abc import Mapping

from pykubelet.base.kit.values import Value, field


class CertificateState(Value):
    """One certificate that the agent requests from the API server. Times are wall seconds.

    `expires_at`: None while there is no certificate. `request`: the name of the pending CertificateSigningRequest. `problem`:
    why the last try failed. `since`: when `request` or `problem` began to hold. `next_at`: when the next one is requested.
    """

    file: str
    expires_at: float | None = None
    request: str = ""
    problem: str = ""
    since: float = 0.0
    next_at: float | None = None


class Credentials(Value):
    """The certificates by use (`client`, `serving`); only those that the agent renews itself."""

    certificates: Mapping[str, CertificateState] = field(default_factory=dict)
