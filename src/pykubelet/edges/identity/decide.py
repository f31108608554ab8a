"""Decides when a certificate is requested, and the name of the request. Pure.

Rules:
- A certificate is renewed after 70 % to 90 % of its life, or at once if it is missing, expired, or differs from the
  wanted one.
- A serving certificate contains the node's name and its addresses. With a cloud provider, these are the addresses that it
  reports, because the approver of the request compares them with the Node.
- The first certificate is requested under a name that is derived from key, subject and usages, so that the same request is
  found again after a restart.

Source: the Kubernetes documentation "TLS bootstrapping" and "Certificates and Certificate Signing Requests".
"""

from __future__ import annotations

import base64
import hashlib
import ipaddress
from collections.abc import Iterable

from pykubelet.base.api.certificates import CertificateSigningRequest
from pykubelet.base.kit.backoff import BackoffPolicy
from pykubelet.base.kit.values import Value, replace
from pykubelet.base.model.node import NodeView
from pykubelet.edges.identity.keys import Description

CLIENT_SIGNER = "kubernetes.io/kube-apiserver-client-kubelet"
SERVING_SIGNER = "kubernetes.io/kubelet-serving"
ORGANIZATION = "system:nodes"
EARLIEST, LATEST = 0.7, 0.9
_NAMES = ("Hostname", "InternalDNS", "ExternalDNS")
_IPS = ("InternalIP", "ExternalIP")
#: The back-off between two attempts to get a certificate.
BACKOFF = BackoffPolicy(2.0, 32.0)


class WantedCertificate(Value):
    """The wanted content of a certificate. `use`: its name in `Credentials`. `usage`: the usage beside "digital signature".
    `dns_only`: it is of use without IP addresses (the gate AllowDNSOnlyNodeCSR)."""

    node: str
    use: str
    signer: str
    usage: str
    dns: tuple[str, ...] = ()
    ips: tuple[str, ...] = ()
    dns_only: bool = False

    @property
    def name(self) -> str:
        """The common name that the Node authorizer expects."""
        return f"system:node:{self.node}"

    @property
    def usages(self) -> tuple[str, ...]:
        """The key usages, as for an elliptic curve key."""
        return ("digital signature", self.usage)

    @property
    def needs_address(self) -> bool:
        """Whether the request must wait for an address: no client could use a serving certificate without an IP address."""
        return self.signer == SERVING_SIGNER and not self.ips and not (self.dns_only and self.dns)

    def at(self, dns: Iterable[str], ips: Iterable[str]) -> WantedCertificate:
        """The same certificate for these DNS names and IP addresses, sorted and without duplicates."""
        return replace(self, dns=tuple(sorted(set(dns))), ips=tuple(sorted(set(ips))))


def client_certificate(node: str) -> WantedCertificate:
    """The certificate with which the node authenticates to the API server."""
    return WantedCertificate(node, "client", CLIENT_SIGNER, "client auth")


def serving_certificate(node: str, *, dns_only: bool = False) -> WantedCertificate:
    """The certificate of the kubelet's port, signed by the cluster; names and addresses are added with `at`."""
    return WantedCertificate(node, "serving", SERVING_SIGNER, "server auth", dns_only=dns_only)


def names_of(node: NodeView) -> tuple[list[str], list[str]]:
    """The DNS names and the addresses at which clients reach the node."""
    if node.addresses is None:
        return [node.name], list(node.ips)
    dns, ips = [], []
    for entry in node.addresses:
        ip = _as_ip(entry.address) if entry.type in _IPS or entry.type in _NAMES else ""
        if ip:
            ips.append(ip)
        elif entry.address and entry.type in _NAMES:
            dns.append(entry.address)
    return dns, ips


def _as_ip(text: str) -> str:
    """An IP address in its usual spelling, as in certificates; "" for other text."""
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return ""


def renewal_at(found: Description | None, wanted: WantedCertificate, share: float) -> float:
    """When to renew the certificate, in wall seconds; 0: now. `share`: the fraction of its life after which it is renewed."""
    if found is None or not is_as_wanted(found, wanted):
        return 0.0
    return found.not_before + (found.not_after - found.not_before) * share


def is_as_wanted(found: Description, wanted: WantedCertificate) -> bool:
    """Whether subject, organization, DNS names and addresses are the wanted ones. Additional names are accepted."""
    if found.name != wanted.name or ORGANIZATION not in found.organizations:
        return False
    return set(wanted.dns) <= set(found.dns) and set(wanted.ips) <= set(found.ips)


def request_name(public_key: bytes, wanted: WantedCertificate) -> str:
    """The name of a signing request, which depends only on key (DER), subject and usages."""
    parts = [public_key, wanted.name.encode(), ORGANIZATION.encode(), *(usage.encode() for usage in wanted.usages)]
    digest = hashlib.new("sha512_256")
    for part in parts:
        digest.update(_url64(part) + b"|")
    return "node-csr-" + _url64(digest.digest()).decode()


def refusal(request: CertificateSigningRequest) -> str:
    """Why the request will never get a certificate; empty if it may still get one."""
    conditions = request.status.conditions if request.status is not None else ()
    for condition in conditions:
        if condition.type in ("Denied", "Failed") and condition.status != "False":
            text = ": ".join(part for part in (condition.reason, condition.message) if part)
            return f"the signing request was {condition.type.lower()}" + (f": {text}" if text else "")
    return ""


def _url64(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")
