"""Runs credential provider plugins: one program, one request on its standard input, one answer on its output.

Owns: the exec protocol (`CredentialProviderRequest`, `CredentialProviderResponse` of v1, v1beta1 and v1alpha1) and its
limits: one minute, one MiB. Caching, matching and selection are done in provide/images. The standard output of a plugin never
becomes part of an error, because it may contain a password.

Source: the Kubernetes documentation "Kubelet CredentialProvider (v1)" and KEP-2133.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from enum import StrEnum
from typing import ClassVar

import msgspec

from pykubelet.base.kit.durations import SECOND, parse_duration
from pykubelet.base.kit.values import RedactedValue
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.services.process import run_program
from pykubelet.edges.plugins.credential_config import TOKEN_VERSION, ProviderConfig

TIMEOUT_S = 60.0
_REQUEST_KIND = "CredentialProviderRequest"
_RESPONSE_KIND = "CredentialProviderResponse"
_LIMIT = 1 << 20
_SHOWN = 500


class ProviderError(Exception):
    """A plugin gave no usable answer. The message names the plugin and the reason."""


class CacheKeyType(StrEnum):
    """`cacheKeyType` of a response: the images for which its credentials may be reused."""

    IMAGE = "Image"
    REGISTRY = "Registry"
    GLOBAL = "Global"


class ProviderAnswer(RedactedValue):
    """The answer of a plugin. `auth`: user and password by image pattern. `cache_s`: cache duration; None: as configured."""

    hidden: ClassVar = ("auth",)
    cache_key_type: CacheKeyType
    auth: Mapping[str, tuple[str, str]]
    cache_s: float | None = None


class _Request(msgspec.Struct, frozen=True, omit_defaults=True):
    kind: str = ""
    apiVersion: str = ""
    image: str = ""
    serviceAccountToken: str = ""
    serviceAccountAnnotations: dict[str, str] = {}


class _Auth(msgspec.Struct, frozen=True):
    username: str | None = None
    password: str | None = None


class _Response(msgspec.Struct, frozen=True):
    kind: str = ""
    apiVersion: str = ""
    cacheKeyType: str = ""
    cacheDuration: str | None = None
    auth: dict[str, _Auth] | None = None


def render_request(
    api_version: str, image: str, token: str = "", annotations: Mapping[str, str] | None = None
) -> bytes:
    """The request for a plugin. Only v1 has fields for service accounts."""
    if api_version != TOKEN_VERSION:
        return msgspec.json.encode(_Request(_REQUEST_KIND, api_version, image))
    return msgspec.json.encode(_Request(_REQUEST_KIND, api_version, image, token, dict(annotations or {})))


def parse_answer(data: bytes, api_version: str) -> ProviderAnswer:
    """Parse the output of a plugin. Raises ProviderError, which contains nothing of the output."""
    try:
        response = msgspec.json.decode(data, type=_Response)
    except msgspec.ValidationError as error:
        raise ProviderError(f"the response is malformed: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise ProviderError("the response is not JSON") from None
    if response.kind != _RESPONSE_KIND:
        raise ProviderError(f"expected kind {_RESPONSE_KIND}, got kind {response.kind}")
    if response.apiVersion != api_version:
        raise ProviderError(
            "apiVersion from credential plugin response did not match expected apiVersion:"
            f"{api_version}, actual apiVersion:{response.apiVersion}"
        )
    try:
        kind = CacheKeyType(response.cacheKeyType)
    except ValueError:
        text = f'credential provider plugin did not return a valid cacheKeyType: "{response.cacheKeyType}"'
        raise ProviderError(text) from None
    try:
        cache_s = None if response.cacheDuration is None else parse_duration(response.cacheDuration) / SECOND
    except ValueError as error:
        raise ProviderError(f"cacheDuration: {error}") from None
    auth = {image: (entry.username or "", entry.password or "") for image, entry in (response.auth or {}).items()}
    return ProviderAnswer(kind, auth, cache_s)


async def run_provider(
    config: ProviderConfig, image: str, token: str = "", annotations: Mapping[str, str] | None = None
) -> ProviderAnswer:
    """Run one plugin for one image (a complete repository name without tag). Raises ProviderError."""
    environment = {**os.environ, **dict(config.env)}
    request = render_request(config.api_version, image, token, annotations)
    prefix = f"error execing credential provider plugin {config.name} for image {image}"
    try:
        finished = await run_program(
            (config.program, *config.args), stdin=request, env=environment, timeout_s=TIMEOUT_S, limit=_LIMIT
        )
    except HostError as error:
        raise ProviderError(f"{prefix}: {error}") from error
    if finished.code != 0:
        end = f"signal {-finished.code}" if finished.code < 0 else f"exit status {finished.code}"
        output = finished.err.decode("utf-8", "replace").strip()[:_SHOWN]
        raise ProviderError(f"{prefix}: {end}" + (f": {output}" if output else ""))
    if finished.out_cut:
        raise ProviderError(f"{prefix}: the response is larger than {_LIMIT} bytes")
    try:
        return parse_answer(finished.out, config.api_version)
    except ProviderError as error:
        raise ProviderError(f"{prefix}: {error}") from None
