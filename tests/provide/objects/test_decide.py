"""When to ask again, and what becomes of bundles."""

from __future__ import annotations

from pykubelet.edges.kubeapi.tokens import refresh_after_s
from pykubelet.provide.objects.decide import pem_text, retry_delay_s, trust_anchors, unsettled_delay_s

A = "-----BEGIN CERTIFICATE-----\nQUFB\nQUFB\n-----END CERTIFICATE-----\n"
B = "-----BEGIN CERTIFICATE-----\nQkJC\n-----END CERTIFICATE-----\n"


def test_a_token_is_replaced_at_four_fifths_of_its_life_or_after_a_day() -> None:
    assert refresh_after_s(3607, 0.0) == 0.8 * 3607
    assert refresh_after_s(600, 1.0) == 470
    assert refresh_after_s(365 * 86400, 0.5) == 86395
    assert refresh_after_s(2, 1.0) == 1.0  # never without a pause


def test_tries_come_later_and_later_but_never_before_the_server_wants_them() -> None:
    assert [retry_delay_s(n, 0.05, 10, 0.5) for n in (1, 2, 3)] == [0.05, 0.1, 0.2]
    assert retry_delay_s(1000, 0.05, 10, 0.5) == 10
    assert (retry_delay_s(2, 1, 10, 0.0), retry_delay_s(2, 1, 10, 1.0)) == (1.0, 3.0)
    assert retry_delay_s(1, 0.05, 10, 0.5, asked_s=7.0) == 7.0


def test_what_is_not_settled_is_read_again_after_a_fifth_of_the_time_it_has_taken() -> None:
    assert [unsettled_delay_s(waited, 0.1, 15, 0.5) for waited in (0.0, 0.4, 1.0, 20.0, 75.0, 4000.0)] == [
        *(0.1, 0.1, 0.2, 4.0, 15.0, 15.0)
    ]
    assert (unsettled_delay_s(10, 0.1, 15, 0.0), unsettled_delay_s(10, 0.1, 15, 1.0)) == (1.5, 2.5)


def test_bundles_are_joined_without_doubles_and_without_what_stands_beside_the_certificates() -> None:
    noisy = f"# comment\n{A}in between\n{B}"
    assert pem_text(trust_anchors([noisy, A, B])) == pem_text(trust_anchors([B, A]))
    assert pem_text(trust_anchors([B])) == B
    assert trust_anchors([noisy]) == ["QUFBQUFB", "QkJC"]
    assert trust_anchors(["", "no certificate", "-----BEGIN CERTIFICATE-----\nQUFB"]) == []


def test_long_certificates_are_broken_into_lines() -> None:
    lines = pem_text(["A" * 130]).splitlines()
    assert [len(line) for line in lines[1:-1]] == [64, 64, 2]
