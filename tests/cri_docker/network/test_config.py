"""Configurations of networks: which are read, and what is reported of the others."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pykubelet_cri_docker.network.config import MAX_PLUGINS, read_kept, read_list, read_single
from pykubelet_cri_docker.network.model import CniError


def text(**fields: Any) -> bytes:
    document = {"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "bridge"}]} | fields
    return json.dumps({name: value for name, value in document.items() if value is not None}).encode()


def test_a_list_with_its_plugins() -> None:
    plugins = [
        {"type": "bridge", "ipam": {"type": "host-local"}},
        {"type": "portmap", "capabilities": {"portMappings": True, "x": False}},
    ]
    network = read_list(text(plugins=plugins, disableCheck=True))
    assert (network.name, network.version, network.disable_check, network.disable_gc) == ("net", "1.0.0", True, False)
    assert [plugin.type for plugin in network.plugins] == ["bridge", "portmap"]
    assert network.plugins[0].config == plugins[0]
    assert network.plugins[1].capabilities == {"portMappings"}


def test_a_single_plugin_is_a_list_of_its_own() -> None:
    config = {"cniVersion": "0.3.1", "name": "net", "type": "bridge", "isGateway": True}
    network = read_single(json.dumps(config).encode())
    assert (network.name, network.version) == ("net", "0.3.1")
    assert network.plugins[0].config == config
    assert read_list(network.text) == network


def test_a_kept_configuration_is_a_list_or_a_single_plugin() -> None:
    assert read_kept(text()) == read_list(text())
    assert read_kept(b'{"name": "net", "type": "bridge"}').plugins[0].type == "bridge"


@pytest.mark.parametrize(
    ("fields", "version"),
    [
        ({"cniVersion": None}, "0.1.0"),
        ({"cniVersion": "0.3.1"}, "0.3.1"),
        ({"cniVersion": "0.4.0", "cniVersions": ["0.3.1", "1.1.0", "1.0.0"]}, "1.1.0"),
        ({"cniVersion": "1.0.0", "cniVersions": ["2.0.0"]}, "1.0.0"),
        ({"cniVersion": None, "cniVersions": ["0.4.0"]}, "0.4.0"),
    ],
)
def test_the_highest_known_version_is_used(fields: dict[str, Any], version: str) -> None:
    assert read_list(text(**fields)).version == version


@pytest.mark.parametrize(("value", "found"), [(True, True), ("true", True), ("False", False), (False, False)])
def test_switches_are_booleans_or_text(value: Any, found: bool) -> None:
    network = read_list(text(disableCheck=value, disableGC=value))
    assert (network.disable_check, network.disable_gc) == (found, found)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"{", "truncated"),
        (b"\xff", "malformed"),
        (b"[]", "Expected `object`"),
        (b"[" * 100_000, ""),
        (text(name=None), "required field `name`"),
        (text(name="a/b"), 'the network name "a/b" must have'),
        (text(name=""), 'the network name ""'),
        (text(plugins=[]), "the list has no plugins"),
        (text(plugins=[{"type": "x"}] * (MAX_PLUGINS + 1)), f"more than {MAX_PLUGINS} plugins"),
        (text(plugins=[{"name": "x"}]), "required field `type`"),
        (text(plugins=[{"type": "../x"}]), "must be the name of a program"),
        (text(plugins=[{"type": ".."}]), "must be the name of a program"),
        (text(plugins=["x"]), "Expected `object`"),
        (text(cniVersion="2.0.0"), "cniVersion 2.0.0 is not supported: the last one is 1.1.0"),
        (text(disableCheck="maybe"), 'disableCheck must be true or false, not "maybe"'),
    ],
)
def test_problems_are_named(data: bytes, problem: str) -> None:
    with pytest.raises(CniError) as caught:
        read_list(data)
    assert problem in str(caught.value)
    assert len(str(caught.value)) < 500


def test_a_list_with_the_suffix_of_a_single_plugin() -> None:
    with pytest.raises(CniError, match=r"must end with \.conflist"):
        read_single(text())
