"""The registry of volume kinds: one for each module in `kinds/`.

A kind without a module is represented by a `VolumeKind` that plans nothing. Its volumes on disk are unmounted; their data
are kept.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any, Final

from pykubelet.base.api.core import Volume
from pykubelet.base.api.storage import PersistentVolumeSpec
from pykubelet.provide.volumes import kinds
from pykubelet.provide.volumes.kind import HEAVY, VolumeKind

AnyKind = VolumeKind[Any]


def _load() -> Iterable[AnyKind]:
    for module in pkgutil.iter_modules(kinds.__path__):
        kind: AnyKind = import_module(f"{kinds.__name__}.{module.name}").KIND
        yield kind


KINDS: Final[Mapping[str, AnyKind]] = {kind.name: kind for kind in _load()}
_BY_DIRECTORY: Final[Mapping[str, AnyKind]] = {kind.directory: kind for kind in KINDS.values() if kind.directory}
_DRIVEN: Final = next(kind for kind in KINDS.values() if kind.driver_directory is not None)
_SOURCES: Final = tuple(name for name in Volume.__struct_fields__ if name != "name")
#: The directories of the kinds below a pod's `volumes`, except for those that have the name of a driver.
DIRECTORIES: Final = frozenset(_BY_DIRECTORY)
#: The plugin's name in metrics, such as `kubernetes.io/empty-dir`, by the name of the kind.
PLUGINS: Final[Mapping[str, str]] = {k.name: k.plugin for k in KINDS.values() if k.plugin and (k.set_up or k.mount)}


def kind_named(name: str) -> AnyKind:
    """The kind with this name; without a module, a kind that plans nothing."""
    return KINDS.get(name) or VolumeKind(name)


def kind_in(directory: str) -> AnyKind:
    """The kind with this directory below a pod's `volumes`, such as `kubernetes.io~empty-dir`; "": a kind without one."""
    return _BY_DIRECTORY.get(directory, _DRIVEN) if directory else VolumeKind("")


def directory_of(volume: Volume) -> str:
    """The directory of a volume's kind below the pod's `volumes`; "" for kinds without one, and for claims."""
    kind = kind_of(volume)
    return kind.driver_directory(volume) if kind.driver_directory is not None else kind.directory


def is_heavy(volume: Volume) -> bool:
    """Whether a plan of the volume takes too long for the event loop."""
    return kind_of(volume).weight(volume) >= HEAVY


def kind_of(volume: Volume) -> AnyKind:
    """The kind of a volume, by the field that is set. A volume without a source is an emptyDir."""
    for name in _SOURCES:
        if getattr(volume, name) is not None:
            return kind_named(name)
    return KINDS["emptyDir"]


def kind_of_persistent(volume: PersistentVolumeSpec) -> AnyKind | None:
    """The kind of a persistent volume, by the field that is set; None when pods cannot use it."""
    fields = (name for name in volume.__struct_fields__ if name in KINDS and KINDS[name].is_persistent)
    return next((KINDS[name] for name in fields if getattr(volume, name) is not None), None)
