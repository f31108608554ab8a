"""Files of the downward API, for downwardAPI and projected volumes. Pure.

Source: the Kubernetes documentation "Downward API" and the API reference, DownwardAPIVolumeSource.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence

from pykubelet.base.api.core import DownwardAPIVolumeFile, Pod
from pykubelet.base.model.fieldrefs import FieldRefError, file_resource_text, needs_allocatable
from pykubelet.provide.volumes.fields import MapText, field_value
from pykubelet.provide.volumes.kind import VolumesError
from pykubelet.provide.volumes.payloads.payload import PayloadFile

DEFAULT_MODE = 0o644


def items_need_node(pod: Pod, items: Sequence[DownwardAPIVolumeFile]) -> bool:
    """Whether the content depends on the node's allocatable resources."""
    try:
        return any(
            item.resourceFieldRef is not None and needs_allocatable(pod, item.resourceFieldRef) for item in items
        )
    except FieldRefError:
        return False  # planning the files raises the error


def plan_files(
    pod: Pod,
    items: Sequence[DownwardAPIVolumeFile],
    default_mode: int | None,
    default_user: int | None,
    allocatable: Mapping[str, int],
) -> list[PayloadFile]:
    """The files of the volume. VolumesError with the errors of all items."""
    files: dict[str, PayloadFile] = {}
    errors: list[str] = []
    default = DEFAULT_MODE if default_mode is None else default_mode
    for item in items:
        path = posixpath.normpath(item.path)
        mode = default if item.mode is None else item.mode
        try:
            if item.fieldRef is not None:
                data: str | MapText = field_value(pod, item.fieldRef.fieldPath)
            elif item.resourceFieldRef is not None:
                data = file_resource_text(pod, item.resourceFieldRef, allocatable)
            else:
                data = ""
        except FieldRefError as error:
            errors.append(str(error))
            continue
        files[path] = PayloadFile(path, data, mode, default_user if item.user is None else item.user)
    if errors:
        raise VolumesError(errors[0] if len(errors) == 1 else f"[{', '.join(errors)}]")
    return list(files.values())
