"""Namespaces that are kept: what the tests' files promise, mounts do."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cni import NamespaceFiles

from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.mounts import is_mount_point
from pykubelet_cri_docker.network.pinned_namespaces import PinnedNamespaces

OWN_NS = "/proc/self/ns/net"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root")


@pytest.fixture(params=[NamespaceFiles, pytest.param(PinnedNamespaces, marks=needs_root)])
def pinned(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PinnedNamespaces]:
    made: PinnedNamespaces = request.param(str(tmp_path / "run" / "netns"))
    yield made
    for container_id in made.containers():
        made.release(container_id)


def test_a_namespace_is_kept_until_it_is_released(pinned: PinnedNamespaces) -> None:
    assert (pinned.containers(), pinned.find("c1")) == ([], "")
    pinned.pin("c1", OWN_NS)
    assert (pinned.containers(), pinned.find("c1")) == (["c1"], pinned.path("c1"))
    for _again in range(2):
        pinned.release("c1")
        assert (pinned.containers(), pinned.find("c1")) == ([], "")


def test_a_namespace_that_is_not_there_is_not_kept(pinned: PinnedNamespaces) -> None:
    with pytest.raises(HostError, match="no such file or directory"):
        pinned.pin("c1", "/proc/4194305/ns/net")


@needs_root
def test_the_newest_namespace_is_kept_and_a_plain_file_is_none(tmp_path: Path) -> None:
    pinned = PinnedNamespaces(str(tmp_path))
    (tmp_path / "c1").touch()  # as after a start of the machine with a directory that lasts
    assert pinned.find("c1") == ""
    for _again in range(2):
        pinned.pin("c1", OWN_NS)
    assert os.stat(pinned.find("c1")).st_ino == os.stat(OWN_NS).st_ino
    pinned.release("c1")
    assert not is_mount_point(pinned.path("c1"))
