"""CertificateSigningRequests: which are approved without an administrator, and which certificates are signed.

A node's own client certificate is approved as clusters do it: if RBAC allows the requester to create the subresource
`selfnodeclient` or `nodeclient`. Its serving certificate is approved too, which clusters leave to the administrator: here there is
one node, and the names must be those of its Node.
Source: "Certificates and Certificate Signing Requests", "Kubelet TLS bootstrapping"; texts are those of the controllers.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Sequence
from functools import lru_cache

from cryptography import x509
from cryptography.x509.oid import NameOID

from pykubelet_local_api.access.authorize import authorize
from pykubelet_local_api.access.certificates import DAY_S, EXTENDED_USAGES, KEY_USAGES, Authority, Validity
from pykubelet_local_api.access.node import node_of
from pykubelet_local_api.access.rbac import BINDINGS, CLUSTER_BINDINGS, CLUSTER_ROLES, ROLES, AccessAttributes
from pykubelet_local_api.errors import forbidden
from pykubelet_local_api.kinds.table import BY_PATH
from pykubelet_local_api.objects import Json, is_deleting, name_of, timestamp
from pykubelet_local_api.view import ObjectChange, RequestUser, Verb, View

GROUP = "certificates.k8s.io"
REQUESTS = f"certificatesigningrequests.{GROUP}"
CLIENT = "kubernetes.io/kube-apiserver-client"
KUBELET_CLIENT = "kubernetes.io/kube-apiserver-client-kubelet"
KUBELET_SERVING = "kubernetes.io/kubelet-serving"
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
#: No request is larger: bytes of PEM.
LARGEST_REQUEST = 64 << 10
_KIND = BY_PATH[GROUP, "v1", "certificatesigningrequests"]
_SELF_MESSAGE = "Auto approving self kubelet client certificate after SubjectAccessReview."
_NODE_MESSAGE = "Auto approving kubelet client certificate after SubjectAccessReview."
_SERVING_MESSAGE = "Auto approving the serving certificate of the node: the names are those of its Node."
_NODE_USAGES = frozenset(("digital signature", "key encipherment"))


def signed_requests(authority: Authority, view: View) -> list[ObjectChange]:
    """The changes of all requests that are to be approved, signed or marked as failed."""
    changes = []
    for request in view.list(REQUESTS):
        changed = sign(request, authority, view)
        if changed is not None:
            changes.append(ObjectChange(Verb.STATUS, REQUESTS, changed))
    return changes


def sign(request: Json, authority: Authority, view: View) -> Json | None:
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
    parsed = parse_request(str(spec.get("request") or ""))
    if "Approved" not in true:
        message = _approval(spec, parsed, view)
        if not message:
            return None
        conditions.append(_condition("Approved", "AutoApproved", message, now))
    why = "the request cannot be read" if parsed is None else request_problem(parsed, spec)
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


@lru_cache(maxsize=32)  # a request that waits is looked at again whenever another one changes
def parse_request(text: str) -> x509.CertificateSigningRequest | None:
    """A request in base64 of PEM; None if it cannot be read, or is not signed by its own key."""
    try:
        pem = base64.b64decode(text, validate=True)
        if len(pem) > LARGEST_REQUEST:
            return None
        parsed = x509.load_pem_x509_csr(pem)
        _ = parsed.subject, parsed.public_key(), parsed.extensions  # parsed when read, which may fail
        return parsed if parsed.is_signature_valid else None
    except (ValueError, TypeError, binascii.Error):
        return None
    except Exception as error:  # noqa: BLE001 - the library's errors for keys that it does not support
        del error
        return None


def request_problem(parsed: x509.CertificateSigningRequest, spec: Json) -> str:
    """Why the signer does not sign the request; "" if it does."""
    usages = list(spec.get("usages") or ())
    signer = spec.get("signerName")
    if signer == CLIENT:
        return _client_problem(usages)
    if signer == KUBELET_CLIENT:
        return _kubelet_client_problem(parsed, usages)
    return _kubelet_serving_problem(parsed, usages)


def _client_problem(usages: Sequence[str]) -> str:
    for usage in usages:
        if usage not in ("digital signature", "key encipherment", "client auth"):
            return f"invalid usage for client certificate: {usage}"
    return "" if "client auth" in usages else "missing required usage for client certificate: client auth"


def _kubelet_client_problem(parsed: x509.CertificateSigningRequest, usages: Sequence[str]) -> str:
    if _values(parsed, NameOID.ORGANIZATION_NAME) != ["system:nodes"]:
        return "subject organization is not system:nodes"
    names = alternative_names(parsed)
    for kind, shown in (
        (x509.DNSName, "DNS"),
        (x509.RFC822Name, "Email"),
        (x509.IPAddress, "IP"),
        (x509.UniformResourceIdentifier, "URI"),
    ):
        if any(isinstance(name, kind) for name in names):
            return f"{shown} subjectAltNames are not allowed"
    if not common_name(parsed).startswith("system:node:"):
        return "subject common name does not begin with system:node:"
    return _usages_problem(usages, "client auth")


def _kubelet_serving_problem(parsed: x509.CertificateSigningRequest, usages: Sequence[str]) -> str:
    if _values(parsed, NameOID.ORGANIZATION_NAME) != ["system:nodes"]:
        return "subject organization is not system:nodes"
    names = alternative_names(parsed)
    if not any(isinstance(name, x509.DNSName | x509.IPAddress) for name in names):
        return "DNS or IP subjectAltName is required"
    for kind, shown in ((x509.RFC822Name, "Email"), (x509.UniformResourceIdentifier, "URI")):
        if any(isinstance(name, kind) for name in names):
            return f"{shown} subjectAltNames are not allowed"
    problem = _usages_problem(usages, "server auth")
    if problem:
        return problem
    if not common_name(parsed).startswith("system:node:"):
        return "subject common name does not begin with system:node:"
    return ""


def _usages_problem(usages: Iterable[str], purpose: str) -> str:
    given = set(usages)
    if given in ({*_NODE_USAGES, purpose}, {"digital signature", purpose}):
        return ""
    return f"usages did not match [{' '.join(sorted((purpose, *_NODE_USAGES)))}]"


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


def _approval(spec: Json, parsed: x509.CertificateSigningRequest | None, view: View) -> str:
    """The message with which a request is approved; "" if it waits for the administrator."""
    if parsed is None or request_problem(parsed, spec):
        return ""
    user, name = _requester(spec), common_name(parsed)
    if spec["signerName"] == KUBELET_CLIENT:
        ways = _ways(user, view)
        return ways.get("selfnodeclient" if user.name == name else "", "") or ways.get("nodeclient", "")
    node = view.get("nodes", "", node_of(user)) if user.name == name else None
    return _SERVING_MESSAGE if node is not None and _names(parsed) <= node_names(node) else ""


def node_names(node: Json) -> frozenset[str]:
    """The names and addresses of a Node."""
    addresses = (node.get("status") or {}).get("addresses") or ()
    return frozenset((name_of(node), *(str(found.get("address") or "") for found in addresses)))


def _names(parsed: x509.CertificateSigningRequest) -> frozenset[str]:
    return frozenset(str(name.value) for name in alternative_names(parsed))


def alternative_names(parsed: x509.CertificateSigningRequest) -> list[x509.GeneralName]:
    """The names in the extension subjectAltName."""
    try:
        return list(parsed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except x509.ExtensionNotFound:
        return []


def common_name(parsed: x509.CertificateSigningRequest) -> str:
    """The name in the subject; the last one if there are several, as Go takes it."""
    return next(iter(_values(parsed, NameOID.COMMON_NAME)[::-1]), "")


def _values(parsed: x509.CertificateSigningRequest, oid: x509.ObjectIdentifier) -> list[str]:
    return [str(found.value) for found in parsed.subject.get_attributes_for_oid(oid)]


def _signed(parsed: x509.CertificateSigningRequest, spec: Json, authority: Authority, now: float) -> bytes:
    wanted = spec.get("expirationSeconds")
    life = LONGEST_S if wanted is None else min(max(float(wanted), SHORTEST_S), LONGEST_S)
    end = now + life if life < _SHORT_S else now + life - _BACKDATED_S
    usages = [usage for usage in spec.get("usages") or () if usage in KEY_USAGES or usage in EXTENDED_USAGES]
    valid = Validity(now - _BACKDATED_S, end)
    return authority.sign(parsed.public_key(), parsed.subject, alternative_names(parsed), usages, valid)


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
    parsed = parse_request(spec.get("request") or "")
    if parsed is not None and "system:masters" in _values(parsed, NameOID.ORGANIZATION_NAME):
        why = f"use of {CLIENT} signer with system:masters group is not allowed"
        raise forbidden(_KIND, request["metadata"].get("name") or "", why)
