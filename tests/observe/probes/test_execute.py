"""One probe against a real server or runtime, from the manifest's words to the outcome."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from msgspec import Struct

from pykubelet.base.api import core
from pykubelet.base.api.codec import from_object
from pykubelet.base.model.ids import ContainerID, PodRef, PodUID
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.client import CriClient
from pykubelet.edges.cri.errors import CriCode
from pykubelet.edges.probing.outcome import Outcome, ProbeVerdict
from pykubelet.observe.probes.execute import ContainerProber, ProbeRequest, expanded_command
from pykubelet.testing.cri.fake import FakeRuntime, RuntimeFault
from pykubelet.testing.cri.fake_state import FakeContainer

REF = PodRef("shop", "web", PodUID("u"))


def ask(
    probe: dict[str, Any], container_id: str = "c", timeout_s: float = 1.0, ip: str = "127.0.0.1", **c: Any
) -> ProbeRequest:
    container = from_object(core.Container, {"name": "app", "image": "i", **c})
    return ProbeRequest(REF, container, from_object(core.Probe, probe), ContainerID(container_id), ip, timeout_s)


@pytest.fixture
async def fake(tmp_path: Path) -> AsyncIterator[FakeRuntime]:
    runtime = FakeRuntime(str(tmp_path / "cri.sock"))
    runtime.add_image("i")
    await runtime.start()
    try:
        yield runtime
    finally:
        await runtime.stop()


@pytest.fixture
async def cri(fake: FakeRuntime) -> AsyncIterator[CriClient]:
    client = CriClient(fake.endpoint)
    try:
        yield client
    finally:
        await client.close()


async def run_container(cri: CriClient) -> str:
    config = pb.PodSandboxConfig(metadata=pb.PodSandboxMetadata(name="web", uid="u", namespace="shop"))
    sandbox = await cri.run_pod_sandbox(config)
    spec = pb.ContainerConfig(
        metadata=pb.ContainerMetadata(name="app"), image=pb.ImageSpec(image="i"), command=["sleep", "1000"]
    )
    made = await cri.create_container(sandbox, spec, config)
    await cri.start_container(made)
    return made


def answering(exit_code: int, stdout: bytes = b"", stderr: bytes = b"", *, hangs: bool = False) -> Any:
    async def handle(_container: FakeContainer, _command: list[str]) -> pb.ExecSyncResponse:
        if hangs:
            await asyncio.get_running_loop().create_future()
        return pb.ExecSyncResponse(exit_code=exit_code, stdout=stdout, stderr=stderr)

    return handle


def actions() -> list[str]:
    """The fields of a probe that are objects."""
    hints = get_type_hints(core.Probe)
    return [name for name in core.Probe.__struct_fields__ if issubclass(get_args(hints[name])[0], Struct)]


async def test_every_action_of_a_probe_can_be_run(cri: CriClient) -> None:
    assert {"exec", "grpc", "httpGet", "tcpSocket"} <= set(actions())
    for action in actions():
        outcome = await ContainerProber(cri).probe(ask({action: {"port": 1} if action != "exec" else {}}, ip=""))
        assert outcome.error and "missing probe handler" not in outcome.error, action


@pytest.mark.parametrize(
    ("code", "verdict"), [(0, ProbeVerdict.SUCCESS), (1, ProbeVerdict.FAILURE), (137, ProbeVerdict.FAILURE)]
)
async def test_the_exit_code_of_a_command_decides(
    fake: FakeRuntime, cri: CriClient, code: int, verdict: ProbeVerdict
) -> None:
    made = await run_container(cri)
    fake.exec_handler = answering(code, b"out ", b"err")
    outcome = await ContainerProber(cri).probe(ask({"exec": {"command": ["check"]}}, made))
    assert outcome == Outcome(verdict, "out err")


async def test_of_a_commands_output_10_kib_are_kept(fake: FakeRuntime, cri: CriClient) -> None:
    made = await run_container(cri)
    fake.exec_handler = answering(1, b"x" * 20_000)
    outcome = await ContainerProber(cri).probe(ask({"exec": {"command": ["check"]}}, made))
    assert len(outcome.output) == 10 << 10


async def test_a_command_that_takes_too_long_fails(fake: FakeRuntime, cri: CriClient) -> None:
    made = await run_container(cri)
    fake.exec_handler = answering(0, hangs=True)
    outcome = await ContainerProber(cri).probe(ask({"exec": {"command": ["sh", "-c", 'echo "a"']}}, made))
    assert outcome.verdict is ProbeVerdict.FAILURE
    assert outcome.output == 'command timed out: "sh -c echo \\"a\\"" timed out after 1s'


async def test_an_error_of_the_runtime_is_tried_three_times_and_is_no_result(fake: FakeRuntime, cri: CriClient) -> None:
    made = await run_container(cri)
    fault = fake.inject(RuntimeFault("ExecSync", code=CriCode.UNKNOWN, message="shim is dead"))
    outcome = await ContainerProber(cri).probe(ask({"exec": {"command": ["check"]}}, made))
    assert outcome == Outcome(ProbeVerdict.UNKNOWN, error="rpc error: code = Unknown desc = shim is dead")
    assert fault.met == 3


async def test_a_runtime_that_is_away_is_tried_once(fake: FakeRuntime, cri: CriClient) -> None:
    made = await run_container(cri)
    fault = fake.inject(RuntimeFault("ExecSync", code=CriCode.UNAVAILABLE, message="away"))
    outcome = await ContainerProber(cri).probe(ask({"exec": {"command": ["check"]}}, made))
    assert outcome.verdict is ProbeVerdict.UNKNOWN
    assert fault.met == 1


async def test_a_passing_error_is_forgotten(fake: FakeRuntime, cri: CriClient) -> None:
    made = await run_container(cri)
    fake.exec_handler = answering(0, b"fine")
    fake.inject(RuntimeFault("ExecSync", code=CriCode.UNKNOWN, message="shim is dead", times=2))
    outcome = await ContainerProber(cri).probe(ask({"exec": {"command": ["check"]}}, made))
    assert outcome == Outcome(ProbeVerdict.SUCCESS, "fine")


async def test_literal_variables_are_put_into_the_command(fake: FakeRuntime, cri: CriClient) -> None:
    made = await run_container(cri)
    env = [{"name": "PORT", "value": "8080"}, {"name": "KEY", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}]
    asked = ask({"exec": {"command": ["nc", "$(PORT)", "$(KEY)", "$(NONE)", "$$(PORT)"]}}, made, env=env)
    assert expanded_command(asked.probe.exec.command, asked.container) == [  # type: ignore[union-attr]
        "nc",
        "8080",
        "",
        "$(NONE)",
        "$(PORT)",
    ]
    await ContainerProber(cri).probe(asked)
    assert list(fake.called("ExecSync")[0].request.cmd)[:2] == ["nc", "8080"]


async def test_a_command_that_becomes_too_long_is_not_sent(fake: FakeRuntime, cri: CriClient) -> None:
    made = await run_container(cri)
    env = [{"name": "A", "value": "a" * 100_000}]
    for command, problem in (
        (["$(A)" * 1000], "command[0] is longer than 131071 bytes"),
        (["$(A)"] * 1000, "with command[20], command, args and env together are longer than 2097152 bytes"),
    ):
        outcome = await ContainerProber(cri).probe(ask({"exec": {"command": command}}, made, env=env))
        assert outcome.verdict is ProbeVerdict.UNKNOWN
        assert outcome.error == f"{problem}, the most that Linux passes to a program"
    assert not fake.called("ExecSync")


async def test_a_command_of_too_many_arguments_is_refused_at_once(fake: FakeRuntime, cri: CriClient) -> None:
    """A third of the 1.5 MB that a pod may have would take 0.1 s of the event loop at each probe."""
    asked = ask({"exec": {"command": ["$(A)"] * 100_000}}, await run_container(cri))
    outcome = await ContainerProber(cri).probe(asked)
    assert outcome.verdict is ProbeVerdict.UNKNOWN
    assert outcome.error == "command has 100000 entries, more than 10000"
    assert outcome.is_final and not fake.called("ExecSync")


async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(4096)
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    writer.close()


@pytest.mark.parametrize("port", ["number", "name", "text"])
async def test_ports_may_be_numbers_names_or_digits(cri: CriClient, port: str) -> None:
    async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
        number = server.sockets[0].getsockname()[1]
        given = {"number": number, "name": "web", "text": str(number)}[port]
        ports = [{"name": "web", "containerPort": number}]
        prober = ContainerProber(cri)
        http = await prober.probe(ask({"httpGet": {"port": given, "path": "/x"}}, ports=ports))
        tcp = await prober.probe(ask({"tcpSocket": {"port": given}}, ports=ports))
    assert http == Outcome(ProbeVerdict.SUCCESS, "ok")
    assert tcp.verdict is ProbeVerdict.SUCCESS


@pytest.mark.parametrize("kind", ["httpGet", "tcpSocket"])
async def test_a_port_that_is_none_is_an_error(cri: CriClient, kind: str) -> None:
    prober = ContainerProber(cri)
    outcome = await prober.probe(ask({kind: {"port": "web"}}))
    assert outcome.error == 'container has no port named "web"'
    assert (await prober.probe(ask({kind: {"port": 70000}}))).error == "invalid port number: 70000"


@pytest.mark.parametrize("probe", [{"httpGet": {"port": 1}}, {"tcpSocket": {"port": 1}}, {"grpc": {"port": 1}}])
async def test_a_pod_without_an_address_is_not_blamed(cri: CriClient, probe: dict[str, Any]) -> None:
    outcome = await ContainerProber(cri).probe(ask(probe, ip=""))
    assert outcome.error == "the pod has no IP address"


async def test_a_host_of_its_own_is_asked(cri: CriClient) -> None:
    async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
        number = server.sockets[0].getsockname()[1]
        probe = {"httpGet": {"port": number, "host": "localhost", "scheme": "HTTP"}}
        outcome = await ContainerProber(cri).probe(ask(probe, ip="192.0.2.1", timeout_s=30))
    assert outcome.verdict is ProbeVerdict.SUCCESS


async def test_grpc_is_asked_at_the_pods_address(cri: CriClient) -> None:
    outcome = await ContainerProber(cri).probe(ask({"grpc": {"port": 1}}, timeout_s=0.2))
    assert outcome.verdict is ProbeVerdict.FAILURE
    assert outcome.output.startswith('timeout: failed to connect service "127.0.0.1:1" within 200ms')


@pytest.mark.parametrize(
    ("probe", "first"),
    [
        ({"httpGet": {"port": 0}}, b"GET / HTTP/1.1"),
        ({"httpGet": {"port": 0, "protocol": "HTTP1"}}, b"GET / HTTP/1.1"),
        ({"httpGet": {"port": 0, "protocol": "HTTP2"}}, b"PRI * HTTP/2.0"),
        ({"grpc": {"port": 0}}, b"PRI * HTTP/2.0"),
        ({"grpc": {"port": 0, "mode": "Plaintext"}}, b"PRI * HTTP/2.0"),
        ({"grpc": {"port": 0, "mode": "TLS"}}, b"\x16\x03\x01"),
    ],
)
async def test_the_pods_spec_decides_how_the_server_is_spoken_to(
    cri: CriClient, probe: dict[str, dict[str, Any]], first: bytes
) -> None:
    seen: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        found = await reader.readexactly(len(first))
        writer.close()
        if not seen.done():
            seen.set_result(found)

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listener:
        port = listener.sockets[0].getsockname()[1]
        asked = {kind: {**action, "port": port} for kind, action in probe.items()}
        probing = asyncio.ensure_future(ContainerProber(cri).probe(ask(asked, timeout_s=30)))
        assert await seen == first
        probing.cancel()
        await asyncio.wait((probing,))


async def test_a_probe_without_a_handler_is_an_error(cri: CriClient) -> None:
    outcome = await ContainerProber(cri).probe(ask({}))
    assert outcome.error == "missing probe handler for web_shop(u):app"
