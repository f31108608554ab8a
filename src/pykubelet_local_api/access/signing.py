"""CertificateSigningRequests: which are approved without an administrator, and which certificates are signed.

A node's own client certificate is approved as clusters do it: if RBAC allows the requester to create the subresource
`selfnodeclient` or `nodeclient`. Its serving certificate is approved too, which clusters leave to the administrator: here there is
one node, and the names must be those of its Node.
Source: "Certificates and Certificate Signing Requests", "Kubelet TLS bootstrapping"; texts are those of the controllers.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

from pykubelet_local_api.access.authorize import authorize
from pykubelet_local_api.access.node import node_of
from pykubelet_local_api.access.place import AuthorityPem
from pykubelet_local_api.access.rbac import BINDINGS, CLUSTER_BINDINGS, CLUSTER_ROLES, ROLES, AccessAttributes
from pykubelet_local_api.access.usages import (
    CLIENT,
    DAY_S,
    EXTENDED_USAGES,
    KEY_USAGES,
    KUBELET_CLIENT,
    KUBELET_SERVING,
    Validity,
)
from pykubelet_local_api.errors import forbidden
from pykubelet_local_api.kinds.table import BY_PATH
from pykubelet_local_api.objects import Json, is_deleting, name_of, timestamp
from pykubelet_local_api.view import ObjectChange, RequestUser, Verb, View

if TYPE_CHECKING:
    from cryptography.x509 import CertificateSigningRequest

GROUP = "certificates.k8s.io"
REQUESTS = f"certificatesigningrequests.{GROUP}"
#: What `signed_requests` depends on.
READS = frozenset((REQUESTS, "nodes", ROLES, BINDINGS, CLUSTER_ROLES, CLUSTER_BINDINGS))
#: The signers that this API has.
SIGNERS = (CLIENT, KUBELET_CLIENT, KUBELET_SERVING)
#: The longest life of a certificate.
LONGEST_S = 365 * DAY_S
SHORTEST_S = 600.0
#: Certificates are backdated; those with a short life end later by as much.
_BACKDATED_S = 300.0
_SHORT_S = 8 * 3600.0
_KIND = BY_PATH[GROUP, "v1", "certificatesigningrequests"]
_SELF_MESSAGE = "Auto approving self kubelet client certificate after SubjectAccessReview."
_NODE_MESSAGE = "Auto approving kubelet client certificate after SubjectAccessReview."
_SERVING_MESSAGE = "Auto approving the serving certificate of the node: the names are those of its Node."


def signed_requests(authority: AuthorityPem, view: View) -> list[ObjectChange]:
    """The changes of all requests that are to be approved, signed or marked as failed."""
    changes = []
    for request in view.list(REQUESTS):
        changed = sign(request, authority, view)
        if changed is not None:
            changes.append(ObjectChange(Verb.STATUS, REQUESTS, changed))
    return changes


def sign(request: Json, authority: AuthorityPem, view: View) -> Json | None:
    """The request with its new status; None if nothing is to be done. Approval and certificate come in one change."""
    status, spec = request.get("status") or {}, request.get("spec") or {}
    conditions = list(status.get("conditions") or ())
    true = {found.get("type") for found in conditions if found.get("status", "True") == "True"}
    if spec.get("signerName") not in SIGNERS or status.get("certificate") or is_deleting(request):
        return None
    if true & {"Denied", "Failed"}:
        return None
    now = view.now
    if "Approved" not in true and not _may_be_approved(spec, view):
        return None
    from pykubelet_local_api.access import requests  # loads `cryptography`, so only with the first request

    parsed = requests.parse_request(str(spec.get("request") or ""))
    if "Approved" not in true:
        message = _approval(spec, parsed, view)
        if not message:
            return None
        conditions.append(_condition("Approved", "AutoApproved", message, now))
    why = "the request cannot be read" if parsed is None else requests.request_problem(parsed, spec)
    try:
        made = b"" if why or parsed is None else _signed(parsed, spec, authority, now)
    except (ValueError, TypeError) as error:  # what can be requested and not be put into a certificate
        made, why = b"", f"the certificate cannot be made: {error}"
    if not made:
        conditions.append(_condition("Failed", "SignerValidationFailure", why, now))
        return request | {"status": status | {"conditions": conditions}}
    certificate = base64.b64encode(made).decode()
    return request | {"status": status | {"conditions": conditions, "certificate": certificate}}


def _condition(kind: str, reason: str, message: str, now: float) -> Json:
    at = timestamp(now)
    return {
        "type": kind,
        "status": "True",
        "reason": reason,
        "message": message,
        "lastUpdateTime": at,
        "lastTransitionTime": at,
    }


def _requester(spec: Json) -> RequestUser:
    extra = {key: tuple(values or ()) for key, values in (spec.get("extra") or {}).items()}
    return RequestUser(spec.get("username") or "", tuple(spec.get("groups") or ()), spec.get("uid") or "", extra)


def _may_be_approved(spec: Json, view: View) -> bool:
    """Whether the requester is one that may be approved, whatever the request contains."""
    user = _requester(spec)
    if spec["signerName"] == KUBELET_SERVING:
        return bool(node_of(user))
    return spec["signerName"] == KUBELET_CLIENT and bool(_ways(user, view))


def _ways(user: RequestUser, view: View) -> dict[str, str]:
    """The messages of the ways by which a user gets client certificates of nodes, by subresource."""
    return {
        subresource: message
        for subresource, message in (("selfnodeclient", _SELF_MESSAGE), ("nodeclient", _NODE_MESSAGE))
        if authorize(
            AccessAttributes(user, "create", GROUP, "certificatesigningrequests", subresource), view
        ).is_allowed
    }


def _approval(spec: Json, parsed: CertificateSigningRequest | None, view: View) -> str:
    """The message with which a request is approved; "" if it waits for the administrator."""
    from pykubelet_local_api.access import requests

    if parsed is None or requests.request_problem(parsed, spec):
        return ""
    user, name = _requester(spec), requests.common_name(parsed)
    if spec["signerName"] == KUBELET_CLIENT:
        ways = _ways(user, view)
        return ways.get("selfnodeclient" if user.name == name else "", "") or ways.get("nodeclient", "")
    node = view.get("nodes", "", node_of(user)) if user.name == name else None
    return _SERVING_MESSAGE if node is not None and requests.names_of(parsed) <= node_names(node) else ""


def node_names(node: Json) -> frozenset[str]:
    """The names and addresses of a Node."""
    addresses = (node.get("status") or {}).get("addresses") or ()
    return frozenset((name_of(node), *(str(found.get("address") or "") for found in addresses)))


def _signed(parsed: CertificateSigningRequest, spec: Json, authority: AuthorityPem, now: float) -> bytes:
    wanted = spec.get("expirationSeconds")
    life = LONGEST_S if wanted is None else min(max(float(wanted), SHORTEST_S), LONGEST_S)
    end = now + life if life < _SHORT_S else now + life - _BACKDATED_S
    usages = [usage for usage in spec.get("usages") or () if usage in KEY_USAGES or usage in EXTENDED_USAGES]
    from pykubelet_local_api.access import requests

    valid, names = Validity(now - _BACKDATED_S, end), requests.alternative_names(parsed)
    return authority.loaded.sign(parsed.public_key(), parsed.subject, names, usages, valid)


def check_signers(request: Json, verb: str, user: RequestUser, view: View) -> None:
    """Raise StatusError (403) if the user may not `approve` (and deny) or `sign` requests of the signer. `request`: as it is stored."""
    signer = (request.get("spec") or {}).get("signerName") or ""
    for name in (signer, f"{signer.partition('/')[0]}/*"):
        if authorize(AccessAttributes(user, verb, GROUP, "signers", name=name), view).is_allowed:
            return
    raise forbidden(_KIND, name_of(request), f'user not permitted to {verb} requests with signerName "{signer}"')


def check_subject(request: Json) -> None:
    """Raise StatusError (403) for a new request of a client certificate in the group system:masters."""
    spec = request.get("spec") or {}
    if spec.get("signerName") != CLIENT:
        return
    from pykubelet_local_api.access import requests

    parsed = requests.parse_request(spec.get("request") or "")
    if parsed is not None and "system:masters" in requests.organizations(parsed):
        why = f"use of {CLIENT} signer with system:masters group is not allowed"
        raise forbidden(_KIND, request["metadata"].get("name") or "", why)
