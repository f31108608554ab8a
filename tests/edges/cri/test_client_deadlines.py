"""The client's deadlines: how long each call waits, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from edges.cri.test_client import pod, run
from support.virtual_time import virtual_clock

from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.client import EXEC_BEGINS_S, EXEC_CLOSE_S, CriClient
from pykubelet.edges.cri.errors import CriError
from pykubelet.testing.cri.fake_handles import RuntimeFault
from pykubelet.testing.cri.fake_state import FakeImage
from pykubelet.testing.cri.in_memory import MemoryRuntime

pytestmark = pytest.mark.virtual_time
TIMEOUT_S = 120.0


def now() -> float:
    return asyncio.get_running_loop().time()


@pytest.fixture
async def fake(tmp_path: Path) -> AsyncIterator[MemoryRuntime]:
    runtime = MemoryRuntime(str(tmp_path / "cri.sock"), virtual_clock())
    runtime.add_image("busybox:1")
    runtime.start()
    yield runtime
    runtime.stop()


@pytest.fixture
async def client(fake: MemoryRuntime) -> AsyncIterator[CriClient]:
    made = fake.connect(TIMEOUT_S)
    yield made
    await made.close()


async def test_a_missing_socket_is_named(tmp_path: Path) -> None:
    path = tmp_path / "gone.sock"
    client = CriClient(f"unix://{path}")
    with pytest.raises(CriError) as caught:
        await client.version()
    assert caught.value.is_unavailable
    assert caught.value.message == f"the runtime's socket {path} does not exist; is the container runtime running?"
    began = now()
    with pytest.raises(CriError, match=r"does not exist"):
        await client.wait_connected(5.0)
    assert now() - began == pytest.approx(5.0, abs=0.11)
    await client.close()


@pytest.mark.parametrize("waits", [True, False], ids=["for the preface", "for nothing"])
@pytest.mark.parametrize("status", ["400 Bad Request", "301 Moved Permanently"])
async def test_a_socket_of_docker_engine_is_answered_with_the_program_to_start(
    tmp_path: Path, status: str, waits: bool
) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if waits:
            await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n".encode())
        writer.close()

    path = tmp_path / "docker.sock"
    async with await asyncio.start_unix_server(refuse, path):
        client = CriClient(f"unix://{path}")
        with pytest.raises(CriError) as caught:
            await client.version()
        assert caught.value.is_unavailable
        assert caught.value.message == (
            f"{path} does not serve the CRI: the server speaks HTTP/1.1. If it is Docker Engine's socket, start "
            "`pykubelet cri-docker`, and set containerRuntimeEndpoint to unix:///run/pykubelet-cri-docker/cri.sock"
        )
        await client.close()


async def test_a_client_made_before_the_runtime_connects_when_it_comes(tmp_path: Path) -> None:
    late = MemoryRuntime(str(tmp_path / "cri.sock"), virtual_clock())
    client, began = late.connect(), now()
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(client.wait_connected(60))
        await asyncio.sleep(30)
        late.start()
    assert waiting.result().runtime_name == "fake"
    assert now() - began == pytest.approx(30, abs=0.11)
    await client.close()


async def test_a_call_that_hangs_for_one_pod_leaves_the_others(fake: MemoryRuntime, client: CriClient) -> None:
    fake.inject(RuntimeFault("*", pod="stuck", hang=True))
    began = now()

    async def stuck() -> CriError:
        with pytest.raises(CriError) as caught:
            await client.run_pod_sandbox(pod("stuck"))
        return caught.value

    async with asyncio.TaskGroup() as tasks:
        hanging = tasks.create_task(stuck())
        await run(client, "web")
        assert not hanging.done(), "the other pod's calls did not wait for it"
        assert now() - began < 1.0
    assert hanging.result().is_deadline
    assert now() - began == pytest.approx(2 * TIMEOUT_S, abs=0.1), "making a sandbox has twice the usual deadline"
    assert {call.pod for call in fake.called("RunPodSandbox")} == {"stuck", "web"}


async def test_stopping_has_the_grace_on_top_and_an_endless_exec_has_no_deadline(
    fake: MemoryRuntime, client: CriClient
) -> None:
    main = await run(client)
    fake.inject(RuntimeFault("StopContainer", delay_s=TIMEOUT_S + 29, times=1))
    await client.stop_container(main, 30)
    main = await run(client, "other")
    assert (await client.exec_sync(main, ["sleep", "86400"])).exit_code == 0
    fake.inject(RuntimeFault("ContainerStatus", hang=True, times=1))
    began = now()
    with pytest.raises(CriError) as caught:
        await client.container_status(main)
    assert caught.value.is_deadline
    assert now() - began == pytest.approx(TIMEOUT_S, abs=0.1)


async def test_pulls_wait_as_long_as_it_takes_and_can_be_cancelled(fake: MemoryRuntime, client: CriClient) -> None:
    fake.registry["big:1"] = FakeImage("big:1")
    slow = fake.inject(RuntimeFault("PullImage", delay_s=86400.0))
    assert await client.pull_image(pb.ImageSpec(image="big:1"), None) == fake.registry["big:1"].id
    fake.withdraw(slow)

    fake.registry["never:1"] = FakeImage("never:1")
    fake.inject(RuntimeFault("PullImage", hang=True))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(86400.0):
            await client.pull_image(pb.ImageSpec(image="never:1"), None)
    assert await client.image_status(pb.ImageSpec(image="never:1")) is None


async def test_an_exec_is_not_cut_off_while_it_begins(fake: MemoryRuntime, client: CriClient) -> None:
    main = await run(client)
    ends: list[float] = []

    async def sleep(_container: object, _command: list[str]) -> pb.ExecSyncResponse:
        try:
            await asyncio.sleep(86400)
        finally:
            ends.append(now())
        return pb.ExecSyncResponse()

    fake.exec_handler = sleep
    began = now()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await client.exec_sync(main, ["sleep", "86400"])
    assert now() - began < 1.0, "its caller does not wait for it"
    await asyncio.sleep(EXEC_BEGINS_S)
    assert [end - began for end in ends] == [pytest.approx(EXEC_BEGINS_S, abs=0.1)]

    began = now()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(2 * EXEC_BEGINS_S):
            await client.exec_sync(main, ["sleep", "86400"])
    await asyncio.sleep(0.1)
    assert ends[1] - began == pytest.approx(2 * EXEC_BEGINS_S, abs=0.1), "one that has begun long ago ends at once"

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await client.exec_sync(main, ["sleep", "86400"])
    began = now()
    await client.close()
    assert now() - began == pytest.approx(EXEC_CLOSE_S, abs=0.1)
    await asyncio.sleep(0.1)
    assert len(ends) == 3, "the connection has ended"
