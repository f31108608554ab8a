"""iscsi volumes: a disk of an iSCSI target, which the node logs in to with the host's iscsiadm.

The disk is mounted once for the node, an empty one is formatted before; pods get binds. A volume of mode Block is mapped for
the pod as it is.
Source: the Kubernetes documentation "Volumes", iscsi.
"""

from __future__ import annotations

from collections.abc import Iterable

from pykubelet.base.api.core import Pod, Volume
from pykubelet.base.kit.values import replace
from pykubelet.base.model.content import Content, ContentKey
from pykubelet.edges.host.devices.iscsi_target import Chap, is_value
from pykubelet.provide.volumes.attached import await_attachment, referenced_secret, secret_data
from pykubelet.provide.volumes.disks.disk_plan import DiskPlan, is_read_only, mount_options, plan_bind, trees_of
from pykubelet.provide.volumes.disks.iscsi_plan import (
    NAME,
    PLUGIN,
    IscsiDevice,
    IscsiSource,
    disk_directory,
    disks,
    target_of,
    unique_name,
)
from pykubelet.provide.volumes.disks.iscsi_stage import device_of, find_devices, set_up, stage, tear_down, unstage
from pykubelet.provide.volumes.kind import (
    NEW_MOUNTER,
    PlanInputs,
    ResolvedVolume,
    UndecidedPlan,
    VolumeKind,
    VolumesError,
)
from pykubelet.provide.volumes.selinux import mount_context


def keys(pod: Pod, volume: Volume) -> Iterable[ContentKey]:
    """The secret with the passwords."""
    return _keys(pod, volume.iscsi)


def claimed_keys(pod: Pod, claimed: ResolvedVolume, _content: Content) -> Iterable[ContentKey]:
    """The secret with the passwords of a persistent volume."""
    return _keys(pod, claimed.volume.spec.iscsi)


def _keys(pod: Pod, source: IscsiSource | None) -> Iterable[ContentKey]:
    if source is not None and (source.chapAuthDiscovery or source.chapAuthSession):
        key = referenced_secret(pod, source.secretRef)
        if key is not None:
            yield key


def plan(inputs: PlanInputs) -> DiskPlan | UndecidedPlan:
    """The disk and its bind; undecided until attachment and secret are known. VolumesError."""
    source = inputs.source.iscsi
    assert source is not None
    read_only = is_read_only(inputs, source.readOnly)
    target = target_of(source, inputs.spec_name)
    device = IscsiDevice(
        name=unique_name(source),
        kind=NAME,
        directory=disk_directory(trees_of(disks(inputs.paths.plugins))[inputs.is_block], target),
        is_attachable=inputs.content.available,
        fs_type=source.fsType,
        options=mount_options(inputs, read_only),
        is_block=inputs.is_block,
        context=mount_context(inputs),
        volume=inputs.spec_name,
        target=target,
    )
    if (awaited := await_attachment(inputs, device, is_nothing=True)) is not None:
        return awaited
    chap = _chap(inputs, source)
    if isinstance(chap, UndecidedPlan):
        return replace(chap, device=device if device.is_attachable else None)
    return plan_bind(inputs, replace(device, chap=chap), read_only, has_stats=True)


def _chap(inputs: PlanInputs, source: IscsiSource) -> Chap | UndecidedPlan:
    discovery, session = bool(source.chapAuthDiscovery), bool(source.chapAuthSession)
    key = referenced_secret(inputs.pod, source.secretRef)
    if key is None or not (discovery or session):
        return Chap()
    data = secret_data(inputs, key, step=NEW_MOUNTER, word="error")
    if isinstance(data, UndecidedPlan):
        return data
    try:
        secret = {name: value.decode() for name, value in data.items()}
    except UnicodeDecodeError as error:
        raise VolumesError(f"the values of secret {key.namespace}/{key.name} are not all text", NEW_MOUNTER) from error
    chap = Chap(secret, discovery, session)
    for name, value in (*chap.for_discovery.items(), *chap.for_session.items()):
        if not is_value(value):
            rule = "must have at most 255 characters, and no control characters"
            raise VolumesError(f"the value of {name} in secret {key.namespace}/{key.name} {rule}", NEW_MOUNTER)
    return chap


KIND = VolumeKind(
    name=NAME,
    plugin=PLUGIN,
    keys=keys,
    claimed_keys=claimed_keys,
    plan=plan,
    set_up=set_up,
    is_persistent=True,
    mount_options=True,
    maps_devices=True,
    tear_down=tear_down,
    stage=stage,
    unstage=unstage,
    find_devices=find_devices,
    device_of=device_of,
)
