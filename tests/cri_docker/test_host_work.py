"""Blocking work on the host, in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from pykubelet_cri_docker.host_work import HostWork

pytestmark = pytest.mark.virtual_time


async def test_work_of_the_same_key_is_done_one_after_the_other() -> None:
    host, at_work = HostWork(), []

    def work() -> int:
        at_work.append(1)
        assert len(at_work) == 1
        at_work.pop()
        return 7

    assert await asyncio.gather(*(host.run("resolv.conf", work) for _ in range(5))) == [7] * 5
