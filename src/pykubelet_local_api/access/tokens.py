"""Service account tokens: signed, and verified against what they are bound to.

A token is a JWT of RFC 7519, signed with ES256. It is valid while its account is there, with the same UID, and so is the pod,
Secret or Node that it is bound to. Messages are the API server's, which a TokenReview shows.
Source: "Managing Service Accounts"; KEP-1205 (bound tokens), KEP-4193 (what else they contain).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import msgspec
from msgspec import Struct

from pykubelet.base.api.times import parse_time
from pykubelet.base.kit.values import RedactedValue, Value
from pykubelet_local_api.access.files import AccessError, read_file
from pykubelet_local_api.access.p256 import SPKI_HEAD, P256Key, load_p256
from pykubelet_local_api.access.place import TOKEN_KEY
from pykubelet_local_api.access.signature_forms import HALF
from pykubelet_local_api.objects import Json
from pykubelet_local_api.view import RequestUser, View

#: The issuer of the tokens in Secrets.
LEGACY_ISSUER = "kubernetes/serviceaccount"
CONFIGURATION_PATH = "/.well-known/openid-configuration"
KEYS_PATH = "/openid/v1/jwks"
#: Clocks may differ by so much: seconds.
LEEWAY_S = 60.0
#: No token is longer: bytes. Those that are issued have about 1,300.
LONGEST_TOKEN = 16 << 10
#: AccountTokens with a signature that was verified, of which the claims are kept.
KEPT_CLAIMS = 1024
INVALID = "invalid bearer token"
_AUTHENTICATION = "authentication.kubernetes.io"


class TokenError(Exception):
    """A token that is not valid; the text states why. Empty: it is no token of this server."""


class ObjectRef(Struct, frozen=True, omit_defaults=True):
    """The name and UID of an object, in a token."""

    name: str = ""
    uid: str = ""


class KubernetesClaims(Struct, frozen=True, omit_defaults=True):
    """The claims below `kubernetes.io`."""

    namespace: str = ""
    serviceaccount: ObjectRef = ObjectRef()
    pod: ObjectRef | None = None
    secret: ObjectRef | None = None
    node: ObjectRef | None = None
    warnafter: float | None = None


class TokenClaims(Struct, frozen=True, omit_defaults=True, rename={
    "kubernetes": "kubernetes.io",
    "legacy_namespace": "kubernetes.io/serviceaccount/namespace",
    "legacy_secret": "kubernetes.io/serviceaccount/secret.name",
    "legacy_account": "kubernetes.io/serviceaccount/service-account.name",
    "legacy_uid": "kubernetes.io/serviceaccount/service-account.uid",
}):  # fmt: skip
    """The payload of a token. Times are wall seconds. `legacy_*`: of a token in a Secret."""

    iss: str = ""
    sub: str = ""
    aud: str | list[str] = []
    exp: float | None = None
    iat: float | None = None
    nbf: float | None = None
    jti: str = ""
    kubernetes: KubernetesClaims | None = None
    legacy_namespace: str = ""
    legacy_secret: str = ""
    legacy_account: str = ""
    legacy_uid: str = ""


class _Header(Struct, frozen=True):
    alg: str = ""
    kid: str = ""


class Verified(Value):
    """A valid token: its user, and which of the wanted audiences it is for."""

    user: RequestUser
    audiences: tuple[str, ...]


class SigningKey(RedactedValue):
    """The key that signs tokens. `name`: the key ID in tokens, a checksum of the public key."""

    hidden: ClassVar = ("private",)
    private: P256Key
    name: str


def open_token_key(folder: Path) -> SigningKey:
    """The key in the folder, which `authority.prepare` has made. Blocks. Raises AccessError."""
    path = folder / TOKEN_KEY
    try:
        return token_key(read_file(path) or b"")
    except ValueError as error:
        advice = (
            "restore it from a backup, or remove it: a new key is made then, and pods get new tokens within an hour"
        )
        raise AccessError(f"{path} is damaged ({error}): {advice}") from error


def token_key(pem: bytes) -> SigningKey:
    """The key in PEM, with its name. Raises ValueError if it is none of P-256."""
    private = load_p256(pem)
    return SigningKey(private, _encoded(hashlib.sha256(private.public).digest()))


class AccountTokens:
    """Signs and verifies tokens. `issuer`: a URL; it is also the audience of this server. `base_url`: where clients reach it."""

    def __init__(self, key: SigningKey, issuer: str, base_url: str) -> None:
        self.issuer = issuer
        self.audiences = (issuer,)
        self._base_url = base_url
        self._key = key
        self._known: OrderedDict[bytes, TokenClaims] = OrderedDict()

    def sign(self, claims: TokenClaims) -> str:
        """The token with these claims."""
        header = msgspec.json.encode({"alg": "ES256", "kid": self._key.name})
        signed = f"{_encoded(header)}.{_encoded(msgspec.json.encode(claims, order='sorted'))}"
        return f"{signed}.{_encoded(self._key.private.sign(signed.encode()))}"

    def verify(self, token: str, audiences: Sequence[str], view: View) -> Verified:
        """The user of a token. `audiences`: those wanted, one of which must be the token's; empty: this server. Raises TokenError."""
        claims = self._claims(token)
        wanted = tuple(audiences) or self.audiences
        own = [claims.aud] if isinstance(claims.aud, str) else claims.aud
        own = own or list(self.audiences)  # tokens in Secrets have none
        common = tuple(audience for audience in own if audience in wanted)
        if not common:
            raise TokenError(f"token audiences {_go_list(own)} is invalid for the target audiences {_go_list(wanted)}")
        user = _legacy_user(claims, token, view) if claims.iss == LEGACY_ISSUER else _user(claims, view)
        return Verified(user, common)

    def configuration(self) -> Json:
        """The document at CONFIGURATION_PATH. Source: OpenID Connect Discovery 1.0."""
        return {
            "issuer": self.issuer,
            "jwks_uri": f"{self._base_url}{KEYS_PATH}",
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["ES256"],
        }

    def keys(self) -> Json:
        """The document at KEYS_PATH: the public key (RFC 7517)."""
        numbers = self._key.private.public[len(SPKI_HEAD) :]
        point = {"x": _encoded(numbers[:HALF]), "y": _encoded(numbers[HALF:])}
        return {"keys": [{"use": "sig", "kty": "EC", "kid": self._key.name, "crv": "P-256", "alg": "ES256", **point}]}

    def _claims(self, token: str) -> TokenClaims:
        """The claims of a token that this server has signed."""
        text = token.encode()
        if len(text) > LONGEST_TOKEN:
            raise TokenError("")
        digest = hashlib.sha256(text).digest()
        known = self._known.get(digest)
        if known is not None:
            self._known.move_to_end(digest)
            return known
        claims = self._checked(token)
        self._known[digest] = claims
        if len(self._known) > KEPT_CLAIMS:
            self._known.popitem(last=False)
        return claims

    def _checked(self, token: str) -> TokenClaims:
        parts = token.split(".")
        if len(parts) != 3:
            raise TokenError("")
        try:
            header = msgspec.json.decode(_decoded(parts[0]), type=_Header)
            claims = msgspec.json.decode(_decoded(parts[1]), type=TokenClaims)
            signature = _decoded(parts[2])
        except (ValueError, RecursionError):  # msgspec's errors are ValueErrors
            raise TokenError("") from None
        if claims.iss not in (self.issuer, LEGACY_ISSUER):
            raise TokenError("")
        if header.kid not in ("", self._key.name):
            raise TokenError("invalid signature, no keys found")
        signed = f"{parts[0]}.{parts[1]}".encode()
        if header.alg != "ES256" or not self._key.private.verify(signed, signature):
            raise TokenError("go-jose/go-jose: error in cryptographic primitive")
        return claims


def account_user(
    namespace: str, name: str, uid: str = "", extra: dict[str, tuple[str, ...]] | None = None
) -> RequestUser:
    """A service account as the user of a request."""
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated")
    return RequestUser(f"system:serviceaccount:{namespace}:{name}", groups, uid, extra or {})


def _user(claims: TokenClaims, view: View) -> RequestUser:
    now = view.now
    if claims.nbf is not None and now + LEEWAY_S < claims.nbf:
        raise TokenError("service account token is not valid yet")
    if claims.exp is not None and now - LEEWAY_S > claims.exp:
        raise TokenError("service account token has expired")
    if claims.iat is not None and now + LEEWAY_S < claims.iat:
        raise TokenError("service account token is issued in the future")
    bound = claims.kubernetes or KubernetesClaims()
    namespace, account = bound.namespace, bound.serviceaccount
    found = view.get("serviceaccounts", namespace, account.name)
    if found is None:
        raise TokenError(f'serviceaccounts "{account.name}" not found')
    uid = found["metadata"].get("uid")
    if uid != account.uid:
        raise TokenError(f"service account UID ({uid}) does not match claim ({account.uid})")
    if _was_deleted(found, now):
        raise TokenError(f"service account {namespace}/{account.name} has been deleted")
    if bound.secret is not None:
        _check_bound(view.get("secrets", namespace, bound.secret.name), bound.secret, "secret", now)
    extra: dict[str, tuple[str, ...]] = {}
    if claims.jti:
        extra[f"{_AUTHENTICATION}/credential-id"] = (f"JTI={claims.jti}",)
    if bound.pod is not None:
        _check_bound(view.get("pods", namespace, bound.pod.name), bound.pod, "pod", now)
        extra[f"{_AUTHENTICATION}/pod-name"] = (bound.pod.name,)
        extra[f"{_AUTHENTICATION}/pod-uid"] = (bound.pod.uid,)
    elif bound.node is not None:
        _check_bound(view.get("nodes", "", bound.node.name), bound.node, "node", now)
    if bound.node is not None and bound.node.name:
        extra[f"{_AUTHENTICATION}/node-name"] = (bound.node.name,)
        if bound.node.uid:
            extra[f"{_AUTHENTICATION}/node-uid"] = (bound.node.uid,)
    return account_user(namespace, account.name, account.uid, extra)


def _check_bound(found: Json | None, ref: ObjectRef, kind: str, now: float) -> None:
    if found is None:
        raise TokenError("service account token has been invalidated")
    uid = found["metadata"].get("uid")
    if uid != ref.uid:
        raise TokenError(f"{kind} UID ({uid}) does not match service account {kind} ref claim ({ref.uid})")
    if _was_deleted(found, now):
        raise TokenError("service account token has been invalidated")


def _was_deleted(found: Json, now: float) -> bool:
    """Whether the object's time to end is over: a pod may use its token while it ends."""
    deleted = found["metadata"].get("deletionTimestamp")
    return bool(deleted) and parse_time(str(deleted)) < now - LEEWAY_S


def _legacy_user(claims: TokenClaims, token: str, view: View) -> RequestUser:
    namespace, name = claims.legacy_namespace, claims.legacy_account
    if claims.sub != f"system:serviceaccount:{namespace}:{name}":
        raise TokenError("sub claim is invalid")
    secret = view.get("secrets", namespace, claims.legacy_secret)
    if secret is None or secret["metadata"].get("deletionTimestamp"):
        raise TokenError("Token has been invalidated")
    if _secret_value(secret, "token") != token.encode():
        raise TokenError("Token does not match server's copy")
    account = view.get("serviceaccounts", namespace, name)
    if account is None:
        raise TokenError(f'serviceaccounts "{name}" not found')
    if account["metadata"].get("deletionTimestamp"):
        raise TokenError(f"ServiceAccount {namespace}/{name} has been deleted")
    uid = account["metadata"].get("uid")
    if uid != claims.legacy_uid:
        raise TokenError(f"ServiceAccount UID ({uid}) does not match claim ({claims.legacy_uid})")
    return account_user(namespace, name, claims.legacy_uid)


def _secret_value(secret: Json, key: str) -> bytes:
    try:
        return base64.b64decode((secret.get("data") or {}).get(key) or "", validate=True)
    except (binascii.Error, ValueError, TypeError):
        return b""


def _encoded(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).decode().rstrip("=")


def _decoded(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)


def _go_list(values: Sequence[Any]) -> str:
    return "[" + " ".join(msgspec.json.encode(value).decode() for value in values) + "]"
