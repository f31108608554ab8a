"""Configuration of credential provider plugins: `CredentialProviderConfig`, read strictly.

Owns: the values, their rules, and the list of files (one file, or the *.json, *.yaml and *.yml of a directory in
lexical order). Parsing is pure; only `load_providers` touches the disk. Running the plugins: `credential_provider.py`.

Source: the Kubernetes documentation "Kubelet CredentialProvider" and "Configure a kubelet image credential provider".
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator

import msgspec

from pykubelet.base.kit.durations import SECOND, parse_duration
from pykubelet.base.kit.metrics import Gauge
from pykubelet.base.kit.values import Value
from pykubelet.config.errors import ConfigError
from pykubelet.config.text import parse_document
from pykubelet.edges.host.fs import files
from pykubelet.edges.host.fs.errors import HostError

KIND = "CredentialProviderConfig"
CONFIG_VERSIONS = tuple(f"kubelet.config.k8s.io/{version}" for version in ("v1", "v1beta1", "v1alpha1"))
PLUGIN_VERSIONS = tuple(f"credentialprovider.kubelet.k8s.io/{version}" for version in ("v1", "v1beta1", "v1alpha1"))
TOKEN_VERSION = PLUGIN_VERSIONS[0]
_CACHE_TYPES = ("Token", "ServiceAccount")
_SUFFIXES = (".json", ".yaml", ".yml")
_LIMIT = 10 << 20


class TokenAttributes(Value):
    """The plugin gets a token of the pod's service account, issued for `audience`."""

    audience: str
    require_account: bool
    cache_type: str
    required_annotations: tuple[str, ...] = ()
    optional_annotations: tuple[str, ...] = ()


class ProviderConfig(Value):
    """One plugin. `program`: its path. `default_cache_s` 0: answers without a duration are not cached."""

    name: str
    program: str
    match_images: tuple[str, ...]
    default_cache_s: float
    api_version: str
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    token: TokenAttributes | None = None


TOKENS_OFF = (
    "tokenAttributes is not supported when KubeletServiceAccountTokenForCredentialProviders feature gate is disabled"
)


class Providers(Value):
    """All plugins in their order. `config_hash`: the hash of the files, as in the reference's metric."""

    configs: tuple[ProviderConfig, ...] = ()
    config_hash: str = ""


class _Env(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str = ""
    value: str = ""


class _Token(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    serviceAccountTokenAudience: str = ""
    cacheType: str = ""
    requireServiceAccount: bool | None = None
    requiredServiceAccountAnnotationKeys: tuple[str, ...] | None = None
    optionalServiceAccountAnnotationKeys: tuple[str, ...] | None = None


class _Provider(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str = ""
    matchImages: tuple[str, ...] | None = None
    defaultCacheDuration: str | None = None
    apiVersion: str = ""
    args: tuple[str, ...] | None = None
    env: tuple[_Env, ...] | None = None
    tokenAttributes: _Token | None = None


class _Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    apiVersion: str = ""
    kind: str = ""
    providers: tuple[_Provider, ...] | None = None


def parse_providers(data: bytes, file: str, bin_dir: str, *, tokens: bool = True) -> tuple[ProviderConfig, ...]:
    """Parse the plugins of one file. Raises ConfigError that names the file and the field paths.

    `tokens`: the gate KubeletServiceAccountTokenForCredentialProviders.
    """
    plain = parse_document(data, file)
    try:
        document = msgspec.convert(plain, type=_Document)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{file}: {error}") from error
    if document.kind != KIND or document.apiVersion not in CONFIG_VERSIONS:
        given = f'apiVersion "{document.apiVersion}", kind "{document.kind}"'
        raise ConfigError(f"{file}: {given}: must be {KIND} of one of {', '.join(CONFIG_VERSIONS)}")
    providers = document.providers or ()
    problems = [f"{file}: {problem}" for problem in _problems(providers, document.apiVersion == CONFIG_VERSIONS[0])]
    if not tokens:
        with_token = (index for index, provider in enumerate(providers) if provider.tokenAttributes is not None)
        problems += [f"{file}: providers[{index}].tokenAttributes: Forbidden: {TOKENS_OFF}" for index in with_token]
    if problems:
        raise ConfigError(*problems)
    return tuple(_config(provider, bin_dir) for provider in providers)


def _config(provider: _Provider, bin_dir: str) -> ProviderConfig:
    token = provider.tokenAttributes
    return ProviderConfig(
        name=provider.name,
        program=os.path.join(bin_dir, provider.name),
        match_images=provider.matchImages or (),
        default_cache_s=parse_duration(provider.defaultCacheDuration or "0s") / SECOND,
        api_version=provider.apiVersion,
        args=provider.args or (),
        env=tuple((variable.name, variable.value) for variable in provider.env or ()),
        token=None
        if token is None
        else TokenAttributes(
            token.serviceAccountTokenAudience,
            bool(token.requireServiceAccount),
            token.cacheType,
            token.requiredServiceAccountAnnotationKeys or (),
            token.optionalServiceAccountAnnotationKeys or (),
        ),
    )


def _problems(providers: tuple[_Provider, ...], tokens_allowed: bool) -> Iterator[str]:
    if not providers:
        yield "providers: Required value: at least 1 item in plugins is required"
    for index, provider in enumerate(providers):
        path = f"providers[{index}]"
        yield from _name_problems(path, provider.name)
        if any(other.name == provider.name for other in providers[:index]):
            yield f'{path}.name: Duplicate value: "{provider.name}"'
        if not provider.apiVersion:
            yield f"{path}.apiVersion: Required value: apiVersion is required"
        elif provider.apiVersion not in PLUGIN_VERSIONS:
            supported = ", ".join(f'"{version}"' for version in PLUGIN_VERSIONS)
            yield f'{path}.apiVersion: Unsupported value: "{provider.apiVersion}": supported values: {supported}'
        if not provider.matchImages:
            yield f"{path}.matchImages: Required value: at least 1 item in matchImages is required"
        for image in provider.matchImages or ():
            if not image or any(c.isspace() for c in image):
                yield f'{path}.matchImages: Invalid value: "{image}": match image is invalid'
        yield from _duration_problems(path, provider.defaultCacheDuration)
        if provider.tokenAttributes is not None:
            yield from _token_problems(f"{path}.tokenAttributes", provider, provider.tokenAttributes, tokens_allowed)


def _name_problems(path: str, name: str) -> Iterator[str]:
    if not name:
        yield f"{path}.name: Required value: name is required"
    if "/" in name:
        yield f"{path}.name: Invalid value: \"{name}\": provider name cannot contain '/'"
    if " " in name:
        yield f'{path}.name: Invalid value: "{name}": provider name cannot contain spaces'
    if name in (".", ".."):
        yield f"{path}.name: Invalid value: \"{name}\": provider name cannot be '{name}'"


def _duration_problems(path: str, text: str | None) -> Iterator[str]:
    if text is None:
        yield f"{path}.defaultCacheDuration: Required value: defaultCacheDuration is required"
        return
    try:
        negative = parse_duration(text) < 0
    except ValueError as error:
        yield f'{path}.defaultCacheDuration: Invalid value: "{text}": {error}'
        return
    if negative:
        yield (
            f'{path}.defaultCacheDuration: Invalid value: "{text}": '
            "defaultCacheDuration must be greater than or equal to 0"
        )


def _token_problems(path: str, provider: _Provider, token: _Token, allowed: bool) -> Iterator[str]:
    if not allowed or provider.apiVersion != TOKEN_VERSION:
        yield f"{path}: Forbidden: tokenAttributes is only supported for {TOKEN_VERSION} API version"
        return
    if not token.serviceAccountTokenAudience:
        yield f"{path}.serviceAccountTokenAudience: Required value: serviceAccountTokenAudience is required"
    if token.requireServiceAccount is None:
        yield f"{path}.requireServiceAccount: Required value: requireServiceAccount is required"
    if not token.cacheType:
        yield f"{path}.cacheType: Required value: cacheType is required"
    elif token.cacheType not in _CACHE_TYPES:
        supported = ", ".join(f'"{kind}"' for kind in _CACHE_TYPES)
        yield f'{path}.cacheType: Unsupported value: "{token.cacheType}": supported values: {supported}'
    required = set(token.requiredServiceAccountAnnotationKeys or ())
    both = required & set(token.optionalServiceAccountAnnotationKeys or ())
    if both:
        keys = ", ".join(sorted(both))
        yield f"{path}: Invalid value: [{keys}]: annotation keys cannot be both required and optional"
    if required and token.requireServiceAccount is False:
        yield (
            f"{path}.requiredServiceAccountAnnotationKeys: Forbidden: "
            "requireServiceAccount must be true when requiredServiceAccountAnnotationKeys is set"
        )


CONFIG_INFO = Gauge(
    "kubelet_credential_provider_config_info",
    "Information about the last applied credential provider configuration with hash as label",
    ("hash",),
)


def load_providers(config_path: str, bin_dir: str, *, tokens: bool = True) -> Providers:
    """Read the configuration and check that the programs exist. Blocks. Raises ConfigError. `tokens`: as for `parse_providers`."""
    contents = [(path, _read(path)) for path in _config_files(config_path)]
    if not contents:
        raise ConfigError(f"{config_path}: no configuration files found")
    configs: list[ProviderConfig] = []
    problems: list[str] = []
    for path, data in contents:
        for config in parse_providers(data, path, bin_dir, tokens=tokens):
            if any(other.name == config.name for other in configs):
                problems.append(f'{path}: duplicate provider name "{config.name}" found in configuration file(s)')
            configs.append(config)
    problems += _program_problems(configs, bin_dir)
    if problems:
        raise ConfigError(*problems)
    digest = hashlib.sha256()
    for _, data in contents:
        digest.update(len(data).to_bytes(8, "big") + data)
    CONFIG_INFO.set(1, f"sha256:{digest.hexdigest()}")
    return Providers(tuple(configs), f"sha256:{digest.hexdigest()}")


def _config_files(path: str) -> list[str]:
    try:
        found = files.stat_file(path)
        if found is None:
            raise ConfigError(f"{path}: no such file or directory")
        if not found.is_dir:
            return [path]
        names = [entry.name for entry in files.list_dir(path) if entry.name.endswith(_SUFFIXES)]
    except HostError as error:
        raise ConfigError(f"{path}: {error}") from error
    paths = [os.path.join(path, name) for name in names]
    return [file for file in paths if not os.path.isdir(file)]


def _read(path: str) -> bytes:
    try:
        return files.read_bytes(path, _LIMIT)
    except HostError as error:
        raise ConfigError(f"{path}: {error}") from error


def _program_problems(configs: list[ProviderConfig], bin_dir: str) -> Iterator[str]:
    if not os.path.isdir(bin_dir):
        yield f"plugin binary directory {bin_dir} did not exist"
        return
    for config in configs:
        if not os.path.isfile(config.program):
            yield f"plugin binary executable {config.program} did not exist"
        elif not os.access(config.program, os.X_OK):
            yield f"plugin binary executable {config.program} is not executable"
