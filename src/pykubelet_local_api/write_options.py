"""How to write and delete: the options of a request, apart from its object."""

from __future__ import annotations

from pykubelet.base.kit.values import Value
from pykubelet_local_api.view import RequestUser

#: The field manager of the folder whose files are applied. What it has applied is deleted when it leaves the folder.
DIRECTORY_MANAGER = "pykubelet-directory"


class WriteOptions(Value):
    """How to write. `manager`: the field manager. `is_apply`: the new object has its managed fields already (server-side apply).

    `is_dry_run`: decide everything, and store nothing. `is_large`: the body is, so that the decision takes long. `is_patch`: the new
    object is the old one with changes.
    """

    user: RequestUser
    manager: str = "unknown"
    is_apply: bool = False
    is_dry_run: bool = False
    is_large: bool = False
    is_patch: bool = False


class DeletionOptions(Value):
    """How to delete. `grace_s`: None: the object's own. `propagation`: Background, Foreground, Orphan, or "" for the default."""

    user: RequestUser
    grace_s: int | None = None
    propagation: str = ""
    uid: str = ""
    resource_version: str = ""
    is_dry_run: bool = False
