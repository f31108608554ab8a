"""Which kinds are served, for clients that ask. Pure. Source: Kubernetes documentation, "The Kubernetes API", "Discovery API"."""

from __future__ import annotations

import msgspec

from pykubelet.base.kit.values import Value
from pykubelet_local_api.kinds.table import KINDS
from pykubelet_local_api.objects import Json


class ServedDocument(Value):
    """A document that the server answers with."""

    body: bytes
    content_type: str = "application/json"


def discovery(path: str, accept: str) -> ServedDocument | None:  # noqa: ARG001
    """The document at this path; None: there is none."""
    groups = dict.fromkeys((kind.group, kind.version) for kind in KINDS)
    found: Json | None = None
    if path == "/api":
        found = {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
    elif path == "/apis":
        versions = [
            (group, {"groupVersion": f"{group}/{version}", "version": version}) for group, version in groups if group
        ]
        listed = [{"name": group, "versions": [version], "preferredVersion": version} for group, version in versions]
        found = {"kind": "APIGroupList", "apiVersion": "v1", "groups": listed}
    for group, version in groups:
        if path == (f"/apis/{group}/{version}" if group else f"/api/{version}"):
            found = {
                "kind": "APIResourceList",
                "apiVersion": "v1",
                "groupVersion": path.split("/", 2)[2],
                "resources": [],
            }
            for kind in KINDS:
                if (kind.group, kind.version) == (group, version):
                    common = {"namespaced": kind.is_namespaced, "kind": kind.name}
                    names = {"shortNames": list(kind.short_names), "categories": list(kind.categories)}
                    found["resources"].append(
                        {
                            "name": kind.plural,
                            "singularName": kind.singular,
                            **common,
                            "verbs": list(kind.verbs),
                            **names,
                        }
                    )
                    for sub in kind.subresources:
                        verbs = ["create", "get", "patch", "update"]
                        found["resources"].append(
                            {"name": f"{kind.plural}/{sub}", "singularName": "", **common, "verbs": verbs}
                        )
    return ServedDocument(msgspec.json.encode(found)) if found is not None else None
