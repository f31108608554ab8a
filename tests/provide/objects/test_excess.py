"""A pod that refers to very many objects: they are read and not watched, and those beyond a bound not even read."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from provide.objects.stand import MAPS, SECRETS, config_map, of_map, of_secret, pod_with, secret, stand, token_source

from pykubelet.base.api.core import Secret
from pykubelet.base.model.content import Absent, Content, ContentKey, ObjectKey, Present, Unreadable
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.needs import Needs
from pykubelet.provide.objects.excess import MANY, MAX_KEYS, REQUESTS_OF_MANY, TOO_MANY, ExcessKeys

pytestmark = pytest.mark.virtual_time
#: 50 requests a second are sent.
LONG_S = 120.0


def answered(content: Content, number: int) -> bool:
    return len(content.objects) >= number


async def test_what_is_beyond_the_bound_is_answered_without_being_read() -> None:
    async with stand() as s:
        names = [f"m{n:05}" for n in range(MAX_KEYS + 3)]
        s.want(pod_with(*map(of_map, names)))
        content = await s.until(lambda content: answered(content, MAX_KEYS + 3), LONG_S)
        for name in names[MAX_KEYS:]:
            found = content.find(config_map(name))
            assert isinstance(found, Unreadable) and found.message == TOO_MANY
            assert s.server.count("GET", f"{MAPS}/{name}") == 0
        last = config_map(names[MAX_KEYS - 1])
        await s.until(lambda content: isinstance(content.find(last), Absent), LONG_S)
        s.server.create(MAPS, {"metadata": {"name": names[-1]}, "data": {"a": "1"}})
        s.want(pod_with(of_map(names[-1]), uid="u2"))  # the first one is gone
        assert (await s.value(config_map(names[-1]))).data == {"a": "1"}


async def test_an_object_beyond_the_bound_of_one_pod_is_read_for_another() -> None:
    async with stand() as s:
        names = [f"m{n:05}" for n in range(MAX_KEYS + 1)]
        s.server.create(MAPS, {"metadata": {"name": names[-1]}, "data": {"a": "1"}})
        large = pod_with(*map(of_map, names))
        s.want(large)
        await s.until(lambda content: answered(content, MAX_KEYS + 1), LONG_S)
        s.want(large, pod_with(of_map(names[-1]), uid="u2"))
        assert isinstance(await s.found(config_map(names[-1]), lambda found: isinstance(found, Present)), Present)


async def test_many_objects_of_a_pod_are_read_and_not_watched() -> None:
    async with stand() as s:
        s.want(pod_with(*(of_secret(f"k{n}") for n in range(MANY + 1))), pod_with(of_secret("other"), uid="u2"))
        await s.until(lambda content: answered(content, MANY + 2))
        await s.until_server(lambda: "secrets" in s.server.watching)
        assert s.server.watching.count("secrets") == 1  # that of the other pod
        s.server.create(SECRETS, {"metadata": {"name": "other"}})
        await s.value(secret("other"))


async def test_an_object_of_many_has_no_task_between_two_reads() -> None:
    async with stand() as s:
        before = len(asyncio.all_tasks())
        s.want(pod_with(*(of_map(f"m{n}") for n in range(500))))
        await s.until(lambda content: answered(content, 100), LONG_S)
        while_read = len(asyncio.all_tasks()) - before
        await s.until(lambda content: answered(content, 500), LONG_S)
        assert while_read < 5 * REQUESTS_OF_MANY
        s.server.create(MAPS, {"metadata": {"name": "m7"}, "data": {"a": "1"}})
        assert (await s.value(config_map("m7"), within_s=LONG_S)).data == {"a": "1"}  # read again in its time
        s.want()
        await s.until(lambda content: not content.objects, LONG_S)
        await asyncio.sleep(10)  # requests that were sent or waited to be sent
        sent = s.server.counted["GET configmaps"]
        await asyncio.sleep(LONG_S)
        assert s.server.counted["GET configmaps"] == sent


async def test_requests_for_many_let_others_pass() -> None:
    async with stand() as s:
        s.want(pod_with(*(of_map(f"m{n}") for n in range(1000))))
        await s.until(lambda content: answered(content, 300))  # more than a burst: requests wait in a queue
        s.server.create(SECRETS, {"metadata": {"name": "other"}})
        began = asyncio.get_running_loop().time()
        await s.client.get(f"{SECRETS}/other", Secret)
        assert asyncio.get_running_loop().time() - began < 0.2


async def test_their_answers_are_published_together() -> None:
    async with stand() as s:
        s.want(pod_with(*(of_map(f"m{n}") for n in range(1000))))
        await s.until(lambda content: answered(content, 1000), LONG_S)
        sizes = {len(content.objects) for content in s.published}
        assert len(sizes) < 60


async def test_tokens_count_as_well() -> None:
    async with stand() as s:
        tokens = tuple(token_source(f"audience-{n:05}") for n in range(MAX_KEYS + 1))
        s.want(pod_with(projected=tokens))
        content = await s.until(lambda content: len(content.tokens) == MAX_KEYS + 1, LONG_S)
        messages = [found.message for found in content.tokens.values() if isinstance(found, Unreadable)]
        assert messages.count(TOO_MANY) == 1


KEYS = st.sets(st.integers(0, 30).map(lambda n: config_map(f"m{n:03}")))


@given(st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), KEYS), max_size=12))
def test_what_is_in_excess_is_that_of_some_pod_at_any_time(steps: list[tuple[str, set[ObjectKey]]]) -> None:
    excess = ExcessKeys(most=10)
    wanted: dict[str, set[ObjectKey]] = {}
    now: set[ContentKey] = set()
    for uid, keys in steps:
        wanted[uid] = keys
        kept, added, dropped = excess.bound(PodUID(uid), Needs(frozenset(keys)))
        assert len(kept.objects) == min(10, len(keys)) and kept.objects <= keys
        assert added.isdisjoint(now) and dropped <= now
        now = (now | added) - dropped
        assert now == {key for given in wanted.values() for key in sorted(given)[10:]}
