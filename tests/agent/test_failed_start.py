"""A start that cannot succeed ends with one clear error and nothing else."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest
from support.agent import Agent

pytestmark = pytest.mark.integration

MakeAgent = Callable[..., Agent]


async def test_reserved_cgroup_that_does_not_exist(make_agent: MakeAgent) -> None:
    group = "/pykubelet-test-absent"
    agent = make_agent(
        enforceNodeAllocatable=["pods", "system-reserved"],
        systemReserved={"cpu": "100m"},
        systemReservedCgroup=group,
    )
    agent.start(wait=False)
    assert agent.process is not None
    assert agent.process.wait(60) == 1
    log = agent.log_text()
    assert log.splitlines()[-1].startswith("Error: Failed to enforce System Reserved Cgroup Limits")
    assert "never awaited" not in log and "Traceback" not in log


async def test_a_client_ca_that_is_missing(make_agent: MakeAgent) -> None:
    agent = make_agent(authentication={"x509": {"clientCAFile": "/nonexistent/ca.crt"}})
    agent.start(wait=False)
    assert agent.process is not None and agent.process.wait(60) == 1
    last = agent.log_text().splitlines()[-1]
    assert last == "Error: cannot load clientCAFile: /nonexistent/ca.crt: No such file or directory"


@pytest.mark.parametrize("setting", ["port", "readOnlyPort"])
async def test_a_port_that_is_taken(make_agent: MakeAgent, setting: str) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        agent = make_agent(address="127.0.0.1", **{setting: taken})
        agent.start(wait=False)
        assert agent.process is not None
        assert agent.process.wait(60) == 1
    log = agent.log_text()
    assert log.splitlines()[-1] == (
        f"Error: {setting}: cannot listen on 127.0.0.1:{taken}: Address already in use: "
        "another program listens there, perhaps another kubelet: stop it, or set another port"
    )
    assert "never awaited" not in log and "Traceback" not in log
