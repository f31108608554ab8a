"""Binds claims of manifests to persistent volumes of manifests, and chooses between manifests of one name. Pure.

For a node without an API server.

Rules:
- A claim gets the volume that it had, the volume that its `volumeName` names, the volume with a `claimRef` to it, or else the
  smallest volume that satisfies it: mode, storage class, access modes, selector, size, and node affinity. Equal volumes are taken by
  name, claims in the order of namespace and name.
- A claim keeps its volume while both have manifests, whatever is added or edited. A claim whose volume has lost its manifest waits
  for it; it gets another volume when its own manifest was away too, or when it names one.
- A volume whose claim has lost its manifest is kept for a claim of that name, because it has that claim's data. Another claim gets it
  by `volumeName` only.
- Of several objects with one name, the one of the manifest that counted before counts, or else the first by origin.
- Before all manifests are known, a claim that never had a volume is not bound, because a better one may come.
Source: the Kubernetes documentation "Persistent Volumes", binding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

from pykubelet.base.api.core import ObjectReference, Quantity
from pykubelet.base.api.labels import matches_selector
from pykubelet.base.api.quantity import parse
from pykubelet.base.api.storage import (
    CSIDriver,
    CSIDriverSpec,
    PersistentVolume,
    PersistentVolumeClaim,
    PersistentVolumeClaimStatus,
    PersistentVolumeStatus,
)
from pykubelet.base.kit.values import Value, field, replace
from pykubelet.base.model.content import Absent, ContentKind, Found, ManifestObject, ObjectKey, Present
from pykubelet.base.model.node import NodeView
from pykubelet.base.model.node_selector import matches_node_selector

T = TypeVar("T", PersistentVolume, PersistentVolumeClaim)
#: Volumes that are named when none satisfies a claim.
MAX_NAMED = 5
CLASS_ANNOTATION = "volume.beta.kubernetes.io/storage-class"


class Bindings(Value):
    """What survives a restart. `volumes`: the name of each claim's volume, by `<namespace>/<name>` of the claim. `origins`: the
    manifest of each object that counts, by `<kind>/<namespace>/<name>`. `left`: by the name of a volume that no claim has now, because
    its claim has named another one: that claim, which the data belong to."""

    volumes: Mapping[str, str] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict)
    left: Mapping[str, str] = field(default_factory=dict)


class Bound(Value):
    """The answers by key, and what is to be remembered. `is_complete`: keys without an answer have no manifest.
    `made_from`: all objects."""

    answers: Mapping[ObjectKey, Found]
    bindings: Bindings
    is_complete: bool
    made_from: tuple[ManifestObject, ...]


def bind(objects: tuple[ManifestObject, ...], before: Bindings, node: NodeView, *, is_complete: bool) -> Bound:
    """The answers from all objects. `before`: what was decided last. `is_complete`: all sources have delivered their manifests."""
    chosen = _chosen(objects, before)
    binder = _Binder(chosen, before, node, is_complete)
    answers = binder.answers()
    for key, item in chosen.items():
        if key.kind not in (ContentKind.VOLUME, ContentKind.VOLUME_CLAIM):
            answers[key] = Present(item.value)
    origins = {_text(key): item.origin for key, item in chosen.items()}
    if not is_complete:  # what is missing may come
        origins = {**before.origins, **origins}
    return Bound(answers, Bindings(binder.remembered(), origins, binder.left()), is_complete, objects)


def missing(key: ObjectKey) -> Found:
    """The answer about an object that has no manifest.

    A CSIDriver has the API server's defaults, except that nothing is attached, and that its volumes may be of a pod's own, with facts
    about the pod, which such drivers need.
    """
    if key.kind is ContentKind.CSI_DRIVER:
        spec = CSIDriverSpec(
            attachRequired=False,
            podInfoOnMount=True,
            fsGroupPolicy="ReadWriteOnceWithFSType",
            volumeLifecycleModes=("Persistent", "Ephemeral"),
        )
        return Present(CSIDriver(spec=spec))
    where = f' of namespace "{key.namespace}"' if key.namespace else ""
    return Absent(f'no manifest has the {key.kind} "{key.name}"{where}')


def _chosen(objects: tuple[ManifestObject, ...], before: Bindings) -> dict[ObjectKey, ManifestObject]:
    """The object of each key that counts. `objects` are sorted by key and origin; of several in one manifest, the first one counts."""
    chosen: dict[ObjectKey, ManifestObject] = {}
    for item in objects:
        other = chosen.get(item.key)
        if other is None or (item.origin != other.origin and before.origins.get(_text(item.key)) == item.origin):
            chosen[item.key] = item
    return chosen


def _text(key: ObjectKey) -> str:
    return f"{key.kind}/{key.namespace}/{key.name}"


def _of(chosen: Mapping[ObjectKey, ManifestObject], kind: type[T]) -> Iterator[T]:
    return (item.value for _, item in sorted(chosen.items()) if isinstance(item.value, kind))


def _name(claim: PersistentVolumeClaim) -> str:
    return f"{claim.metadata.namespace}/{claim.metadata.name}"


class _Binder:
    """One binding of all claims."""

    def __init__(
        self, chosen: Mapping[ObjectKey, ManifestObject], before: Bindings, node: NodeView, is_complete: bool
    ) -> None:
        self._node = node
        self._is_complete = is_complete
        self._volumes = {volume.metadata.name: volume for volume in _of(chosen, PersistentVolume)}
        self._claims = {_name(claim): claim for claim in _of(chosen, PersistentVolumeClaim)}
        self._before = {
            claim: volume
            for claim, volume in before.volumes.items()
            if not is_complete or claim in self._claims or volume in self._volumes
        }
        self._had = {**before.left, **{volume: claim for claim, volume in self._before.items()}}
        self._owners: dict[str, str] = {}
        self._bound: dict[str, str] = {}
        self._refused: dict[str, PersistentVolume] = {}
        self._why: dict[str, str] = {}

    def answers(self) -> dict[ObjectKey, Found]:
        """The answers about all claims and volumes."""
        self._bind_all()
        found: dict[ObjectKey, Found] = {}
        for name, claim in self._claims.items():
            key = ObjectKey(ContentKind.VOLUME_CLAIM, claim.metadata.namespace, claim.metadata.name)
            if name in self._bound:
                found[key] = Present(_bound_claim(claim, self._volumes[self._bound[name]]))
            elif name in self._why:
                found[key] = Absent(self._why[name])
        for name, volume in self._volumes.items():
            owner = self._claims.get(self._owners.get(name, ""))
            found[ObjectKey(ContentKind.VOLUME, "", name)] = Present(_bound_volume(volume, owner))
        return found

    def remembered(self) -> dict[str, str]:
        """The volume of each claim, also of those whose claim or volume is away."""
        taken = set(self._bound.values())
        away = {claim: volume for claim, volume in self._before.items() if volume not in taken}
        return dict(sorted({**away, **self._bound}.items()))

    def left(self) -> dict[str, str]:
        """The claim whose data is in a volume that no claim has or remembers."""
        known = {*self._bound.values(), *self.remembered().values()}
        left = ((volume, claim) for volume, claim in sorted(self._had.items()) if volume not in known)
        return {volume: claim for volume, claim in left if not self._is_complete or volume in self._volumes}

    def _bind_all(self) -> None:
        """Bind the claims that keep their volume, then those that name one, then those that a volume names, then the others."""
        waiting = [name for name, claim in self._claims.items() if not self._keep(name, claim)]
        for name in waiting:
            if self._claims[name].spec.volumeName:
                self._bind_named(name, self._claims[name])
        reserved = {
            f"{volume.spec.claimRef.namespace or 'default'}/{volume.spec.claimRef.name}": volume
            for volume in reversed(self._volumes.values())
            if volume.spec.claimRef is not None
        }
        free: list[str] = []
        for name in waiting:
            if self._claims[name].spec.volumeName:
                continue
            if name in reserved and reserved[name].metadata.name not in self._owners:
                self._try(name, self._claims[name], reserved[name])
            else:
                free.append(name)
        left = [name for name in free if self._is_complete and not self._choose(name, self._claims[name])]
        # when all others have their volumes, so that the texts stay the same
        for name in left:
            self._why[name] = self._explain(name, self._claims[name])
        for name, volume in self._refused.items():
            why = self._misfit(name, self._claims[name], volume, is_named=True)
            self._why[name] = f'PVC is not bound: the PersistentVolume "{volume.metadata.name}" {why}'

    def _bind_named(self, name: str, claim: PersistentVolumeClaim) -> None:
        wanted = claim.spec.volumeName
        volume = self._volumes.get(wanted)
        if volume is None:
            if self._is_complete:
                self._why[name] = f'PVC is not bound: no manifest has the PersistentVolume "{wanted}", which it names'
        else:
            self._try(name, claim, volume)

    def _keep(self, name: str, claim: PersistentVolumeClaim) -> bool:
        """Bind a claim to the volume that it had. Returns False for a claim that had none, or that names another one."""
        had = self._before.get(name)
        if had is None or claim.spec.volumeName not in ("", had) or had in self._owners:
            return False
        volume = self._volumes.get(had)
        if volume is None:
            if claim.spec.volumeName:
                return False
            if self._is_complete:
                self._why[name] = (
                    f'PVC is lost: its PersistentVolume "{had}" has no manifest any more. Put that back, or name another volume in '
                    "the claim's spec.volumeName"
                )
        elif (why := _reserved(claim, volume)) or (why := _mode_misfit(claim, volume)):
            self._why[name] = f'PVC is not bound: its PersistentVolume "{had}" {why}'
        else:
            self._take(name, had)
        return True

    def _try(self, name: str, claim: PersistentVolumeClaim, volume: PersistentVolume) -> None:
        """Bind a claim to a volume that one of both names. It waits if the volume's last claim may still come."""
        before = self._had.get(volume.metadata.name, name)
        if before != name and before not in self._claims and not self._is_complete:
            return
        if self._misfit(name, claim, volume, is_named=True):
            self._refused[name] = volume
        else:
            self._take(name, volume.metadata.name)

    def _choose(self, name: str, claim: PersistentVolumeClaim) -> bool:
        """Bind a claim to the smallest volume that satisfies it. Returns whether there is one."""
        fitting = [volume for volume in self._volumes.values() if not self._misfit(name, claim, volume)]
        if fitting:
            self._take(name, min((_capacity(volume), volume.metadata.name) for volume in fitting)[1])
        return bool(fitting)

    def _explain(self, name: str, claim: PersistentVolumeClaim) -> str:
        """What the claim wants, and why the volumes do not satisfy it."""
        first = list(self._volumes.values())[:MAX_NAMED]
        listed = [f'"{volume.metadata.name}" {self._misfit(name, claim, volume)}' for volume in first]
        if len(self._volumes) > len(first):
            listed.append(f"{len(self._volumes) - len(first)} more")
        words = "; ".join(listed) or "no manifest has a PersistentVolume"
        return f"PVC is not bound: no free PersistentVolume has {_wish(claim)}: {words}"

    def _take(self, name: str, volume: str) -> None:
        self._bound[name] = volume
        self._owners[volume] = name

    def _misfit(self, name: str, claim: PersistentVolumeClaim, volume: PersistentVolume, is_named: bool = False) -> str:
        """Why the volume does not satisfy the claim; empty if it does. `is_named`: one of them names the other."""
        own, spec, wanted = volume.metadata.name, volume.spec, claim.spec
        if own in self._owners:
            return f"is bound to the claim {self._owners[own]}"
        if why := _reserved(claim, volume) or _mode_misfit(claim, volume):
            return why
        if not is_named:
            before = self._had.get(own, name)
            if before != name:
                return f"has the data of the claim {before}; name it in spec.volumeName to take it"
        if _class_of(claim) != _class_of(volume):
            return f"has {_class_words(volume)}"
        if not set(wanted.accessModes) <= set(spec.accessModes):
            return f"has the access modes {', '.join(spec.accessModes)}"
        if _capacity(volume) < parse(_size(claim)).nano:
            return f"has {spec.capacity['storage']}"
        if is_named:
            return ""
        if wanted.selector is not None and not matches_selector(wanted.selector, volume.metadata.labels):
            return "lacks labels that the selector wants"
        required = spec.nodeAffinity.required if spec.nodeAffinity is not None else None
        if required is not None and not matches_node_selector(required, self._node):
            return "has a nodeAffinity without this node"
        return ""


def _reserved(claim: PersistentVolumeClaim, volume: PersistentVolume) -> str:
    reference, meta = volume.spec.claimRef, claim.metadata
    if reference is None:
        return ""
    if ((reference.namespace or "default"), reference.name) != (meta.namespace, meta.name):
        return f"is reserved by its claimRef for {reference.namespace or 'default'}/{reference.name}"
    if reference.uid not in ("", meta.uid):
        return f"is reserved by its claimRef for the UID {reference.uid}; leave the UID out"
    return ""


def _mode_misfit(claim: PersistentVolumeClaim, volume: PersistentVolume) -> str:
    return "" if claim.spec.volumeMode == volume.spec.volumeMode else f"has the volumeMode {volume.spec.volumeMode}"


def _class_of(owner: PersistentVolume | PersistentVolumeClaim) -> str:
    return owner.metadata.annotations.get(CLASS_ANNOTATION, owner.spec.storageClassName)


def _capacity(volume: PersistentVolume) -> int:
    return parse(volume.spec.capacity["storage"]).nano


def _size(claim: PersistentVolumeClaim) -> Quantity:
    return claim.spec.resources.requests["storage"] if claim.spec.resources is not None else "0"


def _wish(claim: PersistentVolumeClaim) -> str:
    """What the claim wants, as users read it."""
    spec = claim.spec
    parts = [f"{_size(claim)} or more", f"the access modes {', '.join(spec.accessModes)}", _class_words(claim)]
    if spec.volumeMode != "Filesystem":
        parts.append(f"the volumeMode {spec.volumeMode}")
    if spec.selector is not None:
        parts.append("the labels of its selector")
    return ", ".join(parts)


def _class_words(owner: PersistentVolume | PersistentVolumeClaim) -> str:
    name = _class_of(owner)
    return f'the storage class "{name}"' if name else "no storage class"


def _bound_claim(claim: PersistentVolumeClaim, volume: PersistentVolume) -> PersistentVolumeClaim:
    spec = volume.spec
    status = PersistentVolumeClaimStatus(phase="Bound", accessModes=spec.accessModes, capacity=spec.capacity)
    return replace(claim, spec=replace(claim.spec, volumeName=volume.metadata.name), status=status)


def _bound_volume(volume: PersistentVolume, claim: PersistentVolumeClaim | None) -> PersistentVolume:
    if claim is None:
        return replace(volume, status=PersistentVolumeStatus(phase="Available"))
    meta = claim.metadata
    reference = ObjectReference(
        apiVersion="v1", kind="PersistentVolumeClaim", namespace=meta.namespace, name=meta.name, uid=meta.uid
    )
    spec = replace(volume.spec, claimRef=reference)
    return replace(volume, spec=spec, status=PersistentVolumeStatus(phase="Bound"))
