"""`--log-cadvisor-usage`."""

from __future__ import annotations

import asyncio
import json

import pytest
from support.logs import logging_restored

from pykubelet.base.kit.log import set_up_logging
from pykubelet.observe.stats.own_usage import log_own_usage


@pytest.mark.looptime
async def test_the_agents_own_usage_is_logged(capsys: pytest.CaptureFixture[str]) -> None:
    with logging_restored():
        set_up_logging(0, json_format=True)
        logging = asyncio.get_running_loop().create_task(log_own_usage(10.0))
        await asyncio.sleep(25)
        logging.cancel()
    entries = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [entry["msg"] for entry in entries] == ["usage of the agent"] * 2
    assert all(0 <= entry["cores"] < 100 and entry["memory_bytes"] > 1 << 20 for entry in entries)
