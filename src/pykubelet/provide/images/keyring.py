"""Reads docker config documents, and selects the registry credentials for an image in the order to try them. Pure.

Owns: `Auth` (what is sent to the runtime), `Credential` (an `Auth` and its source), the two document formats
(`config.json` with `auths`, and the older `.dockercfg`), and `Keyring`. `edges/plugins` reads the files, `providers.py`
runs plugins.

Rules: image pull secrets come first, then the node's file, then credential plugins. Within each of the three, keys are
tried in reverse alphabetical order, so that a longer path comes first; all matching credentials are tried one after
another. The credentials of `index.docker.io` are used for unqualified images when nothing else matches.

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

from pykubelet.base.kit.globs import has_wildcards
from pykubelet.base.kit.values import RedactedValue, Value, remember_last
from pykubelet.provide.images.names import (
    LEGACY_DOMAIN,
    KeyParts,
    credential_key,
    is_default_registry,
    key_parts,
    matches_key,
    sort_keys,
)

DOCKERCONFIGJSON_TYPE = "kubernetes.io/dockerconfigjson"
DOCKERCONFIGJSON_KEY = ".dockerconfigjson"
DOCKERCFG_TYPE = "kubernetes.io/dockercfg"
DOCKERCFG_KEY = ".dockercfg"
#: Of all pull secrets of a pod: bytes, registries, and bytes of the names of registries with wildcards.
MAX_BYTES, MAX_ENTRIES, MAX_WILD = 2 << 20, 2000, 16 << 10


class CredentialError(ValueError):
    """A document with credentials cannot be read. The message never contains any of its content."""


class Auth(RedactedValue):
    """The credential that a registry gets. `repr` leaves out the secrets."""

    hidden: ClassVar = ("password", "identity_token", "registry_token")
    username: str = ""
    password: str = ""
    email: str = ""
    identity_token: str = ""
    registry_token: str = ""

    @property
    def digest(self) -> str:
        """The SHA-256 that identifies this credential in pull records: hex, of the reference kubelet's JSON form."""
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
    """The Secret that a credential comes from."""

    uid: str
    namespace: str
    name: str


class ServiceAccountSource(Value):
    """The service account whose token a plugin exchanged for a credential."""

    uid: str
    namespace: str
    name: str


class Credential(Value):
    """An `Auth` and its source. `source` None: the node's own (its file, or a plugin without a service account)."""

    auth: Auth
    source: SecretSource | ServiceAccountSource | None = None


class PullSecret(RedactedValue):
    """An image pull secret of a pod: the Secret's coordinates, type, and decoded data."""

    hidden: ClassVar = ("data",)
    source: SecretSource
    type: str
    data: Mapping[str, bytes]


class PodPullSecrets(Value, weakref=True):
    """Those of a pod."""

    secrets: tuple[PullSecret, ...] = ()


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
    """The error without secrets: msgspec's messages contain no values, other errors may, so only their names are used."""
    return str(error) if isinstance(error, msgspec.MsgspecError) else "it is not UTF-8"


def _auth(location: str, entry: _Entry) -> Auth:
    username, password = entry.username or "", entry.password or ""
    if entry.auth:
        username, password = _decode_auth(location, entry.auth)
    return Auth(username, password, entry.email or "", entry.identitytoken or "", entry.registrytoken or "")


def _decode_auth(location: str, text: str) -> tuple[str, str]:
    """Decode base64 of `user:password`, padded or not. CredentialError."""
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
    """All credentials of a pod's secrets, with their locations. Raises CredentialError naming the secret.

    The secrets of a pod have bounds together, because they are looked at for each of its containers.
    """
    found: list[tuple[str, Credential]] = []
    size = wild = 0
    for secret in secrets:
        if secret.type == DOCKERCONFIGJSON_TYPE and (data := secret.data.get(DOCKERCONFIGJSON_KEY)):
            read = parse_config_json
        elif secret.type == DOCKERCFG_TYPE and (data := secret.data.get(DOCKERCFG_KEY)):
            read = parse_dockercfg
        else:
            continue
        size += len(data)
        try:
            _check(size <= MAX_BYTES, f"{MAX_BYTES >> 20} MiB")
            _check(len(found) + data.count(b"{") <= MAX_ENTRIES + 2, f"{MAX_ENTRIES} registries")
            auths = read(data)
            wild += sum(len(location) for location in auths if has_wildcards(location))
            _check(wild <= MAX_WILD, f"{MAX_WILD >> 10} KiB of registries with wildcards")
        except CredentialError as error:
            raise CredentialError(
                f"image pull secret {secret.source.namespace}/{secret.source.name}: {error}"
            ) from None
        found.extend((location, Credential(auth, secret.source)) for location, auth in auths.items())
    return found


def _check(is_within: bool, bound: str) -> None:
    if not is_within:
        raise CredentialError(f"with it, the pod's secrets have more than {bound}")


@remember_last
def secret_keyring(pod: PodPullSecrets) -> Keyring:
    """The keyring of a pod's secrets. Raises CredentialError."""
    return Keyring(secret_entries(pod.secrets))


def node_entries(auths: Mapping[str, Auth]) -> list[tuple[str, Credential]]:
    """The node's own credentials with their locations."""
    return [(location, Credential(auth)) for location, auth in auths.items()]


class Keyring:
    """The credentials of one kind (secrets, file or plugins) by key. Immutable."""

    __slots__ = ("_credentials", "_keys")

    def __init__(self, entries: Iterable[tuple[str, Credential]]) -> None:
        self._credentials: dict[str, list[Credential]] = {}
        for location, credential in entries:
            key = credential_key(location)
            if key is not None:
                self._credentials.setdefault(key, []).append(credential)
        #: The keys by their shape, in the order in which they are tried.
        self._keys: dict[tuple[int, str], list[tuple[str, KeyParts]]] = {}
        for key in sort_keys(set(self._credentials)):
            parts = key_parts(key)
            self._keys.setdefault(parts.shape, []).append((key, parts))

    def lookup(self, repository: str) -> tuple[Credential, ...]:
        """All matching credentials in the order they are to be tried. `repository` is complete and without tag."""
        wanted = key_parts(repository)
        keys = [key for key, parts in self._keys.get(wanted.shape, ()) if matches_key(parts, wanted)]
        found = [credential for key in keys for credential in self._credentials[key]]
        if not found and is_default_registry(repository):
            found = self._credentials.get(LEGACY_DOMAIN, [])
        return tuple(found)
