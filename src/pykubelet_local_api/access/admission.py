"""What of access a write must pass before it is stored, by kind. Pure.

Strategies of roles, bindings and CertificateSigningRequests call it from their admission.
"""

from __future__ import annotations

from pykubelet_local_api.access.escalation import check_binding, check_role
from pykubelet_local_api.access.rbac import BINDINGS, CLUSTER_BINDINGS, CLUSTER_ROLES, ROLES
from pykubelet_local_api.access.signing import REQUESTS, check_signers, check_subject
from pykubelet_local_api.kinds.kind import ResourceKind
from pykubelet_local_api.objects import Json
from pykubelet_local_api.view import RequestUser, View


def admit_write(
    kind: ResourceKind, new: Json, old: Json | None, subresource: str, user: RequestUser, view: View
) -> None:
    """Raise StatusError if the user may not write this. `new`: with its defaults. `old`: None for a new object."""
    resource = kind.resource
    if resource in (ROLES, CLUSTER_ROLES):
        check_role(kind, new, old, user, view)
    elif resource in (BINDINGS, CLUSTER_BINDINGS):
        check_binding(kind, new, old, user, view)
    elif resource == REQUESTS and old is None:
        check_subject(new)
    elif resource == REQUESTS and old is not None and subresource == "approval":
        check_signers(old, "approve", user, view)
    elif resource == REQUESTS and old is not None and subresource == "status" and _is_signed_anew(new, old):
        check_signers(old, "sign", user, view)


def _is_signed_anew(new: Json, old: Json) -> bool:
    after, before = ((found.get("status") or {}) for found in (new, old))
    return any((after.get(field) or None) != (before.get(field) or None) for field in ("certificate", "conditions"))
