"""The metrics of images."""

from __future__ import annotations

from pathlib import Path

import pytest
from provide.images.stand import FakeRuntime, Stand, request

from pykubelet.base.kit.clock import ManualClock
from pykubelet.provide.images.metrics import ACCESS_CHECKS, ENSURED, INTENTS, PULL_DURATIONS, RECORDS, size_words
from pykubelet.provide.images.model import ImageSettings

MIB = 1 << 20


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (0, "N/A"),
        (1, "0-10MB"),
        (10 * MIB, "0-10MB"),
        (10 * MIB + 1, "10MB-100MB"),
        (3 << 30, "1GB-5GB"),
        (99 << 30, "60GB-100GB"),
        (101 << 30, "GT100GB"),
    ],
)
def test_sizes_in_words(size: int, words: str) -> None:
    assert size_words(size) == words


def stand(tmp_path: Path, runtime: FakeRuntime) -> Stand:
    return Stand(runtime, ManualClock(), ImageSettings(str(tmp_path / "records"), qps=0.0, serialize=False))


async def test_pulls_and_what_was_there(tmp_path: Path) -> None:
    under_test = stand(tmp_path, FakeRuntime(["busybox:latest"]))
    here, fetched = ("true", "ifnotpresent", "false"), ("false", "ifnotpresent", "true")
    before = ENSURED.value(*here), ENSURED.value(*fetched), PULL_DURATIONS.count("0-10MB")
    allowed = ACCESS_CHECKS.value("credentialPolicyAllowed")
    await under_test.puller.ensure(request("busybox"))
    assert (ENSURED.value(*here), ENSURED.value(*fetched)) == (before[0] + 1, before[1])
    assert ACCESS_CHECKS.value("credentialPolicyAllowed") == allowed + 1, "it was there before us"
    await under_test.puller.ensure(request("nginx:1"))
    assert (ENSURED.value(*here), ENSURED.value(*fetched)) == (before[0] + 1, before[1] + 1)
    assert PULL_DURATIONS.count("0-10MB") == before[2] + 1
    assert (INTENTS.value(), RECORDS.value()) == (0, 1)
    found = ACCESS_CHECKS.value("credentialRecordFound")
    await under_test.puller.ensure(request("nginx:1"))
    assert ACCESS_CHECKS.value("credentialRecordFound") == found + 1


async def test_an_image_that_is_always_pulled_is_not_inspected(tmp_path: Path) -> None:
    under_test = stand(tmp_path, FakeRuntime(["busybox:latest"]))
    before = ENSURED.value("unknown", "always", "true")
    await under_test.puller.ensure(request("busybox", policy="Always"))
    assert ENSURED.value("unknown", "always", "true") == before + 1


async def test_an_image_that_may_not_be_pulled_is_counted_too(tmp_path: Path) -> None:
    under_test = stand(tmp_path, FakeRuntime())
    before = ENSURED.value("false", "never", "unknown")
    await under_test.puller.ensure(request("nginx:1", policy="Never"))
    assert ENSURED.value("false", "never", "unknown") == before + 1
