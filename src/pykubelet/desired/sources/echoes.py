"""Leaves out the errors of a manifest that only repeat others. Pure.

The API server reports the same mistake again where a default has copied it, and where something refers to it. Its author looks for the
field in the manifest, which may not have it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from pykubelet.base.api.core import Pod
from pykubelet.base.manifests.validation.errors import ErrorKind, Errors, FieldError, show

_REQUESTS = ".resources.requests["
_STEP = re.compile(r"([^.\[\]]+)|\[([0-9]+)\]")


def without_echoes(errors: Errors, pod: Pod, manifest: Mapping[str, object]) -> Errors:
    """The errors without those that follow from another one. `pod`: with its defaults; `manifest`: as its author wrote it."""
    paths = {error.path for error in errors}
    volumes = {show(volume.name) for volume in pod.spec.volumes}
    return [e for e in errors if not (_is_copied(e, paths, manifest) or _refers_to_wrong(e, volumes))]


def _is_copied(error: FieldError, paths: set[str], manifest: Mapping[str, object]) -> bool:
    """Whether the error is about a request that is the default, and the limit has it as well."""
    before, found, name = error.path.partition(_REQUESTS)
    if not found or f"{before}.resources.limits[{name}" not in paths:
        return False
    requests = _at(manifest, f"{before}.resources.requests")
    return not isinstance(requests, dict) or name.removesuffix("]") not in requests


def _refers_to_wrong(error: FieldError, volumes: set[str]) -> bool:
    """Whether the error is that a volume is not found, and the volume is there and wrong itself."""
    return (
        error.kind is ErrorKind.NOT_FOUND and error.path.endswith((".name", ".volumeName")) and error.value in volumes
    )


def _at(value: object, path: str) -> object:
    """The value at a path such as `spec.containers[0].resources`; None if there is none."""
    for match in _STEP.finditer(path):
        if match[1] is not None:
            value = value.get(match[1]) if isinstance(value, Mapping) else None
        else:
            value = value[int(match[2])] if isinstance(value, list) and int(match[2]) < len(value) else None
    return value
