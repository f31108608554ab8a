"""The health endpoints, as the reference answers them."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path as File
from typing import Any
from urllib.parse import urlencode

import pytest
from report.samples import UID, container, entry, make_pod
from serve.ports import inputs_of
from testbed.host import free_port

from pykubelet.base.api import core
from pykubelet.base.api.codec import decode
from pykubelet.base.kit.cells import make_cell
from pykubelet.base.kit.clock import ManualClock
from pykubelet.base.kit.heartbeat import Heartbeat
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.labels import CONFIG_MIRROR
from pykubelet.base.model.lifecycle import Lifecycles
from pykubelet.base.model.observed import Observed
from pykubelet.base.model.roster import Roster
from pykubelet.base.model.statuses import Statuses
from pykubelet.net.http.server import Answer, Handler, Request, Response, ServedConnection
from pykubelet.serve.endpoints.health import HEALTH_CHECKS, SyncLoopInputs, default_checks, ping_check, syncloop_check
from pykubelet.serve.endpoints.known_pods import KnownPods
from pykubelet.serve.endpoints.routes import health_routes, read_only_router, unauthenticated_handler
from pykubelet.serve.endpoints.table import ENDPOINTS
from pykubelet.serve.listen import ListenError, keep_serving_port, open_required_port, serve_socket

FAILING = {**default_checks(), "syncloop": lambda: "sync Loop took longer than expected"}


async def _await(handler: Handler, request: Request, connection: ServedConnection) -> Answer:
    return await handler(request, connection)


def ask(handler: Handler, path: str, method: str = "GET", **query: list[str]) -> tuple[int, str]:
    missing: Any = None
    with asyncio.Runner() as runner:
        found = runner.run(
            _await(handler, Request(method, path, urlencode(query, doseq=True)), ServedConnection(missing, missing))
        )
    assert isinstance(found, Response)
    return found.status, found.body.decode()


@pytest.mark.parametrize(
    ("path", "query", "expected"),
    [
        ("/healthz", {}, (200, "ok")),
        ("/healthz/", {}, (200, "ok")),
        ("/healthz/ping", {}, (200, "ok")),
        ("/healthz/syncloop", {}, (200, "ok")),
        ("/healthz/nothing", {}, (404, "404: Page Not Found")),
        ("/", {}, (404, "404: Page Not Found")),
        (
            "/healthz",
            {"verbose": [""]},
            (200, "[+]ping ok\n[+]log ok\n[+]syncloop ok\n[+]device-plugin ok\nhealthz check passed\n"),
        ),
        (
            "/healthz",
            {"verbose": [""], "exclude": ["log", "what"]},
            (
                200,
                "[+]ping ok\n[+]log excluded: ok\n[+]syncloop ok\n[+]device-plugin ok\n"
                'warn: some health checks cannot be excluded: no matches for "what"\nhealthz check passed\n',
            ),
        ),
    ],
)
def test_all_is_well(path: str, query: dict[str, Any], expected: tuple[int, str]) -> None:
    assert ask(health_routes(default_checks()), path, **query) == expected


@pytest.mark.parametrize(
    ("path", "query", "expected"),
    [
        (
            "/healthz",
            {},
            (
                500,
                "[+]ping ok\n[+]log ok\n[-]syncloop failed: reason withheld\n[+]device-plugin ok\nhealthz check failed\n",
            ),
        ),
        ("/healthz", {"exclude": ["syncloop"]}, (200, "ok")),
        ("/healthz/syncloop", {}, (500, "internal server error: sync Loop took longer than expected\n")),
        ("/healthz/ping", {}, (200, "ok")),
    ],
)
def test_a_check_fails(path: str, query: dict[str, Any], expected: tuple[int, str]) -> None:
    assert ask(health_routes(FAILING), path, **query) == expected


def test_the_health_port_knows_one_check() -> None:
    port = health_routes(ping_check())
    assert ask(port, "/healthz", verbose=[""]) == (200, "[+]ping ok\nhealthz check passed\n")
    assert ask(port, "/healthz/ping") == (200, "ok")
    assert ask(port, "/healthz/log") == ask(port, "/healthz/syncloop") == (404, "404: Page Not Found")


def test_checks_are_counted_when_they_are_made_and_not_when_they_are_read() -> None:
    def counts() -> tuple[float, float]:
        return tuple(HEALTH_CHECKS.value("syncloop", status, "healthz") for status in ("success", "error"))  # type: ignore[return-value]

    well, ill = counts()
    metrics = unauthenticated_handler(read_only_router(ENDPOINTS, inputs_of(checks=FAILING)))
    for _ in range(3):
        assert 'kubernetes_healthcheck{name="syncloop",type="healthz"} 0\n' in ask(metrics, "/metrics/slis")[1]
    assert counts() == (well, ill)
    ask(health_routes(FAILING), "/healthz")
    ask(health_routes(FAILING), "/healthz", exclude=["syncloop"])
    ask(health_routes(default_checks()), "/healthz")
    assert counts() == (well + 1, ill + 1)


def test_syncloop_fails_if_a_loop_makes_no_progress() -> None:
    clock = ManualClock()
    (roster, beat_roster), (pods, beat_pods) = (
        make_cell("roster-heartbeat", Heartbeat()),
        make_cell("pods-heartbeat", Heartbeat()),
    )
    observed, look = make_cell("observed", Observed())
    check = syncloop_check(SyncLoopInputs((roster, pods), observed, 60.0), clock)
    clock.advance(3600)
    assert check() == ""  # nothing has begun yet
    beat_roster.publish(Heartbeat(clock.monotonic()))
    beat_pods.publish(Heartbeat(clock.monotonic()))
    look.publish(Observed(listed_at=clock.monotonic()))
    clock.advance(300)
    assert check() == ""
    beat_roster.publish(Heartbeat(clock.monotonic()))
    clock.advance(1)
    assert check() == "sync Loop took longer than expected"  # the pods' loop is late
    beat_pods.publish(Heartbeat(clock.monotonic()))
    assert check() == ""
    clock.advance(180)
    beat_roster.publish(Heartbeat(clock.monotonic()))
    beat_pods.publish(Heartbeat(clock.monotonic()))
    assert check() == "sync Loop took longer than expected"  # no relist for 8 minutes
    look.publish(Observed(listed_at=clock.monotonic()))
    assert check() == ""


def read_only(*pods: core.Pod, statuses: dict[PodUID, core.PodStatus] | None = None) -> Handler:
    roster, _ = make_cell("roster", Roster({PodUID(p.metadata.uid): entry(p) for p in pods}))
    reported, _ = make_cell("statuses", Statuses(statuses or {}))
    lifecycles, _ = make_cell("lifecycles", Lifecycles())
    observed, _ = make_cell("observed", Observed())
    known = KnownPods(roster, lifecycles, observed, reported)
    return unauthenticated_handler(read_only_router(ENDPOINTS, inputs_of(pods=known)))


def test_pods_are_a_list_of_the_desired_ones_with_their_statuses() -> None:
    mirror = make_pod(name="mirror", uid="uid-m")
    mirror.metadata.annotations[CONFIG_MIRROR] = "x"
    first, second = make_pod(container("c"), name="b"), make_pod(name="a", uid="uid-2")
    route = read_only(first, second, mirror, statuses={UID: core.PodStatus(phase="Running")})
    status, body = ask(route, "/pods")
    assert (status, body[:43]) == (200, '{"apiVersion":"v1","items":[{"metadata":{"a')
    found = decode(core.PodList, body)
    assert (found.kind, found.apiVersion) == ("PodList", "v1")
    assert [(p.metadata.name, p.status.phase) for p in found.items] == [("a", ""), ("b", "Running")]
    assert found.items[1].spec == first.spec


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/healthz", (200, "ok")),
        ("POST", "/pods", (405, "405: Method Not Allowed")),
        ("GET", "/exec/a/b/c", (405, "Debug endpoints are disabled.\n")),
        ("GET", "/logs/", (405, "Debug endpoints are disabled.\n")),
        ("GET", "/configz", (404, "404: Page Not Found")),
        ("GET", "/podsx", (404, "404: Page Not Found")),
    ],
)
def test_the_read_only_port_shows_nothing_more(method: str, path: str, expected: tuple[int, str]) -> None:
    assert ask(read_only(), path, method) == expected


# Listening


async def get(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    writer.write(b"GET /healthz HTTP/1.0\r\n\r\n")
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


async def connected_port(port: int) -> bytes:
    async with asyncio.timeout(60):
        while True:
            try:
                return await get(*await asyncio.open_connection("127.0.0.1", port))
            except ConnectionRefusedError:
                await asyncio.sleep(0.01)


async def connected_socket(path: File) -> bytes:
    async with asyncio.timeout(60):
        while True:
            try:
                return await get(*await asyncio.open_unix_connection(str(path)))
            except (ConnectionRefusedError, FileNotFoundError):
                await asyncio.sleep(0.01)


async def test_the_health_port_waits_for_its_port_to_be_free() -> None:
    port = free_port(0)
    route = health_routes(default_checks())
    async with Supervisor("test") as supervisor:
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            other.bind(("127.0.0.1", port))
            other.listen()
            supervisor.start_root("health", keep_serving_port(route, "127.0.0.1", port, "health", retry_s=0.01))
            await asyncio.sleep(0.05)
        assert (await connected_port(port)).endswith(b"\r\n\r\nok")


def test_a_required_port_that_is_taken_is_an_error_that_states_what_to_do() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ListenError) as error:
            open_required_port("readOnlyPort", "127.0.0.1", port)
    assert str(error.value) == (
        f"readOnlyPort: cannot listen on 127.0.0.1:{port}: Address already in use: "
        "another program listens there, perhaps another kubelet: stop it, or set another port"
    )


def test_an_address_that_the_machine_does_not_have_is_named() -> None:
    with pytest.raises(ListenError, match=r"port: cannot listen on \[2001:db8::1\]:1: .*: .*correct `address`"):
        open_required_port("port", "2001:db8::1", 1)


async def test_the_socket_is_roots_alone_and_goes_with_the_agent(tmp_path: File) -> None:
    path = tmp_path / "root" / "agent.sock"
    async with Supervisor("test") as supervisor:
        supervisor.start_root("socket", serve_socket(health_routes(default_checks()), str(path)))
        assert (await connected_socket(path)).endswith(b"ok")
        assert path.stat().st_mode & 0o777 == 0o600
    assert not path.exists()


async def test_the_socket_file_of_a_killed_agent_is_replaced(tmp_path: File) -> None:
    path = tmp_path / "agent.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
        dead.listen()
    async with Supervisor("test") as supervisor:
        supervisor.start_root("socket", serve_socket(health_routes(default_checks()), str(path)))
        assert (await connected_socket(path)).endswith(b"ok")


async def test_what_is_in_the_way_is_left_alone_until_it_goes(tmp_path: File) -> None:
    path = tmp_path / "agent.sock"
    path.write_text("precious")
    async with Supervisor("test") as supervisor:
        supervisor.start_root("socket", serve_socket(health_routes(default_checks()), str(path), retry_s=0.01))
        await asyncio.sleep(0.05)
        assert path.read_text() == "precious"
        path.unlink()
        assert (await connected_socket(path)).endswith(b"ok")


async def test_a_second_agent_does_not_take_the_socket_of_the_first(tmp_path: File) -> None:
    path = tmp_path / "agent.sock"
    async with Supervisor("second") as second:
        async with Supervisor("first") as first:
            first.start_root("socket", serve_socket(health_routes(FAILING), str(path)))
            assert b"500" in await connected_socket(path)
            second.start_root("socket", serve_socket(health_routes(default_checks()), str(path), retry_s=0.01))
            await asyncio.sleep(0.05)
            assert b"500" in await connected_socket(path)
        async with asyncio.timeout(60):
            answer = b"500"
            while b"500" in answer:
                answer = await connected_socket(path)
        assert answer.endswith(b"ok")
