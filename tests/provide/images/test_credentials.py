from __future__ import annotations

import asyncio
import logging

import pytest
from provide.images.stand import request

from pykubelet.edges.plugins.pull_credentials import DockerConfigFile
from pykubelet.provide.images.credentials import PullCredentials, choose_node_auths
from pykubelet.provide.images.keyring import Auth

REPO = "a.example/app"


def config(user: str) -> DockerConfigFile:
    return DockerConfigFile("/config.json", False, f'{{"auths": {{"a.example": {{"username": "{user}"}}}}}}'.encode())


def test_the_first_usable_file_counts() -> None:
    broken = DockerConfigFile("/root/config.json", False, b"{")
    unreadable = DockerConfigFile("/config.json", False, problem="open /config.json: permission denied")
    old = DockerConfigFile("/.dockercfg", True, b'{"b.example": {"username": "old"}}')
    auths, problems = choose_node_auths((broken, unreadable, config("ann"), old))
    assert auths == {"a.example": Auth("ann")}
    assert problems == (
        "/root/config.json: Input data was truncated",
        "/config.json: open /config.json: permission denied",
    )
    assert choose_node_auths((broken, old))[0] == {"b.example": Auth("old")}
    assert choose_node_auths(()) == ({}, ())


async def test_the_file_as_it_is_counts_for_every_pull() -> None:
    files = [config("ann")]
    under_test = PullCredentials(lambda: tuple(files), None)
    found = await asyncio.gather(*(under_test.lookup(request("x"), REPO) for _ in range(3)))
    assert {credentials[0].auth.username for credentials in found} == {"ann"}
    files[0] = config("bob")
    assert (await under_test.lookup(request("x"), REPO))[0].auth.username == "bob"
    files.clear()
    assert await under_test.lookup(request("x"), REPO) == ()


async def test_a_bad_file_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    under_test = PullCredentials(lambda: (DockerConfigFile("/config.json", False, b"hunter2"),), None)
    with caplog.at_level(logging.WARNING, "pykubelet"):
        for _ in range(3):
            assert await under_test.lookup(request("x"), REPO) == ()
    assert len(caplog.records) == 1
    assert "hunter2" not in caplog.text
