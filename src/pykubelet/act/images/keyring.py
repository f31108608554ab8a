"""Registry credentials as values: reading docker config documents, and which credentials an image gets, in what order. Pure.

Owns: `Auth` (what the runtime is sent), `Credential` (an `Auth` and where it comes from), the two document formats
(`config.json` with `auths`, and the older `.dockercfg`), and `Keyring`. Files are read in desired/content, plugins are run
in `providers.py`.

Rules: image pull secrets come before the node's file, that before credential plugins. Within each of the three, the
longest key (reverse alphabetical) comes first, and all that match are tried in turn; the credentials of
`index.docker.io` serve unqualified images when nothing else matches.

Source: the Kubernetes documentation "Images" and "Configure a kubelet image credential provider".
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import ClassVar

import msgspec

from pykubelet.act.images.names import (
    LEGACY_DOMAIN,
    credential_key,
    is_default_registry,
    matches_key,
    sort_keys,
)
from pykubelet.base.kit.values import Discreet, Value

DOCKERCONFIGJSON_TYPE = "kubernetes.io/dockerconfigjson"
DOCKERCONFIGJSON_KEY = ".dockerconfigjson"
DOCKERCFG_TYPE = "kubernetes.io/dockercfg"
DOCKERCFG_KEY = ".dockercfg"


class CredentialError(ValueError):
    """A document with credentials cannot be read. The message never holds any of its content."""


class Auth(Discreet):
    """What a registry is shown. Secrets are kept out of `repr`."""

    hidden: ClassVar = ("password", "identity_token", "registry_token")
    username: str = ""
    password: str = ""
    email: str = ""
    identity_token: str = ""
    registry_token: str = ""

    @property
    def digest(self) -> str:
        """The SHA-256 under which pull records know this credential (hex, of the reference's JSON form)."""
        fields = {
            "username": self.username,
            "password": self.password,
            "email": self.email,
            "identitytoken": self.identity_token,
            "registrytoken": self.registry_token,
        }
        text = json.dumps(
            {key: value for key, value in fields.items() if value}, separators=(",", ":"), ensure_ascii=False
        )
        for char, escape in _GO_ESCAPES.items():
            text = text.replace(char, escape)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


# Go's JSON encoder escapes these where Python's does not; without them the hashes in existing records would not match.
_GO_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


class SecretSource(Value):
    uid: str
    namespace: str
    name: str


class ServiceAccountSource(Value):
    uid: str
    namespace: str
    name: str


class Credential(Value):
    """`source` None: the node's own (its file, or a plugin that is not tied to a service account)."""

    auth: Auth
    source: SecretSource | ServiceAccountSource | None = None


class PullSecret(Discreet):
    """An image pull secret of a pod: the Secret's coordinates, type, and decoded data."""

    hidden: ClassVar = ("data",)
    source: SecretSource
    type: str
    data: Mapping[str, bytes]


class _Entry(msgspec.Struct, frozen=True):
    username: str | None = None
    password: str | None = None
    email: str | None = None
    auth: str | None = None
    identitytoken: str | None = None
    registrytoken: str | None = None


class _ConfigJson(msgspec.Struct, frozen=True):
    auths: dict[str, _Entry] | None = None


def parse_config_json(data: bytes) -> dict[str, Auth]:
    """The `auths` of a docker `config.json`, by location. Raises CredentialError."""
    try:
        document = msgspec.json.decode(data, type=_ConfigJson)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CredentialError(_without_content(error)) from None
    return {location: _auth(location, entry) for location, entry in (document.auths or {}).items()}


def parse_dockercfg(data: bytes) -> dict[str, Auth]:
    """The entries of a `.dockercfg`, by location. Raises CredentialError."""
    try:
        entries = msgspec.json.decode(data, type=dict[str, _Entry])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CredentialError(_without_content(error)) from None
    return {location: _auth(location, entry) for location, entry in entries.items()}


def _without_content(error: Exception) -> str:
    """msgspec names paths and positions, not values; other errors may quote, so they are only named."""
    return str(error) if isinstance(error, msgspec.MsgspecError) else "it is not UTF-8"


def _auth(location: str, entry: _Entry) -> Auth:
    username, password = entry.username or "", entry.password or ""
    if entry.auth:
        username, password = _decode_auth(location, entry.auth)
    return Auth(username, password, entry.email or "", entry.identitytoken or "", entry.registrytoken or "")


def _decode_auth(location: str, text: str) -> tuple[str, str]:
    """Base64 of `user:password`, padded or not."""
    bare = text.replace("\r", "").replace("\n", "").rstrip(" \t")
    try:
        padded = bare if bare.endswith("=") else bare + "=" * (-len(bare) % 4)
        decoded = base64.b64decode(padded, validate=True).decode()
    except (binascii.Error, ValueError):
        raise CredentialError(f'the auth field of "{location}" is not base64') from None
    username, colon, password = decoded.partition(":")
    if not colon:
        raise CredentialError(
            f'the auth field of "{location}": unable to parse auth field, must be formatted as base64(username:password)'
        )
    return username, password


def secret_entries(secrets: Iterable[PullSecret]) -> list[tuple[str, Credential]]:
    """All credentials of a pod's secrets, with their locations. Raises CredentialError naming the secret."""
    found: list[tuple[str, Credential]] = []
    for secret in secrets:
        if secret.type == DOCKERCONFIGJSON_TYPE and (data := secret.data.get(DOCKERCONFIGJSON_KEY)):
            read = parse_config_json
        elif secret.type == DOCKERCFG_TYPE and (data := secret.data.get(DOCKERCFG_KEY)):
            read = parse_dockercfg
        else:
            continue
        try:
            auths = read(data)
        except CredentialError as error:
            raise CredentialError(
                f"image pull secret {secret.source.namespace}/{secret.source.name}: {error}"
            ) from None
        found.extend((location, Credential(auth, secret.source)) for location, auth in auths.items())
    return found


def node_entries(auths: Mapping[str, Auth]) -> list[tuple[str, Credential]]:
    return [(location, Credential(auth)) for location, auth in auths.items()]


class Keyring:
    """Credentials of one kind (secrets, file or plugins) by key. Not changed after it is built."""

    __slots__ = ("_credentials", "_order")

    def __init__(self, entries: Iterable[tuple[str, Credential]]) -> None:
        self._credentials: dict[str, list[Credential]] = {}
        for location, credential in entries:
            key = credential_key(location)
            if key is not None:
                self._credentials.setdefault(key, []).append(credential)
        self._order = sort_keys(set(self._credentials))

    def lookup(self, repository: str) -> tuple[Credential, ...]:
        """All that match, in the order they are to be tried. `repository` is complete and without tag."""
        found = [c for key in self._order if matches_key(key, repository) for c in self._credentials[key]]
        if not found and is_default_registry(repository):
            found = self._credentials.get(LEGACY_DOMAIN, [])
        return tuple(found)
