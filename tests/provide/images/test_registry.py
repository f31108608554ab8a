"""Pulls by a real containerd from a real registry on loopback."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import threading
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from provide.images.stand import pod
from provide.images.test_pull_answers import check_references
from testbed import containerd, images, registry
from testbed.private_runtime import Testbed
from testbed.registry import Registry

from pykubelet.base.kit.cells import Sink, make_cell, make_lazy_cell
from pykubelet.base.kit.clock import SystemClock
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.model.diagnostics import Diagnostics
from pykubelet.base.model.kube_events import KubeEvent
from pykubelet.base.model.lifecycle import Lifecycles
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.client import CriClient
from pykubelet.edges.plugins.credential_config import load_providers
from pykubelet.edges.plugins.credential_provider import run_provider
from pykubelet.edges.plugins.pull_credentials import read_docker_configs
from pykubelet.provide.images.credentials import PullCredentials
from pykubelet.provide.images.execute import ImagePuller
from pykubelet.provide.images.gc import ImageCollector
from pykubelet.provide.images.model import ImageError, ImageReady, ImageRequest, ImageSettings
from pykubelet.provide.images.providers import CredentialProviders
from pykubelet.provide.images.record_store import RecordStore
from pykubelet.provide.images.records import ImageIdentity, file_name

pytestmark = pytest.mark.integration

LOGIN = ("puller", "pa:ss word")
LIMIT_S = 120
PLUGIN = """#!/bin/sh
echo called >>"$CALLS"
grep -q '"image":"127.0.0.1' || exit 3
cat <<END
{"kind": "CredentialProviderResponse", "apiVersion": "credentialprovider.kubelet.k8s.io/v1", "cacheKeyType": "Registry",
 "cacheDuration": "1h", "auth": {"127.0.0.1": {"username": "x", "password": "y"},
 "$REGISTRY": {"username": "puller", "password": "pa:ss word"}}}
END
"""


@dataclass
class Node:
    """A puller as the agent has it, over a root directory of its own."""

    root: Path
    client: CriClient
    testbed: Testbed
    tasks: Supervisor

    def __post_init__(self) -> None:
        self.sink: Sink[KubeEvent] = Sink()
        self.used: set[str] = set()

    def puller(self, providers: CredentialProviders | None = None, **changes: Any) -> ImagePuller:
        settings = ImageSettings(str(self.root / "image_manager"), **{"serialize": False, **changes})
        clock = SystemClock()
        records = RecordStore(settings.records_dir, clock)
        records.load()
        self.cell, writer = make_lazy_cell("diagnostics", Diagnostics())
        credentials = PullCredentials(partial(read_docker_configs, str(self.root)), providers)
        return ImagePuller(self.client, credentials, records, clock, settings, writer, self.sink)

    def waits(self) -> dict[str, str]:
        """The wait of each pod for its image."""
        return {uid.removeprefix("uid-"): known.waits[0].detail for uid, known in self.cell.get().pods.items()}

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():  # noqa: ASYNC110 - a lazy cell wakes no reader
            await asyncio.sleep(0.01)

    async def ensure(self, puller: ImagePuller, image: str, name: str = "web", policy: str = "IfNotPresent") -> object:
        self.used.add(image)
        request = ImageRequest(
            pod(name), "main", "spec.containers{main}", image, policy, sandbox_config=pb.PodSandboxConfig()
        )
        async with asyncio.timeout(LIMIT_S):
            return await puller.ensure(request)

    def events(self) -> list[str]:
        lines = [f"{event.reason}: {event.message}" for event in self.sink.events]
        self.sink.events.clear()
        return lines

    def log_in(self, address: str, user: str, password: str) -> None:
        auth = base64.b64encode(f"{user}:{password}".encode()).decode()
        (self.root / "config.json").write_text(json.dumps({"auths": {address: {"auth": auth}}}))


@pytest.fixture
async def node(testbed: Testbed, tmp_path: Path) -> AsyncIterator[Node]:
    client = CriClient(testbed.endpoint)
    async with Supervisor("test") as tasks:
        made = Node(tmp_path, client, testbed, tasks)
        yield made
    for image in made.used:
        await client.remove_image(pb.ImageSpec(image=image))
    await client.close()


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image of these tests alone: removing what was pulled removes it under all its names."""
    out = tmp_path_factory.mktemp("images") / "pulled.tar"
    images.build_image("localhost/pulled:1", {"/pulled": images.Entry(b"pulled")}, images.Config(), out)
    return out


@pytest.fixture(scope="module")
def plain(testbed: Testbed, tmp_path_factory: pytest.TempPathFactory, archive: Path) -> Iterator[Registry]:
    with registry.serving(tmp_path_factory.mktemp("plain")) as running:
        containerd.trust_registry(testbed, running.address, running.url)
        for number in range(5):
            registry.push(running, archive, f"team/app{number}:1")
        yield running


@pytest.fixture(scope="module")
def private(testbed: Testbed, tmp_path_factory: pytest.TempPathFactory, archive: Path) -> Iterator[Registry]:
    with registry.serving(tmp_path_factory.mktemp("private"), LOGIN, tls=True) as running:
        containerd.trust_registry(testbed, running.address, running.url, running.ca_file)
        registry.push(running, archive, "team/secret:1")
        yield running


async def test_pull_by_tag_then_present(node: Node, plain: Registry) -> None:
    async with node.puller() as puller:
        ready = await node.ensure(puller, f"{plain.address}/team/app0:1")
        again = await node.ensure(puller, f"{plain.address}/team/app0:1")
    assert isinstance(ready, ImageReady)
    assert isinstance(again, ImageReady)
    assert ready.image_ref == again.image_ref
    assert len(ready.image_ref.removeprefix("sha256:")) == 64  # CRI-O's has no prefix
    assert (ready.uid, ready.username) in ((None, ""), (0, ""))
    events = node.events()
    assert events[0] == f'Pulling: Pulling image "{plain.address}/team/app0:1"'
    assert events[1].startswith(f'Pulled: Successfully pulled image "{plain.address}/team/app0:1" in ')
    assert re.fullmatch(r".*\. Image size: [1-9][0-9]* bytes\.", events[1])
    assert len(events) == 2
    assert again.present is not None
    assert again.present.message.endswith("already present on machine and can be accessed by the pod")
    (record,) = (node.root / "image_manager" / "pulled").iterdir()
    assert json.loads(record.read_text())["credentialMapping"] == {
        f"{plain.address}/team/app0": {"nodePodsAccessible": True}
    }
    assert list((node.root / "image_manager" / "pulling").iterdir()) == []


async def test_the_answer_to_a_pull_is_a_reference_of_its_image(node: Node, plain: Registry) -> None:
    image = f"{plain.address}/team/app4:1"
    node.used.add(image)
    answer = await node.client.pull_image(pb.ImageSpec(image=image), None)
    await check_references(node.client, image, answer)


async def test_a_record_under_a_digest_is_honored_and_stays(node: Node, private: Registry) -> None:
    node.log_in(private.url, *LOGIN)
    image = f"{private.address}/team/secret:1"
    async with node.puller() as puller:
        assert isinstance(await node.ensure(puller, image), ImageReady)
    (node.root / "config.json").unlink()
    status = await node.client.image_status(pb.ImageSpec(image=image))
    assert status is not None
    folder = node.root / "image_manager" / "pulled"
    (by_id,) = folder.iterdir()
    (digest,) = status.repo_digests
    text = by_id.read_text()
    for access, answers in (("nodePodsAccessible", ImageReady), ("unknown", ImageError)):
        for path in folder.iterdir():
            path.unlink()
        other_kubelets = {**json.loads(text), "imageRef": digest}
        other_kubelets["credentialMapping"] = {f"{private.address}/team/secret": {access: True}}
        (folder / file_name(digest)).write_text(json.dumps(other_kubelets))
        async with node.puller() as puller:
            assert isinstance(await node.ensure(puller, image, policy="Never"), answers)
    records = RecordStore(str(node.root / "image_manager"), SystemClock())
    records.load()
    settings = ImageSettings(str(node.root / "image_manager"), high_percent=99, low_percent=98)
    lifecycles = make_cell("Lifecycles", Lifecycles())[0]
    await ImageCollector(node.client, records, SystemClock(), settings, lifecycles, node.sink).collect()
    assert [path.name for path in folder.iterdir()] == [file_name(digest)]


async def test_pull_by_digest(node: Node, plain: Registry, archive: Path) -> None:
    by_digest = registry.push(plain, archive, "team/digest:1")
    async with node.puller() as puller:
        assert isinstance(await node.ensure(puller, by_digest), ImageReady)
        assert isinstance(await node.ensure(puller, by_digest, policy="Never"), ImageReady)


async def test_missing_image(node: Node, plain: Registry) -> None:
    image = f"{plain.address}/team/missing:1"
    async with node.puller() as puller:
        failed = await node.ensure(puller, image)
        held = await node.ensure(puller, image)
    assert isinstance(failed, ImageError)
    assert isinstance(held, ImageError)
    assert failed.reason == "ErrImagePull"
    assert "not found" in failed.message or "manifest unknown" in failed.message
    assert held.reason == "ImagePullBackOff"
    assert held.message == f'Back-off pulling image "{image}": ErrImagePull: {failed.message}'
    assert held.retry_at is not None
    assert 5 < held.retry_at - time.monotonic() <= 10
    assert list((node.root / "image_manager" / "pulling").iterdir()) == []


async def test_registry_that_refuses_connections(node: Node, tmp_path: Path) -> None:
    with registry.serving(tmp_path / "gone") as running:
        address = running.address
    async with node.puller() as puller:
        failed = await node.ensure(puller, f"{address}/team/app:1")
    assert isinstance(failed, ImageError)
    known = "the registry is unavailable" in failed.message  # CRI-O has the words of CRI
    assert failed.reason == ("RegistryUnavailable" if known else "ErrImagePull")
    assert "connection refused" in failed.message


def push_foreign_list(to: Registry, archive: Path, repository: str) -> None:
    """A manifest list that has the image for another platform only."""
    by_digest = registry.push(to, archive, f"{repository}:only")
    digest = by_digest.partition("@")[2]
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    kind = "application/vnd.docker.distribution.manifest.v2+json"
    fetch = urllib.request.Request(f"{to.url}/v2/{repository}/manifests/{digest}", headers={"Accept": kind})
    with opener.open(fetch, timeout=10) as answer:
        size = len(answer.read())
    entry = {"mediaType": kind, "size": size, "digest": digest, "platform": {"architecture": "s390x", "os": "linux"}}
    list_kind = "application/vnd.docker.distribution.manifest.list.v2+json"
    body = json.dumps({"schemaVersion": 2, "mediaType": list_kind, "manifests": [entry]}).encode()
    url = f"{to.url}/v2/{repository}/manifests/1"
    put = urllib.request.Request(url, body, {"Content-Type": list_kind}, method="PUT")
    with opener.open(put, timeout=10) as answer:
        assert answer.status == 201


async def test_wrong_platform(node: Node, plain: Registry, tmp_path: Path) -> None:
    push_foreign_list(plain, images.build(images.WRONG_PLATFORM, tmp_path / "images"), "team/foreign")
    async with node.puller() as puller:
        failed = await node.ensure(puller, f"{plain.address}/team/foreign:1")
    assert isinstance(failed, ImageError)
    assert failed.reason == "ErrImagePull"
    texts = ("no match for platform", "no image found in manifest list", "no matching manifest for")
    assert any(text in failed.message for text in texts)


@pytest.mark.parametrize("password", [None, "wrong"])
async def test_without_or_with_a_wrong_password(node: Node, private: Registry, password: str | None) -> None:
    if password is not None:
        node.log_in(private.address, LOGIN[0], password)
    async with node.puller() as puller:
        failed = await node.ensure(puller, f"{private.address}/team/secret:1")
    assert isinstance(failed, ImageError)
    assert failed.reason == "ErrImagePull"
    texts = (
        "authorization failed",
        "401",
        "authentication required",
        "no basic auth credentials",
        "sent an HTTP request to an HTTPS server",
    )
    assert any(text in failed.message for text in texts)


async def test_the_nodes_docker_config_opens_a_private_registry_with_tls(node: Node, private: Registry) -> None:
    node.log_in(private.url, *LOGIN)
    async with node.puller() as puller:
        assert isinstance(await node.ensure(puller, f"{private.address}/team/secret:1"), ImageReady)


async def test_a_credential_provider_opens_a_private_registry(node: Node, private: Registry) -> None:
    folder = node.root / "plugins"
    folder.mkdir()
    (folder / "provider").write_text(PLUGIN)
    (folder / "provider").chmod(0o755)
    config = {
        "apiVersion": "kubelet.config.k8s.io/v1",
        "kind": "CredentialProviderConfig",
        "providers": [
            {
                "name": "provider",
                "matchImages": [f"*.0.0.*:{private.address.partition(':')[2]}"],
                "defaultCacheDuration": "0s",
                "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
                "env": [
                    {"name": "CALLS", "value": str(node.root / "calls")},
                    {"name": "REGISTRY", "value": private.address},
                ],
            }
        ],
    }
    (node.root / "providers.json").write_text(json.dumps(config))
    loaded = load_providers(str(node.root / "providers.json"), str(folder))
    providers = CredentialProviders(loaded.configs, run_provider, SystemClock())
    image = f"{private.address}/team/secret:1"
    async with node.puller(providers) as puller:
        for _ in range(2):
            assert isinstance(await node.ensure(puller, image, policy="Always"), ImageReady)
    assert (node.root / "calls").read_text() == "called\n"


async def test_five_pods_behind_a_slow_registry_each_see_their_wait(node: Node, plain: Registry) -> None:
    opened = threading.Event()
    with registry.slowed(plain, 60, opened) as address:
        names = [f"{address}/team/app{number}:1" for number in range(5)]
        async with node.puller(serialize=True) as puller:
            work = [node.tasks.start_child(names[0], node.ensure(puller, names[0], "pod-0"))]
            async with asyncio.timeout(LIMIT_S):
                await node.until(lambda: any(detail.startswith("pulling ") for detail in node.waits().values()))
                work += [
                    node.tasks.start_child(names[n], node.ensure(puller, names[n], f"pod-{n}")) for n in range(1, 5)
                ]
                await node.until(lambda: len(node.waits()) == 5)
                seen = node.waits()
                opened.set()
                answers = await asyncio.gather(*work)
    queued = {f"pod-{n}": f"queued {names[n]}, number {n} in the queue" for n in range(1, 5)}
    assert seen == {"pod-0": f"pulling {names[0]}", **queued}
    assert all(isinstance(answer, ImageReady) for answer in answers)
    pulled = [event.pod.name for event in node.sink.events if event.pod and event.reason == "Pulled"]
    assert pulled == [f"pod-{n}" for n in range(5)]


async def test_five_pods_share_one_slow_pull(node: Node, plain: Registry) -> None:
    with registry.slowed(plain, 0.3) as address:
        image = f"{address}/team/app1:1"
        before = plain.log_file.read_text().count("GET /v2/team/app1/manifests")
        async with node.puller() as puller:
            answers = await asyncio.gather(*(node.ensure(puller, image, f"pod-{n}") for n in range(5)))
    assert all(isinstance(answer, ImageReady) for answer in answers)
    assert plain.log_file.read_text().count("GET /v2/team/app1/manifests") - before <= 1


async def test_a_cancelled_pull_ends_and_the_next_one_works(node: Node, plain: Registry) -> None:
    with registry.slowed(plain, 30) as address:
        image = f"{address}/team/app2:1"
        async with node.puller() as puller:
            task = node.tasks.start_child("pull", node.ensure(puller, image))
            async with asyncio.timeout(25):
                await node.until(lambda: any(detail.startswith("pulling ") for detail in node.waits().values()))
                await asyncio.sleep(0.5)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                await node.until(lambda: not node.waits())
            assert await node.client.image_status(pb.ImageSpec(image=image)) is None
            assert isinstance(await node.ensure(puller, f"{plain.address}/team/app2:1"), ImageReady)


async def test_of_a_present_image_the_registry_is_not_asked(node: Node, plain: Registry) -> None:
    image = f"{plain.address}/team/app3:1"
    async with node.puller() as puller:
        await node.ensure(puller, image)
        asked = plain.log_file.read_text().count("/manifests/")
        assert asked > 0
        assert isinstance(await node.ensure(puller, image), ImageReady)
        assert plain.log_file.read_text().count("/manifests/") == asked


async def test_the_collector_removes_what_is_unused_but_never_the_sandbox_image(
    node: Node, plain: Registry, tmp_path: Path
) -> None:
    built = tmp_path / "own.tar"
    images.build_image("localhost/own:1", {"/own": images.Entry(b"own")}, images.Config(), built)
    registry.push(plain, built, "team/own:1")
    others = [name for image in await node.client.list_images() for name in (*image.repo_tags, *image.repo_digests)]
    async with node.puller() as puller:
        own = await node.ensure(puller, f"{plain.address}/team/own:1")
    assert isinstance(own, ImageReady)
    protected = frozenset(others) - {images.PAUSE}
    settings = ImageSettings(str(node.root / "image_manager"), max_age_s=0.01, high_percent=100, protected=protected)
    records = RecordStore(settings.records_dir, SystemClock())
    records.load()
    assert records.record(ImageIdentity(own.image_id)) is not None
    lifecycles = make_cell("Lifecycles", Lifecycles())[0]
    collector = ImageCollector(node.client, records, SystemClock(), settings, lifecycles, node.sink)
    await asyncio.sleep(0.05)
    assert await collector.collect() > 0
    left = {image.id for image in await node.client.list_images()}
    assert own.image_id not in left
    assert await node.client.image_status(pb.ImageSpec(image=images.PAUSE)) is not None
    assert records.record(ImageIdentity(own.image_id)) is None
