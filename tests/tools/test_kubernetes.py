"""The images of a control plane that are made from a folder of programs."""

from __future__ import annotations

import json
import subprocess
import tarfile
from pathlib import Path

import pytest
from testbed import kubernetes
from testbed.host import TestbedError

KUBEADM = """#!/bin/sh
case "$1" in
  version) echo v1.36.9 ;;
  config) for name in kube-apiserver:v1.36.9 kube-proxy:v1.36.9 coredns/coredns:v1.1 pause:3.1 etcd:3.6-0 \\
    kube-controller-manager:v1.36.9 kube-scheduler:v1.36.9; do echo "registry.example/$name"; done ;;
esac
"""
#: Prints its arguments, as far as it is not asked for its version.
ETCD = """#!/bin/sh
case "$1" in --version) echo "etcd Version: VERSION" ;; *) printf '%s\\n' "$@" ;; esac
"""


def put(folder: Path, name: str, text: str = "#!/bin/sh\n") -> None:
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


@pytest.fixture
def binaries(tmp_path: Path) -> Path:
    folder = tmp_path / "binaries"
    folder.mkdir()
    for name in (*kubernetes.COMMANDS, *kubernetes.SERVERS):
        put(folder, name)
    put(folder, "kubeadm", KUBEADM)
    put(folder, "etcd", ETCD.replace("VERSION", "3.6.1"))
    return folder


def names(archive: Path) -> list[str]:
    with tarfile.open(archive) as tar:
        member = tar.extractfile("manifest.json")
        assert member is not None
        tags: list[str] = json.load(member)[0]["RepoTags"]
        return tags


def unpack(archive: Path, folder: Path) -> Path:
    """The image's root file system."""
    folder.mkdir()
    with tarfile.open(archive) as tar:
        (layer,) = (name for name in tar.getnames() if name.endswith(".tar"))
        tar.extract(layer, folder, filter="data")
    with tarfile.open(folder / layer) as tar:
        wanted = [member for member in tar.getmembers() if member.name.startswith("usr/local/bin/")]
        tar.extractall(folder, wanted, filter="data")
    return folder


def test_images_have_the_names_that_kubeadm_looks_for(binaries: Path, tmp_path: Path) -> None:
    made = [names(archive)[0] for archive in kubernetes.build(binaries, tmp_path / "out")]
    wanted = ["kube-apiserver:v1.36.9", "kube-controller-manager:v1.36.9", "kube-scheduler:v1.36.9"]
    assert made == [f"registry.example/{name}" for name in (*wanted, "etcd:3.6-0", "pause:3.1")]


def test_an_older_etcd_gets_the_flags_that_it_knows(binaries: Path, tmp_path: Path) -> None:
    put(binaries, "etcd", ETCD.replace("VERSION", "3.5.16"))
    kubernetes.build(binaries, tmp_path / "out")
    programs = unpack(tmp_path / "out/etcd.tar", tmp_path / "root") / "usr/local/bin"
    script = (programs / "etcd").read_text().replace("/usr/local/bin/", f"{programs}/")
    given = ["--name=a b", "--feature-gates=InitialCorruptCheck=true", "--watch-progress-notify-interval=5s"]
    done = subprocess.run(["sh", "-c", script, "etcd", *given], capture_output=True, text=True, check=True)
    experimental = ["initial-corrupt-check=true", "watch-progress-notify-interval=5s"]
    assert done.stdout.splitlines() == ["--name=a b", *(f"--experimental-{flag}" for flag in experimental)]


def test_images_that_are_there_are_taken_as_they_are(binaries: Path, tmp_path: Path) -> None:
    (binaries / "images").mkdir()
    (binaries / "images/mine.tar").write_bytes(b"an archive")
    assert [path.read_bytes() for path in kubernetes.build(binaries, tmp_path / "out")] == [b"an archive"]


def test_a_missing_program_is_named(binaries: Path) -> None:
    environment = {kubernetes.VARIABLE: str(binaries)}
    assert kubernetes.folder(environment) == binaries and kubernetes.folder({}) is None
    (binaries / "etcd").unlink()
    with pytest.raises(TestbedError, match="etcd is missing there"):
        kubernetes.folder(environment)
