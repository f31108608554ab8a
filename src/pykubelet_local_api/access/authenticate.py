"""The user of a request: from its client certificate or token, and from its headers of impersonation. Pure.

Source: "Authenticating", "User impersonation"; texts are the API server's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from ssl import cert_time_to_seconds
from typing import Any
from urllib.parse import unquote

from pykubelet.base.api.labels import dns_label_errors, dns_subdomain_errors
from pykubelet_local_api.access.authorize import check
from pykubelet_local_api.access.covers import go_list
from pykubelet_local_api.access.rbac import ANONYMOUS, AUTHENTICATED, UNAUTHENTICATED, AccessAttributes
from pykubelet_local_api.access.tokens import AccountTokens, TokenError
from pykubelet_local_api.errors import bad_request, unauthorized
from pykubelet_local_api.view import RequestUser, View

#: A client without a credential.
NO_USER = RequestUser(ANONYMOUS, (UNAUTHENTICATED,))
_CREDENTIAL = "authentication.kubernetes.io/credential-id"
_ACCOUNT = "system:serviceaccount:"
_EXTRA = "impersonate-extra-"
_AUTHENTICATION = "authentication.k8s.io"
#: A request may impersonate so many groups and extra values.
MOST_IMPERSONATED = 200
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
    return float(cert_time_to_seconds(text)) if text else math.inf


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


def impersonated(user: RequestUser, headers: Mapping[str, str], view: View) -> RequestUser:
    """The user that the request acts as; `user` itself without headers of impersonation.

    `headers`: by lower-case names; repeated ones are joined with commas. Raises StatusError: 400 for headers that do not belong
    together, 403 if the user may not act as the other one.
    """
    name, uid = headers.get("impersonate-user", ""), headers.get("impersonate-uid", "")
    groups = tuple(filter(None, (group.strip() for group in headers.get("impersonate-group", "").split(","))))
    extra = {
        unquote(key.removeprefix(_EXTRA)): tuple(part.strip() for part in value.split(","))
        for key, value in headers.items()
        if key.startswith(_EXTRA)
    }
    if not name:
        if uid or groups or extra:
            raise bad_request(f"requested {_go_user(uid, groups, extra)} without impersonating a user name")
        return user
    if len(groups) + sum(map(len, extra.values())) > MOST_IMPERSONATED:
        raise bad_request(f"a request may impersonate at most {MOST_IMPERSONATED} groups and extra values")
    account = split_account(name)
    for wanted in _impersonations(user, name, account, groups, uid, extra):
        check(wanted, view)
    if account is not None and not groups:
        groups = ("system:serviceaccounts", f"system:serviceaccounts:{account[0]}")
    added = UNAUTHENTICATED if name == ANONYMOUS else AUTHENTICATED
    known = {UNAUTHENTICATED} if name == ANONYMOUS else {AUTHENTICATED, UNAUTHENTICATED}
    return RequestUser(name, groups if known & set(groups) else (*groups, added), uid, extra)


def _impersonations(
    user: RequestUser,
    name: str,
    account: tuple[str, str] | None,
    groups: tuple[str, ...],
    uid: str,
    extra: Mapping[str, tuple[str, ...]],
) -> Iterator[AccessAttributes]:
    """What the user must be allowed to do, with the verb `impersonate`."""
    verb = "impersonate"
    if account is not None:
        yield AccessAttributes(user, verb, resource="serviceaccounts", namespace=account[0], name=account[1])
    else:
        yield AccessAttributes(user, verb, resource="users", name=name)
    for group in groups:
        yield AccessAttributes(user, verb, resource="groups", name=group)
    for key, values in extra.items():
        for value in values:
            yield AccessAttributes(user, verb, _AUTHENTICATION, "userextras", key, name=value)
    if uid:
        yield AccessAttributes(user, verb, _AUTHENTICATION, "uids", name=uid)


def split_account(name: str) -> tuple[str, str] | None:
    """Namespace and name of the service account that is a user; None for any other user."""
    parts = name.removeprefix(_ACCOUNT).split(":")
    if not name.startswith(_ACCOUNT) or len(parts) != 2:
        return None
    return None if dns_label_errors(parts[0]) or dns_subdomain_errors(parts[1]) else (parts[0], parts[1])


def _go_user(uid: str, groups: Sequence[str], extra: Mapping[str, Sequence[str]]) -> str:
    listed = f"[]string{{{', '.join(go_list([group])[1:-1] for group in groups)}}}" if groups else "[]string(nil)"
    pairs = ", ".join(
        f"{go_list([key])[1:-1]}:[]string{{{', '.join(go_list([value])[1:-1] for value in values)}}}"
        for key, values in sorted(extra.items())
    )
    more = f"map[string][]string{{{pairs}}}" if extra else "map[string][]string(nil)"
    return f'&user.DefaultInfo{{Name:"", UID:{go_list([uid])[1:-1]}, Groups:{listed}, Extra:{more}}}'
