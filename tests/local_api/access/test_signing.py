"""CertificateSigningRequests: approved, signed, refused."""

from __future__ import annotations

import base64
import ipaddress
from collections.abc import Sequence
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID
from local_api.access.objects import NOW, Objects, bound, rbac, rule, thing, user

from pykubelet_local_api.access.admission import admit_write
from pykubelet_local_api.access.bootstrap import bootstrap_objects
from pykubelet_local_api.access.certificates import key_pem, new_authority, new_key, subject_of
from pykubelet_local_api.access.place import AuthorityPem
from pykubelet_local_api.access.requests import parse_request
from pykubelet_local_api.access.signing import (
    READS,
    REQUESTS,
    check_signers,
    check_subject,
    signed_requests,
)
from pykubelet_local_api.access.usages import CLIENT, KUBELET_CLIENT, KUBELET_SERVING
from pykubelet_local_api.errors import StatusError
from pykubelet_local_api.kinds.table import STORED
from pykubelet_local_api.objects import Json
from pykubelet_local_api.view import Verb

MADE = new_authority(new_key(), NOW)
AUTHORITY = AuthorityPem(MADE.pem, key_pem(MADE.key))
NAME = "system:node:n1"
GROUPS = ["system:nodes", "system:authenticated"]
NODE = thing("v1", "Node", "n1", status={"addresses": [{"address": "192.0.2.7"}, {"address": "n1.example"}]})
CLIENT_USAGES, SERVER_USAGES = ["client auth", "digital signature"], ["server auth", "digital signature"]
APPROVED = {"type": "Approved", "status": "True"}


def asked(
    signer: str, usages: list[str], name: str = NAME, groups: Sequence[str] = ("system:nodes",), names: Sequence[str] = (),
    status: Json | None = None, username: str = NAME, **spec: Any,
) -> Json:  # fmt: skip
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject_of(name, groups))
    if names:
        listed = [
            x509.IPAddress(ipaddress.ip_address(text)) if text[0].isdigit() else x509.DNSName(text) for text in names
        ]
        builder = builder.add_extension(x509.SubjectAlternativeName(listed), critical=False)
    pem = builder.sign(ec.generate_private_key(ec.SECP256R1()), hashes.SHA256()).public_bytes(
        serialization.Encoding.PEM
    )
    found: Json = {
        "request": base64.b64encode(pem).decode(), "signerName": signer, "usages": usages, "username": username, "groups": GROUPS,
    }  # fmt: skip
    made = thing("certificates.k8s.io/v1", "CertificateSigningRequest", "r", spec=found | spec)
    return made | ({"status": status} if status else {})


def result(request: Json, *more: Json) -> Json:
    """The request afterwards; an empty object if nothing happens to it."""
    view = Objects(*bootstrap_objects(), NODE, request, *more)
    changes = signed_requests(AUTHORITY, view)
    assert len(changes) <= 1
    if not changes:
        return {}
    assert changes[0].verb is Verb.STATUS
    view.put(changes[0].object)
    assert signed_requests(AUTHORITY, view) == []
    return changes[0].object


def certificate_in(request: Json) -> x509.Certificate:
    pem = base64.b64decode(request["status"]["certificate"])
    certificate = x509.load_pem_x509_certificate(pem)
    certificate.verify_directly_issued_by(MADE.certificate)
    return certificate


def conditions(request: Json) -> list[tuple[str, str, str]]:
    return [(found["type"], found["reason"], found["message"]) for found in request["status"]["conditions"]]


def test_a_node_renews_its_client_certificate() -> None:
    signed = result(asked(KUBELET_CLIENT, CLIENT_USAGES))
    assert conditions(signed) == [
        ("Approved", "AutoApproved", "Auto approving self kubelet client certificate after SubjectAccessReview.")
    ]
    certificate = certificate_in(signed)
    assert certificate.subject == subject_of(NAME, ("system:nodes",))
    usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    assert certificate.not_valid_before_utc.timestamp() == NOW - 300
    assert certificate.not_valid_after_utc.timestamp() == NOW + 365 * 86400 - 300
    with pytest.raises(x509.ExtensionNotFound):
        certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)


def test_a_new_node_is_approved_where_a_role_allows_it() -> None:
    request = asked(KUBELET_CLIENT, CLIENT_USAGES, username="system:bootstrap:x")
    assert result(request) == {}
    role = rbac(
        "ClusterRole", "r", rules=[rule("create", "certificatesigningrequests/nodeclient", "certificates.k8s.io")]
    )
    signed = result(request, role, bound(role, "User:system:bootstrap:x"))
    assert conditions(signed)[0][2] == "Auto approving kubelet client certificate after SubjectAccessReview."


def test_a_node_gets_a_serving_certificate_for_its_own_names_alone() -> None:
    signed = result(asked(KUBELET_SERVING, SERVER_USAGES, names=("n1", "n1.example", "192.0.2.7")))
    names = certificate_in(signed).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["n1", "n1.example"]
    assert list(map(str, names.get_values_for_type(x509.IPAddress))) == ["192.0.2.7"]
    for names_asked in (("n1", "kubernetes.default"), ("192.0.2.8",)):
        assert result(asked(KUBELET_SERVING, SERVER_USAGES, names=names_asked)) == {}
    assert result(asked(KUBELET_SERVING, SERVER_USAGES, names=("n1",), username="jane")) == {}
    assert (
        result(asked(KUBELET_SERVING, SERVER_USAGES, "system:node:n2", names=("n1",), username="system:node:n2")) == {}
    )


def test_an_administrator_approves_a_client_certificate() -> None:
    request = asked(CLIENT, ["client auth"], "jane", ("devs",), username="admin")
    assert result(request) == {}
    certificate = certificate_in(result(request | {"status": {"conditions": [APPROVED]}}))
    assert certificate.subject == subject_of("jane", ("devs",))
    with pytest.raises(x509.ExtensionNotFound):  # OpenSSL refuses one without bits
        certificate.extensions.get_extension_for_class(x509.KeyUsage)


@pytest.mark.parametrize(
    ("wanted", "lasts"), [(600, 600), (3600, 3600), (86400, 86400 - 300), (10**9, 365 * 86400 - 300), (1, 600)]
)
def test_the_life_that_is_asked_for(wanted: int, lasts: int) -> None:
    request = asked(CLIENT, ["client auth"], "jane", (), status={"conditions": [APPROVED]}, expirationSeconds=wanted)
    assert certificate_in(result(request)).not_valid_after_utc.timestamp() == NOW + lasts


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (asked(KUBELET_CLIENT, CLIENT_USAGES, groups=("a",)), "subject organization is not system:nodes"),
        (asked(KUBELET_CLIENT, CLIENT_USAGES, names=("n1",)), "DNS subjectAltNames are not allowed"),
        (asked(KUBELET_CLIENT, CLIENT_USAGES, names=("192.0.2.7",)), "IP subjectAltNames are not allowed"),
        (asked(KUBELET_CLIENT, CLIENT_USAGES, "n1"), "subject common name does not begin with system:node:"),
        (asked(KUBELET_CLIENT, SERVER_USAGES), "usages did not match [client auth digital signature key encipherment]"),
        (asked(KUBELET_SERVING, SERVER_USAGES), "DNS or IP subjectAltName is required"),
        (
            asked(KUBELET_SERVING, CLIENT_USAGES, names=("n1",)),
            "usages did not match [digital signature key encipherment server auth]",
        ),
        (asked(CLIENT, SERVER_USAGES), "invalid usage for client certificate: server auth"),
        (asked(CLIENT, ["digital signature"]), "missing required usage for client certificate: client auth"),
    ],
)
def test_a_wrong_request_is_not_approved_and_fails_if_it_was(request_: Json, why: str) -> None:
    assert result(request_) == {}
    failed = result(request_ | {"status": {"conditions": [APPROVED]}})
    assert failed["status"]["conditions"][-1]["type"] == "Failed"
    assert conditions({"status": {"conditions": failed["status"]["conditions"][-1:]}}) == [
        ("Failed", "SignerValidationFailure", why)
    ]
    assert "certificate" not in failed["status"]


@pytest.mark.parametrize("kind", ["Denied", "Failed"])
def test_a_denied_or_failed_request_stays_as_it_is(kind: str) -> None:
    status = {"conditions": [APPROVED, {"type": kind, "status": "True"}]}
    assert result(asked(KUBELET_CLIENT, CLIENT_USAGES, status=status)) == {}


@pytest.mark.parametrize(
    "text", ["", "!", "AAAA", base64.b64encode(b"-----BEGIN CERTIFICATE REQUEST-----\nAA\n").decode(), "QUFB" * 30_000]
)
def test_what_is_no_request_waits_or_fails(text: str) -> None:
    request = asked(CLIENT, ["client auth"])
    request["spec"]["request"] = text
    assert result(request) == {}
    assert conditions(result(request | {"status": {"conditions": [APPROVED | {"reason": "", "message": ""}]}}))[-1][
        2
    ] == ("the request cannot be read")


def test_a_signer_that_is_not_ours_is_left_alone() -> None:
    assert result(asked("example.com/mine", ["client auth"], status={"conditions": [APPROVED]})) == {}
    assert "nodes" in READS


def test_who_may_approve_and_which_subjects_are_refused() -> None:
    role = rbac("ClusterRole", "r", rules=[rule("approve", "signers", "certificates.k8s.io", "kubernetes.io/*")])
    view = Objects(role, bound(role, "User:jane"))
    request = asked(CLIENT, ["client auth"])
    check_signers(request, "approve", user("jane"), view)
    with pytest.raises(StatusError) as caught:
        check_signers(request, "approve", user("bob"), view)
    assert caught.value.message == (
        'certificatesigningrequests.certificates.k8s.io "r" is forbidden: user not permitted to approve requests with signerName '
        '"kubernetes.io/kube-apiserver-client"'
    )
    check_subject(request)
    with pytest.raises(StatusError) as caught:
        check_subject(asked(CLIENT, ["client auth"], "eve", ("system:masters",)))
    assert "signer with system:masters group is not allowed" in caught.value.message
    check_subject(asked(KUBELET_CLIENT, ["client auth"], "eve", ("system:masters",)))


def test_requests_that_wait_cost_little() -> None:
    waiting = [asked(CLIENT, ["client auth"], "jane", ()), asked(KUBELET_CLIENT, CLIENT_USAGES)]
    waiting[1]["spec"] |= {"username": "jane", "groups": ["system:authenticated"]}
    view = Objects(*bootstrap_objects(), NODE)
    for number in range(2000):
        request = waiting[number % 2]
        view.put(request | {"metadata": request["metadata"] | {"name": f"r{number}"}})
    parse_request.cache_clear()
    assert signed_requests(AUTHORITY, view) == []
    assert parse_request.cache_info().misses == 0


def test_extensions_that_cannot_be_read_make_no_request() -> None:
    damaged = x509.UnrecognizedExtension(x509.SubjectAlternativeName.oid, b"junk")
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject_of(NAME, ("system:nodes",)))
    signed = builder.add_extension(damaged, critical=False).sign(new_key(), hashes.SHA256())
    request = asked(KUBELET_CLIENT, CLIENT_USAGES)
    request["spec"]["request"] = base64.b64encode(signed.public_bytes(serialization.Encoding.PEM)).decode()
    assert result(request) == {}
    assert result(request | {"status": {"conditions": [APPROVED]}})["status"]["conditions"][-1]["type"] == "Failed"


def test_who_may_sign_writes_certificates_and_conditions() -> None:
    role = rbac("ClusterRole", "r", rules=[rule("sign", "signers", "certificates.k8s.io", CLIENT)])
    view = Objects(role, bound(role, "User:jane"))
    request = asked(CLIENT, ["client auth"])
    for status in ({"certificate": "QQ=="}, {"conditions": [{"type": "Failed", "status": "True"}]}):
        signed = request | {"status": status}
        admit_write(STORED[REQUESTS], signed, request, "status", user("jane"), view)
        with pytest.raises(StatusError) as caught:
            admit_write(STORED[REQUESTS], signed, request, "status", user("bob"), view)
        assert "user not permitted to sign requests with signerName" in caught.value.message
    admit_write(STORED[REQUESTS], request, request, "status", user("bob"), view)
