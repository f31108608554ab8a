"""Gets credentials from plugins: chooses the plugins for an image and caches their answers.

Owns: the cache of answers (by image, by registry, or for all images, as the plugin chooses). Equal requests share one
call. The protocol is in `edges/plugins/credential_provider`. A failure of a plugin is logged, and the pull continues with
the other credentials.

Source: the Kubernetes documentation "Configure a kubelet image credential provider".
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from typing import ClassVar, Protocol

from pykubelet.base.api.core import ObjectMeta
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import RedactedValue, Value
from pykubelet.base.model.ids import PodRef
from pykubelet.edges.plugins.credential_config import ProviderConfig, TokenAttributes
from pykubelet.edges.plugins.credential_provider import CacheKeyType, ProviderAnswer, ProviderError
from pykubelet.provide.images.keyring import Auth, Credential, ServiceAccountSource
from pykubelet.provide.images.metrics import PLUGIN_DURATIONS, PLUGIN_ERRORS
from pykubelet.provide.images.model import PullAccount
from pykubelet.provide.images.names import key_parts, matches_key, registry_of

log = Log("images")
Entries = tuple[tuple[str, Credential], ...]
_GLOBAL_KEY = "<global>"
_PURGE_PERIOD_S = 15 * 60.0


class RunProvider(Protocol):
    """Runs a plugin: `edges.plugins.credential_provider.run_provider`, or a double."""

    async def __call__(
        self, config: ProviderConfig, image: str, token: str = "", annotations: Mapping[str, str] | None = None
    ) -> ProviderAnswer: ...


class TokenSource(Protocol):
    """Service account tokens: `edges.plugins.pull_identity.PullIdentity`, or a double. None on a node without an API server."""

    async def account(self, namespace: str, name: str) -> ObjectMeta:
        """The metadata of a service account, for the plugin's annotations and UID. Raises ProviderError."""

    async def pull_token(self, pod: PodRef, account: str, account_uid: str, audience: str) -> str:
        """A token of the service account, bound to the pod. Raises ProviderError."""


class _Identity(RedactedValue):
    """The service account data that a plugin gets; empty for plugins that do not request it."""

    hidden: ClassVar = ("token",)
    token: str = ""
    annotations: tuple[tuple[str, str], ...] = ()
    source: ServiceAccountSource | None = None
    cache_key: tuple[str, ...] = ()


class _Kept(Value):
    entries: Entries
    expires_at: float


class CredentialProviders:
    """All configured plugins."""

    def __init__(
        self, configs: tuple[ProviderConfig, ...], run: RunProvider, clock: Clock, tokens: TokenSource | None = None
    ) -> None:
        self._configs = configs
        self._run = run
        self._clock = clock
        self._tokens = tokens
        self._tasks = Supervisor("credential-providers")
        self._running: dict[tuple[str, ...], asyncio.Task[Entries]] = {}
        self._cache: dict[tuple[str, ...], _Kept] = {}
        self._purged_at = clock.monotonic()

    async def stop(self) -> None:
        """Stop running plugins."""
        await self._tasks.stop()

    async def entries(self, repository: str, pod: PodRef, account: PullAccount | None) -> list[tuple[str, Credential]]:
        """The credentials of all matching plugins, in their configured order. Never raises when a plugin fails."""
        wanted = key_parts(repository)
        matching = [c for c in self._configs if any(matches_key(key_parts(key), wanted) for key in c.match_images)]
        answers = await asyncio.gather(*(self._ask(config, repository, pod, account) for config in matching))
        return [entry for answer in answers for entry in answer]

    async def _ask(self, config: ProviderConfig, repository: str, pod: PodRef, account: PullAccount | None) -> Entries:
        self._purge()
        try:
            identity = await self._identity(config.token, pod, account)
        except ProviderError as error:
            log.error("a credential provider cannot be called", plugin=config.name, image=repository, error=error)
            return ()
        if identity is None:
            return ()
        kept = self._kept(config, repository, identity)
        if kept is not None:
            return kept
        key = (config.name, repository, *identity.cache_key)
        task = self._running.get(key)
        if task is None:
            task = self._tasks.start_child(f"plugin {config.name}", self._fetch(config, repository, identity))
            self._running[key] = task
            task.add_done_callback(lambda _: self._running.pop(key, None))
        return await asyncio.shield(task)

    async def _identity(
        self, wanted: TokenAttributes | None, pod: PodRef, account: PullAccount | None
    ) -> _Identity | None:
        """The identity for one call; None: do not call the plugin. Raises ProviderError."""
        if wanted is None:
            return _Identity()
        if account is None or not account.name:
            return None if wanted.require_account else _Identity()
        if self._tokens is None:
            raise ProviderError("service account tokens are not available on this node")
        metadata = await self._tokens.account(account.namespace, account.name)
        missing = [key for key in wanted.required_annotations if key not in metadata.annotations]
        if missing:  # not an error: service accounts opt in with these annotations
            where = f"{account.namespace}/{account.name}"
            log.debug("a service account lacks the annotations that a plugin requires", account=where, missing=missing)
            return None
        token = await self._tokens.pull_token(pod, account.name, metadata.uid, wanted.audience)
        keys = (*wanted.required_annotations, *wanted.optional_annotations)
        annotations = tuple(sorted((key, metadata.annotations[key]) for key in keys if key in metadata.annotations))
        cache_key = [account.namespace, account.name, metadata.uid, *(part for pair in annotations for part in pair)]
        if wanted.cache_type == "Token":
            cache_key.append(hashlib.sha256(token.encode()).hexdigest())
        source = ServiceAccountSource(metadata.uid, account.namespace, account.name)
        return _Identity(token, annotations, source, tuple(cache_key))

    async def _fetch(self, config: ProviderConfig, repository: str, identity: _Identity) -> Entries:
        begun = self._clock.monotonic()
        try:
            answer = await self._run(config, repository, identity.token, dict(identity.annotations))
            _refuse_token_as_password(config, identity, answer)
        except ProviderError as error:
            log.error("a credential provider gave no credentials", plugin=config.name, image=repository, error=error)
            PLUGIN_ERRORS.inc(config.name)
            return ()
        finally:
            PLUGIN_DURATIONS.observe(self._clock.monotonic() - begun, config.name)
        entries = tuple(
            (location, Credential(Auth(username, password), identity.source))
            for location, (username, password) in answer.auth.items()
        )
        cache_s = config.default_cache_s if answer.cache_s is None else answer.cache_s
        if cache_s > 0:
            key = _cache_key(answer.cache_key_type, repository)
            kept = _Kept(entries, self._clock.monotonic() + cache_s)
            self._cache[(config.name, key, *identity.cache_key)] = kept
        return entries

    def _kept(self, config: ProviderConfig, repository: str, identity: _Identity) -> Entries | None:
        for kind in CacheKeyType:
            kept = self._cache.get((config.name, _cache_key(kind, repository), *identity.cache_key))
            if kept is not None and kept.expires_at > self._clock.monotonic():
                return kept.entries
        return None

    def _purge(self) -> None:
        now = self._clock.monotonic()
        if now - self._purged_at >= _PURGE_PERIOD_S:
            self._purged_at = now
            self._cache = {key: kept for key, kept in self._cache.items() if kept.expires_at > now}


def _cache_key(kind: CacheKeyType, repository: str) -> str:
    match kind:
        case CacheKeyType.IMAGE:
            return repository
        case CacheKeyType.REGISTRY:
            return registry_of(repository)
        case CacheKeyType.GLOBAL:
            return _GLOBAL_KEY


def _refuse_token_as_password(config: ProviderConfig, identity: _Identity, answer: ProviderAnswer) -> None:
    """Refuse an answer with the token as password if it is cached for a service account: the token is bound to one pod."""
    if config.token is None or config.token.cache_type != "ServiceAccount" or not identity.token:
        return
    if any(password == identity.token for _, password in answer.auth.values()):
        raise ProviderError("it returned the service account token as a password, which cacheType Token is for")
