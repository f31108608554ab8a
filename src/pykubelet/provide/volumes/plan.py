"""Finds the kind of each volume of a pod, plans the volume from the pod's spec, and resolves its claim to the persistent volume. Pure.

A kind without a module in `kinds/` is represented by a `VolumeKind` that plans nothing. Its volumes on disk are unmounted; their data
are kept.

Rules: a plan that depends on the node's allocatable resources or on API objects is undecided until they are known.
A volume that cannot be provided is refused with the error text of the reference kubelet. A kind without a module in
`kinds/` is refused by name.

Objects are found in rounds, because only the claim names its volume. A claim that is being deleted still works while it has the
finalizer that protects it. The claim of a generic ephemeral volume must belong to the pod. Volumes of in-tree cloud plugins are
translated to CSI, also those of the pod's own, which become persistent volumes without a claim.
Source: the Kubernetes documentation "Volumes", "Persistent Volumes", "Ephemeral Volumes".
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from typing import Any, Final, TypeVar

from pykubelet.base.api.codec import unusable_text
from pykubelet.base.api.core import Pod, Volume
from pykubelet.base.api.quantity import QuantityError
from pykubelet.base.api.storage import PersistentVolume, PersistentVolumeClaim, PersistentVolumeSpec
from pykubelet.base.model.content import Absent, Content, ContentKey, ContentKind, ObjectKey, Present
from pykubelet.base.model.needs import claim_key, volume_uses
from pykubelet.base.model.node_selector import matches_node_selector
from pykubelet.base.model.paths import Paths
from pykubelet.provide.volumes import kinds
from pykubelet.provide.volumes.kind import (
    HEAVY,
    NEW_MOUNTER,
    NODE_AFFINITY,
    DevicePlan,
    FoundDevice,
    PendingError,
    Plan,
    PlanInputs,
    RefusedPlan,
    ResolvedVolume,
    UndecidedPlan,
    VolumeKind,
    VolumePlan,
    VolumesError,
)
from pykubelet.provide.volumes.migration import MIGRATIONS, MigrationError, migrate, migrate_inline, migrated_field
from pykubelet.provide.volumes.model import Inputs, SetUp, TearDown

# The kinds of volumes: one for each module in `kinds/`

AnyKind = VolumeKind[Any]


def _load() -> Iterable[AnyKind]:
    for module in pkgutil.iter_modules(kinds.__path__):
        kind: AnyKind = import_module(f"{kinds.__name__}.{module.name}").KIND
        yield kind


KINDS: Final[Mapping[str, AnyKind]] = {kind.name: kind for kind in _load()}
_BY_DIRECTORY: Final[Mapping[str, AnyKind]] = {kind.directory: kind for kind in KINDS.values() if kind.directory}
_DRIVEN: Final = next(kind for kind in KINDS.values() if kind.driver_directory is not None)
_SOURCES: Final = tuple(name for name in Volume.__struct_fields__ if name != "name")
#: The directories of the kinds below a pod's `volumes`, except for those that have the name of a driver.
DIRECTORIES: Final = frozenset(_BY_DIRECTORY)
#: The plugin's name in metrics, such as `kubernetes.io/empty-dir`, by the name of the kind.
PLUGINS: Final[Mapping[str, str]] = {k.name: k.plugin for k in KINDS.values() if k.plugin and (k.set_up or k.mount)}


def kind_named(name: str) -> AnyKind:
    """The kind with this name; without a module, a kind that plans nothing."""
    return KINDS.get(name) or VolumeKind(name)


def kind_in(directory: str) -> AnyKind:
    """The kind with this directory below a pod's `volumes`, such as `kubernetes.io~empty-dir`; "": a kind without one."""
    return _BY_DIRECTORY.get(directory, _DRIVEN) if directory else VolumeKind("")


def plugin_of_device(device: FoundDevice | DevicePlan) -> str:
    """As `plugin_of_plan`, from the unique name of a device, which is `<plugin>/<driver>^<handle>` for volumes of drivers."""
    plugin = kind_named(device.kind).plugin
    driver, mark, _ = device.name.removeprefix(f"{plugin}/").partition("^")
    return f"{plugin}:{driver}" if mark else plugin


def plugin_of_plan(plan: VolumePlan) -> str:
    """The Kubernetes name of the volume plugin, with that of its driver if it has one."""
    plugin = kind_named(plan.kind).plugin
    return f"{plugin}:{plan.driver}" if plan.driver else plugin


def plugin_of(command: SetUp | TearDown) -> str:
    """The Kubernetes name of the volume plugin, such as `kubernetes.io/empty-dir`."""
    if isinstance(command, SetUp):
        return plugin_of_plan(command.plan)
    return command.plugin.replace("~", "/")


def directory_of(volume: Volume) -> str:
    """The directory of a volume's kind below the pod's `volumes`; "" for kinds without one, and for claims."""
    kind = kind_of(volume)
    return kind.driver_directory(volume) if kind.driver_directory is not None else kind.directory


def weight_of(volume: Volume) -> int:
    """How many things a plan of the volume is made from."""
    return kind_of(volume).weight(volume)


def is_heavy(volume: Volume) -> bool:
    """Whether a plan of the volume takes too long for the event loop."""
    return weight_of(volume) >= HEAVY


def kind_of(volume: Volume) -> AnyKind:
    """The kind of a volume, by the field that is set. A volume without a source is an emptyDir."""
    for name in _SOURCES:
        if getattr(volume, name) is not None:
            return kind_named(name)
    return KINDS["emptyDir"]


def kind_of_persistent(volume: PersistentVolumeSpec) -> AnyKind | None:
    """The kind of a persistent volume, by the field that is set; None when pods cannot use it."""
    fields = (name for name in volume.__struct_fields__ if name in KINDS and KINDS[name].is_persistent)
    return next((KINDS[name] for name in fields if getattr(volume, name) is not None), None)


# The plans

#: Kinds that were removed from Kubernetes, or that only ever were in its API.
_REMOVED = ("rbd", "cephfs", "glusterfs", "quobyte", "storageos", "flocker", "photonPersistentDisk", "scaleIO")


def plan_volume(pod: Pod, volume: Volume, inputs: Inputs, paths: Paths) -> Plan:
    """The plan for one volume of the pod on this node, from the API objects and plugins that are known."""
    if is_persistent(pod, volume):
        return _plan_persistent(pod, volume, inputs, paths)
    kind = kind_of(volume)
    if kind.plan is None:
        return _refused_kind(volume.name, kind.name)
    return _plan(_plan_inputs(kind, pod, volume, inputs, paths))


def _plan_persistent(pod: Pod, volume: Volume, inputs: Inputs, paths: Paths) -> Plan:
    """The plan for the persistent volume behind the pod's volume. The checks are in the order of the reference kubelet."""
    claimed = resolve(pod, volume, inputs.content)
    if not isinstance(claimed, ResolvedVolume):
        return claimed
    kind, spec = kind_of_persistent(claimed.volume.spec), claimed.volume.spec
    if kind is None:
        return _refused_kind(claimed.name, next((name for name in _REMOVED if getattr(spec, name, None)), ""))
    required = spec.nodeAffinity.required if spec.nodeAffinity is not None else None
    if required is not None and not matches_node_selector(required, inputs.node):
        return RefusedPlan(
            "no matching NodeSelectorTerms", step=NODE_AFFINITY, spec_name=claimed.name, is_block=claimed.is_block
        )
    if claimed.is_block and not kind.maps_devices:
        return RefusedPlan(
            f"volumes of kind {kind.name} cannot be passed to pods as block devices",
            step="FindMapperPluginBySpec",
            spec_name=claimed.name,
            is_block=True,
        )
    if claimed.mount_options and not claimed.is_block and not kind.mount_options:
        return RefusedPlan(
            "mount options are not supported for this volume type",
            step="MountOptionSupport check",
            spec_name=claimed.name,
        )
    return _plan(_plan_inputs(kind, pod, volume, inputs, paths, claimed))


def _plan_inputs(
    kind: AnyKind, pod: Pod, volume: Volume, inputs: Inputs, paths: Paths, claimed: ResolvedVolume | None = None
) -> PlanInputs:
    node, content, plugins = inputs.node, inputs.content, inputs.plugins
    others = inputs.selinux, inputs.resizes_memory, inputs.extensions
    return PlanInputs(kind, pod, volume, node, content, paths, plugins, claimed, inputs.node_volumes, *others)


def _plan(inputs: PlanInputs) -> Plan:
    assert inputs.kind.plan is not None
    try:
        if unusable := unusable_text(inputs.source):
            raise VolumesError(f"{unusable[0]}: {unusable[1]}", NEW_MOUNTER)
        plan: Plan = inputs.kind.plan(inputs)
    except PendingError as error:
        return RefusedPlan(str(error), UNTIL_ISSUED, step=error.step, waits=error.waits)
    except VolumesError as error:
        name = inputs.claimed.name if inputs.claimed is not None else ""
        return RefusedPlan(str(error), error.until, error.step, name, inputs.is_block)
    except QuantityError as error:
        return RefusedPlan(str(error))
    return plan


def _refused_kind(name: str, kind: str) -> RefusedPlan:
    """The refusal of a volume that nothing provides. `name`: as in `ResolvedVolume.name`."""
    text = f'failed to get Plugin from volumeSpec for volume "{name}" err=no volume plugin matched'
    return RefusedPlan(f'{text}: Kubernetes has no "{kind}" volumes any more' if kind in _REMOVED else text, step="")


def volume_keys(pod: Pod, volume: Volume, content: Content) -> Iterable[ContentKey]:
    """The objects of the API server that one volume of the pod is made from, as far as `content` shows them."""
    kind = kind_of(volume)
    yield from kind.keys(pod, volume)
    yield from kind.further_keys(pod, volume, content)
    yield from claim_keys(pod, volume, content)
    claimed = resolve(pod, volume, content) if is_persistent(pod, volume) else None
    if isinstance(claimed, ResolvedVolume) and (persistent := kind_of_persistent(claimed.volume.spec)) is not None:
        yield from persistent.claimed_keys(pod, claimed, content)


# Claims

T = TypeVar("T", PersistentVolumeClaim, PersistentVolume)
PROTECTION = "kubernetes.io/pvc-protection"
UNTIL_ISSUED = "a signer has issued the certificate"
UNTIL_MANIFESTS = "a manifest of a PersistentVolumeClaim or PersistentVolume is added, changed or removed"
MOUNT_OPTIONS = "volume.beta.kubernetes.io/mount-options"


class _RefusedError(Exception):
    """The volume is refused; the text is shown to users. `until`: as in `RefusedPlan`."""

    def __init__(self, text: str, until: str = "") -> None:
        super().__init__(text)
        self.until = until


class _AwaitedError(Exception):
    """There is no answer about `key` yet."""

    def __init__(self, key: ObjectKey) -> None:
        super().__init__()
        self.key = key


def claim_of(pod: Pod, volume: Volume) -> ObjectKey | None:
    """The key of the claim that the pod's volume refers to, by name or as a generic ephemeral volume; None for other kinds."""
    if volume.persistentVolumeClaim is not None:
        return claim_key(pod, volume.persistentVolumeClaim.claimName)
    if volume.ephemeral is not None:
        return claim_key(pod, f"{pod.metadata.name}-{volume.name}")
    return None


def is_persistent(pod: Pod, volume: Volume) -> bool:
    """Whether the pod's volume is a persistent one: it refers to a claim, or is translated to a CSI volume."""
    return claim_of(pod, volume) is not None or kind_of(volume).name in MIGRATIONS


def claim_keys(pod: Pod, volume: Volume, content: Content) -> Iterator[ObjectKey]:
    """The claim, and its persistent volume once the claim is known to be bound to one."""
    key = claim_of(pod, volume)
    if key is None:
        return
    yield key
    try:
        claim = _read(content, key, PersistentVolumeClaim, "")
        _check_claim(pod, volume, claim)
    except (_AwaitedError, _RefusedError):
        return
    yield _volume_key(claim)


def resolve(pod: Pod, volume: Volume, content: Content) -> ResolvedVolume | RefusedPlan | UndecidedPlan:
    """The persistent volume behind a volume of the pod for which `is_persistent` is true."""
    key = claim_of(pod, volume)
    try:
        return _resolve_inline(pod, volume) if key is None else _resolve(pod, volume, content, key)
    except _RefusedError as error:
        return RefusedPlan(str(error), error.until, step="")
    except MigrationError as error:
        return RefusedPlan(str(error), step="")
    except _AwaitedError as error:
        return UndecidedPlan(f"nothing is known of the {error.key.kind} yet", (error.key,))


def _resolve(pod: Pod, volume: Volume, content: Content, key: ObjectKey) -> ResolvedVolume:
    prefix = f"error processing PVC {key.namespace}/{key.name}: "
    claim = _read(content, key, PersistentVolumeClaim, f"{prefix}failed to fetch PVC from API server: ")
    _check_claim(pod, volume, claim)
    name = claim.spec.volumeName
    source = _read(
        content, _volume_key(claim), PersistentVolume, f"{prefix}failed to fetch PV {name} from API server: "
    )
    if source.spec.claimRef is None:
        raise _RefusedError(
            f"{prefix}found PV object {name} but it has a nil pv.Spec.ClaimRef indicating it is not yet bound to the claim"
        )
    if source.spec.claimRef.uid != claim.metadata.uid:
        raise _RefusedError(
            f"{prefix}found PV object {name} but its pv.Spec.ClaimRef.UID {source.spec.claimRef.uid} "
            f"does not point to claim.UID {claim.metadata.uid}"
        )
    resolved = ResolvedVolume(
        migrate(source),
        read_only=_is_read_only(volume),
        mount_options=_mount_options(source),
        is_migrated=migrated_field(source.spec) != "",
        claim=claim,
    )
    _check_mode(pod, volume, resolved)
    return resolved


def _resolve_inline(pod: Pod, volume: Volume) -> ResolvedVolume:
    """The persistent volume that a volume of the pod's own is translated to."""
    made = migrate_inline(volume, pod.metadata.namespace)
    read_only = made.spec.csi is not None and bool(made.spec.csi.readOnly)
    return ResolvedVolume(made, read_only=read_only, is_migrated=True)


def _check_claim(pod: Pod, volume: Volume, claim: PersistentVolumeClaim) -> None:
    metadata, wanted = claim.metadata, pod.metadata
    prefix = f"error processing PVC {metadata.namespace}/{metadata.name}: "
    if metadata.deletionTimestamp and PROTECTION not in metadata.finalizers:
        raise _RefusedError(f"{prefix}PVC is being deleted")
    if claim.status is None or claim.status.phase != "Bound":
        raise _RefusedError(f"{prefix}PVC is not bound", _until_bound(claim))
    if not claim.spec.volumeName:
        raise _RefusedError(f"{prefix}PVC has empty pvc.Spec.VolumeName")
    owner = next((reference.uid for reference in metadata.ownerReferences if reference.controller), "")
    if volume.ephemeral is not None and owner != wanted.uid:
        raise _RefusedError(
            f"PVC {metadata.namespace}/{metadata.name} was not created for pod {wanted.namespace}/{wanted.name} "
            "(pod is not owner)"
        )


def _until_bound(claim: PersistentVolumeClaim) -> str:
    """What has to happen before the claim can be used."""
    name = f"the claim {claim.metadata.namespace}/{claim.metadata.name} is bound"
    phase = claim.status.phase if claim.status is not None else ""
    if phase == "Lost":
        return f"{name} again (Lost: its volume {claim.spec.volumeName} is gone)"
    waits_for = f" for volume {claim.spec.volumeName}" if claim.spec.volumeName else ""
    of_class = f", storage class {claim.spec.storageClassName}" if claim.spec.storageClassName else ", no storage class"
    return f"{name} ({phase or 'Pending'}{waits_for}{of_class}; its Events say more)"


def _volume_key(claim: PersistentVolumeClaim) -> ObjectKey:
    return ObjectKey(ContentKind.VOLUME, "", claim.spec.volumeName)


def _read(content: Content, key: ObjectKey, kind: type[T], failed: str) -> T:
    """The object in `content`. `failed`: what precedes the text about one that is missing or cannot be read."""
    found = content.find(key)
    if isinstance(found, Present) and isinstance(found.value, kind):
        return found.value
    if found is None:
        if not content.may_answer(key):
            raise _RefusedError(f"{failed}kube client is not configured")
        raise _AwaitedError(key)
    if isinstance(found, Absent) and content.has_manifests:
        raise _RefusedError(f"error processing PVC {key.namespace}/{key.name}: {found.message}", UNTIL_MANIFESTS)
    raise _RefusedError(failed + (f"unexpected {key.kind}" if isinstance(found, Present) else found.message))


def _is_read_only(volume: Volume) -> bool:
    """Whether the pod asks for its claim read-only. The source's own `readOnly` does not count."""
    return volume.persistentVolumeClaim is not None and bool(volume.persistentVolumeClaim.readOnly)


def _mount_options(source: PersistentVolume) -> tuple[str, ...]:
    """The mount options of the volume. Those of the old annotation take precedence over those of the spec."""
    stated = source.metadata.annotations.get(MOUNT_OPTIONS)
    options = source.spec.mountOptions if stated is None else stated.split(",")
    return tuple(sorted({option for option in options if option}))


def _check_mode(pod: Pod, volume: Volume, resolved: ResolvedVolume) -> None:
    """Refuse a block volume that is mounted as files, and the reverse."""
    uses = volume_uses(pod)
    if resolved.is_block and volume.name in uses.mounted:
        raise _RefusedError(f"volume {volume.name} has volumeMode Block, but is specified in volumeMounts")
    if not resolved.is_block and volume.name in uses.devices:
        raise _RefusedError(f"volume {volume.name} has volumeMode Filesystem, but is specified in volumeDevices")
