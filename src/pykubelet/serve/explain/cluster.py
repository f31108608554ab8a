"""The parts of `pykubelet explain` about the API server and the node's certificates. Pure.

Owns: their part of the answers about the node, and the waits that they cause. Empty for a standalone node.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import asdict

from pykubelet.base.api.times import format_time
from pykubelet.base.model.credentials import CertificateState, Credentials
from pykubelet.base.model.node import ApiState, NodeView
from pykubelet.base.model.waits import Owner, Wait


def api_document(api: ApiState, node: NodeView) -> dict[str, Any] | None:
    """The fields of ApiState, and `registered` and `uid` of the node."""
    return {**asdict(api), "registered": node.registered, "uid": node.uid} if api.server else None


def certificates_document(credentials: Credentials) -> list[dict[str, Any]]:
    """One document for each certificate that the agent renews: the fields of CertificateState, and `use`."""
    return [{"use": use, **asdict(state)} for use, state in sorted(credentials.certificates.items())]


def cluster_waits(
    api: ApiState, credentials: Credentials, node: NodeView, now: float, started_at: float
) -> tuple[Wait, ...]:
    """The waits for the API server and the certificates. `now`, `started_at` (the agent's start): wall seconds."""
    if not api.server:
        return ()
    waits = []
    since = api.since if api.since is not None else started_at
    if api.error:
        waits.append(Wait("API server", Owner.NODE_STATUS, since, "", "", api.error, "ask again", api.next_at))
    elif not node.registered:
        detail = f'there is no Node "{node.name}" yet' + (f": {api.node_error}" if api.node_error else "")
        waits.append(Wait("registration", Owner.NODE_STATUS, started_at, "", "", detail, "try again", api.node_next_at))
    elif api.node_error:
        since = api.node_since or started_at
        waits.append(
            Wait("node status", Owner.NODE_STATUS, since, "", "", api.node_error, "report it again", api.node_next_at)
        )
    waits += [wait for use, state in sorted(credentials.certificates.items()) for wait in _certificate(use, state, now)]
    return tuple(waits)


def _certificate(use: str, state: CertificateState, now: float) -> list[Wait]:
    what, reason = f"{use} certificate", ""
    if state.expires_at is None:
        reason = "there is none yet"
    elif state.expires_at <= now:
        reason = f"expired at {format_time(state.expires_at)}"
    if state.request:
        detail = f"signing request {state.request} is to be approved"
        return [
            Wait(what, Owner.CERTIFICATE_MANAGER, state.since, "", reason, detail, "use it as soon as it is issued")
        ]
    if state.problem or reason:
        return [
            Wait(
                what,
                Owner.CERTIFICATE_MANAGER,
                state.since,
                "",
                reason,
                state.problem,
                "ask for one again",
                state.next_at,
            )
        ]
    return []
