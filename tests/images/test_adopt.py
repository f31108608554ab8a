"""Images of one namespace of containerd become usable in another."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from images.fake_containerd import FakeContainerd, connected, serving
from support.oci import CONFIG, LAYER, MANIFEST, Json, Layout, built_of

from pykubelet.net.grpc.channel import Channel
from pykubelet.net.grpc.status import RpcError
from pykubelet_images.adopt import Adoption, AdoptionError, AdoptionLease, adopt
from pykubelet_images.containerd import Containerd
from pykubelet_images.contents import MAX_DEPTH, MAX_DOCUMENT_BYTES, MAX_ENTRIES

APP = "docker.io/library/app:1"
LEASE = AdoptionLease("adopting", "2026-11-29T12:00:00Z")
AMD64 = ("linux/amd64", "linux/386")
MANAGED = {"io.cri-containerd.image": "managed"}


def built(mark: str = "app") -> tuple[Layout, Json]:
    configuration = {"architecture": "amd64", "os": "linux", "config": {"Labels": {"mark": mark}}}
    return built_of(json.dumps(configuration).encode(), [b"base", mark.encode(), b"base"])


@pytest.fixture
async def fake() -> FakeContainerd:
    return FakeContainerd()


@pytest.fixture
async def channel(fake: FakeContainerd, tmp_path: Path) -> AsyncIterator[Channel]:
    async with serving(fake, tmp_path) as path, connected(path) as channel:
        yield channel


async def adopted(channel: Channel, name: str = APP) -> Adoption:
    return await adopt(Containerd(channel, "moby"), Containerd(channel, "k8s.io"), name, AMD64, LEASE)


def refuses(*parts: str) -> pytest.RaisesExc[AdoptionError]:
    return pytest.raises(AdoptionError, match=".*".join(parts))


def needed(layout: Layout, index: Json) -> set[str]:
    """The blobs of a machine with amd64."""
    manifest = json.loads(layout.blobs[index["digest"]])["manifests"][1]["digest"]
    return {index["digest"], manifest, layout.config, *layout.layers}


async def test_an_image_has_its_name_and_the_blobs_of_the_machine(fake: FakeContainerd, channel: Channel) -> None:
    layout, index = built()
    fake.load(APP, layout, index)
    assert await adopted(channel) == Adoption(APP, index["digest"], layout.config, "")
    ours = fake.spaces["k8s.io"]
    assert (ours.leased, ours.expiry) == ({}, {LEASE.id: LEASE.until})
    assert ours.images[APP].target == fake.spaces["moby"].images[APP].target
    ours.collect()
    assert set(ours.blobs) == needed(layout, index)


async def test_labels_are_those_of_containerds_own_clients(fake: FakeContainerd, channel: Channel) -> None:
    layout, index = built()
    fake.load(APP, layout, index)
    await adopted(channel)
    blobs, prefix = fake.spaces["k8s.io"].blobs, "containerd.io/gc.ref.content"
    entries = [entry["digest"] for entry in json.loads(layout.blobs[index["digest"]])["manifests"]]
    assert blobs[index["digest"]] == {f"{prefix}.m.{number}": digest for number, digest in enumerate(entries)}
    layers = {f"{prefix}.l.{number}": digest for number, digest in enumerate(layout.layers)}
    assert len(layers) == 3 and layout.layers[0] == layout.layers[2]
    assert blobs[entries[1]] == layers | {f"{prefix}.config": layout.config}
    assert blobs[layout.config] == {}


async def test_an_adoption_that_is_killed_leaves_nothing_and_can_be_repeated(
    fake: FakeContainerd, channel: Channel
) -> None:
    layout, index = built()
    fake.load(APP, layout, index)
    ours, whole = fake.spaces["k8s.io"], needed(layout, index)
    await adopted(channel)
    for calls in range(len(fake.calls) - 1):  # the last one ends the lease
        ours.images.clear()
        ours.collect()
        fake.calls_left = calls
        with pytest.raises(RpcError):
            await adopted(channel)
        ours.collect()
        assert set(ours.blobs) == (whole if APP in ours.images else set()), fake.calls[calls]
        fake.calls_left = 1000
        await adopted(channel)
        ours.collect()
        assert set(ours.blobs) == whole


async def test_an_adoption_can_be_repeated_and_repairs_labels(fake: FakeContainerd, channel: Channel) -> None:
    layout, index = built()
    fake.load(APP, layout, index)
    await adopted(channel)
    ours = fake.spaces["k8s.io"]
    before = {digest: dict(labels) for digest, labels in ours.blobs.items()}
    for labels in ours.blobs.values():
        labels.clear()
    assert (await adopted(channel)).before == index["digest"]
    assert (ours.blobs, "Images/Update" in fake.calls) == (before, False)


async def test_a_moved_name_is_taken_in_anew_and_keeps_other_labels(fake: FakeContainerd, channel: Channel) -> None:
    (old, old_index), (new, new_index) = built("old"), built("new")
    fake.load(APP, old, old_index)
    await adopted(channel)
    image = fake.spaces["k8s.io"].images[APP]
    image.labels.update(MANAGED | {"io.cri-containerd.pinned": "pinned"})
    fake.load(APP, new, new_index)
    assert (await adopted(channel)).before == old_index["digest"]
    image = fake.spaces["k8s.io"].images[APP]
    assert (image.target.digest, dict(image.labels)) == (new_index["digest"], {"io.cri-containerd.pinned": "pinned"})


async def test_without_sharing_nothing_is_left_open(fake: FakeContainerd, channel: Channel) -> None:
    fake.load(APP, *built())
    fake.shares = False
    with refuses("containerd does not share the layer 3 of 3 sha256:", "content_sharing_policy is isolated"):
        await adopted(channel)
    assert (fake.spaces["k8s.io"].ingests, fake.spaces["k8s.io"].leased) == (set(), {})


async def test_names_that_may_be_meant_are_shown(fake: FakeContainerd, channel: Channel) -> None:
    with refuses("namespace moby has no images. Docker has them there from version 29 on"):
        await adopted(channel)
    fake.load(APP, *built())
    fake.load("localhost/other:2", *built())
    with refuses("no image docker.io/library/app:2 in", f"; there is {APP}$"):
        await adopted(channel, "docker.io/library/app:2")
    with refuses("; there is localhost/other:2$"):
        await adopted(channel, "localhost/otter:2")
    with refuses("in containerd's namespace moby$"):
        await adopted(channel, "quay.io/x:latest")


async def test_missing_blobs_and_wrong_sizes_are_named(fake: FakeContainerd, channel: Channel) -> None:
    layout, index = built()
    fake.load(APP, layout, index)
    theirs = fake.spaces["moby"].blobs
    for digest in layout.layers[:2]:
        theirs.pop(digest)
    del theirs[layout.config]
    with refuses(f"its layer 3 of 3 {layout.layers[0]} is missing in namespace moby", "layer 2 of 3", "configuration"):
        await adopted(channel)
    del theirs[json.loads(layout.blobs[index["digest"]])["manifests"][1]["digest"]]
    with refuses("its manifest sha256:", "is missing"):
        await adopted(channel)
    assert fake.spaces["k8s.io"].blobs == {}


def documents() -> dict[str, tuple[Layout, Json, str]]:
    """Images that cannot be used, and why."""
    found: dict[str, tuple[Layout, Json, str]] = {}

    def add(name: str, layout: Layout, root: Json, problem: str) -> None:
        found[name] = layout, root, problem

    layout = Layout()
    add("no JSON", layout, layout.add(MANIFEST, b"\xff{"), "cannot be read")
    layout = Layout()
    add("nested JSON", layout, layout.add(MANIFEST, b'{"x":' + b"[" * 100_000), "cannot be read")
    layout = Layout()
    add("empty", layout, layout.add(MANIFEST, b""), "is empty")
    layout = Layout()
    add("no manifest", layout, layout.add("text/plain", b"x"), "is no manifest of an image, but 'text/plain'")
    layout = Layout()
    add("large", layout, layout.add(MANIFEST, b" " * (MAX_DOCUMENT_BYTES + 1)), "are the most")
    layout, index = built()
    for _ in range(MAX_DEPTH):
        index = layout.add_index([index])
    add("deep", layout, index, f"more than {MAX_DEPTH} indexes")
    layout = Layout()
    root = layout.add_manifest(layout.add(CONFIG, {}), [layout.add(LAYER, b"x")] * (MAX_ENTRIES + 1))
    add("long", layout, root, f"lists {MAX_ENTRIES + 1} blobs")
    layout = Layout()
    root = layout.add_manifest(layout.add(CONFIG, {}), [{"digest": "../../etc", "size": 1}])
    add("no digest", layout, root, "which is no digest")
    layout = Layout()
    root = layout.add_manifest(layout.add(CONFIG, {}), [{**layout.add(LAYER, b"x"), "size": -1}])
    add("negative", layout, root, "is given as -1")
    layout = Layout()
    root = layout.add_manifest(layout.add(CONFIG, {}), [{**layout.add(LAYER, b"x"), "size": 2}])
    add("another size", layout, root, "has 1 bytes, and not 2")
    layout, index = built()
    index["size"] -= 1
    add("another size of the index", layout, index, "cannot be read")
    layout = Layout()
    other = layout.add_manifest(layout.add(CONFIG, {}), [], platform={"os": "linux", "architecture": "s390x"})
    add("other platform", layout, layout.add_index([other]), "is for linux/s390x, and this machine is linux/amd64")
    layout = Layout()
    other = layout.add_manifest(layout.add(CONFIG, {"os": "linux", "architecture": "s390x"}), [])
    add("other configuration", layout, layout.add_index([other]), "is for linux/s390x")
    layout = Layout()
    add("nothing", layout, layout.add_index([]), "is for no platform")
    return found


@pytest.mark.parametrize("case", documents())
async def test_an_image_that_cannot_be_used_changes_nothing(fake: FakeContainerd, channel: Channel, case: str) -> None:
    layout, root, problem = documents()[case]
    fake.load(APP, layout, root)
    with refuses(f"{APP} cannot be used: ", problem):
        await adopted(channel)
    ours = fake.spaces["k8s.io"]
    assert (ours.images, ours.blobs, ours.expiry) == ({}, {}, {})


async def test_a_manifest_without_an_index_or_without_a_platform_is_used(
    fake: FakeContainerd, channel: Channel
) -> None:
    layout = Layout()
    config = layout.add(CONFIG, {"os": "linux", "architecture": "amd64"})
    manifest = layout.add_manifest(config, [layout.add(LAYER, b"x"), layout.add(LAYER, b"")])
    fake.load(APP, layout, manifest)
    fake.load("docker.io/library/nested:1", layout, layout.add_index([layout.add_index([manifest])]))
    fake.spaces["moby"].blobs |= {digest: {} for digest in layout.blobs}
    fake.stored |= layout.blobs
    assert (await adopted(channel)).image_id == config["digest"]
    assert (await adopted(channel, "docker.io/library/nested:1")).image_id == config["digest"]
    ours = fake.spaces["k8s.io"]
    ours.collect()
    assert set(ours.blobs) == set(layout.blobs)
