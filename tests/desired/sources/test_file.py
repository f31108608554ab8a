"""The file source on a real directory with real notifications."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from desired.sources.stand import has_only, has_pod, manifest, source

from pykubelet.base.api.core import Pod
from pykubelet.base.kit.cells import Mailbox
from pykubelet.base.kit.clock import SystemClock
from pykubelet.base.kit.flight import SingleFlight
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.model.roster import ManifestProblem, SourceChanged
from pykubelet.desired.sources.decode import ManifestRules, decode_manifest
from pykubelet.desired.sources.file import FileSource
from pykubelet.desired.sources.manifests import SETTLE_S
from pykubelet.desired.sources.static import file_origin


async def test_files_come_change_and_go(folder: Path) -> None:
    (folder / "b.yaml").write_text(manifest("b"))
    (folder / "a.yaml").write_text(manifest("a"))
    async with source(folder) as reader:
        assert await reader.names() == ["a-n", "b-n"]
        (folder / "c.json").write_text(manifest("c"))
        assert await reader.names() == ["a-n", "b-n", "c-n"]
        (folder / "b.yaml").unlink()
        assert await reader.names() == ["a-n", "c-n"]
        (folder / "a.yaml").write_text(manifest("a", "busybox:2"))
        post = await reader.next()
        assert next(iter(post.pods)).spec.containers[0].image == "busybox:2"
        await reader.quiet()


async def test_an_empty_directory_is_an_answer(folder: Path) -> None:
    async with source(folder) as reader:
        assert await reader.next() == SourceChanged("file", ())


async def test_first_seen_stays_and_unchanged_pods_are_the_same_objects(folder: Path) -> None:
    (folder / "a.yaml").write_text(manifest("a"))
    async with source(folder) as reader:
        (before,) = (await reader.next()).pods
        (folder / "b.yaml").write_text(manifest("b"))
        after = next(iter((await reader.next()).pods))
        assert after is before
        assert after.metadata.annotations["kubernetes.io/config.seen"].endswith("Z")
        os.utime(folder / "a.yaml", (1, 1))
        await reader.quiet()


async def test_bad_files_are_reported_and_disturb_no_other(folder: Path) -> None:
    (folder / "good.yaml").write_text(manifest("good"))
    (folder / "bad.yaml").write_text("a: [")
    (folder / "huge.yaml").write_bytes(b"#" * (11 << 20))
    (folder / ".hidden").write_text(manifest("hidden"))
    (folder / "sub").mkdir()
    (folder / "link").symlink_to(folder / "sub")
    (folder / "gone").symlink_to(folder / "nowhere")
    os.mkfifo(folder / "fifo")
    (folder / "null").symlink_to("/dev/null")
    async with source(folder) as reader:
        post = await reader.next()
        assert [pod.metadata.name for pod in post.pods] == ["good-n"]
        assert [(os.path.basename(wrong.origin), wrong.reason) for wrong in post.problems] == [
            ("fifo", "not a regular file but a fifo"),
            ("null", "not a regular file but a char-device"),
            ("bad.yaml", "not valid YAML: did not find expected node content (line 2)"),
            ("huge.yaml", "manifest is larger than 10 MiB"),
        ]
        (folder / "bad.yaml").write_text(manifest("bad"))
        post = await reader.next()
        assert [pod.metadata.name for pod in post.pods] == ["bad-n", "good-n"]
        assert [os.path.basename(wrong.origin) for wrong in post.problems] == ["fifo", "null", "huge.yaml"]


async def test_a_field_that_is_ignored_is_remarked_until_it_is_mended(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = folder / "a.yaml"
    with caplog.at_level("WARNING", "pykubelet.sources"):
        path.write_text(manifest("a") + "spex: 1\n")
        async with source(folder) as reader:
            post = await reader.next()
            assert [pod.metadata.name for pod in post.pods] == ["a-n"] and post.problems == ()
            assert [(remark.origin, remark.field_path, remark.uid) for remark in post.remarks] == [
                (str(path), "spex", next(iter(post.pods)).metadata.uid)
            ]
            (folder / "b.yaml").write_text(manifest("b"))
            await reader.until(lambda post: has_pod("b-n", post) and len(post.remarks) == 1)
            path.write_text(manifest("a") + "spex: 1\nspez: 2\n")
            await reader.until(lambda post: len(post.remarks) == 2)
            before = post.pods
            path.write_text(manifest("a"))
            post = await reader.until(lambda post: post.remarks == ())
            assert next(iter(post.pods)) == next(iter(before)), "the pod is the same all the time"
    fields = [record.fields["field"] for record in caplog.records]  # type: ignore[attr-defined]
    assert fields == ["spex", "spez"], "each remark is logged once"


async def test_a_single_file_has_its_remarks(tmp_path: Path) -> None:
    path = tmp_path / "pod.yaml"
    path.write_text(manifest("a") + "spex: 1\n")
    async with source(path) as reader:
        post = await reader.next()
        assert has_only("a-n", post) and [remark.field_path for remark in post.remarks] == ["spex"]


async def test_same_name_in_two_files_is_the_rosters_business(folder: Path) -> None:
    (folder / "a.yaml").write_text(manifest("a"))
    (folder / "b.yaml").write_text(manifest("a"))
    async with source(folder) as reader:
        first, second = (await reader.next()).pods
        assert (first.metadata.name, second.metadata.name) == ("a-n", "a-n")
        assert first.metadata.uid != second.metadata.uid


async def test_single_file(tmp_path: Path) -> None:
    path = tmp_path / "pod.yaml"
    path.write_text(manifest("a"))
    async with source(path) as reader:
        assert await reader.names() == ["a-n"]
        (tmp_path / "other.yaml").write_text(manifest("other"))
        await reader.quiet()
        path.write_text("kind: [")
        post = await reader.next()
        assert [pod.metadata.name for pod in post.pods] == ["a-n"], "the last good set stays"
        assert len(post.problems) == 1
        new = tmp_path / "new.yaml"
        new.write_text(manifest("b"))
        new.rename(path)
        post = await reader.next()
        assert [pod.metadata.name for pod in post.pods] == ["b-n"] and post.problems == ()
        path.unlink()
        assert await reader.names() == []


async def test_of_a_single_file_the_good_documents_count_without_an_api_server(tmp_path: Path) -> None:
    path = tmp_path / "pod.yaml"
    path.write_text(f"{manifest('a')}---\nkind: Service\n---\nkind: [\n")
    async with source(path, is_standalone=True) as reader:
        post = await reader.next()
        assert [pod.metadata.name for pod in post.pods] == ["a-n"] and post.known
        assert [wrong.document for wrong in post.problems] == ["document 2, Service", "document 3"]


async def test_of_a_single_file_that_was_never_good_only_the_problem_is_posted(tmp_path: Path) -> None:
    path = tmp_path / "pod.yaml"
    path.write_text("kind: [")
    async with source(path) as reader:
        post = await reader.next()
        assert not post.known and post.pods == ()
        assert [wrong.origin for wrong in post.problems] == [str(path)] and post.problems[0].reason
        path.write_text("apiVersion: v1\nkind: Job\n")
        post = await reader.until(lambda post: post.problems[0].field_path == "kind")
        assert not post.known
        path.write_text(manifest("a"))
        post = await reader.next()
        assert [pod.metadata.name for pod in post.pods] == ["a-n"] and post.known and post.problems == ()
        path.write_text("kind: [")
        assert (await reader.next()).known, "what it had stands"


async def test_large_manifests_are_read_beside_the_loop(folder: Path) -> None:
    padding = "".join(f"# {n} padding padding padding padding padding\n" for n in range(6000))
    (folder / "a.yaml").write_text(padding + manifest("a"))
    async with source(folder) as reader:
        assert await reader.names() == ["a-n"]


@pytest.mark.parametrize("seed", range(2))
async def test_whatever_happens_the_last_set_is_what_is_there(folder: Path, seed: int) -> None:
    """Writers, editors, link farms and whole-directory swaps at random; no period helps."""
    random = Random(seed)
    names = [f"f{n}.yaml" for n in range(6)]

    def write(name: str) -> None:
        (folder / name).write_text(manifest(f"p{random.randrange(100)}", f"x:{random.randrange(100)}"))

    def replace(name: str) -> None:
        aside = folder / f".{name}"
        aside.write_text(manifest(f"p{random.randrange(100)}"))
        os.replace(aside, folder / name)

    def remove(name: str) -> None:
        (folder / name).unlink(missing_ok=True)

    def spoil(name: str) -> None:
        (folder / name).write_text("kind: [")

    def swap(name: str) -> None:
        aside = folder.with_name("aside")
        os.rename(folder, aside)
        os.rename(aside, folder)

    def rename(name: str) -> None:
        if os.path.exists(folder / name):
            os.rename(folder / name, folder / random.choice(names))

    posts: Mailbox[SourceChanged] = Mailbox("posts")
    async with Supervisor("test") as tasks:
        tasks.start_root(
            "s", FileSource(str(folder), ManifestRules("n"), 60.0, posts, SystemClock(), SingleFlight("test", 1)).run()
        )
        for _ in range(120):
            random.choice([write, replace, remove, spoil, swap, rename, write])(random.choice(names))
            if random.random() < 0.4:
                await asyncio.sleep(random.random() * 0.01)
        expected, bad = [], []
        for name in names:
            if name in os.listdir(folder):
                content = (folder / name).read_bytes()
                result = decode_manifest(content, file_origin(str(folder / name)), ManifestRules("n"))
                expected += [pod.metadata.uid for pod in result if isinstance(pod, Pod)]
                bad += [str(folder / name) for item in result if isinstance(item, ManifestProblem)]

        def reported(post: SourceChanged) -> tuple[list[str], list[str]]:
            return [pod.metadata.uid for pod in post.pods], [wrong.origin for wrong in post.problems]

        last: tuple[list[str], list[str]] | None = None
        with suppress(TimeoutError):
            async with asyncio.timeout(30):
                while last != (expected, bad):
                    last = reported((await posts.get_all())[-1])
        assert last == (expected, bad)
        await asyncio.sleep(SETTLE_S + 0.2)
        # late events of a file that was away and is back make its pod anew
        assert all(reported(post) == (expected, bad) for post in posts.take_all()), "and there it stays"
