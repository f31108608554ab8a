"""Unauthenticated and hostile clients of the authenticated port: they get nothing, and the pods are not affected.

The agent trusts one certificate authority and asks no other client. Smuggled and malformed requests are in
tests/net/http/test_server.py, tokens and permissions in test_auth_filter.py and tests/cluster/test_kubectl.py.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import resource
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.agent import Agent, make_container, make_pod
from support.api import NodeApi, endpoint_requests, tls_context
from testbed.certificates import issue, make_authority

pytestmark = pytest.mark.integration
POD = "web-node"
MIB = 1 << 20


def pair(path: Path) -> tuple[str, str]:
    return f"{path}.crt", f"{path}.key"


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The authority the agent trusts, and another one, each with a certificate for an administrator."""
    folder = tmp_path_factory.mktemp("pki")
    for name in ("trusted", "strange"):
        make_authority(folder / name)
        issue(folder / name, "admin", "admin", ("system:masters",))
    return folder


@pytest.fixture(autouse=True)
def many_files() -> Iterator[None]:
    """The tests have as many ends as the agent."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 8192)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
async def agent(make_agent: Callable[..., Agent], pki: Path) -> Agent:
    started = make_agent(
        authentication={
            "anonymous": {"enabled": False},
            "webhook": {"enabled": False},
            "x509": {"clientCAFile": str(pki / "trusted" / "ca.crt")},
        }
    )
    started.start()
    NodeApi(started.port).wait_listening()
    # a probe that is slow beside two thousand connections is none that fails
    probe = {"exec": {"command": ["true"]}, "periodSeconds": 1, "timeoutSeconds": 15}
    started.put(make_pod("web", make_container("talk", readinessProbe=probe)))
    await started.wait_running("web")
    return started


def resident(agent: Agent) -> int:
    assert agent.process is not None
    return int(Path(f"/proc/{agent.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def open_files(agent: Agent) -> int:
    assert agent.process is not None
    return len(os.listdir(f"/proc/{agent.process.pid}/fd"))


async def test_unauthenticated_clients_get_nothing(agent: Agent, pki: Path) -> None:
    missing = NodeApi(agent.port)
    with_token = NodeApi(agent.port, token="eyJhbGciOiJub25lIn0.e30.")
    for method, path in endpoint_requests(POD):
        for client in (missing, with_token):
            assert client.ask(path, method) == (401, "Unauthorized"), (method, path)
    foreign = NodeApi(agent.port, certificate=pair(pki / "strange" / "admin"))
    with pytest.raises((ssl.SSLError, ConnectionError, http.client.RemoteDisconnected)):
        foreign.ask("/pods")
    admin = NodeApi(agent.port, certificate=pair(pki / "trusted" / "admin"))
    assert admin.ask(f"/run/default/{POD}/talk?cmd=echo+hello", "POST") == (200, "hello\n")


async def test_every_listed_path_is_tried_without_credentials(agent: Agent, pki: Path) -> None:
    """The agent's own list of its paths, those with more below them included."""
    answer = NodeApi(agent.port, certificate=pair(pki / "trusted" / "admin")).ask("/statusz")[1]
    paths = answer.split("Paths: ")[1].split("\n")[0].split()
    tried = [path.split("?")[0] + "/" for _, path in endpoint_requests(POD)]
    assert {"/pods", "/exec/", "/healthz", "/debug/pods/", "/statusz"} <= set(paths)
    assert [path for path in paths if not any(target.startswith(path) for target in tried)] == []


async def test_path_tricks_lead_nowhere(agent: Agent, pki: Path) -> None:
    admin = NodeApi(agent.port, certificate=pair(pki / "trusted" / "admin"))
    tricks = {
        "/logs/../../etc/passwd": 404,
        "/logs/%2e%2e/%2e%2e/etc/passwd": 404,
        "/logs/..%2f..%2fetc/passwd": 404,
        "/logs//etc/passwd": 404,
        "/logs/%00": 400,
        "/containerLogs/default/web-node/../../../etc/passwd": 404,
        "/containerLogs/default/web-node/..%2f..": 404,
        "/pods/../configz": 404,
        "/" + "a" * 30_000: 404,
    }
    for path, status in tricks.items():
        found, text = admin.ask(path)
        assert found == status, path[:60]
        assert "root:" not in text
    huge = answer_to(
        agent, tls_context(*pair(pki / "trusted" / "admin")), b"GET /" + b"a" * 2 * MIB + b" HTTP/1.1\r\n\r\n"
    )
    assert huge[:13] in (b"HTTP/1.1 431 ", b"")  # still sending, one may miss it
    assert admin.ask("/healthz") == (200, "ok")


def answer_to(agent: Agent, context: ssl.SSLContext, words: bytes) -> bytes:
    """All that is answered, until the port ends the connection."""
    with socket.create_connection(("127.0.0.1", agent.port), timeout=60) as plain, context.wrap_socket(plain) as end:
        heard = b""
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            end.sendall(words)
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            while data := end.recv(65536):
                heard += data
        return heard


async def test_heads_that_can_be_read_in_two_ways_and_heads_without_end(agent: Agent, pki: Path) -> None:
    """From every client: a smuggled second request is not answered, and the connection ends."""
    hidden = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    length = b"Content-Length: %d\r\n" % len(hidden)
    smuggled = [
        b"POST /pods HTTP/1.1\r\nHost: x\r\n" + length + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + hidden,
        b"POST /pods HTTP/1.1\r\nHost: x\r\n" + length + b"Content-Length: 0\r\n\r\n" + hidden,
        b"POST /pods HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: xchunked\r\n\r\n" + hidden,
        b"POST /pods HTTP/1.1\r\nHost: x\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n" + hidden,
        b"GET /pods HTTP/1.1\r\nHost: x\r\nX: a\n\nGET /healthz HTTP/1.1\r\n\r\n" + hidden,
    ]
    for context in (tls_context(), tls_context(*pair(pki / "trusted" / "admin"))):
        for words in smuggled:
            answer = answer_to(agent, context, words)
            assert answer.startswith(b"HTTP/1.1 400 ") and answer.count(b"HTTP/1.1 ") == 1, words
        answer = answer_to(agent, context, b"GET / HTTP/1.1\r\nX: " + b"a" * (2 * MIB) + b"\r\n\r\n")
        assert answer[:13] in (b"HTTP/1.1 431 ", b"")  # still sending, one may miss it
    admin = NodeApi(agent.port, certificate=pair(pki / "trusted" / "admin"))
    assert admin.ask("/none?" + "a" * 900_000)[0] == 404


async def test_many_connections_without_requests(agent: Agent, pki: Path) -> None:
    """2,000 that only connect, and 100 that begin a request and never end it, do not keep others out."""
    admin = NodeApi(agent.port, certificate=pair(pki / "trusted" / "admin"))
    assert admin.ask("/healthz") == (200, "ok")
    before = resident(agent)
    with contextlib.ExitStack() as stack:
        for _ in range(100):
            plain = stack.enter_context(socket.create_connection(("127.0.0.1", agent.port), timeout=30))
            slow = stack.enter_context(tls_context().wrap_socket(plain))
            slow.sendall(b"GET /pods HTTP/1.1\r\nHost: x\r\nX: ")
        for _ in range(2000):
            stack.enter_context(socket.create_connection(("127.0.0.1", agent.port), timeout=30))
        assert admin.ask(f"/run/default/{POD}/talk?cmd=echo+hello", "POST") == (200, "hello\n")
        assert agent.get("/healthz", agent.health_port) == (200, "ok")
        assert resident(agent) - before < 150 * MIB
    pod = agent.pods()["web"]
    assert all(status["ready"] and status["restartCount"] == 0 for status in pod["status"]["containerStatuses"])


async def test_many_connections_after_their_handshakes(agent: Agent, pki: Path) -> None:
    """2,000 of an authorized client are kept; unauthorized ones replace each other. No pod and no other client is affected."""
    admin = NodeApi(agent.port, certificate=pair(pki / "trusted" / "admin"))
    assert admin.ask("/healthz") == (200, "ok")
    before, files = resident(agent), open_files(agent)
    anonymous_tls, known = tls_context(), tls_context(*pair(pki / "trusted" / "admin"))
    with contextlib.ExitStack() as stack:

        def connect(tls: ssl.SSLContext) -> ssl.SSLSocket:
            plain = stack.enter_context(socket.create_connection(("127.0.0.1", agent.port), timeout=30))
            return stack.enter_context(tls.wrap_socket(plain))

        kept: list[ssl.SSLSocket] = []
        asked = time.monotonic()
        for _ in range(2000):
            kept.append(connect(known))
            assert healthy(kept[-1])  # soon: a client that sends nothing for half a minute is disconnected
            if time.monotonic() - asked > 20:  # and who asks nothing more for one and a half
                assert all(healthy(end) for end in kept)
                asked = time.monotonic()
        for end in kept:
            assert healthy(end)
        of_known = resident(agent) - before
        assert of_known < 150 * MIB
        for _ in range(500):
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                connect(anonymous_tls)
        assert resident(agent) - before < of_known + 50 * MIB
        assert admin.ask(f"/run/default/{POD}/talk?cmd=echo+hello", "POST") == (200, "hello\n")
        assert agent.get("/healthz", agent.health_port) == (200, "ok")
        assert healthy(kept[0]) and healthy(kept[-1])
    await agent.wait_for("files given back", lambda: open_files(agent) <= files + 5, 30)
    [status] = agent.pods()["web"]["status"]["containerStatuses"]
    assert status["ready"] and status["restartCount"] == 0


def healthy(end: ssl.SSLSocket) -> bool:
    """Asks on a connection that stays."""
    end.sendall(b"GET /healthz HTTP/1.1\r\nHost: node\r\n\r\n")
    return end.recv(4096).startswith(b"HTTP/1.1 200 OK\r\n")


async def test_a_flood_of_upgrades(agent: Agent, pki: Path) -> None:
    """Streams begun and dropped, by an authorized client and by unauthorized ones; their files and memory are released."""
    admin = NodeApi(agent.port, certificate=pair(pki / "trusted" / "admin"))
    with admin.exec(POD, "talk", "true") as stream:
        stream.all()
    files, memory = open_files(agent), resident(agent)
    for _ in range(3):
        streams = [admin.exec(POD, "talk", "sleep", "1000") for _ in range(10)]
        for stream in streams:
            stream.close()
    assert admin.ask(f"/run/default/{POD}/talk?cmd=echo+hello", "POST") == (200, "hello\n")
    await agent.wait_for("files given back", lambda: open_files(agent) <= files + 5, 30)
    assert resident(agent) - memory < 30 * MIB
    unauthorized = NodeApi(agent.port)

    def refused(_: int) -> None:
        with pytest.raises(ConnectionError, match="401"):
            unauthorized.exec(POD, "talk", "id")

    with ThreadPoolExecutor(50) as pool:
        list(pool.map(refused, range(50)))
    await agent.wait_for("files given back", lambda: open_files(agent) <= files + 5, 30)
    [status] = agent.pods()["web"]["status"]["containerStatuses"]
    assert status["ready"] and status["restartCount"] == 0
