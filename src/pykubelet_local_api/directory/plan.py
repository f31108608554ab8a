"""Decides which objects are deleted because they have left the folder. Pure.

What the folder has applied is seen by the field manager of the objects, so nothing else must be remembered over a restart.
"""

from __future__ import annotations

from pykubelet.base.kit.values import Value
from pykubelet_local_api.directory.manifests import FolderContent, ObjectID
from pykubelet_local_api.kinds.kind import ResourceKind
from pykubelet_local_api.kinds.order import apply_rank
from pykubelet_local_api.kinds.table import STORED
from pykubelet_local_api.objects import Json, is_deleting, name_of, namespace_of, uid_of
from pykubelet_local_api.view import View
from pykubelet_local_api.write_options import DIRECTORY_MANAGER

#: The field manager of what comes from the folder: only administrators may use it.
MANAGER = DIRECTORY_MANAGER
#: Namespaces that every cluster has. They are never deleted.
_KEPT = frozenset({"default", "kube-node-lease", "kube-public", "kube-system"})


class Prune(Value):
    """An object to delete."""

    kind: ResourceKind
    id: ObjectID
    uid: str


def plan_prunes(manifests: FolderContent, view: View) -> list[Prune]:
    """What was applied from the folder and is not in it any more, in the order in which it is deleted: pods first.

    Nothing while a document cannot be read: its objects are not known.
    """
    if not manifests.is_whole:
        return []
    wanted = {manifest.id for manifest in manifests.manifests}
    found = []
    for resource, kind in STORED.items():
        for each in view.list(resource):
            if not _is_ours(each) or is_deleting(each):
                continue
            key = ObjectID(resource, namespace_of(each), name_of(each))
            if key not in wanted and not (resource == "namespaces" and key.name in _KEPT):
                found.append(Prune(kind, key, uid_of(each)))
    return sorted(found, key=lambda prune: -apply_rank(prune.kind))


def _is_ours(found: Json) -> bool:
    entries = found["metadata"].get("managedFields") or ()
    return any(entry.get("manager") == MANAGER and entry.get("operation") == "Apply" for entry in entries)
