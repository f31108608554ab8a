"""Discovery: which groups, versions, resources and subresources there are, for clients such as `kubectl`. Pure.

Both forms: a document for each group version, and the aggregated one, of which a client reads two documents in all.
Source: Kubernetes documentation, "API Concepts", discovery; KEP-3352 (aggregated discovery).
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from pykubelet.base.kit.values import Value
from pykubelet_local_api.kinds.kind import ResourceKind
from pykubelet_local_api.kinds.table import KINDS
from pykubelet_local_api.objects import Json

#: The media type of the aggregated form.
AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"


class SubresourceVerbs(Value):
    """A subresource: the kind that it takes or gives, and its verbs. `kind` and `group_version`: "" for those of the object."""

    verbs: tuple[str, ...]
    kind: str = ""
    group: str = ""
    version: str = ""


_READ_WRITE = ("get", "patch", "update")
_PROXY = ("create", "delete", "get", "patch", "update")
_STREAM = ("create", "get")

#: Subresources, by the resource and their name; those of any resource have "*".
_SUBRESOURCES = {
    ("*", "status"): SubresourceVerbs(_READ_WRITE),
    ("*", "approval"): SubresourceVerbs(_READ_WRITE),
    ("*", "finalize"): SubresourceVerbs(("update",)),
    ("pods", "attach"): SubresourceVerbs(_STREAM, "PodAttachOptions"),
    ("pods", "binding"): SubresourceVerbs(("create",), "Binding"),
    ("pods", "ephemeralcontainers"): SubresourceVerbs(_READ_WRITE),
    ("pods", "eviction"): SubresourceVerbs(("create",), "Eviction", "policy", "v1"),
    ("pods", "exec"): SubresourceVerbs(_STREAM, "PodExecOptions"),
    ("pods", "log"): SubresourceVerbs(("get",)),
    ("pods", "portforward"): SubresourceVerbs(_STREAM, "PodPortForwardOptions"),
    ("pods", "proxy"): SubresourceVerbs(_PROXY, "PodProxyOptions"),
    ("pods", "resize"): SubresourceVerbs(_READ_WRITE),
    ("nodes", "proxy"): SubresourceVerbs(_PROXY, "NodeProxyOptions"),
    ("services", "proxy"): SubresourceVerbs(_PROXY, "ServiceProxyOptions"),
    ("serviceaccounts", "token"): SubresourceVerbs(("create",), "TokenRequest", "authentication.k8s.io", "v1"),
}


def subresource_of(kind: ResourceKind, name: str) -> SubresourceVerbs:
    """A subresource of a kind. KeyError if the kind has no such subresource."""
    if name not in kind.subresources:
        raise KeyError(name)
    return _SUBRESOURCES.get((kind.plural, name)) or _SUBRESOURCES["*", name]


def _groups() -> list[str]:
    """The named groups, in the order of the table."""
    return list(dict.fromkeys(kind.group for kind in KINDS if kind.group))


def _versions(group: str) -> list[str]:
    return list(dict.fromkeys(kind.version for kind in KINDS if kind.group == group))


def _kinds(group: str, version: str) -> list[ResourceKind]:
    found = [kind for kind in KINDS if (kind.group, kind.version) == (group, version)]
    return sorted(found, key=lambda kind: kind.plural)


class ServedDocument(Value):
    """A document that the server answers with."""

    body: bytes
    content_type: str = "application/json"


def discovery_paths() -> Iterator[str]:
    """The paths of all documents."""
    yield from ("/api", "/apis")
    yield from (f"/api/{version}" for version in _versions(""))
    for group in _groups():
        yield f"/apis/{group}"
        yield from (f"/apis/{group}/{version}" for version in _versions(group))


def discovery(path: str, accept: str) -> ServedDocument | None:
    """The document at a path such as `/apis`; None: there is none. `accept`: the request's header."""
    if path in ("/api", "/apis") and _takes_aggregated(accept):
        found: Json | None = aggregated_core() if path == "/api" else aggregated_groups()
        return ServedDocument(msgspec.json.encode(found), AGGREGATED)
    match path.split("/")[1:]:
        case ["api"]:
            found = core_versions()
        case ["apis"]:
            found = group_list()
        case ["api", version]:
            found = resource_list("", version)
        case ["apis", group]:
            found = api_group(group)
        case ["apis", group, version]:
            found = resource_list(group, version)
        case _:
            found = None
    return None if found is None else ServedDocument(msgspec.json.encode(found))


def _takes_aggregated(accept: str) -> bool:
    """Whether the client takes version 2 of the aggregated form; clients that do prefer it."""
    wanted = {"as=APIGroupDiscoveryList", "v=v2", "g=apidiscovery.k8s.io"}
    return any(wanted <= {part.strip() for part in media.split(";")} for media in accept.split(","))


def core_versions() -> Json:
    """The body of `/api`. It names no addresses of servers: there is this one."""
    return {"kind": "APIVersions", "versions": _versions(""), "serverAddressByClientCIDRs": []}


def group_list() -> Json:
    """The body of `/apis`."""
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(group) for group in _groups()]}


def api_group(group: str) -> Json | None:
    """The body of `/apis/GROUP`; None if there is no such group."""
    return {"kind": "APIGroup", "apiVersion": "v1"} | _group(group) if group in _groups() else None


def _group(group: str) -> Json:
    versions = [{"groupVersion": f"{group}/{version}", "version": version} for version in _versions(group)]
    return {"name": group, "versions": versions, "preferredVersion": versions[0]}


def resource_list(group: str, version: str) -> Json | None:
    """The body of `/api/VERSION` (for the group "") or `/apis/GROUP/VERSION`; None if there is no such version."""
    kinds = _kinds(group, version)
    if not kinds:
        return None
    resources = [line for kind in kinds for line in _lines(kind)]
    found: Json = {"kind": "APIResourceList"} | ({"apiVersion": "v1"} if group else {})
    return found | {"groupVersion": f"{group}/{version}" if group else version, "resources": resources}


def _lines(kind: ResourceKind) -> Iterator[Json]:
    line: Json = {
        "name": kind.plural,
        "singularName": kind.singular,
        "namespaced": kind.is_namespaced,
        "kind": kind.name,
        "verbs": list(kind.verbs),
    }
    yield line | _names(kind)
    for name in sorted(kind.subresources):
        found = subresource_of(kind, name)
        line = {"name": f"{kind.plural}/{name}", "singularName": "", "namespaced": kind.is_namespaced}
        line |= {"group": found.group, "version": found.version} if found.group else {}
        yield line | {"kind": found.kind or kind.name, "verbs": list(found.verbs)}


def _names(kind: ResourceKind) -> Json:
    short = {"shortNames": list(kind.short_names)} if kind.short_names else {}
    return short | ({"categories": list(kind.categories)} if kind.categories else {})


def aggregated_core() -> Json:
    """The body of `/api` in the aggregated form."""
    return _aggregated([""])


def aggregated_groups() -> Json:
    """The body of `/apis` in the aggregated form."""
    return _aggregated(_groups())


def _aggregated(groups: list[str]) -> Json:
    items = [
        {
            "metadata": {"name": group} if group else {},
            "versions": [
                {
                    "version": version,
                    "resources": [_aggregated_kind(kind) for kind in _kinds(group, version)],
                    "freshness": "Current",
                }
                for version in _versions(group)
            ],
        }
        for group in groups
    ]
    return {"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items}


def _aggregated_kind(kind: ResourceKind) -> Json:
    found: Json = {
        "resource": kind.plural,
        "responseKind": {"group": "", "version": "", "kind": kind.name},
        "scope": "Namespaced" if kind.is_namespaced else "Cluster",
        "singularResource": kind.singular,
        "verbs": list(kind.verbs),
    }
    found |= _names(kind)
    if kind.subresources:
        found["subresources"] = [
            {
                "subresource": name,
                "responseKind": {"group": sub.group, "version": sub.version, "kind": sub.kind or kind.name},
                "verbs": list(sub.verbs),
            }
            for name, sub in ((name, subresource_of(kind, name)) for name in sorted(kind.subresources))
        ]
    return found
