from __future__ import annotations

import os
from pathlib import Path

import pytest

from pykubelet.edges.plugins.pull_credentials import docker_config_paths, read_docker_configs


def test_the_search_order_is_the_references() -> None:
    assert docker_config_paths("/var/lib/kubelet", "/cwd", "/root") == (
        ("/var/lib/kubelet/config.json", False),
        ("/cwd/config.json", False),
        ("/root/.docker/config.json", False),
        ("/.docker/config.json", False),
        ("/var/lib/kubelet/.dockercfg", True),
        ("/cwd/.dockercfg", True),
        ("/root/.dockercfg", True),
        ("/.dockercfg", True),
    )


def test_without_home_and_from_the_root_nothing_is_read_twice() -> None:
    assert [path for path, _ in docker_config_paths("/k", "/", "")] == [
        "/k/config.json",
        "/config.json",
        "/.docker/config.json",
        "/k/.dockercfg",
        "/.dockercfg",
    ]


def test_files_that_are_there_are_read_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, home, work = tmp_path / "kubelet", tmp_path / "home", tmp_path / "work"
    for folder in (root, home / ".docker", work):
        folder.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(work)
    (root / ".dockercfg").write_bytes(b"legacy")
    (home / ".docker" / "config.json").write_bytes(b"new")
    os.mkfifo(work / "config.json")
    found = [file for file in read_docker_configs(str(root)) if str(tmp_path) in file.path]
    assert [(file.path, file.legacy, file.data) for file in found] == [
        (f"{work}/config.json", False, b""),
        (f"{home}/.docker/config.json", False, b"new"),
        (f"{root}/.dockercfg", True, b"legacy"),
    ]
    assert "not a regular file" in found[0].problem
    assert "new" not in repr(found[1])
