"""The objects of the fake API server: plain dictionaries with resource versions, and a history for watches.

Owns: create, update, patch and delete with those rules of the API server that a node agent can observe (UIDs, generations,
conflicts, status separate from spec, graceful deletion, finalizers). Contains no HTTP.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import random
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from pykubelet.base.api.times import format_time
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.values import Value
from pykubelet.edges.kubeapi.errors import ApiError
from pykubelet.testing.kubeapi.fake_patch import Json, PatchError, json_patch, merge, strategic
from pykubelet.testing.ordered import OrderedSet

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
    "persistentvolumeclaims": "PersistentVolumeClaim",
    "persistentvolumes": "PersistentVolume",
    "csidrivers": "CSIDriver",
    "volumeattachments": "VolumeAttachment",
    "clustertrustbundles": "ClusterTrustBundle",
    "certificatesigningrequests": "CertificateSigningRequest",
    "podcertificaterequests": "PodCertificateRequest",
    "resourceclaims": "ResourceClaim",
    "resourceslices": "ResourceSlice",
}
#: The status of these resources is written only through the subresource. A create drops it, except for `_STATUS_AT_CREATE`.
_WITH_STATUS = frozenset({"pods", "nodes", "certificatesigningrequests", "podcertificaterequests"})
_STATUS_AT_CREATE = frozenset({"nodes"})
#: Fields of a PodCertificateRequest's spec without which it is refused.
_OF_CERTIFICATE = ("signerName", "podName", "podUID", "serviceAccountName", "serviceAccountUID", "nodeName", "nodeUID")


class ResourcePath(Value):
    """The path of an object, a collection (`name` empty) or a subresource. `group`: `v1` or `group/version`."""

    group: str
    plural: str
    namespace: str = ""
    name: str = ""
    sub: str = ""

    @property
    def kind(self) -> str:
        """The kind of the resource, such as `Pod` for `pods`."""
        return _KINDS.get(self.plural, self.plural.removesuffix("s").capitalize())


def parse_resource_path(path: str) -> ResourcePath | None:
    """Parse an API path; None if it is not one."""
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
    return ResourcePath(group, plural, namespace, name, "/".join(sub))


class Change(Value):
    """One event of the history: the object after it and before it (None: it is new)."""

    version: int
    type: str
    place: ResourcePath
    object: Json
    before: Json | None


@dataclass
class Store:
    """All objects. `changed` is set whenever the history grows or is cut; watchers wait on it."""

    clock: Clock
    objects: dict[ResourcePath, Json] = field(default_factory=dict)
    history: list[Change] = field(default_factory=list)
    oldest: int = 0
    _versions: Iterator[int] = field(default_factory=lambda: itertools.count(1001))
    version: int = 1000
    #: For names and UIDs: the same ones after `random.seed`.
    numbers: Random = field(default_factory=lambda: Random(random.getrandbits(64)))
    wakeups: OrderedSet[asyncio.Event] = field(default_factory=OrderedSet)
    #: Status fields that are dropped, to simulate an older server that does not know them.
    unknown: frozenset[str] = frozenset()
    #: Whether the limit of a driver in a CSINode cannot be changed, as before Kubernetes 1.34.
    limits_are_fixed: bool = False

    # -- reading

    def get(self, place: ResourcePath) -> Json:
        """The object at this path. Raises `ApiError` 404 if there is none."""
        found = self.objects.get(_bare(place))
        if found is None:
            raise ApiError(404, "NotFound", f'{_resource(place)} "{place.name}" not found')
        return found

    def list(self, place: ResourcePath) -> list[Json]:
        """The objects of a collection, in one namespace or in all."""
        return [item for where, item in self.objects.items() if covers(place, where)]

    def expire(self) -> None:
        """Drop the history, so that watches from older versions get 410."""
        self.history.clear()
        self.oldest = self.version + 1
        self._advance()
        self._wake()

    # -- writing

    def create(self, place: ResourcePath, body: Json) -> Json:
        """Store a new object and return it with its generated metadata. Raises `ApiError` 400, 409 or 422."""
        made = copy.deepcopy(body)
        meta = made.setdefault("metadata", {})
        if not meta.get("name") and meta.get("generateName"):
            meta["name"] = meta["generateName"] + self._random_uid().hex[:5]
        if not meta.get("name"):
            raise ApiError(422, "Invalid", f"{place.kind} is invalid: metadata.name: Required value")
        if place.namespace and meta.setdefault("namespace", place.namespace) != place.namespace:
            raise ApiError(400, "BadRequest", "the namespace of the object does not match the request")
        if place.plural == "podcertificaterequests":
            self._check_certificate(made.setdefault("spec", {}))
        at = ResourcePath(place.group, place.plural, place.namespace, meta["name"])
        if at in self.objects:
            raise ApiError(409, "AlreadyExists", f'{_resource(place)} "{at.name}" already exists')
        made.setdefault("apiVersion", place.group)
        made.setdefault("kind", place.kind)
        meta["uid"] = str(self._random_uid())
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

    def _random_uid(self) -> uuid.UUID:
        return uuid.UUID(int=self.numbers.getrandbits(128), version=4)

    def update(self, place: ResourcePath, body: Json) -> Json:
        """Replace an object. Raises `ApiError` 404, or 409 if the resource version is not the current one."""
        old = self.get(place)
        meta = body.get("metadata", {})
        self._check(place, old, meta)
        return self._replace(place, old, copy.deepcopy(body))

    def patch(self, place: ResourcePath, content_type: str, body: Any) -> Json:
        """Apply a JSON, merge or strategic merge patch, or a server-side apply, by `content_type`. Raises `ApiError`."""
        at = _bare(place)
        apply = content_type.startswith("application/apply-patch")
        if apply and at not in self.objects:
            made = {**body, "metadata": {**body.get("metadata", {}), "name": place.name}}
            return self.create(ResourcePath(place.group, place.plural, place.namespace), made)
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

    def delete(self, place: ResourcePath, options: Json | None = None) -> Json:
        """Delete an object, or mark it for deletion while a grace period or finalizers hold it. Raises `ApiError` 404 or 409."""
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

    def remove(self, place: ResourcePath) -> Json:
        """Remove an object at once, as if it were removed from etcd directly."""
        old = self.get(place)
        return self._write("DELETED", _bare(place), copy.deepcopy(old), old)

    # -- inside

    def _check(self, place: ResourcePath, old: Json, wanted: Json) -> None:
        for name in ("uid", "resourceVersion"):
            if wanted.get(name) and wanted[name] != old["metadata"][name]:
                text = f'Operation cannot be fulfilled on {_resource(place)} "{place.name}": {name} is another'
                raise ApiError(409, "Conflict", text)

    def _check_certificate(self, spec: Json) -> None:
        """Refuse a PodCertificateRequest without a required field, and set the default of its lifetime."""
        missing = [name for name in (*_OF_CERTIFICATE, "stubPKCS10Request") if not spec.get(name)]
        if missing:
            raise ApiError(422, "Invalid", f"PodCertificateRequest is invalid: spec.{missing[0]}: Required value")
        spec.setdefault("maxExpirationSeconds", 86400)

    def _check_entries(self, old: Json, new: Json) -> None:
        """Refuse a change of an entry of a CSINode."""
        fixed = ("nodeID", "topologyKeys", "allocatable")[: 3 if self.limits_are_fixed else 2]

        def fixed_in(entry: Json) -> list[Any]:
            return [entry.get(name) or None for name in fixed]

        before = {entry["name"]: fixed_in(entry) for entry in old["spec"]["drivers"] or ()}
        for entry in new["spec"]["drivers"] or ():
            if before.get(entry["name"], fixed_in(entry)) != fixed_in(entry):
                raise ApiError(422, "Invalid", f"spec.drivers: Invalid value: {entry}: field is immutable")

    def _replace(self, place: ResourcePath, old: Json, new: Json, *, deleting: bool = False) -> Json:
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
        if place.plural == "csinodes":
            self._check_entries(old, new)
        if place.plural == "podcertificaterequests" and new.get("spec") != old.get("spec"):
            raise ApiError(422, "Invalid", "PodCertificateRequest is invalid: spec: Forbidden: field is immutable")
        if new.get("spec") != old.get("spec") or (deleting and not kept.get("deletionTimestamp")):
            meta["generation"] = kept.get("generation", 0) + 1
        if meta.get("deletionTimestamp") and not meta.get("finalizers") and not meta.get("deletionGracePeriodSeconds"):
            return self._write("DELETED", _bare(place), new, old)
        return self._write("MODIFIED", _bare(place), new, old)

    def _write(self, event: str, at: ResourcePath, new: Json, before: Json | None) -> Json:
        self._advance()
        new["metadata"]["resourceVersion"] = str(self.version)
        if self.unknown and "status" in new:
            new["status"] = {key: value for key, value in new["status"].items() if key not in self.unknown}
        if event == "DELETED":
            self.objects.pop(at, None)
        else:
            self.objects[at] = new
        self.history.append(Change(self.version, event, at, new, before))
        self._wake()
        return new

    def changes_after(self, version: int) -> Sequence[Change]:
        """The changes of the history that are newer than `version`, in their order."""
        newest_first = itertools.takewhile(lambda change: change.version > version, reversed(self.history))
        return [*newest_first][::-1]

    def _advance(self) -> None:
        self.version = next(self._versions)

    def _wake(self) -> None:
        for wakeup in self.wakeups:
            wakeup.set()


def covers(collection: ResourcePath, where: ResourcePath) -> bool:
    """Whether the object at `where` belongs to the collection. An empty namespace means all namespaces."""
    if (collection.group, collection.plural) != (where.group, where.plural):
        return False
    return not collection.namespace or collection.namespace == where.namespace


def _bare(place: ResourcePath) -> ResourcePath:
    return ResourcePath(place.group, place.plural, place.namespace, place.name)


def _resource(place: ResourcePath) -> str:
    group = place.group.rpartition("/")[0]
    return f"{place.plural}.{group}" if group else place.plural


def _grace(place: ResourcePath, old: Json, options: Json) -> int:
    """The grace period of a deletion. Only pods that may run on a node have one."""
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
