"""Hints: which stream is chosen, what each event becomes, and how streams end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest
from google.protobuf.message import Message

from pykubelet.base.model.ids import ContainerID
from pykubelet.base.model.observed import ContainerEnd
from pykubelet.edges.cri import containerd_events_pb2 as events_pb2
from pykubelet.edges.cri import containerd_task_events_pb2 as task_pb2
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.client import CriClient
from pykubelet.edges.cri.errors import CriCode
from pykubelet.edges.cri.events import (
    HintKind,
    NoEvents,
    RuntimeEventSource,
    RuntimeHint,
    StreamLost,
    hint_from_containerd,
    hint_from_cri,
    watch_runtime,
)
from pykubelet.testing.cri.fake import FakeFeatures, FakeRuntime, RuntimeFault


def envelope(type_name: str, body: bytes) -> events_pb2.Envelope:
    made = events_pb2.Envelope(namespace="k8s.io", topic="/tasks/any")
    made.event.type_url = type_name
    made.event.value = body
    return made


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        (task_pb2.TaskStart(container_id="c", pid=7), HintKind.STARTED),
        (task_pb2.TaskExit(container_id="c", id="c", exit_status=1), HintKind.STOPPED),
        (task_pb2.TaskOOM(container_id="c"), HintKind.OOM),
        (task_pb2.TaskDelete(container_id="c"), HintKind.REAPED),
        (task_pb2.TaskDelete(container_id="c", id="c"), HintKind.REAPED),
        (task_pb2.TaskExit(container_id="c", id="exec-of-a-probe"), None),
        (task_pb2.TaskDelete(container_id="c", id="exec-of-a-probe"), None),
    ],
)
@pytest.mark.parametrize("prefix", ["", "type.googleapis.com/"])
def test_containerd_events(event: Message, kind: HintKind | None, prefix: str) -> None:
    hint = hint_from_containerd(envelope(prefix + event.DESCRIPTOR.full_name, event.SerializeToString()))
    expected = None if kind is None else RuntimeHint("c", kind, RuntimeEventSource.CONTAINERD)
    assert hint == expected


@pytest.mark.parametrize("event", [task_pb2.TaskExit, task_pb2.TaskDelete])
def test_containerd_reports_how_a_container_ended(event: type[task_pb2.TaskExit | task_pb2.TaskDelete]) -> None:
    message = event(container_id="c", exit_status=137)
    message.exited_at.FromNanoseconds(1_700_000_000_123_456_789)
    hint = hint_from_containerd(envelope(event.DESCRIPTOR.full_name, message.SerializeToString()))
    assert hint is not None
    assert hint.end == ContainerEnd(ContainerID("c"), 137, 1_700_000_000_123_456_789)


def test_events_that_cannot_be_read_are_no_hints() -> None:
    assert hint_from_containerd(envelope("containerd.events.TaskPaused", b"")) is None
    assert hint_from_containerd(envelope("containerd.events.TaskExit", b"\xff\xff\xff")) is None
    assert hint_from_containerd(events_pb2.Envelope()) is None
    assert hint_from_cri(pb.ContainerEventResponse(container_event_type=99)) is None  # type: ignore[arg-type]


def test_cri_events_carry_the_pod() -> None:
    event = pb.ContainerEventResponse(
        container_id="c",
        container_event_type=pb.CONTAINER_STOPPED_EVENT,
        pod_sandbox_status=pb.PodSandboxStatus(id="s", metadata=pb.PodSandboxMetadata(uid="u")),
    )
    assert hint_from_cri(event) == RuntimeHint("c", HintKind.STOPPED, RuntimeEventSource.CRI, "u")
    deleted = hint_from_cri(
        pb.ContainerEventResponse(container_id="c", container_event_type=pb.CONTAINER_DELETED_EVENT)
    )
    assert deleted == RuntimeHint("c", HintKind.DELETED, RuntimeEventSource.CRI)


async def started(path: Path, features: FakeFeatures) -> tuple[FakeRuntime, CriClient]:
    fake = FakeRuntime(str(path / "cri.sock"), features=features)
    await fake.start()
    return fake, CriClient(fake.endpoint)


async def subscribers(fake: FakeRuntime, number: int) -> None:
    """The runtime has so many, soon."""
    async with asyncio.timeout(60):
        await fake.wait_for(lambda: fake.subscribers == number)


async def first(hints: AsyncIterator[RuntimeHint]) -> RuntimeHint:
    async with asyncio.timeout(60):
        return await anext(hints)


@pytest.mark.parametrize(
    ("features", "source"),
    [
        (FakeFeatures(cri_events=True, containerd_events=True), RuntimeEventSource.CRI),
        (FakeFeatures(cri_events=False, containerd_events=True), RuntimeEventSource.CONTAINERD),
    ],
)
async def test_the_best_stream_is_chosen(tmp_path: Path, features: FakeFeatures, source: RuntimeEventSource) -> None:
    fake, client = await started(tmp_path, features)
    async with aclosing(watch_runtime(client)) as hints:
        assert await first(hints) == RuntimeHint("", HintKind.SUBSCRIBED, source)
        await subscribers(fake, 1)
        pod = pb.PodSandboxConfig(metadata=pb.PodSandboxMetadata(name="p", uid="u", namespace="n"))
        sandbox = await client.run_pod_sandbox(pod)
        hint = await first(hints)
        while hint.kind is HintKind.CREATED:
            hint = await first(hints)
        assert (hint.id, hint.kind) == (sandbox, HintKind.STARTED)
        assert hint.pod_uid == ("u" if source is RuntimeEventSource.CRI else None)
    await client.close()
    await fake.stop()


async def test_a_runtime_without_events_is_recognized(tmp_path: Path) -> None:
    fake, client = await started(tmp_path, FakeFeatures(containerd_events=False))
    with pytest.raises(NoEvents):
        await first(watch_runtime(client))
    await client.close()
    await fake.stop()


async def test_a_runtime_that_is_away_or_goes_away_is_a_lost_stream(tmp_path: Path) -> None:
    fake, client = await started(tmp_path, FakeFeatures())
    hints = watch_runtime(client)
    await first(hints)
    await fake.stop()
    with pytest.raises(StreamLost) as caught:
        await first(hints)
    assert caught.value.source is RuntimeEventSource.CONTAINERD
    with pytest.raises(StreamLost) as caught:
        await first(watch_runtime(client))
    assert caught.value.cause.is_unavailable
    await fake.start()
    await client.wait_connected(60)
    hints = watch_runtime(client)
    assert (await first(hints)).kind is HintKind.SUBSCRIBED
    await hints.aclose()
    await client.close()
    await fake.stop()


async def test_a_runtime_still_starting_is_no_runtime_without_events(tmp_path: Path) -> None:
    fake, client = await started(tmp_path, FakeFeatures())
    fake.inject(RuntimeFault("Version", code=CriCode.UNKNOWN, message="server is not initialized yet", times=1))
    with pytest.raises(StreamLost) as caught:
        await first(watch_runtime(client))
    assert caught.value.cause.is_unavailable
    await client.close()
    await fake.stop()


async def test_unsubscribing_ends_the_stream_in_the_runtime(tmp_path: Path) -> None:
    fake, client = await started(tmp_path, FakeFeatures())
    hints = watch_runtime(client)
    await first(hints)
    await subscribers(fake, 1)
    await hints.aclose()
    await subscribers(fake, 0)
    await client.close()
    await fake.stop()
