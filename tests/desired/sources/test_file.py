"""The file source on a real directory with real notifications."""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from math import inf
from pathlib import Path
from random import Random

import pytest

from pykubelet.base.api.core import Pod
from pykubelet.base.kit.backoff import BackoffPolicy
from pykubelet.base.kit.clock import Clock, SystemClock
from pykubelet.base.kit.flight import SingleFlight
from pykubelet.base.kit.mailbox import Mailbox
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.model.roster import ManifestProblem, SourceChanged
from pykubelet.desired.sources import file
from pykubelet.desired.sources.decode import ManifestRules, decode_manifest
from pykubelet.desired.sources.file import FileSource
from pykubelet.desired.sources.manifests import SETTLE_S
from pykubelet.desired.sources.static import file_origin
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.inotify import FileEvent, Watcher


def manifest(name: str, image: str = "busybox:1") -> str:
    return f"apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{containers: [{{name: c, image: '{image}'}}]}}\n"


class Reader:
    """What the source posted, one at a time."""

    def __init__(self, posts: Mailbox[SourceChanged]) -> None:
        self.posts = posts

    async def next(self, within_s: float = 30.0) -> SourceChanged:
        async with asyncio.timeout(within_s):
            return await self.posts.get()

    async def names(self) -> list[str]:
        return [pod.metadata.name for pod in (await self.next()).pods]

    async def until(self, condition: Callable[[SourceChanged], bool]) -> SourceChanged:
        while not condition(post := await self.next()):
            pass
        return post

    async def quiet(self, for_s: float = 0.15) -> None:
        with pytest.raises(TimeoutError):
            await self.next(for_s)


def has_only(name: str, post: SourceChanged) -> bool:
    return [pod.metadata.name for pod in post.pods] == [name]


def has_pod(name: str, post: SourceChanged) -> bool:
    return name in [pod.metadata.name for pod in post.pods]


class FilesClock(SystemClock):
    """On the wall it stands still at a file's date once that is set: then only the test makes the file older. Its monotonic time
    passes only by `pass_s`."""

    def __init__(self) -> None:
        self._held: float | None = None
        self._monotonic = 1.0

    def monotonic(self) -> float:
        return self._monotonic

    def pass_s(self, seconds: float) -> None:
        self._monotonic += seconds

    def wall(self) -> float:
        return super().wall() if self._held is None else self._held

    def hold(self, path: Path, age_s: float) -> None:
        self._held = path.stat().st_mtime + age_s


@asynccontextmanager
async def source(
    path: Path, period_s: float = 60.0, make_watcher: Callable[[], Watcher] = Watcher, clock: Clock | None = None
) -> AsyncIterator[Reader]:
    posts: Mailbox[SourceChanged] = Mailbox("posts")
    async with Supervisor("test") as tasks:
        flight = SingleFlight("test", 1)
        watching = FileSource(
            str(path), ManifestRules("n"), period_s, posts, clock or SystemClock(), flight, make_watcher
        )
        task = tasks.start_root("source", watching.run())
        yield Reader(posts)
        assert not task.done(), task
    assert len(posts) == 0, "unexpected posts"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "manifests"
    path.mkdir()
    return path


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
        assert post.pods[0].spec.containers[0].image == "busybox:2"
        await reader.quiet()


async def test_an_empty_directory_is_an_answer(folder: Path) -> None:
    async with source(folder) as reader:
        assert await reader.next() == SourceChanged("file", ())


async def test_first_seen_stays_and_unchanged_pods_are_the_same_objects(folder: Path) -> None:
    (folder / "a.yaml").write_text(manifest("a"))
    async with source(folder) as reader:
        (before,) = (await reader.next()).pods
        (folder / "b.yaml").write_text(manifest("b"))
        after = (await reader.next()).pods[0]
        assert after is before
        assert after.metadata.annotations["kubernetes.io/config.seen"].endswith("Z")
        os.utime(folder / "a.yaml", (1, 1))
        await reader.quiet()


async def test_a_file_that_is_removed_and_back_at_once_is_seen_anew(folder: Path) -> None:
    (folder / "a.yaml").write_text(manifest("a"))
    (folder / "b.yaml").write_text(manifest("b"))
    async with source(folder) as reader:
        before = (await reader.next()).pods
        (folder / "a.yaml").unlink()
        (folder / "a.yaml").write_text(manifest("a"))
        after = (await reader.next()).pods
        assert [pod.metadata.uid for pod in after] == [pod.metadata.uid for pod in before]
        seen = [pod.metadata.annotations["kubernetes.io/config.seen"] for pod in (*before, *after)]
        assert seen[2] > seen[0] and after[1] is before[1]
        (folder / ".new").write_text(manifest("a"))
        (folder / ".new").rename(folder / "a.yaml")  # put in its place, as editors do: it was never away
        await reader.quiet()


@pytest.mark.parametrize("scanned", [False, True], ids=["at once", "with a scan between all steps"])
async def test_a_save_by_rename_of_the_same_content_changes_nothing(folder: Path, scanned: bool) -> None:
    """As vim does it: the file becomes a backup, is written anew, and the backup is removed."""
    file, backup = folder / "a.yaml", folder / "a.yaml~"
    file.write_text(manifest("a"))
    (folder / "a-copy.yaml").write_text(manifest("a"))
    async with source(folder, clock=FilesClock()) as reader:
        await reader.next()
        between = reader.quiet if scanned else partial(asyncio.sleep, 0)
        file.rename(backup)
        await between()
        with file.open("w") as writer:
            await between()
            writer.write(manifest("a"))
        await between()
        backup.unlink()
        await reader.quiet()


async def test_a_save_by_rename_counts_when_the_file_is_closed(folder: Path) -> None:
    file, backup = folder / "a.yaml", folder / "a.yaml~"
    file.write_text(manifest("a"))
    clock = FilesClock()
    async with source(folder, clock=clock) as reader:
        await reader.next()
        file.rename(backup)
        await reader.quiet()
        file.write_text(manifest("a", "busybox:2"))
        post = await reader.next()
        assert [pod.spec.containers[0].image for pod in post.pods] == ["busybox:2"]
        await reader.quiet()  # the backup is not read before it has stayed for a while, as that of emacs does
        clock.pass_s(SETTLE_S)
        assert (await reader.next()).origins == (str(file), str(backup))


async def test_a_file_that_was_renamed_is_another_one_after_a_while(folder: Path) -> None:
    (folder / "a.yaml").write_text(manifest("a"))
    clock = FilesClock()
    async with source(folder, clock=clock) as reader:
        before = await reader.next()
        (folder / "a.yaml").rename(folder / "b.yaml")
        await reader.quiet()
        clock.pass_s(SETTLE_S)
        after = await reader.next()
        assert after.origins == (str(folder / "b.yaml"),)
        assert after.pods[0].metadata.uid != before.pods[0].metadata.uid


@pytest.mark.parametrize("target", ["../a.yaml", ".a.yaml"])
async def test_a_file_that_is_moved_away_is_gone_at_once(folder: Path, target: str) -> None:
    (folder / "a.yaml").write_text(manifest("a"))
    async with source(folder, clock=FilesClock()) as reader:
        await reader.next()
        (folder / "a.yaml").rename(folder / target)
        assert await reader.names() == []


async def test_a_file_that_is_renamed_and_removed_is_gone_at_once(folder: Path) -> None:
    (folder / "a.yaml").write_text(manifest("a"))
    async with source(folder, clock=FilesClock()) as reader:
        await reader.next()
        (folder / "a.yaml").rename(folder / "b.yaml")
        await reader.quiet()
        (folder / "b.yaml").unlink()
        assert await reader.names() == []


async def test_a_file_that_is_renamed_over_another_counts_at_once(folder: Path) -> None:
    (folder / "a.yaml").write_text(manifest("a"))
    (folder / "b.yaml").write_text(manifest("b"))
    async with source(folder, clock=FilesClock()) as reader:
        await reader.next()
        (folder / "b.yaml").rename(folder / "a.yaml")
        post = await reader.next()
        assert (post.pods[0].metadata.name, post.origins[0]) == ("b-n", str(folder / "a.yaml"))


async def test_a_single_file_that_is_saved_by_rename_keeps_its_pod(tmp_path: Path) -> None:
    file, backup = tmp_path / "pod.yaml", tmp_path / "pod.yaml~"
    file.write_text(manifest("a"))
    clock = FilesClock()
    async with source(file, clock=clock) as reader:
        await reader.next()
        file.rename(backup)
        await reader.quiet()
        file.write_text(manifest("a"))
        backup.unlink()
        await reader.quiet()
        file.rename(backup)
        await reader.quiet()
        clock.pass_s(SETTLE_S)
        assert await reader.names() == []


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
                (str(path), "spex", post.pods[0].metadata.uid)
            ]
            (folder / "b.yaml").write_text(manifest("b"))
            await reader.until(lambda post: has_pod("b-n", post) and len(post.remarks) == 1)
            path.write_text(manifest("a") + "spex: 1\nspez: 2\n")
            await reader.until(lambda post: len(post.remarks) == 2)
            before = post.pods
            path.write_text(manifest("a"))
            post = await reader.until(lambda post: post.remarks == ())
            assert post.pods[0] == before[0], "the pod is the same all the time"
    fields = [record.fields["field"] for record in caplog.records]  # type: ignore[attr-defined]
    assert fields == ["spex", "spez"], "each remark is logged once"


async def test_a_single_file_has_its_remarks(tmp_path: Path) -> None:
    path = tmp_path / "pod.yaml"
    path.write_text(manifest("a") + "spex: 1\n")
    async with source(path) as reader:
        post = await reader.next()
        assert has_only("a-n", post) and [remark.field_path for remark in post.remarks] == ["spex"]


async def test_a_file_edited_badly_drops_out_when_its_writer_is_done(folder: Path) -> None:
    path = folder / "a.yaml"
    path.write_text(manifest("a"))
    async with source(folder) as reader:
        assert await reader.names() == ["a-n"]
        path.write_text("kind: [")
        post = await reader.next()
        assert post.pods == () and len(post.problems) == 1


async def test_a_file_being_written_keeps_its_pod(folder: Path) -> None:
    path = folder / "a.yaml"
    path.write_text(manifest("a"))
    async with source(folder) as reader:
        assert await reader.names() == ["a-n"]
        with path.open("w") as half:
            half.write("apiVersion: v1\nkind: Pod\n")
            half.flush()
            (folder / "b.yaml").write_text(manifest("b"))  # another event makes it look at the directory
            post = await reader.next()
            assert [pod.metadata.name for pod in post.pods] == ["a-n", "b-n"] and post.problems == ()
            half.write("metadata: {name: a}\nspec: {containers: [{name: c, image: 'x:2'}]}\n")
        post = await reader.next()
        assert [pod.spec.containers[0].image for pod in post.pods] == ["x:2", "busybox:1"]


async def test_what_happens_to_one_file_makes_no_other_forgotten(folder: Path, tmp_path: Path) -> None:
    """A look because of one file passes over those to which nothing has happened, but not over a half written one."""
    elsewhere = tmp_path / "linked.yaml"
    elsewhere.write_text(manifest("link"))
    (folder / "link.yaml").symlink_to(elsewhere)
    (folder / "still.yaml").write_text(manifest("still"))
    clock = FilesClock()
    async with source(folder, clock=clock) as reader:
        assert await reader.names() == ["link-n", "still-n"]
        with (folder / "slow.yaml").open("w") as slow:
            slow.write(manifest("slow"))
            slow.flush()
            clock.hold(folder / "slow.yaml", 0.1)
            (folder / "quick.yaml").write_text(manifest("quick"))
            assert await reader.names() == ["link-n", "quick-n", "still-n"]
            clock.hold(folder / "slow.yaml", 2 * SETTLE_S)
            assert await reader.names() == ["link-n", "quick-n", "slow-n", "still-n"], "it is still by now"
        await reader.quiet()
        elsewhere.write_text(manifest("other"))
        clock.hold(elsewhere, 2 * SETTLE_S)
        (folder / "quick.yaml").unlink()
        # a scan that is under way because the other file was closed may see the removal first
        await reader.until(lambda post: [pod.metadata.name for pod in post.pods] == ["other-n", "slow-n", "still-n"])


async def test_a_new_file_counts_when_it_is_closed(folder: Path) -> None:
    clock = FilesClock()
    async with source(folder, clock=clock) as reader:
        assert await reader.names() == []
        with (folder / "a.yaml").open("w") as growing:
            growing.write(manifest("a"))
            growing.flush()
            clock.hold(folder / "a.yaml", 0.1)
            await reader.quiet(0.1)
        assert await reader.names() == ["a-n"]


async def test_a_link_without_a_writer_is_seen_soon(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "elsewhere.yaml"
    target.write_text(manifest("a"))
    async with source(folder) as reader:
        assert await reader.names() == []
        (folder / "a.yaml").symlink_to(target)
        assert await reader.names() == ["a-n"]


async def test_same_name_in_two_files_is_the_rosters_business(folder: Path) -> None:
    (folder / "a.yaml").write_text(manifest("a"))
    (folder / "b.yaml").write_text(manifest("a"))
    async with source(folder) as reader:
        first, second = (await reader.next()).pods
        assert (first.metadata.name, second.metadata.name) == ("a-n", "a-n")
        assert first.metadata.uid != second.metadata.uid


async def test_a_directory_that_vanishes_and_returns_is_followed(folder: Path) -> None:
    (folder / "a.yaml").write_text(manifest("a"))
    async with source(folder) as reader:
        (before,) = (await reader.next()).pods
        aside = folder.with_name("aside")
        os.rename(folder, aside)
        assert (await reader.next()).pods == ()
        (aside / "ignored.yaml").write_text(manifest("ignored"))
        await reader.quiet()
        for path in aside.iterdir():
            os.utime(path, (1, 1))  # they do not count as being written, so both are read at once
        os.rename(aside, folder)
        back = await reader.next()
        assert [pod.metadata.name for pod in back.pods] == ["a-n", "ignored-n"]
        assert back.pods[0].metadata.uid == before.metadata.uid
        (folder / "b.yaml").write_text(manifest("b"))
        assert await reader.names() == ["a-n", "b-n", "ignored-n"]


async def test_a_directory_below_missing_parents_is_waited_for(tmp_path: Path) -> None:
    folder = tmp_path / "etc" / "kubernetes" / "manifests"
    async with source(folder) as reader:
        assert await reader.names() == []
        folder.mkdir(parents=True)
        (folder / "a.yaml").write_text(manifest("a"))
        assert await reader.names() == ["a-n"]


async def test_the_period_finds_what_events_missed(tmp_path: Path) -> None:
    """Another directory takes the place of a parent: no event comes from below it."""
    folder = tmp_path / "x" / "manifests"
    folder.mkdir(parents=True)
    (folder / "a.yaml").write_text(manifest("a"))
    other = tmp_path / "y" / "manifests"
    other.mkdir(parents=True)
    (other / "b.yaml").write_text(manifest("b"))
    os.utime(other / "b.yaml", (1, 1))
    async with source(folder, period_s=0.1) as reader:
        assert await reader.names() == ["a-n"]
        (tmp_path / "x").rename(tmp_path / "z")
        (tmp_path / "y").rename(tmp_path / "x")
        await reader.until(lambda post: [pod.metadata.name for pod in post.pods] == ["b-n"])
        (folder / "c.yaml").write_text(manifest("c"))
        assert await reader.names() == ["b-n", "c-n"]


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


async def test_a_file_whose_writer_is_done_does_not_wait_to_settle(folder: Path) -> None:
    for n in range(20):
        (folder / f"p{n}.yaml").write_text(manifest(f"p{n}"))
    async with source(folder) as reader:
        await reader.next()
        taken: list[float] = []
        for n in range(10):
            (folder / ".new").write_text(manifest("new", f"x:{n}"))
            start = time.perf_counter()
            os.replace(folder / ".new", folder / "new.yaml")
            post = await reader.next()
            taken.append(time.perf_counter() - start)
            assert post.pods[0].spec.containers[0].image == f"x:{n}"
            assert isinstance(post.pods[0], Pod)
        assert min(taken) < SETTLE_S / 2, taken


async def test_a_directory_deleted_and_made_anew(folder: Path) -> None:
    async with source(folder) as reader:
        assert await reader.names() == []
        for n in range(3):
            os.rmdir(folder)
            os.mkdir(folder)
            (folder / f"p{n}.yaml").write_text(manifest(f"p{n}"))
            await reader.until(partial(has_only, f"p{n}-n"))
            (folder / f"p{n}.yaml").unlink()
            await reader.until(lambda post: post.pods == ())


async def test_without_notifications_the_period_is_enough(folder: Path) -> None:
    def no_watcher() -> Watcher:
        raise HostError("inotify_init", "", "EMFILE", "too many open files")

    async with source(folder, period_s=0.05, make_watcher=no_watcher) as reader:
        assert await reader.names() == []
        (folder / "a.yaml").write_text(manifest("a"))
        assert await reader.names() == ["a-n"]


async def test_a_watch_that_cannot_be_had_is_begun_later(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "RESTART", BackoffPolicy(0.01, 0.02))
    refusals = [HostError("inotify_init", "", "EMFILE", "too many open files")] * 3

    def late_watcher() -> Watcher:
        if refusals:
            raise refusals.pop()
        return Watcher()

    async with source(folder, make_watcher=late_watcher) as reader:
        assert await reader.names() == []
        (folder / "a.yaml").write_text(manifest("a"))
        assert await reader.names() == ["a-n"]


async def test_a_watch_that_is_lost_is_begun_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "RESTART", BackoffPolicy(0.01, 0.02))

    class Breaking(Watcher):
        """Breaks at its first event, which is lost with it."""

        async def get_all(self, deadline: float = inf) -> list[FileEvent]:
            await super().get_all(deadline)
            raise OSError(errno.EIO, "the watch is gone")

    made = [Watcher, Breaking, Breaking]
    async with source(folder, make_watcher=lambda: made.pop()() if made else Watcher()) as reader:
        assert await reader.names() == []
        for name in ("a", "b", "c"):
            (folder / f"{name}.yaml").write_text(manifest(name))
            await reader.until(partial(has_pod, f"{name}-n"))


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
