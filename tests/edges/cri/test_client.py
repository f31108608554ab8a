"""What the client makes of a runtime that fails, hangs, dies, is not there yet, or talks nonsense."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.logs import logging_restored

from pykubelet.base.kit.log import set_up_logging
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.client import ContainerdApi, CriClient
from pykubelet.edges.cri.errors import CriCode, CriError
from pykubelet.edges.cri.wire import socket_path
from pykubelet.testing.cri.fake import FakeFeatures, FakeImage, FakeRuntime, RegistryAuth, RuntimeFault


@pytest.fixture
async def fake(tmp_path: Path) -> AsyncIterator[FakeRuntime]:
    runtime = FakeRuntime(str(tmp_path / "cri.sock"))
    runtime.add_image("busybox:1")
    await runtime.start()
    yield runtime
    await runtime.stop()


@pytest.fixture
async def client(fake: FakeRuntime) -> AsyncIterator[CriClient]:
    made = CriClient(fake.endpoint, timeout_s=30)
    yield made
    await made.close()


def pod(name: str = "web") -> pb.PodSandboxConfig:
    return pb.PodSandboxConfig(metadata=pb.PodSandboxMetadata(name=name, uid=f"uid-{name}", namespace="default"))


def container(command: list[str] | None = None) -> pb.ContainerConfig:
    meta = pb.ContainerMetadata(name="main")
    return pb.ContainerConfig(metadata=meta, image=pb.ImageSpec(image="busybox:1"), command=command or [])


async def run(client: CriClient, name: str = "web") -> str:
    sandbox = await client.run_pod_sandbox(pod(name))
    made = await client.create_container(sandbox, container(), pod(name))
    await client.start_container(made)
    return made


@pytest.mark.parametrize("code", list(CriCode))
async def test_every_code_arrives_with_message_and_call(fake: FakeRuntime, client: CriClient, code: CriCode) -> None:
    fake.inject(RuntimeFault("RunPodSandbox", code=code, message="no reason", times=1))
    with pytest.raises(CriError) as caught:
        await client.run_pod_sandbox(pod())
    assert (caught.value.code, caught.value.message, caught.value.call) == (code, "no reason", "RunPodSandbox")
    assert str(caught.value) == f"rpc error: code = {code} desc = no reason"
    assert caught.value.__cause__ is not None
    await client.run_pod_sandbox(pod())


async def test_calls_are_logged_at_verbosity_ten(
    fake: FakeRuntime, client: CriClient, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their contents are not: they may be secret."""
    with logging_restored():
        set_up_logging(9)
        await client.run_pod_sandbox(pod("quiet"))
        set_up_logging(10)
        await client.run_pod_sandbox(pod("loud"))
    [line] = capsys.readouterr().err.splitlines()
    assert '"runtime call" logger="cri" method="RunPodSandbox" duration_s=0.' in line and "loud" not in line


async def test_containerds_own_api_may_have_its_own_socket(tmp_path: Path, fake: FakeRuntime) -> None:
    own = FakeRuntime(str(tmp_path / "containerd.sock"))
    own.add_image("busybox:1")
    await own.start()
    client = CriClient(fake.endpoint, containerd=ContainerdApi(own.path, "moby"))
    async with asyncio.timeout(30):
        stream = await client.open_containerd_events(['topic~="/tasks/"'])
        await run(client)
        direct = CriClient(own.endpoint)
        await run(direct, "own")
        assert await stream.read() is not None
        await client.end_task("nothing")
    assert own.called("Kill") and not fake.called("Kill")
    for opened in (client, direct):
        await opened.close()
    await own.stop()


async def test_a_starting_containerd_counts_as_unavailable(fake: FakeRuntime, client: CriClient) -> None:
    fake.inject(RuntimeFault("Version", code=CriCode.UNKNOWN, message="server is not initialized yet", times=1))
    with pytest.raises(CriError) as caught:
        await client.version()
    assert caught.value.is_unavailable


@pytest.mark.parametrize(
    ("endpoint", "path"),
    [("unix:///run/c.sock", "/run/c.sock"), ("unix:/run/c.sock", "/run/c.sock"), ("/run/c.sock", "/run/c.sock")],
)
def test_endpoints(endpoint: str, path: str) -> None:
    assert socket_path(endpoint) == path


@pytest.mark.parametrize("endpoint", ["", "tcp://1.2.3.4:5", "unix://", "unix://relative.sock", "/" + "x" * 107])
def test_endpoints_that_cannot_work(endpoint: str) -> None:
    with pytest.raises(CriError) as caught:
        socket_path(endpoint)
    assert caught.value.code is CriCode.INVALID_ARGUMENT


async def test_a_restarted_runtime_is_connected_to_again(fake: FakeRuntime, client: CriClient) -> None:
    main = await run(client)
    await fake.stop()
    with pytest.raises(CriError) as caught:
        await client.container_status(main)
    assert caught.value.is_unavailable
    await fake.start()
    await client.wait_connected(30)
    assert (await client.container_status(main)).status.state == pb.CONTAINER_RUNNING


async def test_a_runtime_that_dies_in_the_call(fake: FakeRuntime, client: CriClient) -> None:
    fake.inject(RuntimeFault("RunPodSandbox", die=True, times=1))
    with pytest.raises(CriError) as caught:
        await client.run_pod_sandbox(pod())
    assert caught.value.is_unavailable or caught.value.code is CriCode.CANCELED
    await fake.start()
    await client.wait_connected(30)
    await client.run_pod_sandbox(pod())


async def test_a_runtime_started_while_the_last_one_goes_down_keeps_its_socket(
    fake: FakeRuntime, client: CriClient
) -> None:
    for _ in range(20):
        fake.inject(RuntimeFault("RunPodSandbox", die=True, times=1))
        with pytest.raises(CriError):
            await client.run_pod_sandbox(pod())
        await fake.start()
        await client.wait_connected(30)


async def test_a_lost_answer_leaves_the_name_reserved_for_the_object_made(fake: FakeRuntime, client: CriClient) -> None:
    fake.inject(RuntimeFault("RunPodSandbox", after=True, code=CriCode.DEADLINE_EXCEEDED, times=1))
    with pytest.raises(CriError) as lost:
        await client.run_pod_sandbox(pod())
    assert lost.value.is_deadline
    with pytest.raises(CriError) as caught:
        await client.run_pod_sandbox(pod())
    (made,) = await client.list_pod_sandboxes()
    assert caught.value.reserved_for == made.id


async def test_private_images_want_their_password(fake: FakeRuntime, client: CriClient) -> None:
    fake.registry["private:1"] = FakeImage("private:1")
    fake.private["private:1"] = RegistryAuth("user", "secret")
    spec = pb.ImageSpec(image="private:1")
    for auth in (None, pb.AuthConfig(username="user", password="wrong")):
        with pytest.raises(CriError, match="authorization failed"):
            await client.pull_image(spec, auth)
    await client.pull_image(spec, pb.AuthConfig(username="user", password="secret"))
    assert await client.image_status(spec) is not None


async def test_closing_ends_calls_in_flight_as_errors_not_as_cancellation(fake: FakeRuntime) -> None:
    client = CriClient(fake.endpoint)
    fake.inject(RuntimeFault("Version", hang=True))

    async def ask() -> CriCode:
        with pytest.raises(CriError) as caught:
            await client.version()
        return caught.value.code

    async with asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(ask())
        async with asyncio.timeout(30):
            await fake.wait_for(lambda: fake.called("Version"))
        await client.close()
    assert asking.result() is CriCode.CANCELED
    assert await ask() is CriCode.CANCELED


async def test_answers_that_cannot_be_used_are_errors(fake: FakeRuntime, client: CriClient) -> None:
    fake.state.images["odd:1"] = FakeImage("odd:1", size=0)
    with pytest.raises(CriError, match='Id or size of image "odd:1" is not set'):
        await client.image_status(pb.ImageSpec(image="odd:1"))
    sandbox = await client.run_pod_sandbox(pod())
    fake.state.sandboxes[sandbox].created_at = 0
    with pytest.raises(CriError, match=r"status\.CreatedAt is not set"):
        await client.pod_sandbox_status(sandbox)


async def test_what_an_old_runtime_lacks_is_unimplemented(tmp_path: Path, client: CriClient) -> None:
    with pytest.raises(CriError) as caught:
        await client.runtime_config()
    assert caught.value.is_unimplemented
    modern = FakeRuntime(str(tmp_path / "m.sock"), features=FakeFeatures(cgroup_driver=pb.CGROUPFS))
    await modern.start()
    asking = CriClient(modern.endpoint)
    assert (await asking.runtime_config()).linux.cgroup_driver == pb.CGROUPFS
    await asking.close()
    await modern.stop()


async def test_images_may_live_behind_another_socket(fake: FakeRuntime, tmp_path: Path) -> None:
    store = FakeRuntime(str(tmp_path / "images.sock"))
    store.add_image("elsewhere:1")
    await store.start()
    client = CriClient(fake.endpoint, store.endpoint)
    assert [image.repo_tags[0] for image in await client.list_images()] == ["elsewhere:1"]
    await client.version()
    assert fake.called("Version") and not fake.called("ListImages")
    await client.close()
    await store.stop()


async def test_a_list_larger_than_grpcs_default_limit(fake: FakeRuntime, client: CriClient) -> None:
    for number in range(60):
        config = pod(f"pod-{number}")
        config.annotations["big"] = "x" * 100_000
        await client.run_pod_sandbox(config)
    assert len(await client.list_pod_sandboxes()) == 60
