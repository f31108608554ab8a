"""Images built from files: the same bytes from the same input, owners and links as asked."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path

import pytest
from testbed import images
from testbed.images import Config, Entry


def read_image(archive: Path) -> tuple[dict[str, object], dict[str, tarfile.TarInfo], bytes]:
    """Configuration, layer entries and raw layer of a docker-archive."""
    with tarfile.open(archive) as tar:

        def member(name: str) -> bytes:
            stream = tar.extractfile(name)
            assert stream is not None
            return stream.read()

        (manifest,) = json.loads(member("manifest.json"))
        layer = member(manifest["Layers"][0])
        with tarfile.open(fileobj=io.BytesIO(layer)) as inner:
            return json.loads(member(manifest["Config"])), {m.name: m for m in inner.getmembers()}, layer


def test_the_same_input_gives_the_same_image(tmp_path: Path) -> None:
    files = {"/a/b": Entry(data=b"x", mode=0o640, uid=7, gid=8), "/a/link": Entry(link="b")}
    config = Config(entrypoint=("/a/b",), user="7", labels={"k": "v"})
    first = images.build_image("localhost/x:1", files, config, tmp_path / "one.tar")
    second = images.build_image("localhost/x:1", files, config, tmp_path / "two.tar")
    assert first == second
    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "two.tar").read_bytes()

    document, entries, layer = read_image(tmp_path / "one.tar")
    assert document["rootfs"] == {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(layer).hexdigest()]}
    settings = document["config"]
    assert isinstance(settings, dict)
    assert (settings["Entrypoint"], settings["User"], settings["Labels"]) == (["/a/b"], "7", {"k": "v"})
    assert "Cmd" not in settings
    assert (entries["a/b"].mode, entries["a/b"].uid, entries["a/b"].gid) == (0o640, 7, 8)
    assert entries["a/link"].issym()
    assert entries["a"].isdir()


def test_an_existing_archive_is_kept(tmp_path: Path) -> None:
    first = images.build(images.WRONG_PLATFORM, tmp_path)
    written = first.stat().st_mtime_ns
    assert images.build(images.WRONG_PLATFORM, tmp_path) == first
    assert first.stat().st_mtime_ns == written
    document, _, _ = read_image(first)
    assert document["architecture"] != "amd64" or document["os"] != "linux"


@pytest.mark.parametrize(("name", "user"), [(images.NONROOT, "1234"), (images.NAMED_USER, "worker")])
def test_images_with_a_user_say_so(name: str, user: str, tmp_path: Path) -> None:
    document, entries, _ = read_image(images.build(name, tmp_path))
    assert isinstance(document["config"], dict)
    assert document["config"]["User"] == user
    assert entries["bin/sh"].linkname == "busybox"
    assert entries["tmp"].mode == 0o1777


def test_a_dynamic_program_is_distinguished_from_a_static_one() -> None:
    def elf(kind: int) -> bytes:
        head = bytearray(64)
        head[:6], head[32], head[54], head[56] = b"\x7fELF\x02\x01", 64, 56, 1
        return bytes(head) + kind.to_bytes(4, "little") + bytes(52)

    assert images._needs_interpreter(elf(3))
    assert not images._needs_interpreter(elf(1))
