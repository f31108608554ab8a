from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

import pytest
from provide.images.stand import pod

from pykubelet.base.api.core import ObjectMeta
from pykubelet.base.kit.clock import ManualClock
from pykubelet.base.model.ids import PodRef
from pykubelet.edges.plugins.credential_config import ProviderConfig, TokenAttributes
from pykubelet.edges.plugins.credential_provider import CacheKeyType, ProviderAnswer, ProviderError
from pykubelet.provide.images.keyring import ServiceAccountSource
from pykubelet.provide.images.metrics import PLUGIN_DURATIONS, PLUGIN_ERRORS
from pykubelet.provide.images.model import PullAccount
from pykubelet.provide.images.providers import CredentialProviders

pytestmark = pytest.mark.virtual_time

A1, A2, B = "a.example/one", "a.example/two", "b.example/one"
ACCOUNT = PullAccount("ns", "builder")


class Plugins:
    """Answers by plugin name; counts the questions."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, str, dict[str, str]]] = []
        self.kind = CacheKeyType.IMAGE
        self.cache_s: float | None = None
        self.password = "p"
        self.error = ""
        self.seconds = 0.0

    async def __call__(
        self, config: ProviderConfig, image: str, token: str = "", annotations: Mapping[str, str] | None = None
    ) -> ProviderAnswer:
        self.asked.append((config.name, image, token, dict(annotations or {})))
        await asyncio.sleep(self.seconds)
        if self.error:
            raise ProviderError(self.error)
        return ProviderAnswer(self.kind, {"*.example": (config.name, self.password)}, self.cache_s)


class Tokens:
    def __init__(self) -> None:
        self.made = 0

    async def account(self, namespace: str, name: str) -> ObjectMeta:
        annotations = {"role": "reader", "extra": "x"} if name == "builder" else {}
        return ObjectMeta(uid="uid-1", namespace=namespace, name=name, annotations=annotations)

    async def pull_token(self, pod: PodRef, account: str, account_uid: str, audience: str) -> str:
        self.made += 1
        return f"token-{audience}-{self.made}"


def config(name: str = "one", default_cache_s: float = 0.0, token: TokenAttributes | None = None) -> ProviderConfig:
    return ProviderConfig(name, f"/bin/{name}", ("*.example",), default_cache_s, "v1", token=token)


async def users(of: CredentialProviders, image: str, account: PullAccount | None = None) -> list[str]:
    return [credential.auth.username for _, credential in await of.entries(image, pod("web"), account)]


async def test_only_plugins_that_match_are_asked_in_their_order() -> None:
    plugins = Plugins()
    other = ProviderConfig("other", "/bin/other", ("quay.io",), 0.0, "v1")
    under_test = CredentialProviders((config("one"), other, config("two")), plugins, ManualClock())
    assert await users(under_test, A1) == ["one", "two"]
    assert await users(under_test, "docker.io/library/x") == []
    assert [name for name, *_ in plugins.asked] == ["one", "two"]


async def test_a_failing_plugin_gives_nothing_and_is_asked_again() -> None:
    plugins = Plugins()
    plugins.error = "boom"
    under_test = CredentialProviders((config(default_cache_s=60),), plugins, ManualClock())
    errors, calls = PLUGIN_ERRORS.value("one"), PLUGIN_DURATIONS.count("one")
    assert await users(under_test, A1) == []
    plugins.error = ""
    assert await users(under_test, A1) == ["one"]
    assert (PLUGIN_ERRORS.value("one"), PLUGIN_DURATIONS.count("one")) == (errors + 1, calls + 2)


async def asked_for(kind: CacheKeyType, *images: str) -> int:
    plugins = Plugins()
    plugins.kind = kind
    under_test = CredentialProviders((config(default_cache_s=60),), plugins, ManualClock())
    for image in images:
        await users(under_test, image)
    return len(plugins.asked)


async def test_answers_are_kept_by_image_registry_or_for_all() -> None:
    assert await asked_for(CacheKeyType.IMAGE, A1, A1, A2) == 2
    assert await asked_for(CacheKeyType.REGISTRY, A1, A2, B, B) == 2
    assert await asked_for(CacheKeyType.GLOBAL, A1, A2, B) == 1


async def test_answers_expire() -> None:
    plugins, clock = Plugins(), ManualClock()
    under_test = CredentialProviders((config(default_cache_s=60),), plugins, clock)
    for advance in (0, 59, 2):
        clock.advance(advance)
        await users(under_test, A1)
    assert len(plugins.asked) == 2


async def test_the_answers_own_duration_wins_and_zero_means_not_kept() -> None:
    for cache_s, expected in ((0.0, 2), (10.0, 1), (None, 1)):
        plugins = Plugins()
        plugins.cache_s = cache_s
        under_test = CredentialProviders((config(default_cache_s=60),), plugins, ManualClock())
        await users(under_test, A1)
        await users(under_test, A1)
        assert len(plugins.asked) == expected


async def test_equal_questions_at_the_same_time_are_asked_once() -> None:
    plugins = Plugins()
    plugins.seconds = 0.05
    under_test = CredentialProviders((config(),), plugins, ManualClock())
    answers = await asyncio.gather(*(users(under_test, A1) for _ in range(5)), users(under_test, A2))
    assert answers == [["one"]] * 6
    assert sorted(image for _, image, *_ in plugins.asked) == [A1, A2]


async def test_a_pod_that_goes_does_not_take_the_answer_from_the_others() -> None:
    plugins = Plugins()
    plugins.seconds = 0.05
    under_test = CredentialProviders((config(),), plugins, ManualClock())

    async def impatient() -> None:
        async with asyncio.timeout(0.01):
            await users(under_test, A1)

    results = await asyncio.gather(impatient(), users(under_test, A1), return_exceptions=True)
    assert isinstance(results[0], TimeoutError)
    assert results[1] == ["one"]


def token_config(cache_type: str = "ServiceAccount", require: bool = True) -> ProviderConfig:
    return config(default_cache_s=60, token=TokenAttributes("aud", require, cache_type, ("role",), ("extra", "none")))


async def test_a_plugin_with_token_attributes_gets_token_and_annotations() -> None:
    plugins = Plugins()
    under_test = CredentialProviders((token_config(),), plugins, ManualClock(), Tokens())
    entries = await under_test.entries(A1, pod("web"), ACCOUNT)
    assert plugins.asked == [("one", A1, "token-aud-1", {"role": "reader", "extra": "x"})]
    assert [c.source for _, c in entries] == [ServiceAccountSource("uid-1", "ns", "builder")]


async def test_cached_per_account_or_per_token() -> None:
    for cache_type, expected in (("ServiceAccount", 1), ("Token", 2)):
        plugins = Plugins()
        under_test = CredentialProviders((token_config(cache_type),), plugins, ManualClock(), Tokens())
        await users(under_test, A1, ACCOUNT)
        await users(under_test, A1, ACCOUNT)
        assert len(plugins.asked) == expected


async def test_who_has_no_account_or_lacks_annotations(caplog: pytest.LogCaptureFixture) -> None:
    plugins = Plugins()
    under_test = CredentialProviders((token_config(),), plugins, ManualClock(), Tokens())
    with caplog.at_level(logging.INFO, "pykubelet"):
        assert await users(under_test, A1, None) == []
        assert await users(under_test, A1, PullAccount("ns", "bare")) == []
    assert plugins.asked == [] and not caplog.records
    optional = CredentialProviders((token_config(require=False),), plugins, ManualClock(), Tokens())
    assert await users(optional, A1, None) == ["one"]


async def test_a_token_must_not_come_back_as_a_password_for_the_whole_account() -> None:
    plugins = Plugins()
    plugins.password = "token-aud-1"
    assert await users(CredentialProviders((token_config(),), plugins, ManualClock(), Tokens()), A1, ACCOUNT) == []
    by_token = CredentialProviders((token_config("Token"),), plugins, ManualClock(), Tokens())
    assert await users(by_token, A1, ACCOUNT) == ["one"]


async def test_without_a_source_of_tokens_the_plugin_is_left_out() -> None:
    plugins = Plugins()
    assert await users(CredentialProviders((token_config(),), plugins, ManualClock()), A1, ACCOUNT) == []
    assert plugins.asked == []


async def test_expired_answers_are_purged() -> None:
    plugins, clock = Plugins(), ManualClock()
    under_test = CredentialProviders((config(default_cache_s=60),), plugins, clock)
    await users(under_test, A1)
    clock.advance(16 * 60)
    await users(under_test, B)
    assert {key[1] for key in under_test._cache} == {B}
