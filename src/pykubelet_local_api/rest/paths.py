"""Reads the paths of requests for resources. Pure. Source: Kubernetes documentation, "Kubernetes API Concepts", "Resource URIs"."""

from __future__ import annotations

from pykubelet.base.kit.values import Value
from pykubelet_local_api.kinds.kind import ResourceKind
from pykubelet_local_api.kinds.table import BY_PATH, KindsByPath


class Target(Value):
    """What a path names: a collection (`name` empty), an object, or a subresource.

    `rest`: what follows the subresource, without its first slash; only proxies have it.
    `is_watch`: a path of the older form for watches, `/api/v1/watch/...`, which alone can watch one name.
    """

    kind: ResourceKind
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    rest: str = ""
    is_watch: bool = False


def parse_target(path: str, kinds: KindsByPath = BY_PATH) -> Target | None:
    """What the path names; None: nothing that is served. `kinds`: those that are."""
    match path.split("/"):
        case ["", "api", version, *parts]:
            group = ""
        case ["", "apis", group, version, *parts] if group:
            pass
        case _:
            return None
    is_watch = parts[:1] == ["watch"]
    if is_watch:
        parts = parts[1:]
    namespace = ""
    if len(parts) > 2 and parts[0] == "namespaces" and (group, version, parts[2]) in kinds:
        namespace, parts = parts[1], parts[2:]
        if not namespace:
            return None
    kind = kinds.get((group, version, parts[0])) if parts else None
    if kind is None or (namespace and not kind.is_namespaced):
        return None
    if len(parts) == 2 and not parts[1]:
        parts = parts[:1]
    _, name, subresource, *rest = (*parts, "", "")[: max(3, len(parts))]
    if (subresource and subresource not in kind.subresources) or (rest and subresource != "proxy"):
        return None
    if not name and len(parts) > 1:
        return None
    if kind.is_review and (name or (kind.is_namespaced and not namespace)):
        return None
    if kind.is_namespaced and name and not namespace:
        return None
    if is_watch and (subresource or "watch" not in kind.verbs):
        return None
    return Target(kind, namespace, name, subresource, "/".join(rest), is_watch)
