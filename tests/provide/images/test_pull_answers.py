"""The answers of PullImage, an ID or a digest: the contract that pull records rely on, and the access that follows from it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
from provide.images.stand import pod

from pykubelet.base.kit.cells import Sink, make_lazy_cell
from pykubelet.base.kit.clock import SystemClock
from pykubelet.base.model.diagnostics import Diagnostics
from pykubelet.base.model.kube_events import KubeEvent
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.client import CriClient
from pykubelet.edges.plugins.pull_credentials import DockerConfigFile
from pykubelet.provide.images.credentials import PullCredentials
from pykubelet.provide.images.execute import ImagePuller
from pykubelet.provide.images.model import ImageError, ImageReady, ImageRequest, ImageSettings
from pykubelet.provide.images.record_store import RecordStore
from pykubelet.provide.images.records import content_of, identity_of
from pykubelet.testing.cri.fake import FakeFeatures, FakeImage, FakeRuntime, RegistryAuth

IMAGE = "registry.example/team/app:1"
LOGIN = b'{"auths": {"registry.example": {"auth": "dXNlcjpyaWdodA=="}}}'  # user:right


async def check_references(client: CriClient, image: str, image_ref: str) -> None:
    """Check what records rely on: the answer of PullImage is one of the references that ImageStatus has for the image."""
    status = await client.image_status(pb.ImageSpec(image=image))
    assert status is not None
    identity = identity_of(status)
    assert content_of(image_ref) in identity.contents
    for reference in (image_ref, status.id, *status.repo_digests):
        again = await client.image_status(pb.ImageSpec(image=reference))
        assert again is not None, reference
        assert again.id == status.id


@pytest.fixture(params=["id", "digest"])
async def fake(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[FakeRuntime]:
    running = FakeRuntime(str(tmp_path / "cri.sock"), features=FakeFeatures(answers_digest=request.param == "digest"))
    await running.start()
    running.registry[IMAGE] = FakeImage(IMAGE)
    running.private[IMAGE] = RegistryAuth("user", "right")
    yield running
    await running.stop()


async def test_both_answers_are_references_of_the_pulled_image(fake: FakeRuntime) -> None:
    client = CriClient(fake.endpoint)
    answer = await client.pull_image(pb.ImageSpec(image=IMAGE), pb.AuthConfig(username="user", password="right"))
    assert ("@" in answer) is fake.features.answers_digest
    await check_references(client, IMAGE, answer)
    await client.close()


async def test_a_pull_with_the_nodes_credentials_is_recorded_for_its_image(fake: FakeRuntime, tmp_path: Path) -> None:
    client = CriClient(fake.endpoint)
    file = DockerConfigFile("/config.json", False, LOGIN)
    settings = ImageSettings(str(tmp_path / "records"), qps=0.0)
    for policy, files in (("IfNotPresent", (file,)), ("Never", ())):
        records = RecordStore(settings.records_dir, SystemClock())
        records.load()
        credentials = PullCredentials(partial(tuple[DockerConfigFile, ...], files), None)
        sink: Sink[KubeEvent] = Sink()
        writer = make_lazy_cell("diagnostics", Diagnostics())[1]
        async with ImagePuller(client, credentials, records, SystemClock(), settings, writer, sink) as puller:
            answer = await puller.ensure(ImageRequest(pod("a"), "main", "", IMAGE, policy))
        assert isinstance(answer, ImageReady)
    (status,) = await client.list_images()
    record = records.record(identity_of(status))
    assert record is not None
    assert record.access["registry.example/team/app"].node_wide
    await client.close()


async def test_an_image_of_a_pull_whose_result_is_unknown_is_refused_by_every_name(
    fake: FakeRuntime, tmp_path: Path
) -> None:
    client = CriClient(fake.endpoint)
    await client.pull_image(pb.ImageSpec(image=IMAGE), pb.AuthConfig(username="user", password="right"))
    (status,) = await client.list_images()
    settings = ImageSettings(str(tmp_path / "records"), qps=0.0)
    records = RecordStore(settings.records_dir, SystemClock())
    records.load()
    await records.begin(IMAGE)
    records.unsure(IMAGE)
    sink: Sink[KubeEvent] = Sink()
    writer = make_lazy_cell("diagnostics", Diagnostics())[1]
    credentials = PullCredentials(lambda: (), None)
    async with ImagePuller(client, credentials, records, SystemClock(), settings, writer, sink) as puller:
        for name in (IMAGE, *status.repo_digests):
            answer = await puller.ensure(ImageRequest(pod("a"), "main", "", name, "Never"))
            assert isinstance(answer, ImageError), name
    await client.close()
