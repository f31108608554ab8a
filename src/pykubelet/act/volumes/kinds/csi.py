"""csi volumes of a pod's own (inline, ephemeral): a CSI driver makes and mounts them.

The driver must have registered with the agent, and its CSIDriver object must offer the mode Ephemeral.
Source: KEP-596 (ephemeral inline CSI volumes); KEP-1855 (tokens for CSI drivers); KEP-1682 (fsGroup policy).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pykubelet.act.volumes.csi_data import (
    EPHEMERAL,
    MOUNT,
    PERSISTENT,
    CsiPlan,
    HiddenFields,
    VolumeData,
    compact_json,
    driver_missing,
    inline_handle,
    quoted_list,
)
from pykubelet.act.volumes.csi_mount import mount, unmount
from pykubelet.act.volumes.kind import PlanInputs, RefusedPlan, UndecidedPlan, VolumeKind, VolumesError
from pykubelet.base.api.core import CSIVolumeSource, Pod, Secret, Volume
from pykubelet.base.api.storage import CSIDriver, CSIDriverSpec
from pykubelet.base.api.times import format_time
from pykubelet.base.kit.values import replace
from pykubelet.base.model.content import (
    Absent,
    Content,
    ContentKey,
    ContentKind,
    ObjectKey,
    Present,
    Token,
    TokenKey,
    Unreadable,
)
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.mounts import DrivenVolume
from pykubelet.base.model.needs import TOKEN_LIFE_S, secret_key

MODE_FAILED = "kubernetes.io/csi: mounter.SetupAt failed to check volume lifecycle mode: "
INFO = "csi.storage.k8s.io/"
TOKENS = f"{INFO}serviceAccount.tokens"


def keys(pod: Pod, volume: Volume) -> Iterable[ContentKey]:
    """The CSIDriver and the secret for the driver."""
    source = volume.csi
    if source is None or not source.driver:
        return
    yield driver_key(source.driver)
    if source.nodePublishSecretRef is not None and source.nodePublishSecretRef.name:
        yield secret_key(pod, source.nodePublishSecretRef.name)


def further_keys(pod: Pod, volume: Volume, content: Content) -> Iterable[ContentKey]:
    """The tokens that the CSIDriver asks for."""
    found = content.find(driver_key(volume.csi.driver)) if volume.csi is not None else None
    if isinstance(found, Present) and isinstance(found.value, CSIDriver):
        yield from _token_keys(pod, found.value.spec)


def driver_key(name: str) -> ObjectKey:
    """The key of a CSIDriver."""
    return ObjectKey(ContentKind.CSI_DRIVER, "", name)


def plan(inputs: PlanInputs) -> CsiPlan | RefusedPlan | UndecidedPlan:
    """What to ask of the driver; undecided while plugins register or an object is awaited. VolumesError."""
    source, pod = inputs.volume.csi, inputs.pod
    assert source is not None
    if inputs.plugins.csi_driver(source.driver) is None:
        if not inputs.plugins.is_settled:
            return UndecidedPlan("the plugins of the node are being registered")
        return RefusedPlan(driver_missing(source.driver), until=f"the CSI driver {source.driver} has registered")
    spec = _driver_spec(source.driver, inputs.content)
    if spec is None:
        return UndecidedPlan("", (driver_key(source.driver),))
    secrets = _secrets(pod, source, inputs.content)
    tokens = _tokens(pod, spec, inputs.content)
    if not isinstance(secrets, Mapping) or not isinstance(tokens, Mapping):
        awaited = [one for one in (secrets, tokens) if not isinstance(one, Mapping)]
        return UndecidedPlan("", tuple(key for keys_ in awaited for key in keys_))
    in_secrets = bool(spec.serviceAccountTokenInSecrets)
    uid, read_only = PodUID(pod.metadata.uid), bool(source.readOnly)
    data = VolumeData(source.driver, inline_handle(uid, inputs.volume.name), inputs.volume.name, inputs.node.name)
    context = {**source.volumeAttributes, **(_pod_info(pod) if spec.podInfoOnMount else {})}
    security = pod.spec.securityContext
    path = f"{inputs.dirs.path}/{MOUNT}"
    mounted = inputs.mounted(path, read_only=read_only, supports_relabel=True, is_measured=False)
    return CsiPlan(
        replace(mounted, csi=DrivenVolume(data.driver, data.handle)),
        directory=inputs.dirs.path,
        data=data,
        fs_type=source.fsType,
        context=context,
        hidden=HiddenFields({**secrets, **(tokens if in_secrets else {})}, {} if in_secrets else tokens),
        fs_group=inputs.fs_group,
        is_group_applied=not read_only and _applies_group(spec, source.fsType),
        only_on_mismatch=security is not None and security.fsGroupChangePolicy == "OnRootMismatch",
        republishes=bool(spec.requiresRepublish),
    )


def needs_refresh(present: CsiPlan, wanted: CsiPlan) -> bool:
    """Whether the driver wants to be called again, and gets other secrets or tokens."""
    return wanted.republishes and present.hidden != wanted.hidden


def _driver_spec(name: str, content: Content) -> CSIDriverSpec | None:
    """The driver's properties; None while they are awaited. VolumesError if it offers no volumes of a pod's own."""
    if not content.may_answer(driver_key(name)):
        raise VolumesError(f"{MODE_FAILED}kube client is not configured")
    refused = f'{MODE_FAILED}volume mode "{EPHEMERAL}" not supported by driver {name}'
    match content.find(driver_key(name)):
        case Present(CSIDriver(spec=spec)):
            modes = spec.volumeLifecycleModes
            if EPHEMERAL not in modes:
                raise VolumesError(f"{refused} (only supports {quoted_list(modes or (PERSISTENT,))})")
            return spec
        case Absent():
            raise VolumesError(f"{refused} (no CSIDriver object)")
        case Unreadable(message):
            raise VolumesError(f"{MODE_FAILED}{message}")
    return None


def _secrets(pod: Pod, source: CSIVolumeSource, content: Content) -> Mapping[str, str] | list[ContentKey]:
    """The data of the driver's secret, or the key that is awaited."""
    reference = source.nodePublishSecretRef
    if reference is None or not reference.name:
        return {}
    failed = f"fetching NodePublishSecretRef {pod.metadata.namespace}/{reference.name} failed: "
    if not content.available:
        raise VolumesError(f"{failed}kube client is not configured")
    key = secret_key(pod, reference.name)
    match content.find(key):
        case Present(Secret(data=data)):
            try:
                return {name: value.decode() for name, value in data.items()}
            except UnicodeDecodeError as error:
                raise VolumesError(f"{failed}its values are not all text") from error
        case Absent(message) | Unreadable(message):
            raise VolumesError(f"{failed}{message}")
    return [key]


def _tokens(pod: Pod, spec: CSIDriverSpec, content: Content) -> Mapping[str, str] | list[ContentKey]:
    """The tokens as one field, or the keys that are awaited."""
    found: dict[str, dict[str, str]] = {}
    awaited: list[ContentKey] = []
    for key in _token_keys(pod, spec):
        match content.find(key):
            case Present(Token(token=token, expires_at=expires_at)):
                found[key.audience] = {"expirationTimestamp": format_time(expires_at), "token": token}
            case Absent(message) | Unreadable(message):
                raise VolumesError(f"failed to get service account token attributes: {message}")
            case _:
                awaited.append(key)
    if awaited:
        return awaited
    return {TOKENS: compact_json(found)} if found else {}


def _token_keys(pod: Pod, spec: CSIDriverSpec) -> list[TokenKey]:
    about = pod.metadata
    return [
        TokenKey(
            PodUID(about.uid),
            about.namespace,
            about.name,
            pod.spec.serviceAccountName,
            request.audience,
            TOKEN_LIFE_S if request.expirationSeconds is None else request.expirationSeconds,
        )
        for request in spec.tokenRequests
        if pod.spec.serviceAccountName
    ]


def _pod_info(pod: Pod) -> dict[str, str]:
    return {
        f"{INFO}pod.name": pod.metadata.name,
        f"{INFO}pod.namespace": pod.metadata.namespace,
        f"{INFO}pod.uid": pod.metadata.uid,
        f"{INFO}serviceAccount.name": pod.spec.serviceAccountName,
        f"{INFO}ephemeral": "true",
    }


def _applies_group(spec: CSIDriverSpec, fs_type: str) -> bool:
    """Whether the agent applies fsGroup. Volumes of a pod's own are used on one node only."""
    if spec.fsGroupPolicy == "File":
        return True
    return spec.fsGroupPolicy != "None" and bool(fs_type)


KIND = VolumeKind(
    name="csi",
    plugin="kubernetes.io/csi",
    keys=keys,
    further_keys=further_keys,
    plan=plan,
    mount=mount,
    unmount=unmount,
    needs_refresh=needs_refresh,
)
