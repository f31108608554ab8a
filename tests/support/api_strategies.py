"""What the API server of tests does to objects beside what all kinds have in common: as little as possible.

The objects of tests are incomplete or wrong on purpose, so nothing is validated and nothing gets a default, except where a test
depends on it. Two kinds are served in addition, which the local API does not have.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from pykubelet.base.manifests.validation.errors import Errors, forbidden, invalid, required
from pykubelet_local_api.kinds.kind import ResourceKind
from pykubelet_local_api.kinds.table import BY_PATH
from pykubelet_local_api.objects import Json
from pykubelet_local_api.registry import NAME_LETTERS
from pykubelet_local_api.strategies.strategy import Context, KindStrategy
from pykubelet_local_api.strategies.table import strategy_of
from pykubelet_local_api.view import RequestUser

#: All clients that send requests, and the test itself.
CLIENT = RequestUser("client", ("system:masters", "system:authenticated"))
TEST = RequestUser("test", ("system:masters", "system:authenticated"))


class _VersionedKind(ResourceKind):
    """A kind of which each version has objects of its own."""

    @property
    def storage(self) -> str:
        return f"{self.plural}.{self.version}.{self.group}"


_CERTIFICATES = "certificates.k8s.io"
_MORE = (
    *(
        _VersionedKind(
            _CERTIFICATES, version, "ClusterTrustBundle", "clustertrustbundles", False, selected_fields=("spec.signerName",)
        )
        for version in ("v1", "v1beta1", "v1alpha1")
    ),
    *(
        _VersionedKind(
            _CERTIFICATES, version, "PodCertificateRequest", "podcertificaterequests",
            subresources=("status",), selected_fields=("spec.signerName", "spec.nodeName"),
        )
        for version in ("v1", "v1beta1")
    ),
)  # fmt: skip
#: All kinds that are served, by group, version and plural.
SERVED = {**BY_PATH, **{(kind.group, kind.version, kind.plural): kind for kind in _MORE}}

#: The status of these is written only through the subresource. A create drops it, except for that of nodes.
_WITH_STATUS = frozenset({"pods", "nodes", "certificatesigningrequests", "podcertificaterequests"})
#: Fields of a PodCertificateRequest's spec without which it is refused.
_OF_CERTIFICATE = (
    *("signerName", "podName", "podUID", "serviceAccountName", "serviceAccountUID", "nodeName", "nodeUID"),
    "stubPKCS10Request",
)


@dataclass
class ServerTraits:
    """What an API server may be like. `unknown`: fields of a status that it drops, as an older server that does not know them.

    `limits_are_fixed`: the limit of a driver in a CSINode cannot be changed, as before Kubernetes 1.34. `numbers`: for names and UIDs,
    which are the same ones after `random.seed`.
    """

    unknown: frozenset[str] = frozenset()
    limits_are_fixed: bool = False
    numbers: Random = field(default_factory=lambda: Random(random.getrandbits(64)))


def lax_strategies(traits: ServerTraits) -> Callable[[ResourceKind], KindStrategy]:
    """The strategies of all kinds that are served, for one server."""
    made: dict[ResourceKind, KindStrategy] = {}

    def lax_strategy_of(kind: ResourceKind) -> KindStrategy:
        found = made.get(kind)
        if found is None:
            found = made[kind] = _SPECIAL.get(kind.plural, LaxStrategy)(kind, traits)
        return found

    return lax_strategy_of


class LaxStrategy(KindStrategy):
    """Admits everything. A generation counts the changes of every spec."""

    has_generation = True

    def __init__(self, kind: ResourceKind, traits: ServerTraits) -> None:
        self.kind = kind
        self.traits = traits
        self._has_status = kind.plural in _WITH_STATUS

    def name_errors(self, name: str) -> list[str]:
        return []

    def prepare_create(self, new: Json, context: Context) -> None:
        meta, numbers = new["metadata"], self.traits.numbers
        meta["uid"] = str(uuid.UUID(int=numbers.getrandbits(128), version=4))
        if meta.get("generateName") and context.user is CLIENT:
            meta["name"] = meta["generateName"] + "".join(numbers.choice(NAME_LETTERS) for _ in range(5))
        if self._has_status:
            new.setdefault("spec", {})
            status = self.first_status(new)
            new.pop("status", None)
            if status:
                new["status"] = status
        self._drop_unknown(new)

    def first_status(self, new: Json) -> Json:
        """The status of a new object."""
        return {}

    def prepare_update(self, new: Json, old: Json, context: Context) -> None:
        if context.subresource == "status":
            _keep(new, old, "spec")
        elif context.subresource != "approval" and self._has_status:
            _keep(new, old, "status")
        self._drop_unknown(new)

    def _drop_unknown(self, new: Json) -> None:
        if self.traits.unknown and "status" in new:
            new["status"] = {key: value for key, value in new["status"].items() if key not in self.traits.unknown}


class _LaxPods(LaxStrategy):
    is_graceful = True

    def first_status(self, new: Json) -> Json:
        return {"phase": "Pending"}

    def grace_s(self, old: Json, asked: int | None) -> int:
        spec = old.get("spec") or {}
        return strategy_of(self.kind).grace_s(old | {"spec": {"terminationGracePeriodSeconds": 30, **spec}}, asked)


class _LaxNodes(LaxStrategy):
    def first_status(self, new: Json) -> Json:
        # an agent sends its first status with its node
        return new.get("status") or {}


class _LaxCsiNodes(LaxStrategy):
    def validate_update(self, new: Json, old: Json, context: Context) -> Errors:
        """An entry cannot be changed."""
        fixed = ("nodeID", "topologyKeys", "allocatable")[: 3 if self.traits.limits_are_fixed else 2]

        def fixed_in(entry: Json) -> list[Any]:
            return [entry.get(name) or None for name in fixed]

        before = {entry["name"]: fixed_in(entry) for entry in old["spec"]["drivers"] or ()}
        return [
            invalid("spec.drivers", entry, "field is immutable")
            for entry in new["spec"]["drivers"] or ()
            if before.get(entry["name"], fixed_in(entry)) != fixed_in(entry)
        ]


class _LaxPodCertificates(LaxStrategy):
    def prepare_create(self, new: Json, context: Context) -> None:
        super().prepare_create(new, context)
        new["spec"].setdefault("maxExpirationSeconds", 86400)

    def validate_create(self, new: Json, context: Context) -> Errors:
        return [required(f"spec.{name}") for name in _OF_CERTIFICATE if not new["spec"].get(name)]

    def validate_update(self, new: Json, old: Json, context: Context) -> Errors:
        return [] if new.get("spec") == old.get("spec") else [forbidden("spec", "field is immutable")]


_SPECIAL: dict[str, type[LaxStrategy]] = {
    "pods": _LaxPods,
    "nodes": _LaxNodes,
    "csinodes": _LaxCsiNodes,
    "podcertificaterequests": _LaxPodCertificates,
}


def _keep(new: Json, old: Json, field: str) -> None:
    if field in old:
        new[field] = old[field]
    else:
        new.pop(field, None)
