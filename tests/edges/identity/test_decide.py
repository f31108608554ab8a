"""When a certificate is requested, and under which name."""

from __future__ import annotations

import base64
import hashlib

import pytest

from pykubelet.base.api.certificates import (
    CertificateSigningRequest,
    CertificateSigningRequestCondition,
    CertificateSigningRequestStatus,
)
from pykubelet.base.kit.values import replace
from pykubelet.edges.identity.decide import (
    BACKOFF,
    client_certificate,
    refusal,
    renewal_at,
    request_name,
    serving_certificate,
)
from pykubelet.edges.identity.keys import Description

CLIENT = client_certificate("n")
SERVING = serving_certificate("n").at(["n"], ["10.0.0.1"])
ISSUED = Description(1000.0, 2000.0, "system:node:n", ("system:nodes",), ("n",), ("10.0.0.1", "10.0.0.2"))


def test_a_certificate_is_renewed_in_the_last_third_of_its_life() -> None:
    assert renewal_at(ISSUED, CLIENT, 0.8) == 1800.0
    assert renewal_at(ISSUED, SERVING, 0.7) == 1700.0


@pytest.mark.parametrize(
    "found",
    [
        None,
        replace(ISSUED, name="system:node:other"),
        replace(ISSUED, organizations=()),
        replace(ISSUED, ips=("10.0.0.9",)),
        replace(ISSUED, dns=()),
    ],
)
def test_a_certificate_with_other_content_is_renewed_now(found: Description | None) -> None:
    assert renewal_at(found, SERVING, 0.8) == 0.0


def test_tries_are_two_to_thirty_two_seconds_apart() -> None:
    assert [BACKOFF.delay_s(n) for n in (1, 2, 3, 4, 5, 6, 5000)] == [2, 4, 8, 16, 32, 32, 32]


def test_the_name_of_a_first_request_is_made_of_what_it_asks_for() -> None:
    parts = [b"key", b"system:node:n", b"system:nodes", b"digital signature", b"client auth"]
    text = b"".join(base64.urlsafe_b64encode(part).rstrip(b"=") + b"|" for part in parts)
    digest = base64.urlsafe_b64encode(hashlib.new("sha512_256", text).digest()).decode().rstrip("=")
    assert request_name(b"key", CLIENT) == f"node-csr-{digest}"
    assert request_name(b"other", CLIENT) != request_name(b"key", CLIENT)


def test_a_serving_certificate_needs_an_address() -> None:
    assert serving_certificate("n").needs_address
    assert not SERVING.needs_address and not CLIENT.needs_address


def test_a_name_is_enough_for_a_serving_certificate_with_its_gate() -> None:
    assert serving_certificate("n").at(["n"], []).needs_address
    assert not serving_certificate("n", dns_only=True).at(["n"], []).needs_address
    assert serving_certificate("n", dns_only=True).needs_address


def test_a_denied_request_has_a_reason() -> None:
    condition = CertificateSigningRequestCondition(type="Denied", status="True", reason="R", message="no")
    status = CertificateSigningRequestStatus(conditions=(condition,))
    assert refusal(CertificateSigningRequest(status=status)) == "the signing request was denied: R: no"
    assert refusal(CertificateSigningRequest()) == ""
