"""Images that Docker Engine 29 would have in containerd's namespace `moby`, adopted for pods on the same containerd."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from support import oci
from support.agent import PROGRAM, Agent, make_container, make_pod, runtime_client
from testbed import containerd, images
from testbed.private_runtime import Testbed

from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.net.grpc.channel import Channel, unix_dial
from pykubelet_images.containerd import LIMITS, Containerd

pytestmark = pytest.mark.integration

MakeAgent = Callable[..., Agent]
NAME, BROKEN = "docker.io/library/adopted:1", "docker.io/library/adopted-broken:1"


class Docker:
    """The images of a namespace `moby`, and what of it pods can use."""

    def __init__(self, testbed: Testbed, folder: Path) -> None:
        self._testbed = testbed
        self._folder = folder
        self._layers: dict[str, list[str]] = {}

    def build(self, mark: str, name: str = NAME) -> oci.Json:
        """As `docker build`: an image with a file `/mark`; its index."""
        archive, out = self._folder / "built.tar", self._folder / "oci.tar"
        files = {**images.busybox_files(), "/mark": images.Entry(f"{mark}\n".encode())}
        images.build_image("localhost/any:1", files, images.Config(), archive)
        layout, index = oci.built_by_docker(archive)
        oci.write_archive(layout, {name: index}, out)
        self._layers[name] = layout.layers
        self.ctr("images", "import", "--snapshotter", self._testbed.snapshotter, str(out))
        self.collect()  # what the import has left, such as the attestation
        return index

    def ctr(self, *arguments: str) -> str:
        return self._testbed.ctr("--namespace", "moby", *arguments)

    def adopt(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`pykubelet images adopt`."""
        socket = str(self._testbed.socket)
        argv = [str(PROGRAM), "images", "adopt", "--containerd-socket", socket, *arguments]
        return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)

    def blobs(self, namespace: str) -> set[str]:
        """The digests of all blobs of a namespace."""
        return set(self._testbed.ctr("--namespace", namespace, "content", "ls", "-q").split())

    def layer(self, name: str) -> str:
        """The digest of the one layer of an image."""
        (layer,) = self._layers[name]
        return layer

    def stored(self) -> dict[str, int]:
        """The files of all blobs, with their inodes."""
        root = self._testbed.root / "root" / "io.containerd.content.v1.content"
        return {str(path): path.stat().st_ino for path in root.rglob("*") if path.is_file()}

    def leases(self) -> list[str]:
        """The leases of adoptions that are left."""
        return [id for id in self._testbed.ctr("leases", "ls", "-q").split() if "adopt" in id]

    async def id_for_pods(self, name: str) -> str:
        """The ID of the image that pods get by this name."""
        async with runtime_client(self._testbed) as client:
            image = await client.image_status(pb.ImageSpec(image=name))
            assert image is not None
            return image.id

    async def remove_for_pods(self, name: str) -> None:
        """As the image collector of the agent does."""
        id = await self.id_for_pods(name)
        async with runtime_client(self._testbed) as client:
            await client.remove_image(pb.ImageSpec(image=id))

    def collect(self) -> None:
        """Let containerd collect garbage."""
        self._testbed.ctr("images", "tag", images.PAUSE, "localhost/short:1")
        self._testbed.ctr("images", "rm", "--sync", "localhost/short:1")

    def unpack(self) -> None:
        """Read all of Docker's image."""
        self.ctr("images", "export", str(self._folder / "exported.tar"), NAME)


@pytest.fixture
async def docker(testbed: Testbed, tmp_path: Path) -> AsyncIterator[Docker]:
    if not testbed.is_containerd:
        pytest.skip("needs containerd itself")
    made = Docker(testbed, tmp_path)
    yield made
    for name in made.ctr("images", "ls", "-q").split():
        made.ctr("images", "rm", "--sync", name)
    async with runtime_client(testbed) as client:
        for image in await client.list_images():
            if any("/adopted" in name for name in (*image.repo_tags, *image.repo_digests)) or not image.repo_tags:
                await client.remove_image(pb.ImageSpec(image=image.id))


def reading_mark(name: str, policy: str = "Never", image: str = "adopted:1") -> oci.Json:
    return make_pod(name, make_container(image=image, imagePullPolicy=policy, script="cat /mark; sleep 1000"))


async def read_mark(agent: Agent, pod: str) -> str:
    await agent.wait_running(pod)
    await agent.wait_for("it is read", lambda: agent.output(pod, "main"))
    return agent.output(pod, "main").strip()


async def test_pods_run_from_an_image_that_docker_built(make_agent: MakeAgent, docker: Docker) -> None:
    agent = make_agent().start()
    index, stored = docker.build("first"), docker.stored()
    done = docker.adopt("adopted:1")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{NAME} adopted: {index['digest']}\n", "")
    assert docker.stored() == stored, "nothing is copied"
    assert docker.leases() == []
    agent.put(reading_mark("never"), reading_mark("present", "IfNotPresent", NAME))
    assert [await read_mark(agent, pod) for pod in ("never", "present")] == ["first", "first"]
    assert docker.adopt(NAME).stdout == f"{NAME} unchanged: {index['digest']}\n"


async def test_an_adopted_image_stays_when_docker_removes_its_own(
    testbed: Testbed, make_agent: MakeAgent, docker: Docker
) -> None:
    docker.build("kept")
    assert docker.adopt("adopted:1").returncode == 0
    docker.ctr("images", "rm", "--sync", NAME)
    docker.collect()
    containerd.kill(testbed)
    containerd.start(testbed)
    agent = make_agent().start()
    agent.put(reading_mark("kept"))
    assert await read_mark(agent, "kept") == "kept"


async def test_dockers_image_stays_when_the_image_collector_removes_the_adopted_one(docker: Docker) -> None:
    index = docker.build("dockers")
    before = docker.blobs("moby")
    assert docker.adopt("adopted:1").returncode == 0
    await docker.remove_for_pods(NAME)
    docker.collect()
    assert index["digest"] not in docker.blobs("k8s.io")
    assert docker.blobs("moby") == before
    docker.unpack()
    assert docker.adopt("adopted:1").stdout == f"{NAME} adopted: {index['digest']}\n"


async def test_a_name_that_docker_gave_to_another_image_is_moved(make_agent: MakeAgent, docker: Docker) -> None:
    agent = make_agent().start()
    old = docker.build("old")
    assert docker.adopt("adopted:1").returncode == 0
    old_id = await docker.id_for_pods(NAME)
    new = docker.build("new")
    assert docker.adopt("adopted:1").stdout == f"{NAME} adopted: {new['digest']}, instead of {old['digest']}\n"
    agent.put(reading_mark("moved"))
    assert await read_mark(agent, "moved") == "new"
    assert await docker.id_for_pods(old_id) == old_id, "left to the image collector"
    await docker.remove_for_pods(old_id)
    docker.collect()
    left = docker.blobs("k8s.io")
    assert (new["digest"] in left, old["digest"] in left) == (True, False)


async def test_what_cannot_be_adopted_is_reported_and_the_others_are_adopted(docker: Docker) -> None:
    assert "namespace moby has no images" in docker.adopt("adopted:1").stderr
    docker.build("whole")
    docker.build("broken", BROKEN)
    layer = docker.layer(BROKEN)
    docker.ctr("content", "rm", layer)
    done = docker.adopt("--all")
    assert (done.returncode, done.stdout.split(":")[0]) == (1, "docker.io/library/adopted")
    assert f"{BROKEN} cannot be used: its layer 1 of 1 {layer} is missing in namespace moby" in done.stderr
    done = docker.adopt("adopted:2")
    assert (done.returncode, done.stdout) == (1, "")
    assert (
        done.stderr == f"Error: no image docker.io/library/adopted:2 in containerd's namespace moby; there is {NAME}\n"
    )
    assert docker.leases() == []


async def test_what_an_interrupted_adoption_leaves_is_collected(testbed: Testbed, docker: Docker) -> None:
    docker.build("interrupted")
    layer, elsewhere = docker.layer(NAME), docker.blobs("k8s.io")
    channel = Channel(unix_dial(str(testbed.socket)), LIMITS)
    leased = await Containerd(channel, "k8s.io").take_lease("adopting", "2100-01-01T00:00:00Z")
    size = await Containerd(channel, "moby").blob_size(layer)
    await leased.share_blob(layer, size or 0, {})
    docker.collect()
    assert docker.blobs("k8s.io") - elsewhere == {layer}, "held by the lease"
    await leased.end_lease()
    leased = await Containerd(channel, "k8s.io").take_lease("adopted-before", "2000-01-01T00:00:00Z")
    await leased.share_blob(layer, size or 0, {})
    channel.close()
    docker.collect()
    assert (docker.blobs("k8s.io") - elsewhere, docker.leases()) == (set(), [])
    assert layer in docker.blobs("moby")
