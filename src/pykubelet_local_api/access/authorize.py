"""The decision whether a client may do what it wants, and the error if not. Pure.

Asked in the order of the API server: `system:masters` may do everything, then nodes, then RBAC.
"""

from __future__ import annotations

from pykubelet_local_api.access.node import authorize_node
from pykubelet_local_api.access.rbac import MASTERS, AccessAttributes, Permission, authorize_by_roles
from pykubelet_local_api.errors import StatusError
from pykubelet_local_api.view import View

_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


def authorize(wanted: AccessAttributes, view: View) -> Permission:
    """Whether the client may do it, and why or why not."""
    if MASTERS in wanted.user.groups:
        return Permission(True)
    by_node = authorize_node(wanted, view)
    if by_node.is_allowed:
        return by_node
    by_roles = authorize_by_roles(wanted, view)
    if by_roles.is_allowed:
        return by_roles
    return Permission(False, "\n".join(filter(None, (by_node.reason, by_roles.reason))))


def check(wanted: AccessAttributes, view: View) -> None:
    """Raise StatusError (403) if the client may not do it."""
    decision = authorize(wanted, view)
    if not decision.is_allowed:
        raise refusal(wanted, decision.reason)


def refusal(wanted: AccessAttributes, reason: str) -> StatusError:
    """403, as the API server states it."""
    if wanted.path:
        what = f'cannot {wanted.verb} path "{wanted.path}"'
    else:
        where = f'in the namespace "{wanted.namespace}"' if wanted.namespace else "at the cluster scope"
        resource = wanted.whole_resource
        what = f'cannot {wanted.verb} resource "{resource}" in API group "{wanted.group}" {where}'
    message = f'User "{wanted.user.name}" {what}'.translate(_ESCAPES) + (f": {reason}" if reason else "")
    if wanted.path:
        return StatusError(403, "Forbidden", f"forbidden: {message}")
    resource = f"{wanted.resource}.{wanted.group}" if wanted.group else wanted.resource
    name = f' "{wanted.name}"' if wanted.name else ""
    details = {"name": wanted.name, "group": wanted.group, "kind": wanted.resource}
    shown = {key: value for key, value in details.items() if value}
    return StatusError(403, "Forbidden", f"{resource}{name} is forbidden: {message}", shown)
