"""Plans CSI volumes: of a pod's own (inline, ephemeral), and persistent ones. Pure.

Rules:
 1. The driver must have registered with the agent, and its CSIDriver object must offer the volume's mode. A driver without
    such an object offers persistent volumes, which need to be attached.
 2. A volume that needs to be attached is first reported as in use. The Node's status must then list it as attached, and
    its VolumeAttachment must agree.
 3. What is needed to stage or grow the volume only counts if that is done: a missing secret for it is no refusal.
Source: the Kubernetes CSI documentation, "CSIDriver Object"; KEP-1682 (fsGroup policy); KEP-2317 (fsGroup by the driver).
"""

from __future__ import annotations

from collections.abc import Mapping

from pykubelet.base.api.storage import CSIDriverSpec, CSIPersistentVolumeSource, SecretReference
from pykubelet.base.kit.values import replace
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.mounts import DrivenVolume
from pykubelet.provide.volumes.attached import await_attachment
from pykubelet.provide.volumes.csi.data import (
    EPHEMERAL,
    MOUNT,
    NO_BLOCK_CLIENT,
    NO_DEVICE_CLIENT,
    PERSISTENT,
    CsiAccess,
    CsiDevicePlan,
    CsiPlan,
    DevicePaths,
    HiddenFields,
    VolumeData,
    driver_missing,
    inline_handle,
)
from pykubelet.provide.volumes.csi.objects import (
    FETCHING,
    Awaited,
    attachment_context,
    claimed_secret,
    driver_spec,
    inline_secret,
    needs_attachment,
    pod_info,
    tokens_of,
)
from pykubelet.provide.volumes.disks.block_paths import map_of
from pykubelet.provide.volumes.kind import (
    MOUNT_DEVICE,
    DevicePlan,
    PlanInputs,
    RefusedPlan,
    ResolvedVolume,
    UndecidedPlan,
    VolumesError,
)
from pykubelet.provide.volumes.selinux import mount_context, mount_option

_OF_ONE_NODE = frozenset({"ReadWriteOnce", "ReadWriteOncePod"})
_NO_STAGE = "fetching NodeStageSecretRef {} failed: "
_NO_PUBLISH = "kubernetes.io/csi: blockMapper.publishVolumeForBlock failed to get NodePublishSecretRef {}: "
_NO_BLOCK_STAGE = "kubernetes.io/csi: failed to get NodeStageSecretRef {}: "
_NO_EXPAND = "expander.NodeExpand failed to get NodeExpandSecretRef {}: "
Planned = CsiPlan | RefusedPlan | UndecidedPlan


def plan(inputs: PlanInputs) -> Planned:
    """What to ask of the driver; undecided while plugins register or an object is awaited. VolumesError."""
    return _plan_inline(inputs) if inputs.claimed is None else _plan_persistent(inputs, inputs.claimed)


def needs_refresh(present: CsiPlan, wanted: CsiPlan) -> bool:
    """Whether the driver wants to be called again, and gets other secrets or tokens."""
    return wanted.republishes and (not present.republishes or present.hidden != wanted.hidden)


def _plan_inline(inputs: PlanInputs) -> Planned:
    source, pod, content = inputs.volume.csi, inputs.pod, inputs.content
    assert source is not None
    if (missing := _missing_driver(inputs, source.driver)) is not None:
        return missing
    spec = driver_spec(source.driver, EPHEMERAL, content)
    if isinstance(spec, Awaited):
        return UndecidedPlan("", spec.keys)
    reference = source.nodePublishSecretRef
    secrets = inline_secret(pod, reference.name if reference is not None else "", content)
    tokens = tokens_of(pod, spec, content)
    if isinstance(secrets, Awaited) or isinstance(tokens, Awaited):
        return _awaiting(secrets, tokens)
    uid, read_only = PodUID(pod.metadata.uid), bool(source.readOnly)
    data = VolumeData(source.driver, inline_handle(uid, inputs.volume.name), inputs.volume.name, inputs.node.name)
    access = CsiAccess(
        fs_type=source.fsType,
        fs_group=inputs.fs_group,
        context={**source.volumeAttributes, **pod_info(pod, spec, EPHEMERAL)},
    )
    applied = not read_only and _applies_group(spec, source.fsType, ("ReadWriteOnce",))
    return _plan_mount(inputs, spec, data, access, read_only, _hidden(spec, secrets, tokens), applied)


def _plan_persistent(inputs: PlanInputs, claimed: ResolvedVolume) -> Planned:
    source, pod, content = claimed.volume.spec.csi, inputs.pod, inputs.content
    assert source is not None
    spec = driver_spec(source.driver, PERSISTENT, content)
    if isinstance(spec, Awaited):
        return UndecidedPlan("", spec.keys)
    context = mount_context(inputs) if spec.seLinuxMount else ""
    data = VolumeData(source.driver, source.volumeHandle, claimed.name, inputs.node.name, PERSISTENT, context)
    device = _device(inputs, claimed, data, is_attachable=needs_attachment(spec, content))
    attached = _attached(inputs, data, device)
    if isinstance(attached, UndecidedPlan):
        return attached
    if (missing := _missing_driver(inputs, source.driver)) is not None:
        return missing
    no_publish, no_stage = (_NO_PUBLISH, _NO_BLOCK_STAGE) if claimed.is_block else (FETCHING, _NO_STAGE)
    secrets = claimed_secret(source.nodePublishSecretRef, content, no_publish)
    tokens = tokens_of(pod, spec, content) if not claimed.is_block else {}
    staging, problem = _optional_secrets(inputs, source.nodeStageSecretRef, no_stage)
    growing, expand_problem = _optional_secrets(inputs, source.nodeExpandSecretRef, _NO_EXPAND)
    awaited = _awaiting(secrets, tokens, staging, growing)
    if (
        isinstance(secrets, Awaited)
        or isinstance(tokens, Awaited)
        or isinstance(staging, Awaited)
        or isinstance(growing, Awaited)
    ):
        return replace(awaited, device=device if device.is_attachable else None)
    access = _access(inputs, claimed, source, attached, mount_option(context))
    plugins = DevicePaths(inputs.paths.plugins)
    staged = CsiDevicePlan(
        name=device.name,
        kind=device.kind,
        directory=device.directory,
        is_attachable=device.is_attachable,
        context=context,
        data=data,
        access=access,
        staging=plugins.block_staging(claimed.name) if claimed.is_block else device.directory,
        hidden=HiddenFields(staging),
        problem=problem,
    )
    published = replace(access, context={**access.context, **pod_info(pod, spec, PERSISTENT)})
    modes = claimed.volume.spec.accessModes
    applied = not claimed.read_only and not claimed.is_block and _applies_group(spec, source.fsType, modes)
    hidden = _hidden(spec, secrets, tokens)
    return replace(
        _plan_mount(inputs, spec, data, published, claimed.read_only, hidden, applied),
        staged=staged,
        expand_hidden=HiddenFields(growing),
        expand_problem=expand_problem,
    )


def _plan_mount(
    inputs: PlanInputs,
    spec: CSIDriverSpec,
    data: VolumeData,
    access: CsiAccess,
    read_only: bool,
    hidden: HiddenFields,
    is_group_applied: bool,
) -> CsiPlan:
    security, directory = inputs.pod.spec.securityContext, inputs.dirs.path
    paths, name = DevicePaths(inputs.paths.plugins), data.spec_name
    target = paths.block_published(name, inputs.dirs.uid) if access.is_block else directory / MOUNT
    map = map_of(paths.block_map(name), inputs.dirs) if access.is_block else None
    path, relabels = directory if access.is_block else target, not access.is_block and not data.context
    mounted = inputs.mounted(path, read_only=read_only, supports_relabel=relabels, is_measured=False)
    return CsiPlan(
        replace(mounted, csi=DrivenVolume(data.driver, data.handle, str(target) if access.is_block else "")),
        directory=directory,
        target=target,
        map=map,
        data=data,
        access=access,
        hidden=hidden,
        is_group_applied=is_group_applied,
        only_on_mismatch=security is not None and security.fsGroupChangePolicy == "OnRootMismatch",
        republishes=bool(spec.requiresRepublish),
    )


# Parts of plans


def _missing_driver(inputs: PlanInputs, name: str) -> RefusedPlan | UndecidedPlan | None:
    """Why there is no plan while the driver is not registered; None if it is."""
    if inputs.plugins.csi_driver(name) is not None:
        return None
    if not inputs.plugins.is_settled:
        return UndecidedPlan("the plugins of the node are being registered")
    until = f"the CSI driver {name} has registered"
    if inputs.claimed is None:
        return RefusedPlan(driver_missing(name), until=until)
    is_block = inputs.claimed.is_block
    text = driver_missing(name, NO_BLOCK_CLIENT if is_block else NO_DEVICE_CLIENT)
    return RefusedPlan(text, until, MOUNT_DEVICE, inputs.claimed.name, is_block)


def _awaiting(*parts: Mapping[str, str] | Awaited) -> UndecidedPlan:
    return UndecidedPlan("", tuple(key for part in parts if isinstance(part, Awaited) for key in part.keys))


def _hidden(spec: CSIDriverSpec, secrets: Mapping[str, str], tokens: Mapping[str, str]) -> HiddenFields:
    if spec.serviceAccountTokenInSecrets:
        return HiddenFields({**secrets, **tokens})
    return HiddenFields(secrets, tokens)


def _device(inputs: PlanInputs, claimed: ResolvedVolume, data: VolumeData, *, is_attachable: bool) -> DevicePlan:
    paths = DevicePaths(inputs.paths.plugins)
    mapped = paths.block_map(claimed.name) if claimed.is_block else paths.mounted(data.driver, data.handle)
    return DevicePlan(data.unique_name, inputs.kind.name, mapped, is_attachable)


def _attached(inputs: PlanInputs, data: VolumeData, device: DevicePlan) -> Mapping[str, str] | UndecidedPlan:
    """The context of an attached volume; undecided until it is attached. VolumesError if its VolumeAttachment contradicts."""
    if not device.is_attachable:
        return {}
    if (missing := await_attachment(inputs, device)) is not None:
        return missing
    found = attachment_context(data, inputs.content)
    return UndecidedPlan("", found.keys, device) if isinstance(found, Awaited) else found


def _optional_secrets(
    inputs: PlanInputs, reference: SecretReference | None, failed: str
) -> tuple[Mapping[str, str] | Awaited, str]:
    """The secrets for a call that may not be needed, or why they are unknown."""
    try:
        found = claimed_secret(reference, inputs.content, failed)
    except VolumesError as error:
        return {}, str(error)
    return found, ""


def _access(
    inputs: PlanInputs,
    claimed: ResolvedVolume,
    source: CSIPersistentVolumeSource,
    attached: Mapping[str, str],
    context: tuple[str, ...],
) -> CsiAccess:
    spec = claimed.volume.spec
    return CsiAccess(
        fs_type=source.fsType,
        mount_flags=(*spec.mountOptions, *context),
        access_mode=spec.accessModes[0] if spec.accessModes else "ReadWriteOnce",
        fs_group=inputs.fs_group,
        is_block=claimed.is_block,
        is_migrated=claimed.is_migrated,
        publish_context=attached,
        context=source.volumeAttributes,
    )


def _applies_group(spec: CSIDriverSpec, fs_type: str, modes: tuple[str, ...]) -> bool:
    """Whether the agent gives the files of a volume with these access modes to the pod's group."""
    if spec.fsGroupPolicy == "File":
        return True
    return spec.fsGroupPolicy != "None" and bool(fs_type) and not _OF_ONE_NODE.isdisjoint(modes)
