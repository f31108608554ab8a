"""Parses, normalizes and matches image references and the keys of registry credentials. Pure.

Owns: the grammar of references (`[host[:port]/]path[:tag][@digest]`), the default tag, the Docker Hub short forms, and
the rule that decides which credential key matches which image. The messages of `InvalidImage` are those that the
reference kubelet shows with `InvalidImageName`.

Source: the Kubernetes documentation "Images" (image names, glob matching of registry keys).
"""

from __future__ import annotations

import re
from functools import lru_cache

from pykubelet.base.kit.globs import glob_matches
from pykubelet.base.kit.text import shorten
from pykubelet.base.kit.values import Value

DEFAULT_TAG = "latest"
DEFAULT_DOMAIN = "docker.io"
LEGACY_DOMAIN = "index.docker.io"
OFFICIAL_PREFIX = "library/"
MAX_PATH = 255
#: Registry with port, path, tag and digest have at most 253 + 6, 255, 128 and 135 characters.
MAX_LENGTH = 1024

_ALNUM = r"[a-z0-9]+"
_PATH_PART = rf"{_ALNUM}(?:(?:[._]|__|-+){_ALNUM})*"
_PATH = rf"{_PATH_PART}(?:/{_PATH_PART})*"
_DOMAIN_PART = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?"
_HOST = rf"(?:{_DOMAIN_PART}(?:\.{_DOMAIN_PART})*|\[[a-fA-F0-9:]+\])"
_DOMAIN = rf"{_HOST}(?::[0-9]+)?"
_TAG = r"\w[\w.-]{0,127}"
_DIGEST = r"[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,}"
_REFERENCE = re.compile(rf"((?:{_DOMAIN}/)?{_PATH})(?::({_TAG}))?(?:@({_DIGEST}))?", re.ASCII)
_NAME = re.compile(rf"(?:({_DOMAIN})/)?({_PATH})", re.ASCII)
_IDENTIFIER = re.compile(r"[a-f0-9]{64}")
_DIGEST_LENGTHS = {"sha256": 64, "sha384": 96, "sha512": 128}
_LOWER_HEX = re.compile(r"[a-f0-9]+")
_SCHEMES = ("https://", "http://")


class InvalidImage(ValueError):
    """The text is not an image reference; the message gives the reason."""


class ImageName(Value):
    """A parsed reference. `repository` is complete (`docker.io/library/busybox`); `tag`, `digest` empty when absent."""

    repository: str
    tag: str
    digest: str


@lru_cache(maxsize=512)
def parse_image(text: str) -> ImageName:
    """Parse a reference. Raises InvalidImage."""
    try:
        return _parsed(text)
    except InvalidImage as error:
        raise InvalidImage(f'couldn\'t parse image name "{shorten(text, MAX_LENGTH)}": {error}') from None


def _parsed(text: str) -> ImageName:
    if len(text) > MAX_LENGTH:
        raise InvalidImage(f"it has more than {MAX_LENGTH} characters")
    if _IDENTIFIER.fullmatch(text):
        raise InvalidImage(f"invalid repository name ({text}), cannot specify 64-byte hexadecimal strings")
    domain, rest = _split_domain(text)
    remote = rest.partition(":")[0]
    if remote.lower() != remote:
        raise InvalidImage(f"invalid reference format: repository name ({remote}) must be lowercase")
    whole = f"{domain}/{rest}"
    match = _REFERENCE.fullmatch(whole)
    if match is None:
        if _REFERENCE.fullmatch(whole.lower()):
            raise InvalidImage("repository name must be lowercase")
        raise InvalidImage("invalid reference format")
    name, tag, digest = match[1], match[2] or "", match[3] or ""
    parts = _NAME.fullmatch(name)
    if parts is None or len(parts[2]) > MAX_PATH:
        raise InvalidImage(f"repository name must not be more than {MAX_PATH} characters")
    if digest:
        _check_digest(digest)
    return ImageName(name, tag, digest)


def _split_domain(text: str) -> tuple[str, str]:
    """The registry and the rest, with the short forms of Docker Hub expanded."""
    head, slash, tail = text.partition("/")
    is_domain = slash and ("." in head or ":" in head or head == "localhost" or head.lower() != head)
    domain, rest = (head, tail) if is_domain else (DEFAULT_DOMAIN, text)
    if domain == LEGACY_DOMAIN:
        domain = DEFAULT_DOMAIN
    if domain == DEFAULT_DOMAIN and "/" not in rest:
        rest = OFFICIAL_PREFIX + rest
    return domain, rest


def _check_digest(digest: str) -> None:
    algorithm, _, encoded = digest.partition(":")
    length = _DIGEST_LENGTHS.get(algorithm)
    if length is None:
        raise InvalidImage("unsupported digest algorithm")
    if len(encoded) != length:
        raise InvalidImage("invalid checksum digest length")
    if not _LOWER_HEX.fullmatch(encoded):
        raise InvalidImage("invalid checksum digest format")


def with_default_tag(text: str) -> str:
    """The reference that is sent to the runtime: with `:latest` if it has neither tag nor digest.

    Nothing else is changed: a short name stays short, so that the runtime applies its own search rules.
    """
    name = parse_image(text)
    return text if name.tag or name.digest else f"{text}:{DEFAULT_TAG}"


def complete_name(text: str) -> str:
    """The name as runtimes list it: with registry, and tag or digest. An invalid name is returned unchanged."""
    try:
        name = parse_image(text)
    except InvalidImage:
        return text
    if name.digest:
        return f"{name.repository}@{name.digest}"
    return f"{name.repository}:{name.tag or DEFAULT_TAG}"


def bare_name(text: str) -> str:
    """The reference without tag and digest, otherwise unchanged: `busybox` stays `busybox`. Raises InvalidImage."""
    name = parse_image(text)
    without_digest = text.removesuffix(f"@{name.digest}") if name.digest else text
    return without_digest.removesuffix(f":{name.tag}") if name.tag else without_digest


def credential_key(location: str) -> str | None:
    """The key under which a credential is looked up: `host[:port][/path]`; None when the location cannot be one.

    Scheme, user, query, fragment, and the API prefixes `/v1/` and `/v2/` are dropped.
    """
    rest = location
    for scheme in _SCHEMES:
        if rest.startswith(scheme):
            rest = rest.removeprefix(scheme)
            break
    rest = rest.partition("#")[0].partition("?")[0]
    authority, slash, path = rest.partition("/")
    host = authority.rpartition("@")[2]
    port = _split_port(host)[1]
    if any(c.isspace() or c in '<>"\\' for c in host) or (port and not port.isdigit()):
        return None
    path = slash + path
    if path.startswith(("/v1/", "/v2/")):
        path = path[3:]
    return host if path in ("", "/") else host + path


def sort_keys(keys: set[str]) -> list[str]:
    """The keys in the order they are tried: reverse alphabetical, so that a longer path comes before its prefix."""
    return sorted(keys, key=lambda key: key.encode(), reverse=True)


class KeyParts(Value):
    """A credential key or a repository in its parts. `labels`: of the host, in a key globs."""

    labels: tuple[str, ...]
    port: str
    path: str

    @property
    def shape(self) -> tuple[int, str]:
        """The number of labels, and the port. A key matches repositories of its shape only."""
        return len(self.labels), self.port


def key_parts(text: str) -> KeyParts:
    """The parts of a credential key or a repository."""
    host, _, path = text.partition("/")
    name, port = _split_port(host)
    return KeyParts(tuple(name.split(".")), port, path)


def matches_key(key: KeyParts, repository: KeyParts) -> bool:
    """Whether a credential key matches: same port, each host label matches as a glob, and the path is a prefix."""
    if key.shape != repository.shape or not repository.path.startswith(key.path):
        return False
    # from the last label to the first, which is most often the one with wildcards
    pairs = zip(reversed(key.labels), reversed(repository.labels), strict=True)
    return all(glob_matches(glob, label) for glob, label in pairs)


def is_default_registry(repository: str) -> bool:
    """Whether the credentials of `index.docker.io` apply to this image."""
    head, slash, _ = repository.partition("/")
    if not head:
        return False
    if not slash or head in (DEFAULT_DOMAIN, LEGACY_DOMAIN):
        return True
    return "." not in head and ":" not in head


def registry_of(repository: str) -> str:
    """The registry of a repository: the text before the first slash."""
    return repository.partition("/")[0]


def _split_port(host: str) -> tuple[str, str]:
    if host.startswith("["):
        address, _, port = host[1:].partition("]")
        return address, port.removeprefix(":")
    name, colon, port = host.rpartition(":")
    return (name, port) if colon else (host, "")
