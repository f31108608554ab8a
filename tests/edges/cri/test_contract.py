"""The same assertions against the fake runtime, a real containerd and a real Docker Engine: what the fake promises, they do.

test_contract_in_memory.py runs them on the fake without gRPC.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from testbed import containerd, images
from testbed.private_runtime import Testbed

from pykubelet.base.kit.clock import Clock, SystemClock
from pykubelet.base.model import labels
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.client import CriClient
from pykubelet.edges.cri.errors import CriError
from pykubelet.edges.cri.events import HintKind, RuntimeHint, StreamLost, watch_runtime
from pykubelet.edges.cri.logs import LogLine, parse_line
from pykubelet.testing.cri.fake import FakeFeatures, FakeRuntime

_numbers = itertools.count(1)
Restart = Callable[[], Awaitable[None]]


@dataclass
class Runtime:
    """A runtime under test, and makers of pods in it."""

    client: CriClient
    restart: Restart
    folder: Path
    clock: Clock
    cgroup: str = ""
    uids: list[str] = field(default_factory=list)

    def pod(self, name: str = "pod", attempt: int = 0) -> pb.PodSandboxConfig:
        uid = f"contract-{id(self)}-{next(_numbers)}"
        self.uids.append(uid)
        config = pb.PodSandboxConfig(
            metadata=pb.PodSandboxMetadata(name=name, uid=uid, namespace="default", attempt=attempt),
            hostname=name,
            log_directory=str(self.folder / uid),
            labels={labels.POD_UID: uid, labels.POD_NAME: name},
        )
        config.linux.cgroup_parent = self.cgroup
        config.linux.security_context.namespace_options.pid = pb.CONTAINER
        return config

    def container(self, script: str, name: str = "main", attempt: int = 0) -> pb.ContainerConfig:
        (self.folder / self.uids[-1] / name).mkdir(parents=True, exist_ok=True)  # CRI-O does not make it
        config = pb.ContainerConfig(
            metadata=pb.ContainerMetadata(name=name, attempt=attempt),
            image=pb.ImageSpec(image=images.BUSYBOX, user_specified_image=images.BUSYBOX),
            command=["sh", "-c", script],
            labels={labels.POD_UID: self.uids[-1], labels.CONTAINER_NAME: name},
            log_path=f"{name}/{attempt}.log",
        )
        config.linux.resources.memory_limit_in_bytes = 64 << 20
        config.linux.security_context.namespace_options.pid = pb.CONTAINER
        return config

    async def run(self, script: str) -> tuple[str, str]:
        """A pod with one started container; the ids of both."""
        pod = self.pod()
        sandbox = await self.client.run_pod_sandbox(pod)
        container = await self.client.create_container(sandbox, self.container(script), pod)
        await self.client.start_container(container)
        return sandbox, container

    async def wait_exited(self, container: str) -> pb.ContainerStatus:
        end = self.clock.monotonic() + 60
        while self.clock.monotonic() < end:
            status = (await self.client.container_status(container)).status
            if status.state == pb.CONTAINER_EXITED:
                return status
            await asyncio.sleep(0.02)
        raise AssertionError(f"{container} has not ended")

    async def wait_output(self, container: str, word: bytes) -> None:
        """Until the container has written `word`. The double writes everything at its end, so it is not waited for."""
        log = Path((await self.client.container_status(container)).status.log_path)
        for _ in range(3000 if self.cgroup else 0):
            if log.exists() and word in log.read_bytes():
                return
            await asyncio.sleep(0.02)

    async def clear(self) -> None:
        for uid in self.uids:
            for container in await self.client.list_containers(uid):
                await self.client.stop_container(container.id, 0)  # with its sandbox, CRI-O is patient
            for sandbox in await self.client.list_pod_sandboxes(uid):
                await self.client.stop_pod_sandbox(sandbox.id)
                await self.client.remove_pod_sandbox(sandbox.id)


@pytest.fixture(
    params=[
        "fake",
        "fake with CRI events",
        pytest.param("testbed", marks=pytest.mark.integration, id="containerd"),
        pytest.param("docker_testbed", marks=pytest.mark.integration, id="docker"),
    ],
)
async def runtime(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Runtime]:
    if request.param.startswith("fake"):
        features = FakeFeatures(cri_events=request.param != "fake")
        fake = FakeRuntime(str(tmp_path / "cri.sock"), features=features)
        fake.add_image(images.BUSYBOX)
        await fake.start()

        async def restart_fake() -> None:
            await fake.stop()
            await fake.start()

        client = fake.connect(timeout_s=20)
        yield Runtime(client, restart_fake, tmp_path, fake.clock)
        await client.close()
        await fake.stop()
        return
    bed: Testbed = request.getfixturevalue(request.param)

    async def restart() -> None:
        containerd.kill(bed)
        containerd.start(bed)

    client = CriClient(bed.endpoint, timeout_s=60)
    real = Runtime(client, restart, tmp_path, SystemClock(), cgroup=f"/{bed.name}")
    yield real
    await client.wait_connected(30)
    await real.clear()
    await client.close()


async def holder_of_name(answer: Awaitable[str]) -> str | None:
    """The id of the object that has the wanted name: containerd refuses and names it, CRI-O answers with it."""
    try:
        return await answer
    except CriError as error:
        assert error.code.name == "ALREADY_EXISTS" or error.reserved_for is not None
        assert not error.is_unavailable
        return error.reserved_for


def is_not_found(error: CriError) -> bool:
    """By its code, or in words: some calls of CRI-O fail with Unknown."""
    return error.is_not_found or "not found" in error.message or "does not resolve" in error.message


async def test_a_sandbox_lives_and_goes(runtime: Runtime) -> None:
    client, pod = runtime.client, runtime.pod("web")
    sandbox = await client.run_pod_sandbox(pod)
    status = (await client.pod_sandbox_status(sandbox)).status
    assert status.state == pb.SANDBOX_READY
    assert status.metadata == pod.metadata
    assert status.network.ip.count(".") == 3
    assert status.linux.namespaces.options.pid == pb.CONTAINER
    assert [item.id for item in await client.list_pod_sandboxes(pod.metadata.uid)] == [sandbox]
    assert not await client.list_pod_sandboxes("another")
    assert not await client.list_pod_sandboxes(pod.metadata.uid, state=pb.SANDBOX_NOTREADY)

    await client.stop_pod_sandbox(sandbox)
    await client.stop_pod_sandbox(sandbox)
    assert (await client.pod_sandbox_status(sandbox)).status.state == pb.SANDBOX_NOTREADY

    await client.remove_pod_sandbox(sandbox)
    await client.remove_pod_sandbox(sandbox)
    await client.stop_pod_sandbox(sandbox)
    with pytest.raises(CriError) as caught:
        await client.pod_sandbox_status(sandbox)
    assert caught.value.is_not_found
    assert caught.value.call == "PodSandboxStatus"


async def test_names_are_reserved_until_removal(runtime: Runtime) -> None:
    client, pod = runtime.client, runtime.pod()
    sandbox = await client.run_pod_sandbox(pod)
    assert await holder_of_name(client.run_pod_sandbox(pod)) == sandbox

    container = await client.create_container(sandbox, runtime.container("sleep 100"), pod)
    again = client.create_container(sandbox, runtime.container("sleep 100"), pod)
    assert await holder_of_name(again) == container
    second = await client.create_container(sandbox, runtime.container("sleep 100", attempt=1), pod)
    await client.remove_container(container)
    third = await client.create_container(sandbox, runtime.container("sleep 100"), pod)
    assert len({container, second, third}) == 3

    await client.stop_pod_sandbox(sandbox)
    assert await holder_of_name(client.run_pod_sandbox(pod)) == sandbox
    await client.remove_pod_sandbox(sandbox)
    assert not await client.list_containers(pod.metadata.uid)
    assert await client.run_pod_sandbox(pod) != sandbox


@pytest.mark.parametrize(("script", "code", "reason"), [("exit 3", 3, "Error"), ("sleep 0.2", 0, "Completed")])
async def test_a_container_runs_and_ends(runtime: Runtime, script: str, code: int, reason: str) -> None:
    client, pod = runtime.client, runtime.pod()
    sandbox = await client.run_pod_sandbox(pod)
    container = await client.create_container(sandbox, runtime.container(script), pod)
    status = (await client.container_status(container)).status
    assert (status.state, status.started_at, status.finished_at) == (pb.CONTAINER_CREATED, 0, 0)
    assert status.image.image == images.BUSYBOX

    await client.start_container(container)
    status = await runtime.wait_exited(container)
    assert (status.exit_code, status.reason) == (code, reason)
    assert 0 < status.created_at <= status.started_at
    assert status.created_at <= status.finished_at  # containerd may put a quick end before the start
    assert status.log_path == f"{pod.log_directory}/main/0.log"
    (item,) = await client.list_containers(pod.metadata.uid, state=pb.CONTAINER_EXITED)
    assert (item.id, item.pod_sandbox_id, item.metadata.name) == (container, sandbox, "main")
    with pytest.raises(CriError) as caught:
        await client.start_container(container)
    assert not caught.value.is_unavailable


async def test_a_stopped_container_has_its_exit_code_and_reason(runtime: Runtime) -> None:
    client = runtime.client
    _, polite = await runtime.run("trap 'exit 5' TERM; echo set; sleep 100 & wait")
    _, stubborn = await runtime.run("trap '' TERM; echo set; sleep 100 & wait")
    for container in (polite, stubborn):
        await runtime.wait_output(container, b"set")
    await client.stop_container(polite, 30)
    assert (await client.container_status(polite)).status.exit_code == 5

    began = runtime.clock.monotonic()
    await client.stop_container(stubborn, 1)
    assert 0.9 < runtime.clock.monotonic() - began < 60
    assert (await client.container_status(stubborn)).status.exit_code == 137
    await client.stop_container(stubborn, 1)
    await client.stop_container("0" * 64, 1)


async def test_removing_takes_what_runs_along(runtime: Runtime) -> None:
    client = runtime.client
    # for a container that does not end by itself, CRI-O waits nearly as long as the call may take
    script = "trap 'exit 5' TERM; echo set; sleep 100 & wait"
    sandbox, container = await runtime.run(script)
    await runtime.wait_output(container, b"set")
    await client.remove_container(container)
    await client.remove_container(container)
    with pytest.raises(CriError) as caught:
        await client.container_status(container)
    assert caught.value.is_not_found

    sandbox, container = await runtime.run(script)
    await runtime.wait_output(container, b"set")
    await client.stop_pod_sandbox(sandbox)
    assert (await runtime.wait_exited(container)).exit_code in (5, 137)  # of containerd only SIGKILL
    pod = runtime.pod()
    with pytest.raises(CriError):  # containerd 2 refuses only the start
        late = await client.create_container(sandbox, runtime.container("sleep 1", name="late"), pod)
        await client.start_container(late)
    await client.remove_pod_sandbox(sandbox)
    assert not await client.list_containers(sandbox_id=sandbox)


async def test_create_needs_a_sandbox_and_an_image(runtime: Runtime) -> None:
    client, pod = runtime.client, runtime.pod()
    with pytest.raises(CriError) as caught:
        await client.create_container("0" * 64, runtime.container("true"), pod)
    assert is_not_found(caught.value)
    sandbox = await client.run_pod_sandbox(pod)
    config = runtime.container("true")
    config.image.image = "localhost/missing:1"
    with pytest.raises(CriError) as caught:
        await client.create_container(sandbox, config, pod)
    assert is_not_found(caught.value)
    config.image.image = images.BUSYBOX
    await client.create_container(sandbox, config, pod)  # the failure has not kept the name


async def test_exec_sync(runtime: Runtime) -> None:
    client = runtime.client
    _, container = await runtime.run("sleep 100")
    answer = await client.exec_sync(container, ["sh", "-c", "echo hello; exit 4"])
    assert (answer.stdout, answer.stderr, answer.exit_code) == (b"hello\n", b"", 4)
    began = runtime.clock.monotonic()
    try:
        assert (await client.exec_sync(container, ["sleep", "100"], timeout_s=1)).exit_code == -1  # CRI-O
    except CriError as error:
        assert error.is_deadline
    assert runtime.clock.monotonic() - began < 60
    with pytest.raises(CriError) as caught:
        await client.exec_sync("0" * 64, ["true"])
    assert is_not_found(caught.value)
    await client.stop_container(container, 0)
    with pytest.raises(CriError) as caught:
        await client.exec_sync(container, ["true"])
    assert "CONTAINER_EXITED" in caught.value.message or "not created or running" in caught.value.message


def parsed_log(path: str) -> list[LogLine | None]:
    return [parse_line(raw) for raw in Path(path).read_bytes().splitlines(keepends=True)]


def rotate(path: str) -> None:
    log = Path(path)
    log.parent.mkdir(parents=True, exist_ok=True)
    if log.exists():
        log.rename(log.with_suffix(".log.1"))


async def test_logs_are_in_cri_format(runtime: Runtime) -> None:
    before = int(runtime.clock.wall() * 1e9)
    _, container = await runtime.run("echo hello world; exit 0")
    status = await runtime.wait_exited(container)
    (line,) = parsed_log(status.log_path)
    assert line is not None
    assert (line.stream, line.is_partial, line.content) == ("stdout", False, b"hello world")
    assert before - 10**6 <= line.timestamp_ns <= runtime.clock.wall() * 1e9


async def test_a_rotated_log_goes_on_in_a_new_file(runtime: Runtime) -> None:
    _, container = await runtime.run("sleep 100")
    log = (await runtime.client.container_status(container)).status.log_path
    rotate(log)
    await runtime.client.reopen_container_log(container)
    assert parsed_log(log) == []


async def test_images(runtime: Runtime) -> None:
    client = runtime.client
    image = await client.image_status(pb.ImageSpec(image=images.BUSYBOX))
    assert image is not None
    assert images.BUSYBOX in image.repo_tags
    assert len(image.id.removeprefix("sha256:")) == 64
    by_id = await client.image_status(pb.ImageSpec(image=image.id))
    assert by_id is not None and by_id.id == image.id
    assert image.id in [found.id for found in await client.list_images()]
    assert await client.image_status(pb.ImageSpec(image="localhost/missing:1")) is None
    await client.remove_image(pb.ImageSpec(image="localhost/missing:1"))
    with pytest.raises(CriError) as caught:
        await client.pull_image(pb.ImageSpec(image="localhost:9/missing:1"), None)
    assert "localhost:9/missing:1" in caught.value.message
    usage = await client.image_fs_info()
    assert usage.image_filesystems[0].fs_id.mountpoint


async def test_stats_and_new_limits(runtime: Runtime) -> None:
    client = runtime.client
    _, container = await runtime.run("sleep 100")
    stats = await client.container_stats(container)
    assert stats.attributes.id == container
    assert stats.memory.working_set_bytes.value > 0
    uid = runtime.uids[-1]
    assert [found.attributes.id for found in await client.list_container_stats(uid)] == [container]
    await client.update_container_resources(container, pb.LinuxContainerResources(memory_limit_in_bytes=128 << 20))


async def test_status_and_streaming_urls(runtime: Runtime) -> None:
    client = runtime.client
    conditions = {c.type: c.status for c in (await client.status()).status.conditions}
    assert conditions["RuntimeReady"] and conditions["NetworkReady"]
    sandbox, container = await runtime.run("sleep 100")
    url = await client.exec_url(pb.ExecRequest(container_id=container, cmd=["true"], stdout=True))
    assert url.startswith("http://127.0.0.1:")
    assert (await client.attach_url(pb.AttachRequest(container_id=container, stdout=True))).startswith("http://")
    assert (await client.port_forward_url(sandbox)).startswith("http://")


async def hints_until(hints: AsyncIterator[RuntimeHint], kind: HintKind, id: str = "") -> list[RuntimeHint]:
    seen: list[RuntimeHint] = []
    async with asyncio.timeout(60):
        async for hint in hints:
            seen.append(hint)
            if (hint.kind, hint.id) == (kind, id):
                return seen
    raise AssertionError(seen)


async def test_events_report_starts_and_ends_but_not_execs(runtime: Runtime) -> None:
    async with aclosing(watch_runtime(runtime.client)) as hints:
        assert [hint.kind for hint in await hints_until(hints, HintKind.SUBSCRIBED)] == [HintKind.SUBSCRIBED]
        sandbox, container = await runtime.run("trap 'exit 0' TERM; sleep 100 & wait")
        seen = await hints_until(hints, HintKind.STARTED, container)
        assert (sandbox, HintKind.STARTED) in [(hint.id, hint.kind) for hint in seen]
        await runtime.client.exec_sync(container, ["true"])
        await runtime.client.stop_container(container, 5)
        seen = await hints_until(hints, HintKind.STOPPED, container)
        assert [hint.kind for hint in seen if hint.id == container and hint.kind is not HintKind.REAPED] == [
            HintKind.STOPPED
        ]


async def test_a_restart_ends_the_stream_and_leaves_containers_alone(runtime: Runtime) -> None:
    client = runtime.client
    _, container = await runtime.run("sleep 100")
    async with aclosing(watch_runtime(client)) as hints:
        await hints_until(hints, HintKind.SUBSCRIBED)
        await runtime.restart()
        with pytest.raises(StreamLost):
            await hints_until(hints, HintKind.DELETED)
    await client.wait_connected(30)
    assert (await client.container_status(container)).status.state == pb.CONTAINER_RUNNING
    async with aclosing(watch_runtime(client)) as hints:
        await hints_until(hints, HintKind.SUBSCRIBED)
        await client.stop_container(container, 0)
        await hints_until(hints, HintKind.STOPPED, container)
