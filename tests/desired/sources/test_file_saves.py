"""How manifests are written while the file source watches: renamed, moved, half written, saved by editors."""

from __future__ import annotations

import asyncio
import os
import time
from functools import partial
from pathlib import Path

import pytest
from desired.sources.stand import FilesClock, manifest, source

from pykubelet.base.api.core import Pod
from pykubelet.desired.sources.manifests import SETTLE_S


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
        assert seen[2] > seen[0] and [*after][1] is [*before][1]
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
        assert next(iter(after.pods)).metadata.uid != next(iter(before.pods)).metadata.uid


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
        assert (next(iter(post.pods)).metadata.name, post.origins[0]) == ("b-n", str(folder / "a.yaml"))


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
            assert next(iter(post.pods)).spec.containers[0].image == f"x:{n}"
            assert isinstance(next(iter(post.pods)), Pod)
        assert min(taken) < SETTLE_S / 2, taken
