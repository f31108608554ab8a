"""Who signs a cluster's certificate signing requests in tests: for seconds only, and not while it rests.

Newer control planes do it themselves, configured for short lifetimes. Older ones than 1.27 do not sign for elliptic curve keys without
a usage that these do not have: for those it is done here, with the cluster's own authority, approvals included.
"""

from __future__ import annotations

import base64
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Self, cast

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPrivateKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from support.agent import Json
from support.cluster import Cluster
from testbed import controlplane

REQUESTS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
SERVING = "kubernetes.io/kubelet-serving"
#: A control plane's signer dates certificates back by five minutes, of which an agent takes its share.
_LIFE_S, _SIGNERS_LIFE = 30.0, "80s"


class Signer:
    """Use as a context."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._by_hand = cluster.plane.programs.minor < 27
        self._own = Cluster(cluster.plane)
        self._approved: set[str] = set()
        self._works, self._ends = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._sign_all)

    def __enter__(self) -> Self:
        for request in self._own.list_objects(REQUESTS):
            self._own.delete(f"{REQUESTS}/{request['metadata']['name']}")
        self.work()
        if self._by_hand:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ends.set()
        if self._by_hand:
            self._thread.join(10)
        else:
            self._stop_controllers()
            controlplane.start(self._cluster.plane, controlplane.CONTROLLERS)
        self._own.close()

    def rest(self) -> None:
        """Nothing is signed from now on."""
        self._works.clear()
        if not self._by_hand:
            self._stop_controllers()

    def work(self) -> None:
        self._works.set()
        if not self._by_hand:
            self._stop_controllers()
            flags = {"cluster-signing-duration": _SIGNERS_LIFE}
            controlplane.start(replace(self._cluster.plane, controllers_flags=flags), controlplane.CONTROLLERS)

    def approve(self, name: str) -> None:
        """A serving certificate's request; those for clients are approved by themselves."""
        if self._by_hand:
            self._approved.add(name)
        else:
            self._cluster.kubectl("certificate", "approve", name)

    def _stop_controllers(self) -> None:
        controlplane.stop(Path(self._cluster.plane.folder), [controlplane.CONTROLLERS])

    def _sign_all(self) -> None:
        while not self._ends.wait(0.1):
            for request in self._own.list_objects(REQUESTS) if self._works.is_set() else []:
                name, signer = request["metadata"]["name"], request["spec"]["signerName"]
                is_open = not (request.get("status") or {}).get("certificate") and not is_denied(request)
                if is_open and (signer != SERVING or name in self._approved):
                    certificate = base64.b64encode(self._signed(request)).decode()
                    self._own.patch(f"{REQUESTS}/{name}/status", {"status": {"certificate": certificate}})

    def _signed(self, request: Json) -> bytes:
        pki, now = self._cluster.plane.pki, datetime.now(UTC)
        asked = x509.load_pem_x509_csr(base64.b64decode(request["spec"]["request"]))
        issuer = x509.load_pem_x509_certificate(self._cluster.plane.authority.read_bytes())
        key = cast(CertificateIssuerPrivateKeyTypes, load_pem_private_key((pki / "ca.key").read_bytes(), None))
        made = x509.CertificateBuilder(
            issuer_name=issuer.subject,
            subject_name=asked.subject,
            public_key=asked.public_key(),
            serial_number=x509.random_serial_number(),
            not_valid_before=now - timedelta(seconds=1),
            not_valid_after=now + timedelta(seconds=_LIFE_S),
        )
        usage = x509.OID_CLIENT_AUTH if request["spec"]["signerName"] != SERVING else x509.OID_SERVER_AUTH
        made = made.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        for extension in asked.extensions:
            made = made.add_extension(extension.value, extension.critical)
        return made.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)


def is_denied(request: Json) -> bool:
    conditions = (request.get("status") or {}).get("conditions") or []
    return any(condition["type"] == "Denied" for condition in conditions)
