"""The objects of the fake API server: plain dictionaries with resource versions and a history to watch.

Owns: create, update, patch and delete with the API server's rules as far as a node agent can see them (UIDs, generations,
conflicts, status apart from spec, graceful deletion, finalizers). Knows nothing of HTTP.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pykubelet.base.api.times import format_time
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.values import Value
from pykubelet.edges.kubeapi.errors import ApiError
from pykubelet.testing.kubeapi.fake_patch import Json, PatchError, json_patch, merge, strategic

_KINDS = {
    "pods": "Pod",
    "nodes": "Node",
    "configmaps": "ConfigMap",
    "secrets": "Secret",
    "services": "Service",
    "events": "Event",
    "namespaces": "Namespace",
    "serviceaccounts": "ServiceAccount",
    "leases": "Lease",
    "runtimeclasses": "RuntimeClass",
    "csinodes": "CSINode",
    "clustertrustbundles": "ClusterTrustBundle",
    "certificatesigningrequests": "CertificateSigningRequest",
}
#: Their status is written through the subresource only; a create drops it where it is the cluster's to say.
_WITH_STATUS = frozenset({"pods", "nodes", "certificatesigningrequests"})
_STATUS_AT_CREATE = frozenset({"nodes"})


class Place(Value):
    """Where an object, a collection (`name` empty) or a subresource is. `group`: `v1` or `group/version`."""

    group: str
    plural: str
    namespace: str = ""
    name: str = ""
    sub: str = ""

    @property
    def kind(self) -> str:
        return _KINDS.get(self.plural, self.plural.removesuffix("s").capitalize())


def parse_place(path: str) -> Place | None:
    """Of an API path; None where it is none."""
    match path.strip("/").split("/"):
        case ["api", version, *rest]:
            group = version
        case ["apis", name, version, *rest]:
            group = f"{name}/{version}"
        case _:
            return None
    namespace = ""
    if len(rest) > 2 and rest[0] == "namespaces":
        namespace, rest = rest[1], rest[2:]
    if not rest or not rest[0]:
        return None
    plural, name, *sub = (*rest, "") if len(rest) == 1 else rest
    return Place(group, plural, namespace, name, "/".join(sub))


class Change(Value):
    """One event of the history: the object after it, and before it (None: it is new)."""

    version: int
    type: str
    place: Place
    object: Json
    before: Json | None


@dataclass
class Store:
    """All objects. `changed` is set whenever the history grows or is cut; watchers wait on it."""

    clock: Clock
    objects: dict[Place, Json] = field(default_factory=dict)
    history: list[Change] = field(default_factory=list)
    oldest: int = 0
    _versions: Iterator[int] = field(default_factory=lambda: itertools.count(1001))
    version: int = 1000
    bells: set[asyncio.Event] = field(default_factory=set)
    #: Fields of a status that an older server does not know, and leaves out.
    unknown: frozenset[str] = frozenset()

    # -- reading

    def get(self, place: Place) -> Json:
        found = self.objects.get(_bare(place))
        if found is None:
            raise ApiError(404, "NotFound", f'{_resource(place)} "{place.name}" not found')
        return found

    def list(self, place: Place) -> list[Json]:
        return [item for where, item in self.objects.items() if covers(place, where)]

    def expire(self) -> None:
        """Forget the history: watches from before now are told 410."""
        self.history.clear()
        self.oldest = self.version + 1
        self._advance()
        self._ring()

    # -- writing

    def create(self, place: Place, body: Json) -> Json:
        made = copy.deepcopy(body)
        meta = made.setdefault("metadata", {})
        if not meta.get("name") and meta.get("generateName"):
            meta["name"] = meta["generateName"] + uuid.uuid4().hex[:5]
        if not meta.get("name"):
            raise ApiError(422, "Invalid", f"{place.kind} is invalid: metadata.name: Required value")
        if place.namespace and meta.setdefault("namespace", place.namespace) != place.namespace:
            raise ApiError(400, "BadRequest", "the namespace of the object does not match the request")
        at = Place(place.group, place.plural, place.namespace, meta["name"])
        if at in self.objects:
            raise ApiError(409, "AlreadyExists", f'{_resource(place)} "{at.name}" already exists')
        made.setdefault("apiVersion", place.group)
        made.setdefault("kind", place.kind)
        meta["uid"] = str(uuid.uuid4())
        meta["creationTimestamp"] = format_time(self.clock.wall())
        if "spec" in made:
            meta.setdefault("generation", 1)
        if place.plural in _WITH_STATUS - _STATUS_AT_CREATE:
            made.pop("status", None)
        if place.plural in _WITH_STATUS:
            made.setdefault("spec", {})
        if place.plural == "pods":
            made["status"] = {"phase": "Pending"}
        return self._write("ADDED", at, made, None)

    def update(self, place: Place, body: Json) -> Json:
        old = self.get(place)
        meta = body.get("metadata", {})
        self._check(place, old, meta)
        return self._replace(place, old, copy.deepcopy(body))

    def patch(self, place: Place, content_type: str, body: Any) -> Json:
        at = _bare(place)
        apply = content_type.startswith("application/apply-patch")
        if apply and at not in self.objects:
            made = {**body, "metadata": {**body.get("metadata", {}), "name": place.name}}
            return self.create(Place(place.group, place.plural, place.namespace), made)
        old = self.get(place)
        try:
            if content_type.startswith("application/json-patch"):
                new = json_patch(old, body)
            elif content_type.startswith("application/merge-patch"):
                new = merge(old, body)
            else:
                new = strategic(old, body)
        except PatchError as error:
            raise ApiError(422, "Invalid", str(error)) from error
        if isinstance(body, dict):
            self._check(place, old, body.get("metadata") or {})
        return self._replace(place, old, new)

    def delete(self, place: Place, options: Json | None = None) -> Json:
        old = self.get(place)
        options = options or {}
        self._check(place, old, options.get("preconditions") or {})
        grace = _grace(place, old, options)
        meta = old["metadata"]
        if grace > 0 or meta.get("finalizers"):
            known = meta.get("deletionGracePeriodSeconds")
            if meta.get("deletionTimestamp") and known is not None and known <= grace:
                return old
            new = copy.deepcopy(old)
            new["metadata"]["deletionGracePeriodSeconds"] = grace
            new["metadata"]["deletionTimestamp"] = format_time(self.clock.wall() + grace)
            return self._replace(place, old, new, deleting=True)
        return self.remove(place)

    def remove(self, place: Place) -> Json:
        """Gone at once, as when the store itself is changed."""
        old = self.get(place)
        return self._write("DELETED", _bare(place), copy.deepcopy(old), old)

    # -- inside

    def _check(self, place: Place, old: Json, wanted: Json) -> None:
        for name in ("uid", "resourceVersion"):
            if wanted.get(name) and wanted[name] != old["metadata"][name]:
                text = f'Operation cannot be fulfilled on {_resource(place)} "{place.name}": {name} is another'
                raise ApiError(409, "Conflict", text)

    def _replace(self, place: Place, old: Json, new: Json, *, deleting: bool = False) -> Json:
        kept = old["metadata"]
        meta = new["metadata"] = dict(new.get("metadata") or {})
        for name in ("uid", "creationTimestamp", "name", "namespace", "generation", "resourceVersion"):
            meta.pop(name, None)
            if name in kept:
                meta[name] = kept[name]
        if not deleting:
            for name in ("deletionTimestamp", "deletionGracePeriodSeconds"):
                meta.pop(name, None)
                if name in kept:
                    meta[name] = kept[name]
        if place.sub == "status":
            new["spec"] = old.get("spec", {})
        elif place.sub != "approval" and place.plural in _WITH_STATUS and "status" in old:
            new["status"] = old["status"]
        if new == old:
            return old
        if new.get("spec") != old.get("spec") or (deleting and not kept.get("deletionTimestamp")):
            meta["generation"] = kept.get("generation", 0) + 1
        if meta.get("deletionTimestamp") and not meta.get("finalizers") and not meta.get("deletionGracePeriodSeconds"):
            return self._write("DELETED", _bare(place), new, old)
        return self._write("MODIFIED", _bare(place), new, old)

    def _write(self, event: str, at: Place, new: Json, before: Json | None) -> Json:
        self._advance()
        new["metadata"]["resourceVersion"] = str(self.version)
        if self.unknown and "status" in new:
            new["status"] = {key: value for key, value in new["status"].items() if key not in self.unknown}
        if event == "DELETED":
            self.objects.pop(at, None)
        else:
            self.objects[at] = new
        self.history.append(Change(self.version, event, at, new, before))
        self._ring()
        return new

    def _advance(self) -> None:
        self.version = next(self._versions)

    def _ring(self) -> None:
        for bell in self.bells:
            bell.set()


def covers(collection: Place, where: Place) -> bool:
    """Whether the object at `where` belongs to the collection; an empty namespace means all."""
    if (collection.group, collection.plural) != (where.group, where.plural):
        return False
    return not collection.namespace or collection.namespace == where.namespace


def _bare(place: Place) -> Place:
    return Place(place.group, place.plural, place.namespace, place.name)


def _resource(place: Place) -> str:
    group = place.group.rpartition("/")[0]
    return f"{place.plural}.{group}" if group else place.plural


def _grace(place: Place, old: Json, options: Json) -> int:
    """Only pods have one, and only those that a node may be running."""
    if place.plural != "pods":
        return 0
    asked = options.get("gracePeriodSeconds")
    if not old.get("spec", {}).get("nodeName"):
        return 0
    if old.get("status", {}).get("phase") in ("Succeeded", "Failed"):
        return 0
    if asked is not None:
        return int(asked)
    return int(old["spec"].get("terminationGracePeriodSeconds", 30))
