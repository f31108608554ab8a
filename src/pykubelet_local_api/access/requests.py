"""What is in a certificate signing request, and whether a signer signs it. Pure.

It loads `cryptography`, so it is imported only when there is a request. Source: "Certificates and Certificate Signing Requests"; texts
are those of the controllers.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Sequence
from functools import lru_cache

from cryptography import x509
from cryptography.x509.oid import NameOID

from pykubelet_local_api.access.usages import CLIENT, KUBELET_CLIENT
from pykubelet_local_api.objects import Json

#: No request is larger: bytes of PEM.
LARGEST_REQUEST = 64 << 10
_NODE_USAGES = frozenset(("digital signature", "key encipherment"))


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
    if organizations(parsed) != ["system:nodes"]:
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
    if organizations(parsed) != ["system:nodes"]:
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


def names_of(parsed: x509.CertificateSigningRequest) -> frozenset[str]:
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


def organizations(parsed: x509.CertificateSigningRequest) -> list[str]:
    """The organizations in the subject."""
    return _values(parsed, NameOID.ORGANIZATION_NAME)


def _values(parsed: x509.CertificateSigningRequest, oid: x509.ObjectIdentifier) -> list[str]:
    return [str(found.value) for found in parsed.subject.get_attributes_for_oid(oid)]
