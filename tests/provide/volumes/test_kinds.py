"""What every volume kind must keep, and what the registry knows of the kinds that there are."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from types import ModuleType
from typing import Any

import pytest

from pykubelet.base.api.codec import from_object
from pykubelet.base.api.core import Pod, Volume
from pykubelet.base.api.storage import PersistentVolumeSpec
from pykubelet.base.model.content import Content
from pykubelet.provide.volumes import kinds
from pykubelet.provide.volumes.directories import delete_volume, release_volume
from pykubelet.provide.volumes.kind import VolumeKind
from pykubelet.provide.volumes.plan import KINDS, PLUGINS, kind_in, kind_of, volume_keys

FIELDS = frozenset(Volume.__struct_fields__) - {"name"}
#: What decides, and therefore may only call what is pure.
DECIDING = ("keys", "plan", "needs_refresh")


def test_each_module_provides_one_kind() -> None:
    modules = [path for path in Path(kinds.__path__[0]).glob("*.py") if path.stem != "__init__"]
    assert len(KINDS) == len(modules)
    fields = FIELDS | frozenset(PersistentVolumeSpec.__struct_fields__)
    assert KINDS.keys() <= fields, "a kind is named by its field in a pod's volume or a persistent one"
    directories = [kind.directory for kind in KINDS.values() if kind.directory]
    assert len(set(directories)) == len(directories)
    assert all(kind.has_directory is False or kind.plugin for kind in KINDS.values()), "a directory needs a name"


@pytest.mark.parametrize("name", KINDS)
def test_a_kind_decides_without_the_host(name: str) -> None:
    """Follows the calls from `plan`, `keys` and `needs_refresh` through the kind's own module; the rest must be pure modules."""
    called = [function for field in DECIDING if (function := getattr(KINDS[name], field)) is not None]
    assert [origin for function in called for origin in origins(function) if not is_pure(origin)] == []


def origins(function: Callable[..., Any]) -> set[str]:
    """The modules whose names a function uses, as do the functions of its module that it calls."""
    module = sys.modules[function.__module__]
    found: set[str] = set()
    seen: set[str] = set()
    waiting = [function.__name__]
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        value = getattr(module, name, None)
        home = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
        if home == module.__name__ and callable(value):
            tree = ast.parse(dedent(inspect.getsource(value)))
            waiting += [node.id for node in ast.walk(tree) if isinstance(node, ast.Name)]
        elif home is not None and home.startswith("pykubelet."):
            found.add(home)
        elif isinstance(value, ModuleType):
            found.add(home or name)
    return found


def is_pure(module: str) -> bool:
    if module.startswith("pykubelet.base.") or module in ("posixpath", VolumeKind.__module__):
        return True
    return "Pure." in (sys.modules[module].__doc__ or "") or " Pure;" in (sys.modules[module].__doc__ or "")


def test_calls_on_the_host_are_seen() -> None:
    """The check itself: what sets a volume up does use the host."""
    assert not all(is_pure(origin) for origin in origins(KINDS["emptyDir"].set_up or release_volume))
    assert not all(is_pure(origin) for origin in origins(KINDS["hostPath"].set_up or release_volume))


def test_kinds_whose_data_ends_with_the_pod() -> None:
    """The data of all other kinds, known or not, is left alone."""
    own = {"emptyDir", "configMap", "secret", "downwardAPI", "projected", "gitRepo"}
    assert {name for name, kind in KINDS.items() if kind.tear_down is delete_volume} == own
    for directory in ("kubernetes.io~rbd", "kubernetes.io~csi", "example.com~other", ""):
        assert kind_in(directory).tear_down is release_volume


def test_directories_and_plugins() -> None:
    """Both are public: metrics name plugins, and other programs read the directories of a node."""
    expected = {
        "configMap": "kubernetes.io/configmap",
        "downwardAPI": "kubernetes.io/downward-api",
        "emptyDir": "kubernetes.io/empty-dir",
        "hostPath": "kubernetes.io/host-path",
        "projected": "kubernetes.io/projected",
        "secret": "kubernetes.io/secret",
    }
    assert expected.items() <= PLUGINS.items()
    assert PLUGINS.keys().isdisjoint({"gitRepo", "image"}), "the metrics count neither"
    assert kind_in("kubernetes.io~git-repo") is KINDS["gitRepo"]
    assert KINDS["hostPath"].directory == KINDS["image"].directory == ""


@pytest.mark.parametrize("name", sorted(FIELDS))
def test_each_field_of_a_volume_names_its_kind(name: str) -> None:
    source: dict[str, Any] = {name: object()}
    volume = Volume(name="v", **source)
    assert kind_of(volume).name == name


def test_a_volume_without_a_source_is_an_empty_dir() -> None:
    assert kind_of(Volume(name="v")) is KINDS["emptyDir"]


def test_a_kind_without_references_has_no_keys() -> None:
    volume = from_object(Volume, {"name": "v", "emptyDir": {}})
    assert list(volume_keys(Pod(), volume, Content())) == []
