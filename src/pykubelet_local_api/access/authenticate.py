"""The user of a request: from its client certificate or token. No I/O.

Source: "Authenticating"; texts are the API server's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from pykubelet.base.api.labels import dns_label_errors, dns_subdomain_errors
from pykubelet_local_api.access.rbac import ANONYMOUS, AUTHENTICATED, UNAUTHENTICATED
from pykubelet_local_api.access.tokens import AccountTokens, TokenError
from pykubelet_local_api.errors import unauthorized
from pykubelet_local_api.view import RequestUser, View

#: A client without a credential.
NO_USER = RequestUser(ANONYMOUS, (UNAUTHENTICATED,))
_CREDENTIAL = "authentication.kubernetes.io/credential-id"
_ACCOUNT = "system:serviceaccount:"
#: As OpenSSL names them.
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
Certificate = Mapping[str, Any]


def authenticate(
    certificate: Certificate | None, authorization: str, view: View, tokens: AccountTokens, fingerprint: str = ""
) -> RequestUser:
    """The user of a request; NO_USER without a credential. Raises StatusError (401) for a token that is not valid, and for a
    certificate that has ended since its connection was made.

    `certificate`: as `ssl` returns it of a client that was verified; None or empty: it has none. `authorization`: the header.
    `fingerprint`: of the certificate, SHA-256 in hexadecimal digits.
    """
    has_ended = bool(certificate) and ends_at(str((certificate or {}).get("notAfter") or "")) < view.now
    if certificate and not has_ended:
        user = certificate_user(certificate, fingerprint)
        if user is not None:
            return user
    scheme, _, token = authorization.strip().partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token:
        if has_ended:
            raise unauthorized()
        return NO_USER
    try:
        return tokens.verify(token, (), view).user
    except TokenError:
        raise unauthorized() from None


@lru_cache(maxsize=64)
def ends_at(text: str) -> float:
    """The end of a certificate, in wall seconds. `text`: as `ssl` shows it; empty: it does not end."""
    if not text:
        return math.inf
    month, day, time, year, _ = text.split()  # without strptime, as `ssl` has it: it and the calendar take 0.4 MiB
    hour, minute, second = map(int, time.split(":"))
    return datetime(int(year), _MONTHS.index(month) + 1, int(day), hour, minute, second, tzinfo=UTC).timestamp()


def certificate_user(certificate: Certificate, fingerprint: str = "") -> RequestUser | None:
    """The user that a client certificate names: CN is the name, O are the groups. None without a name."""
    parts: Sequence[Sequence[tuple[str, str]]] = certificate.get("subject") or ()
    pairs = [pair for part in parts for pair in part]
    names = [value for key, value in pairs if key == "commonName"]
    if not names or not names[-1]:
        return None
    groups = (*(value for key, value in pairs if key == "organizationName"), AUTHENTICATED)
    extra: dict[str, tuple[str, ...]] = {_CREDENTIAL: (f"X509SHA256={fingerprint}",)} if fingerprint else {}
    return RequestUser(names[-1], groups, "", extra)


def split_account(name: str) -> tuple[str, str] | None:
    """Namespace and name of the service account that is a user; None for any other user."""
    parts = name.removeprefix(_ACCOUNT).split(":")
    if not name.startswith(_ACCOUNT) or len(parts) != 2:
        return None
    return None if dns_label_errors(parts[0]) or dns_subdomain_errors(parts[1]) else (parts[0], parts[1])
