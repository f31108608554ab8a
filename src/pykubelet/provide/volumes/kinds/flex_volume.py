"""flexVolume volumes (deprecated): a driver that is a program in `volumePluginDir` mounts them.

Rules: a driver with the capability `attach` mounts the volume once for the node, after it is attached; pods get binds. The
driver gets the volume's options, its secret, and who uses it, as one JSON object. A driver `extension/NAME` is a process extension
(docs/extensions/protocol.md), if one of this name is loaded.
Source: "Flexvolume" in the Kubernetes community's documents for developers of storage.
"""

from __future__ import annotations

from collections.abc import Iterable

from pykubelet.base.api.core import FlexVolumeSource, Pod, Volume
from pykubelet.base.api.storage import FlexPersistentVolumeSource
from pykubelet.base.model.content import Content, ContentKey
from pykubelet.base.model.extensions import PROVIDES_VOLUMES, ExtensionState
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.plugins import FlexDriver
from pykubelet.provide.volumes.attached import await_attachment, referenced_secret, secret_data
from pykubelet.provide.volumes.flex.calls import device_of, expand, find_devices, mount, stage, unmount, unstage
from pykubelet.provide.volumes.flex.plan import (
    EXTENSION,
    KIND_NAME,
    ExtensionPlan,
    FlexDevicePlan,
    FlexPlan,
    FlexSecrets,
    devices_of,
    directory_of,
)
from pykubelet.provide.volumes.kind import PlanInputs, RefusedPlan, ResolvedVolume, UndecidedPlan, VolumeKind

Source = FlexVolumeSource | FlexPersistentVolumeSource


def keys(pod: Pod, volume: Volume) -> Iterable[ContentKey]:
    """The secret for the driver."""
    key = referenced_secret(pod, volume.flexVolume.secretRef) if volume.flexVolume is not None else None
    return () if key is None else (key,)


def claimed_keys(pod: Pod, claimed: ResolvedVolume, _content: Content) -> Iterable[ContentKey]:
    """The secret of a persistent volume for the driver."""
    source = claimed.volume.spec.flexVolume
    key = referenced_secret(pod, source.secretRef) if source is not None else None
    return () if key is None else (key,)


def plan(inputs: PlanInputs) -> FlexPlan | ExtensionPlan | RefusedPlan | UndecidedPlan:
    """What to ask of the driver; undecided until drivers, attachment and secret are known. VolumesError."""
    source = inputs.source.flexVolume
    assert source is not None
    name = source.driver.removeprefix(EXTENSION) if source.driver.startswith(EXTENSION) else ""
    extension = inputs.extensions.named(name) if name else None
    if extension is not None:
        return _of_extension(inputs, source, extension)
    driver = inputs.plugins.flex.usable.get(source.driver)
    if driver is None:
        return _missing(inputs, source.driver)
    read_only = bool(source.readOnly) if inputs.claimed is None else inputs.claimed.read_only
    staged = _device(inputs, source, driver, read_only) if driver.attaches else None
    if staged is not None and (awaited := await_attachment(inputs, staged)) is not None:
        return awaited
    secrets = _secrets(inputs, source)
    if isinstance(secrets, UndecidedPlan):
        return secrets
    path = inputs.paths.volume(PodUID(inputs.pod.metadata.uid), source.driver, inputs.spec_name)
    context = inputs.pod.spec.securityContext
    return FlexPlan(
        inputs.mounted(
            path, read_only=read_only, supports_relabel=driver.relabels, is_measured=False, has_stats=driver.is_measured
        ),
        path,
        driver,
        _options(inputs, source, read_only),
        _pod_options(inputs),
        secrets,
        staged,
        inputs.fs_group if driver.applies_group and not read_only else None,
        context is not None and context.fsGroupChangePolicy == "OnRootMismatch",
    )


def _of_extension(
    inputs: PlanInputs, source: Source, extension: ExtensionState
) -> ExtensionPlan | RefusedPlan | UndecidedPlan:
    """What to ask of a process extension; undecided while it is away."""
    name = extension.name
    if extension.off:
        why = f" ({extension.error})" if extension.error else ""
        return UndecidedPlan(f"extension {name}: {extension.off}{why}")
    if PROVIDES_VOLUMES not in extension.points:
        return RefusedPlan(f"extension {name} provides no volumes", until=f"extension {name} provides volumes")
    secrets = _secrets(inputs, source)
    if isinstance(secrets, UndecidedPlan):
        return secrets
    read_only = bool(source.readOnly) if inputs.claimed is None else inputs.claimed.read_only
    uid, directory = PodUID(inputs.pod.metadata.uid), directory_of(source.driver)
    path = inputs.paths.volume(uid, directory, inputs.spec_name)
    note = inputs.paths.pod_plugins(uid) / directory / inputs.spec_name
    mounted = inputs.mounted(path, read_only=read_only, is_measured=False)
    return ExtensionPlan(mounted, path, name, note, inputs.pod, source.options, secrets, source.fsType)


def _missing(inputs: PlanInputs, driver: str) -> RefusedPlan | UndecidedPlan:
    drivers = inputs.plugins.flex
    if not drivers.is_settled:
        return UndecidedPlan("the drivers of flexVolume volumes are being read")
    text = f'failed to get Plugin from volumeSpec for volume "{inputs.spec_name}" err=no volume plugin matched'
    problem = drivers.problems.get(driver)
    if problem is None and driver.startswith(EXTENSION):
        problem = f"no extension {driver.removeprefix(EXTENSION)} is loaded"
    why = f": {problem}" if problem else ""
    return RefusedPlan(f"{text}{why}", until=f"the flexVolume driver {driver} is there", step="")


def _device(inputs: PlanInputs, source: Source, driver: FlexDriver, read_only: bool) -> FlexDevicePlan:
    name = f"{driver.name}/{inputs.spec_name}"
    return FlexDevicePlan(
        name=name,
        kind=KIND_NAME,
        directory=devices_of(inputs.paths) / driver.name / "mounts" / inputs.spec_name,
        is_attachable=inputs.content.available,
        driver=driver,
        options=_options(inputs, source, read_only),
        device=inputs.node_volumes.attached.get(name, ""),
        fs_type=source.fsType,
        read_only=read_only,
    )


def _options(inputs: PlanInputs, source: Source, read_only: bool) -> dict[str, str]:
    return {
        "kubernetes.io/fsType": source.fsType,
        "kubernetes.io/readwrite": "ro" if read_only else "rw",
        "kubernetes.io/pvOrVolumeName": inputs.spec_name,
        **source.options,
    }


def _pod_options(inputs: PlanInputs) -> dict[str, str]:
    about = inputs.pod.metadata
    group = {} if inputs.fs_group is None else {"kubernetes.io/mounterArgs.FsGroup": str(inputs.fs_group)}
    return group | {
        "kubernetes.io/pod.name": about.name,
        "kubernetes.io/pod.namespace": about.namespace,
        "kubernetes.io/pod.uid": about.uid,
        "kubernetes.io/serviceAccount.name": inputs.pod.spec.serviceAccountName,
    }


def _secrets(inputs: PlanInputs, source: Source) -> FlexSecrets | UndecidedPlan:
    key = referenced_secret(inputs.pod, source.secretRef)
    if key is None:
        return FlexSecrets()
    data = secret_data(inputs, key, source.driver)
    if isinstance(data, UndecidedPlan):
        return data
    return FlexSecrets(data)


def directory(volume: Volume) -> str:
    """The directory of an inline volume below the pod's `volumes`."""
    return directory_of(volume.flexVolume.driver) if volume.flexVolume is not None else ""


KIND = VolumeKind[FlexPlan | ExtensionPlan](
    name=KIND_NAME,
    plugin="flexvolume",
    has_directory=False,
    driver_directory=directory,
    keys=keys,
    claimed_keys=claimed_keys,
    plan=plan,
    is_persistent=True,
    mount=mount,
    unmount=unmount,
    stage=stage,
    unstage=unstage,
    find_devices=find_devices,
    device_of=device_of,
    expand=expand,
)
