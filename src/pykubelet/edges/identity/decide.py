"""When a certificate is asked for, and under which name. Pure.

Rules:
- A certificate is renewed after 70 % to 90 % of its life, at once when it is missing, expired, or says something else
  than it should.
- A serving certificate says the node's name and its addresses. Where a cloud provider tells them, what it has told counts,
  because whoever approves the request compares it with the Node.
- A first certificate is asked for under a name made of key, subject and usages, so that after a restart the same request
  is found again.

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
#: Between two tries to get a certificate.
BACKOFF = BackoffPolicy(2.0, 32.0)


class Wanted(Value):
    """What a certificate should say. `use`: its name in `Credentials`; `usage`: the one beside signatures."""

    node: str
    use: str
    signer: str
    usage: str
    dns: tuple[str, ...] = ()
    ips: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"system:node:{self.node}"

    @property
    def usages(self) -> tuple[str, ...]:
        """Those of an elliptic curve key."""
        return ("digital signature", self.usage)

    @property
    def needs_address(self) -> bool:
        """A serving certificate without an address is not asked for: nobody could use it."""
        return self.signer == SERVING_SIGNER and not self.ips

    def at(self, dns: Iterable[str], ips: Iterable[str]) -> Wanted:
        return replace(self, dns=tuple(sorted(set(dns))), ips=tuple(sorted(set(ips))))


def client_certificate(node: str) -> Wanted:
    return Wanted(node, "client", CLIENT_SIGNER, "client auth")


def serving_certificate(node: str) -> Wanted:
    return Wanted(node, "serving", SERVING_SIGNER, "server auth")


def names_of(node: NodeView) -> tuple[list[str], list[str]]:
    """The DNS names and the addresses under which the node is to be reached."""
    if node.addresses is None:
        return [node.name], list(node.ips)
    dns, ips = [], []
    for told in node.addresses:
        ip = _as_ip(told.address) if told.type in _IPS or told.type in _NAMES else ""
        if ip:
            ips.append(ip)
        elif told.address and told.type in _NAMES:
            dns.append(told.address)
    return dns, ips


def _as_ip(text: str) -> str:
    """In its usual spelling, which is that of certificates; "" for what is none."""
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return ""


def renewal_at(found: Description | None, wanted: Wanted, share: float) -> float:
    """The wall second from which on a new one is wanted; 0: now. `share`: of the certificate's life."""
    if found is None or not says(found, wanted):
        return 0.0
    return found.not_before + (found.not_after - found.not_before) * share


def says(found: Description, wanted: Wanted) -> bool:
    if found.name != wanted.name or ORGANIZATION not in found.organizations:
        return False
    return set(wanted.dns) <= set(found.dns) and set(wanted.ips) <= set(found.ips)


def request_name(public_key: bytes, wanted: Wanted) -> str:
    """The same for the same key (DER), subject and usages."""
    parts = [public_key, wanted.name.encode(), ORGANIZATION.encode(), *(usage.encode() for usage in wanted.usages)]
    digest = hashlib.new("sha512_256")
    for part in parts:
        digest.update(_url64(part) + b"|")
    return "node-csr-" + _url64(digest.digest()).decode()


def refusal(request: CertificateSigningRequest) -> str:
    """Why the request will never be answered; empty while it may be."""
    conditions = request.status.conditions if request.status is not None else ()
    for condition in conditions:
        if condition.type in ("Denied", "Failed") and condition.status != "False":
            text = ": ".join(part for part in (condition.reason, condition.message) if part)
            return f"the signing request was {condition.type.lower()}" + (f": {text}" if text else "")
    return ""


def _url64(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")
