"""Groups of paths on the authenticated port that the configuration switches off."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.agent import Agent
from support.api import NodeApi

pytestmark = pytest.mark.integration
OPEN = {"authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}}}
NO_DEBUGGING = (405, "Debug endpoints are disabled.\n")
NOT_FOUND = (404, "404: Page Not Found")


def test_without_debugging_handlers(make_agent: Callable[..., Agent]) -> None:
    agent = make_agent(enableDebuggingHandlers=False, **OPEN).start()
    api = NodeApi(agent.port).wait_listening()
    for path, method in {
        "/run/default/web/c?cmd=id": "POST",
        "/exec/default/web/c?command=id&output=1": "POST",
        "/attach/default/web/c?output=1": "POST",
        "/portForward/default/web": "POST",
        "/containerLogs/default/web/c": "GET",
        "/runningpods/": "GET",
        "/debug/pprof/profile": "GET",
        "/logs/": "GET",
    }.items():
        assert api.ask(path, method) == NO_DEBUGGING, path
    for path in ("/configz", "/checkpoint/a/b/c", "/debug/flags/v", "/flagz", "/statusz", "/debug/pods", "/page/"):
        assert api.ask(path) == NOT_FOUND, path
    for path in ("/healthz", "/pods", "/metrics", "/metrics/cadvisor", "/stats/summary"):
        assert api.ask(path)[0] == 200, path


def test_single_handlers(make_agent: Callable[..., Agent]) -> None:
    off = {"enableProfilingHandler": False, "enableDebugFlagsHandler": False, "enableSystemLogHandler": False}
    agent = make_agent(**off, **OPEN).start()
    api = NodeApi(agent.port).wait_listening()
    assert api.ask("/debug/pprof/") == api.ask("/debug/pprof/heap") == (405, "profiling endpoint is disabled.\n")
    assert api.ask("/debug/flags/v", "PUT", b"4") == (405, "flags endpoint is disabled.\n")
    assert api.ask("/logs/") == (405, "logs endpoint is disabled.\n")
    assert api.ask("/configz")[0] == api.ask("/debug/pods")[0] == 200
