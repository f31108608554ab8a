"""Groups of paths on the authenticated port that the configuration switches off."""

from __future__ import annotations

import subprocess
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


def test_key_exchange_groups(make_agent: Callable[..., Agent]) -> None:
    """tlsCurvePreferences: P-384 and P-521; the certificate's own curve does not count in TLS 1.3."""
    agent = make_agent(tlsCurvePreferences=[24, 25], **OPEN).start()
    NodeApi(agent.port).wait_listening()
    argv = ["openssl", "s_client", "-tls1_3", "-connect", f"127.0.0.1:{agent.port}", "-groups"]
    for group, shown in {"X25519": "", "P-256": "", "P-384": "secp384r1", "X25519:P-521": "secp521r1"}.items():
        ended = subprocess.run(
            [*argv, group], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
        )
        assert (ended.returncode == 0) is bool(shown), group
        assert not shown or f"Server Temp Key: ECDH, {shown}" in ended.stdout, group
