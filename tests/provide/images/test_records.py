from __future__ import annotations

import asyncio
import stat
from pathlib import Path

import pytest

from pykubelet.base.kit.clock import ManualClock
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.provide.images.keyring import ServiceAccountSource
from pykubelet.provide.images.record_store import RecordStore
from pykubelet.provide.images.records import (
    ImageAccess,
    ImageIdentity,
    PulledRecord,
    RecordError,
    SecretGrant,
    file_name,
    parse_intent,
    parse_pulled,
    render_intent,
    render_pulled,
)

REPO = "docker.io/library/busybox"
IMAGE = "busybox:latest"
NODE_WIDE = ImageAccess(node_wide=True)
SECRET = ImageAccess(secrets=(SecretGrant("u", "ns", "n", "h"),))
ONE = ImageIdentity("sha256:1")


def store(root: Path, clock: ManualClock | None = None) -> RecordStore:
    made = RecordStore(str(root), clock or ManualClock())
    made.load()
    return made


def names(root: Path, kind: str) -> set[str]:
    return {path.name for path in (root / kind).iterdir()}


def test_intents_are_written_as_the_reference_does() -> None:
    text = b'{"kind":"ImagePullIntent","apiVersion":"kubelet.config.k8s.io/v1beta1","image":"busybox:latest"}'
    assert render_intent(IMAGE) == text
    assert parse_intent(text) == IMAGE


def test_records_are_written_as_the_reference_does() -> None:
    access = ImageAccess(
        secrets=(SecretGrant("u", "ns", "n", "h"),), accounts=(ServiceAccountSource("a", "ns", "default"),)
    )
    record = PulledRecord("sha256:1", 1_729_513_600.9, {REPO: access, "quay.io/x": NODE_WIDE})
    text = (
        b'{"kind":"ImagePulledRecord","apiVersion":"kubelet.config.k8s.io/v1beta1",'
        b'"lastUpdatedTime":"2024-10-21T12:26:40Z","imageRef":"sha256:1","credentialMapping":{'
        b'"docker.io/library/busybox":{"kubernetesSecrets":[{"uid":"u","namespace":"ns","name":"n",'
        b'"credentialHash":"h"}],"kubernetesServiceAccounts":[{"uid":"a","namespace":"ns","name":"default"}]},'
        b'"quay.io/x":{"nodePodsAccessible":true}}}'
    )
    assert render_pulled(record) == text
    assert parse_pulled(text) == PulledRecord("sha256:1", 1_729_513_600.0, record.access)


def test_records_of_the_alpha_version_are_read() -> None:
    text = b'{"kind":"ImagePulledRecord","apiVersion":"kubelet.config.k8s.io/v1alpha1","imageRef":"x","new":1}'
    assert parse_pulled(text) == PulledRecord("x", 0.0, {})


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00\x01",
        b"{}",
        b'{"kind":"ImagePulledRecord","apiVersion":"kubelet.config.k8s.io/v2","imageRef":"x"}',
        b'{"kind":"ImagePulledRecord","apiVersion":"kubelet.config.k8s.io/v1beta1"}',
        b'{"kind":"ImagePulledRecord","apiVersion":"kubelet.config.k8s.io/v1beta1","imageRef":"x","lastUpdatedTime":"x"}',
        b'{"kind":"ImagePullIntent","apiVersion":"kubelet.config.k8s.io/v1beta1","image":"x"}',
    ],
)
def test_what_is_no_record_is_refused(data: bytes) -> None:
    with pytest.raises(RecordError):
        parse_pulled(data)


def test_file_names_are_hashes() -> None:
    assert file_name("abc") == "sha256-ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


async def test_a_pull_leaves_a_record_and_no_intent(tmp_path: Path) -> None:
    records = store(tmp_path)
    assert await records.begin(IMAGE) is None
    assert names(tmp_path, "pulling") == {file_name(IMAGE)}
    assert records.is_pulling(IMAGE)
    await records.pulled(IMAGE, ONE, [SECRET])
    assert names(tmp_path, "pulling") == set()
    assert names(tmp_path, "pulled") == {file_name("sha256:1")}
    again = store(tmp_path).record(ONE)
    assert again is not None
    assert again.access == {"busybox": SECRET}
    assert stat.S_IMODE((tmp_path / "pulled").stat().st_mode) == 0o700


async def test_a_failed_pull_leaves_nothing(tmp_path: Path) -> None:
    records = store(tmp_path)
    await records.begin(IMAGE)
    await records.failed(IMAGE)
    assert names(tmp_path, "pulling") | names(tmp_path, "pulled") == set()
    assert not records.is_pulling(IMAGE)


async def test_the_intent_stays_until_the_last_of_two_pulls_has_ended(tmp_path: Path) -> None:
    records = store(tmp_path)
    await records.begin(IMAGE)
    await records.begin(IMAGE)
    await records.failed(IMAGE)
    assert records.is_pulling(IMAGE)
    await records.pulled(IMAGE, ONE, [NODE_WIDE])
    assert not records.is_pulling(IMAGE)


async def test_an_abandoned_pull_keeps_its_intent_until_the_next_pull(tmp_path: Path) -> None:
    records = store(tmp_path)
    await records.begin(IMAGE)
    records.unsure(IMAGE)
    assert records.is_pulling(IMAGE)
    assert names(tmp_path, "pulling") == {file_name(IMAGE)}
    await records.begin(IMAGE)
    await records.pulled(IMAGE, ONE, [NODE_WIDE])
    assert names(tmp_path, "pulling") == set()


async def test_a_write_that_was_given_up_does_not_refuse_the_next(tmp_path: Path) -> None:
    records = store(tmp_path)
    async with Supervisor("test") as tasks:
        for number in range(20):
            given_up = tasks.start_child("begin", records.begin(f"quay.io/a:{number}"))
            await asyncio.sleep(0)
            given_up.cancel()
            assert await records.begin(IMAGE) is None
            await records.failed(IMAGE)


async def test_access_adds_up_and_node_wide_covers_all(tmp_path: Path) -> None:
    records = store(tmp_path)
    other = ImageAccess(secrets=(SecretGrant("v", "ns", "m", "i"),))
    await records.learn(IMAGE, ONE, SECRET)
    await records.learn(IMAGE, ONE, other)
    record = records.record(ONE)
    assert record is not None
    assert {s.uid for s in record.access["busybox"].secrets} == {"u", "v"}
    await records.learn(IMAGE, ONE, NODE_WIDE)
    record = records.record(ONE)
    assert record is not None
    assert record.access["busybox"] == NODE_WIDE


async def test_a_rotated_secret_replaces_its_old_hash(tmp_path: Path) -> None:
    records = store(tmp_path)
    await records.learn(IMAGE, ONE, SECRET)
    await records.learn(IMAGE, ONE, ImageAccess(secrets=(SecretGrant("u", "ns", "n", "new"),)))
    record = records.record(ONE)
    assert record is not None
    assert record.access["busybox"].secrets == (SecretGrant("u", "ns", "n", "new"),)


async def test_after_a_crash_intents_of_present_images_become_records_without_access(tmp_path: Path) -> None:
    first = store(tmp_path)
    await first.begin(IMAGE)
    await first.begin("quay.io/gone:1")
    records = store(tmp_path)
    assert records.is_pulling(IMAGE)
    await records.settle_leftovers([ImageIdentity("sha256:1", (f"{REPO}:latest",))])
    assert not records.is_pulling(IMAGE)
    assert names(tmp_path, "pulling") == set()
    assert records.record(ONE) == PulledRecord("sha256:1", 1_700_000_000.0, {})


def test_what_a_killed_agent_left_incomplete_is_removed(tmp_path: Path) -> None:
    left = [tmp_path / part / ".sha256-0123.tmp-0123abcd" for part in ("pulling", "pulled")]
    for path in left:
        path.parent.mkdir()
        path.touch()
    store(tmp_path)
    assert not [path for path in left if path.exists()]


async def test_running_pulls_are_not_leftovers(tmp_path: Path) -> None:
    records = store(tmp_path)
    await records.begin(IMAGE)
    await records.settle_leftovers([])
    assert records.is_pulling(IMAGE)


async def test_garbage_is_set_aside_and_its_image_counts_as_pulled_here(tmp_path: Path) -> None:
    await store(tmp_path).learn(IMAGE, ONE, NODE_WIDE)
    (tmp_path / "pulled" / file_name("sha256:1")).write_bytes(b'{"kind":"ImagePul')
    (tmp_path / "pulled" / file_name("sha256:2")).mkdir()
    (tmp_path / "pulling" / file_name("x")).write_bytes(b"\x00" * 10)
    (tmp_path / "pulled" / "notes.txt").write_text("not ours")
    for _ in range(2):  # also at the start after that
        records = store(tmp_path)
        assert records.record(ONE) is None
        assert records.is_unknown(ONE)
    await records.learn(IMAGE, ONE, NODE_WIDE)
    assert not records.is_unknown(ONE)
    assert not store(tmp_path).is_unknown(ONE)
    assert (tmp_path / "pulled" / "notes.txt").read_text() == "not ours"


async def test_records_of_removed_images_go_unless_just_written(tmp_path: Path) -> None:
    clock = ManualClock()
    records = store(tmp_path, clock)
    await records.learn(IMAGE, ImageIdentity("sha256:gone"), NODE_WIDE)
    await records.learn(IMAGE, ImageIdentity("sha256:here"), NODE_WIDE)
    clock.advance(10)
    await records.learn(IMAGE, ImageIdentity("sha256:new"), NODE_WIDE)
    await records.prune([ImageIdentity("sha256:here")], clock.wall())
    assert names(tmp_path, "pulled") == {file_name("sha256:here"), file_name("sha256:new")}


async def test_when_the_disk_refuses_nothing_is_pulled(tmp_path: Path) -> None:
    records = store(tmp_path / "root")
    (tmp_path / "root" / "pulling").rmdir()
    (tmp_path / "root" / "pulling").write_text("in the way")
    refusal = await records.begin(IMAGE)
    assert refusal is not None
    assert refusal.startswith('Failed to record image pull intent for container image "busybox:latest": ')
    assert not records.is_pulling(IMAGE)


async def test_a_directory_that_was_removed_is_made_again(tmp_path: Path) -> None:
    records = store(tmp_path)
    (tmp_path / "pulling").rmdir()
    assert await records.begin(IMAGE) is None


def test_a_place_that_cannot_be_used_does_not_stop_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    records = store(tmp_path / "file")
    assert records.record(ImageIdentity("x")) is None


BY_DIGEST = f"{REPO}@sha256:{'d' * 64}"
MIRRORED = f"registry.example/copies/busybox@sha256:{'d' * 64}"


def write_record(root: Path, image_ref: str, access: ImageAccess, at: float = 0.0) -> None:
    """A record as another kubelet leaves it in the directory."""
    (root / "pulled").mkdir(exist_ok=True)
    data = render_pulled(PulledRecord(image_ref, at, {"busybox": access}))
    (root / "pulled" / file_name(image_ref)).write_bytes(data)


@pytest.mark.parametrize("image_ref", ["sha256:1", "1", BY_DIGEST, BY_DIGEST.partition("@")[2], MIRRORED])
async def test_a_record_is_found_by_every_reference_of_its_image(tmp_path: Path, image_ref: str) -> None:
    write_record(tmp_path, image_ref, SECRET)
    records = store(tmp_path)
    image = ImageIdentity("sha256:1", (f"{REPO}:latest", BY_DIGEST))
    found = records.record(image)
    assert found is not None
    assert (found.image_ref, found.access) == ("sha256:1", {"busybox": SECRET})
    assert records.record(ImageIdentity("sha256:2", (f"{REPO}:latest",))) is None
    await records.prune([image], 1.0)
    assert names(tmp_path, "pulled") == {file_name(image_ref)}
    await records.prune([], 1.0)
    assert names(tmp_path, "pulled") == set()


async def test_several_records_of_one_image_add_up_in_the_order_of_their_age(tmp_path: Path) -> None:
    write_record(tmp_path, BY_DIGEST, ImageAccess(secrets=(SecretGrant("u", "ns", "n", "new"),)), at=20.0)
    write_record(tmp_path, "sha256:1", SECRET, at=10.0)
    write_record(tmp_path, MIRRORED, ImageAccess(secrets=(SecretGrant("v", "ns", "m", "i"),)), at=5.0)
    image = ImageIdentity("sha256:1", (BY_DIGEST,))
    records = store(tmp_path)
    found = records.record(image)
    assert found is not None
    assert {(s.uid, s.credential_hash) for s in found.access["busybox"].secrets} == {("u", "new"), ("v", "i")}
    await records.learn(IMAGE, image, NODE_WIDE)
    by_id = store(tmp_path).record(ImageIdentity("sha256:1"))
    assert by_id is not None
    assert by_id.access == {"busybox": NODE_WIDE}


@pytest.mark.parametrize("image_ref", ["sha256:1", BY_DIGEST])
async def test_an_unreadable_record_counts_for_its_image(tmp_path: Path, image_ref: str) -> None:
    write_record(tmp_path, image_ref, NODE_WIDE)
    (tmp_path / "pulled" / file_name(image_ref)).write_bytes(b"{")
    records = store(tmp_path)
    image = ImageIdentity("sha256:1", (BY_DIGEST,))
    await records.prune([image], 1.0)
    assert records.is_unknown(image)
    await records.learn(IMAGE, image, SECRET)
    assert not records.is_unknown(image)


async def test_while_the_result_of_a_pull_is_unknown_every_name_of_the_image_counts_as_pulled_here(
    tmp_path: Path,
) -> None:
    records = store(tmp_path)
    await records.begin(IMAGE)
    records.unsure(IMAGE)
    assert records.is_unknown(ImageIdentity("sha256:1", (f"{REPO}:latest", BY_DIGEST)))
    assert not records.is_unknown(ImageIdentity("sha256:2", (f"{REPO}:other",)))
