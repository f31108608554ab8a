"""General-purpose protocol code of our own has limits: decision 0044 gives the reasons, this module has the numbers.

A change that makes a group larger than its limit raises the limit here, and its commit states why a library does not serve. A change that
makes a group smaller lowers it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src" / "pykubelet"


@dataclass(frozen=True)
class Group:
    """Modules with one purpose. `limit`: lines as `wc -l` counts them. `library`: the best one for the purpose."""

    name: str
    limit: int
    files: tuple[str, ...]
    library: str


GROUPS = (
    Group(
        "gRPC client", 1_240,
        ("net/grpc/http2.py", "net/grpc/channel.py", "net/grpc/status.py", "net/grpc/hpack.py", "net/grpc/limits.py"),
        "h2",
    ),
    Group("gRPC server", 486, ("net/grpc/server.py", "net/grpc/server_connection.py", "net/grpc/services.py"), "on h2"),
    Group(
        "typed gRPC calls", 340,
        ("net/grpc/call.py", "net/grpc/messages.py", "edges/cri/wire.py", "edges/plugins/channels.py"),
        "on protobuf",
    ),
    Group(
        "HTTP messages", 945,
        ("net/http/request.py", "net/http/response.py", "net/http/wire.py", "net/http/tolerant.py"),
        "on httptools",
    ),
    Group(
        "HTTP server", 725,
        ("net/http/server.py", "net/http/staged_reader.py", "serve/listen.py", "edges/host/services/unix_socket.py"),
        "aiohttp.web",
    ),
    Group("admission of connections", 380, ("net/http/accept.py", "net/http/decide_accept.py"), "none"),
    Group("open connections", 60, ("net/http/occupancy.py",), "none"),
    Group("ClientHello", 70, ("net/http/client_hello.py",), "none"),
    Group("key exchange", 255, ("net/http/checked_tls.py",), "pyOpenSSL"),
    Group(
        "HTTP client", 740,
        ("net/http/dial.py", "net/http/client_tls.py", "net/http/exchange.py", "net/http/hops.py", "edges/kubeapi/connection.py"),
        "aiohttp",
    ),
    Group("SOCKS", 120, ("net/http/socks.py",), "python-socks"),
    Group(
        "streams", 656,
        ("net/http/proxy.py", "net/http/upgrade.py", "serve/streaming/bridge.py", "serve/streaming/command.py", "serve/streaming/relay.py",
         "serve/streaming/tunnel.py"),
        "none",
    ),
    Group("SPDY", 325, ("net/websocket/spdy.py", "net/websocket/spdy_server.py"), "none"),
    Group("WebSocket", 215, ("net/websocket/frames.py", "net/websocket/handshake.py"), "on websockets"),
    Group(
        "HTTP probes", 770,
        ("edges/probing/dial.py", "edges/probing/http.py", "edges/probing/http2.py", "edges/probing/http_target.py",
         "edges/probing/connection.py", "edges/probing/transport.py"),
        "aiohttp",
    ),
    Group("D-Bus", 220, ("edges/host/cgroups/dbus.py",), "on jeepney"),
    Group("protobuf of pods", 320, ("base/api/protobuf.py",), "protobuf"),
    Group("inotify and libc", 411, ("edges/host/fs/inotify.py", "edges/host/fs/libc.py"), "asyncinotify"),
    Group("metrics and readiness", 395, ("base/kit/metrics.py", "base/kit/readiness.py"), "prometheus_client"),
    Group("traces", 460, ("base/kit/tracing.py", "edges/otlp/encode.py", "edges/otlp/exporter.py"), "opentelemetry-sdk"),
)  # fmt: skip
GROUPED = Counter(file for group in GROUPS for file in group.files)


def length(name: str) -> int:
    return (SRC / name).read_text().count("\n")


@pytest.mark.parametrize("group", GROUPS, ids=[group.name for group in GROUPS])
def test_protocol_code_stays_within_its_limit(group: Group) -> None:
    lines = {name: length(name) for name in group.files}
    total = sum(lines.values())
    assert total <= group.limit, f"{group.name} has {total} lines, and the limit is {group.limit}: {lines}"


def test_every_module_of_net_is_in_one_group() -> None:
    """A new module there belongs into the table above, and its library into the decision record."""
    modules = {str(path.relative_to(SRC)) for path in (SRC / "net").rglob("*.py") if path.name != "__init__.py"}
    assert sorted(modules - GROUPED.keys()) == []
    assert [name for name, count in GROUPED.items() if count > 1] == []


def test_the_record_names_every_group() -> None:
    [record] = (SRC.parents[1] / "docs/decisions").glob("0044-*.md")
    rows = [line.split("|")[1].strip() for line in record.read_text().splitlines() if line.startswith("| ")]
    assert [group.name for group in GROUPS if group.name not in rows] == []
