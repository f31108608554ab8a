"""Finds, checks and loads the extensions of `--extension NAME[=SETTINGS.yaml]`.

NAME is the entry point of an installed package in the group `GROUP`, or a file: one that is executable is a program that runs as a
process of its own, any other a Python module with one class. Nothing is loaded that other users can have written.
"""

from __future__ import annotations

import dataclasses
import inspect
import os
import re
import stat
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import entry_points
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType
from typing import Any

import msgspec

from pykubelet.base.api.document import DocumentError
from pykubelet.base.api.documents import load_document
from pykubelet.base.kit.text import nearest
from pykubelet.base.kit.values import Value
from pykubelet.config.errors import ConfigError
from pykubelet.config.kubelet import KubeletConfiguration
from pykubelet.config.validate_node import CPU_POLICIES, MEMORY_POLICIES, quoted_or
from pykubelet.edges.plugins.extension_process import ExtensionProgram
from pykubelet.extension import VERSION, Extension

GROUP = "pykubelet.extensions"
FLAG = "--extension"
MAX_BYTES = 1 << 20
#: The point of an extension that is a policy of the CPU manager.
PLACE = "place"
#: That of one that is a policy of the Memory Manager.
PLACE_MEMORY = "place_memory"
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_VERSION = re.compile(r"([0-9]{1,4})\.([0-9]{1,4})")
_ANNOTATION = re.compile(r"[A-Za-z0-9./_-]{1,317}", re.ASCII)
_BASE = frozenset(vars(Extension))
#: The points at which a class takes part: the methods of its base.
POINTS = tuple(
    name for name in vars(Extension) if inspect.isfunction(vars(Extension)[name]) and not name.startswith("_")
)


class LoadedExtension(Value):
    """An extension that was loaded. `file`: of its code. `content`: the code and the settings. `points`: those that it defines.

    `annotation`: as of its class.
    """

    extension: Extension
    file: str
    content: bytes
    points: tuple[str, ...]
    annotation: str = ""


class LoadedExtensions(Value):
    """The extensions in the order in which they were given."""

    extensions: tuple[LoadedExtension, ...] = ()
    programs: tuple[ExtensionProgram, ...] = ()


def load_extensions(given: Iterable[str]) -> LoadedExtensions:
    """Load the extensions of the command line. Raises ConfigError that names the extension and what to do."""
    extensions: list[LoadedExtension] = []
    programs: list[ExtensionProgram] = []
    names: set[str] = set()
    for text in given:
        source, _, settings_file = text.partition("=")
        try:
            found = _load(source, settings_file)
        except ExtensionRefused as error:
            raise ConfigError(f"{FLAG} {source}: {error}") from error
        name = found.name if isinstance(found, ExtensionProgram) else found.extension.name
        if name in names:
            raise ConfigError(f"{FLAG} {source}: an extension named {name} is loaded already: name each one once")
        names.add(name)
        if isinstance(found, ExtensionProgram):
            programs.append(found)
        else:
            extensions.append(found)
    return LoadedExtensions(tuple(extensions), tuple(programs))


def check_policy(config: KubeletConfiguration, loaded: LoadedExtensions) -> None:
    """Raise a ConfigError unless the policies of the CPU and Memory Manager are built-in ones, or those of extensions."""
    managers = (
        ("cpuManagerPolicy", "cpu-manager-policy", config.cpuManagerPolicy, CPU_POLICIES, PLACE),
        ("memoryManagerPolicy", "memory-manager-policy", config.memoryManagerPolicy, MEMORY_POLICIES, PLACE_MEMORY),
    )
    for field, flag, name, known, point in managers:
        valid = (*known, *(item.extension.name for item in loaded.extensions if point in item.points))
        if name not in valid:
            text = f'option "{name}" specified for {field} (--{flag}). Valid options are {quoted_or(valid)}'
            raise ConfigError(f"{text}: no extension of {FLAG} is named {name} and defines `{point}`")


class ExtensionRefused(Exception):
    """An extension cannot be loaded; the text states why, and what to do."""


def _load(source: str, settings_file: str) -> LoadedExtension | ExtensionProgram:
    settings, data = _read_settings(settings_file) if settings_file else (None, b"")
    if "/" in source or source.endswith(".py"):
        path = os.path.abspath(source)
        if _private_file(path).st_mode & 0o111:
            name = _checked_name(os.path.splitext(os.path.basename(path))[0])
            return ExtensionProgram(name, path, settings or {})
        return load_file(path, settings, settings_file, data)
    kind, path = _installed(source)
    return _made(kind, path, settings, settings_file, _read(path) + data)


def load_file(
    path: str, settings: Mapping[str, Any] | None = None, settings_file: str = "", data: bytes = b""
) -> LoadedExtension:
    """Load the extension of a Python file. `data`: the content of the settings file. Raises ExtensionRefused."""
    module = _import_file(path)
    found = [item for item in vars(module).values() if _is_extension(item) and item.__module__ == module.__name__]
    if len(found) != 1:
        raise ExtensionRefused(f"it must define one class of pykubelet.extension.Extension: it has {len(found)}")
    return _made(found[0], path, settings, settings_file, _read(path) + data)


def _is_extension(item: object) -> bool:
    return inspect.isclass(item) and issubclass(item, Extension) and item is not Extension


# Files


def _private_file(path: str) -> os.stat_result:
    """The file's status. Raises ExtensionRefused if another user can have written to it, or to what leads to it."""
    try:
        real = os.path.realpath(path, strict=True)
        found = os.stat(real)
    except OSError as error:
        raise ExtensionRefused(f"{path}: {(error.strerror or str(error)).lower()}") from error
    if not stat.S_ISREG(found.st_mode):
        raise ExtensionRefused(f"{path} is not a file")
    place = real
    while True:
        status = os.stat(place)
        if status.st_uid not in (0, os.geteuid()):
            raise ExtensionRefused(f"{place} belongs to user {status.st_uid}: it must belong to root")
        # in a sticky directory, such as /tmp, a user cannot replace what belongs to another one
        if status.st_mode & 0o022 and not (stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX):
            raise ExtensionRefused(f"other users can write to {place}: take that permission away (chmod go-w)")
        if place == "/":
            return found
        place = os.path.dirname(place)


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise ExtensionRefused(f"{path}: {(error.strerror or str(error)).lower()}") from error
    if len(data) > MAX_BYTES:
        raise ExtensionRefused(f"{path} has more than {MAX_BYTES} bytes")
    return data


def _read_settings(path: str) -> tuple[Mapping[str, Any], bytes]:
    _private_file(path)
    data = _read(path)
    try:
        value = load_document(data)
    except DocumentError as error:
        raise ExtensionRefused(f"{path}: {error}") from error
    if value is None:
        return {}, data
    if not isinstance(value, dict):
        raise ExtensionRefused(f"{path}: it must be a mapping of names to settings")
    return value, data


# Code


def _import_file(path: str) -> ModuleType:
    name = f"pykubelet_extension_file_{re.sub(r'[^A-Za-z0-9]', '_', path)}"
    spec = spec_from_file_location(name, path)
    if spec is None:
        raise ExtensionRefused(f"{path} is neither executable nor a Python module (*.py)")
    return _run_module(spec)


def _run_module(spec: ModuleSpec) -> ModuleType:
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[spec.name]
        raise ExtensionRefused(f"it cannot be imported: {type(error).__name__}: {error}") from error
    return module


def _installed(name: str) -> tuple[type[Extension], str]:
    """The class of an entry point, and its file."""
    points = {point.name: point for point in entry_points(group=GROUP)}
    point = points.get(name)
    if point is None:
        near = nearest(name, points)
        hint = f" (did you mean {near}?)" if near else ": give a file as ./NAME.py"
        raise ExtensionRefused(f"no installed package has an extension of this name{hint}")
    package = PathFinder.find_spec(point.module.partition(".")[0])
    if package is not None and package.origin:
        _private_file(package.origin)  # before any of its code runs
    try:
        kind = point.load()
    except BaseException as error:
        raise ExtensionRefused(f"it cannot be imported: {type(error).__name__}: {error}") from error
    if not _is_extension(kind):
        raise ExtensionRefused(f"its entry point {point.value} is no class of pykubelet.extension.Extension")
    path = inspect.getfile(kind)
    _private_file(path)
    return kind, path


def _made(
    kind: type[Extension], path: str, settings: Mapping[str, Any] | None, settings_file: str, content: bytes
) -> LoadedExtension:
    """An instance of the class, after what the class states was checked."""
    name = _checked_name(getattr(kind, "name", ""))
    _check_api(getattr(kind, "api", ""))
    if not isinstance(kind.version, str) or len(kind.version) > 64:
        raise ExtensionRefused("`version` must be a text of at most 64 characters")
    if not isinstance(kind.annotation, str) or (kind.annotation and not _ANNOTATION.fullmatch(kind.annotation)):
        raise ExtensionRefused(
            f"`annotation` must be a key of an annotation, or its part up to the slash: {kind.annotation!r}"
        )
    points = _points_of(kind)
    if PLACE in points and name in CPU_POLICIES:
        raise ExtensionRefused(f"`name` must be another one: {name} is a built-in policy of the CPU manager")
    value = _settings_of(kind, settings, settings_file)
    try:
        extension = kind(value)
    except BaseException as error:
        raise ExtensionRefused(f"it cannot be made: {type(error).__name__}: {error}") from error
    if extension.name != name:
        raise ExtensionRefused("its constructor must not change `name`")
    return LoadedExtension(extension, path, content, points, kind.annotation)


def _checked_name(name: object) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ExtensionRefused(f"`name` must be lower-case letters, digits and dashes, 63 at most: it is {name!r}")
    return name


def _check_api(api: object) -> None:
    ours = _VERSION.fullmatch(VERSION)
    found = _VERSION.fullmatch(api) if isinstance(api, str) else None
    if ours is None or found is None:
        raise ExtensionRefused(f'`api` must be the version that it is written for, such as api = "{VERSION}"')
    if int(found[1]) != int(ours[1]) or int(found[2]) > int(ours[2]):
        raise ExtensionRefused(f"it is written for version {api} of the interface, and this agent has {VERSION}")


def _points_of(kind: type[Extension]) -> tuple[str, ...]:
    points = tuple(name for name in POINTS if getattr(kind, name) is not getattr(Extension, name))
    for name in points:
        method = inspect.getattr_static(kind, name)
        if not inspect.isfunction(method) or inspect.iscoroutinefunction(method) or inspect.isgeneratorfunction(method):
            raise ExtensionRefused(f"`{name}` must be a plain method: what waits or does I/O is a process of its own")
    for name in vars(kind):
        near = nearest(name, POINTS, cutoff=0.8)
        if not name.startswith("_") and name not in _BASE and near:
            raise ExtensionRefused(f"it has no point `{name}` (did you mean `{near}`?)")
    if not points:
        raise ExtensionRefused(f"it defines no point: one of {', '.join(POINTS)}")
    return points


def _settings_of(kind: type[Extension], settings: Mapping[str, Any] | None, path: str) -> Any:
    wanted = kind.Settings
    if wanted is None:
        if settings:
            raise ExtensionRefused(f"it takes no settings: leave out ={path}")
        return None
    if not dataclasses.is_dataclass(wanted):
        raise ExtensionRefused("`Settings` must be a dataclass")
    known: Sequence[str] = [found.name for found in dataclasses.fields(wanted)]
    for name in settings or {}:
        if name not in known:
            near = nearest(name, known)
            raise ExtensionRefused(f"{path}: unknown field {name}{f' (did you mean {near}?)' if near else ''}")
    try:
        return msgspec.convert(settings or {}, wanted)
    except msgspec.ValidationError as error:
        raise ExtensionRefused(f"{path or 'its settings'}: {error}") from error
