"""Attachments on disk, in the format of libcni."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from pykubelet.base.kit.values import replace
from pykubelet_cri_docker.network.model import Attachment
from pykubelet_cri_docker.network.result_cache import ResultCache, decode

ATTACHMENT = Attachment(
    "net", "c1", "eth0", "/proc/7/ns/net", b'{"name": "net"}', (("K8S_POD_NAME", "web"),), {"dns": {}}, {"ips": []}
)


@pytest.fixture
def cache(tmp_path: Path) -> ResultCache:
    return ResultCache(str(tmp_path / "cni"))


def test_the_file_is_that_of_libcni(cache: ResultCache, tmp_path: Path) -> None:
    cache.save(ATTACHMENT)
    path = tmp_path / "cni/results/net-c1-eth0"
    assert json.loads(path.read_bytes()) == {
        "kind": "cniCacheV1",
        "containerId": "c1",
        "config": base64.b64encode(b'{"name": "net"}').decode(),
        "ifName": "eth0",
        "networkName": "net",
        "netns": "/proc/7/ns/net",
        "cniArgs": [["K8S_POD_NAME", "web"]],
        "capabilityArgs": {"dns": {}},
        "result": {"ips": []},
    }
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_what_is_saved_is_found_and_removed(cache: ResultCache) -> None:
    assert cache.find_all() == []
    others = (
        replace(ATTACHMENT, container_id="c12", result=None),
        replace(ATTACHMENT, network="a-c1-b", container_id="c3"),
    )
    for attachment in (ATTACHMENT, *others):
        cache.save(attachment)
    assert cache.find("c1") == [ATTACHMENT]
    assert cache.find("c12") == [others[0]]
    assert len(cache.find_all()) == 3
    cache.remove(ATTACHMENT)
    cache.remove(ATTACHMENT)
    assert cache.find("c1") == []


@pytest.mark.parametrize(
    "data",
    [b"", b"\xff", b"[]", b"[" * 100_000, b'{"kind": "other"}', b'{"cniVersion": "0.3.1", "ips": []}',
     b'{"kind": "cniCacheV1", "containerId": "c1", "ifName": "eth0", "networkName": "net", "config": "%"}'],
)  # fmt: skip
def test_damaged_and_older_files_count_as_missing(cache: ResultCache, tmp_path: Path, data: bytes) -> None:
    cache.save(ATTACHMENT)
    (tmp_path / "cni/results/net-c1-eth0").write_bytes(data)
    assert (decode(data), cache.find("c1"), cache.find_all()) == (None, [], [])


def test_a_file_under_another_name_is_no_attachment(cache: ResultCache, tmp_path: Path) -> None:
    """Its removal would remove another file."""
    cache.save(ATTACHMENT)
    folder = tmp_path / "cni/results"
    (folder / "net-c1-eth0").rename(folder / "net-c1-eth1")
    (folder / "net-c1-eth2").symlink_to("net-c1-eth1")
    assert cache.find_all() == []


def test_what_an_interrupted_write_has_left_is_removed(cache: ResultCache, tmp_path: Path) -> None:
    cache.sweep()
    cache.save(ATTACHMENT)
    left = tmp_path / "cni/results/.net-c2-eth0.tmp-0123abcd"
    left.write_text("{")
    assert cache.find_all() == [ATTACHMENT]
    cache.sweep()
    assert not left.exists() and cache.find_all() == [ATTACHMENT]
