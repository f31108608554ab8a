"""Reads the API objects that a CSI volume is made from: CSIDriver, secrets, tokens, VolumeAttachment. Pure.

Each reader returns what it was asked for, or `Awaited` with the keys that have no answer yet; VolumesError if there is none.
Source: KEP-596 (ephemeral inline CSI volumes); KEP-1855 (tokens for CSI drivers); KEP-178 (CSI).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from pykubelet.base.api.core import Pod, Secret, Volume
from pykubelet.base.api.storage import CSIDriver, CSIDriverSpec, SecretReference, VolumeAttachment
from pykubelet.base.api.times import format_time
from pykubelet.base.kit.values import Value
from pykubelet.base.model.attachments import attachment_key
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
from pykubelet.base.model.needs import TOKEN_LIFE_S, secret_key
from pykubelet.provide.volumes.csi.data import EPHEMERAL, PERSISTENT, VolumeData, compact_json, quoted_list
from pykubelet.provide.volumes.kind import ResolvedVolume, TransientError, VolumesError

MODE_FAILED = "kubernetes.io/csi: mounter.SetupAt failed to check volume lifecycle mode: "
FETCHING = "fetching NodePublishSecretRef {} failed: "
NO_API = "kube client is not configured"
NO_TOKENS = "kubernetes.io/csi: mounter.SetUpAt failed to get service accoount token attributes: "
INFO = "csi.storage.k8s.io/"
TOKENS = f"{INFO}serviceAccount.tokens"
#: Tokens that one driver may ask for. Each is renewed, and looked at for every volume of the driver.
MAX_TOKENS = 100
#: The step that waits until a volume is attached.
WAIT_FOR_ATTACH = "WaitForAttach"


class Awaited(Value):
    """There is no answer yet about these keys."""

    keys: tuple[ContentKey, ...]


# Keys


def driver_key(name: str) -> ObjectKey:
    """The key of a CSIDriver."""
    return ObjectKey(ContentKind.CSI_DRIVER, "", name)


def inline_keys(pod: Pod, volume: Volume) -> Iterable[ContentKey]:
    """The CSIDriver of a volume of the pod's own, and the secret for the driver."""
    source = volume.csi
    if source is None or not source.driver:
        return
    yield driver_key(source.driver)
    if source.nodePublishSecretRef is not None and source.nodePublishSecretRef.name:
        yield secret_key(pod, source.nodePublishSecretRef.name)


def inline_further_keys(pod: Pod, volume: Volume, content: Content) -> Iterable[ContentKey]:
    """The tokens that the CSIDriver of a volume of the pod's own asks for."""
    found = content.find(driver_key(volume.csi.driver)) if volume.csi is not None else None
    if isinstance(found, Present) and isinstance(found.value, CSIDriver):
        yield from _token_keys(pod, found.value.spec)


def claimed_keys(pod: Pod, claimed: ResolvedVolume, content: Content) -> Iterator[ContentKey]:
    """The objects of a persistent volume: its CSIDriver and secrets, then tokens and the VolumeAttachment."""
    source = claimed.volume.spec.csi
    if source is None or not source.driver:
        return
    key = driver_key(source.driver)
    yield key
    for reference in (source.nodeStageSecretRef, source.nodePublishSecretRef, source.nodeExpandSecretRef):
        if reference is not None and reference.name:
            yield _secret_of(reference)
    match content.find(key):
        case Present(CSIDriver(spec=spec)):
            if not claimed.is_block:
                yield from _token_keys(pod, spec)
            if needs_attachment(spec, content):
                yield attachment_key(source.volumeHandle, source.driver, pod.spec.nodeName)
        case Absent():
            yield attachment_key(source.volumeHandle, source.driver, pod.spec.nodeName)


# CSIDriver


def needs_attachment(spec: CSIDriverSpec, content: Content) -> bool:
    """Whether volumes of the driver are attached before they are mounted. Without an API server none is."""
    return content.available and spec.attachRequired is not False


def driver_spec(name: str, mode: str, content: Content) -> CSIDriverSpec | Awaited:
    """The driver's properties. VolumesError if it offers no volumes of the mode, Ephemeral or Persistent."""
    refused = f'{MODE_FAILED}volume mode "{mode}" not supported by driver {name}'
    key = driver_key(name)
    found = content.find(key)
    if found is None and not content.may_answer(key):
        if mode == EPHEMERAL:
            raise VolumesError(MODE_FAILED + NO_API)
        return CSIDriverSpec()
    match found:
        case Present(CSIDriver(spec=spec)):
            modes = spec.volumeLifecycleModes or (PERSISTENT,)
            if mode not in modes:
                raise VolumesError(f"{refused} (only supports {quoted_list(modes)})")
            return spec
        case Absent():
            if mode == EPHEMERAL:
                raise VolumesError(f"{refused} (no CSIDriver object)")
            return CSIDriverSpec()
        case Unreadable(message):
            raise VolumesError(f"{MODE_FAILED}{message}")
    return Awaited((key,))


# Secrets


def inline_secret(pod: Pod, name: str, content: Content) -> Mapping[str, str] | Awaited:
    """The data of the secret of a volume of the pod's own."""
    return _secret(secret_key(pod, name) if name else None, FETCHING, content)


def claimed_secret(
    reference: SecretReference | None, content: Content, failed: str = FETCHING
) -> Mapping[str, str] | Awaited:
    """The data of a persistent volume's secret. `failed`: what precedes the reason why there is none, with `{}` for the secret."""
    named = reference is not None and reference.name
    return _secret(_secret_of(reference) if reference is not None and named else None, failed, content)


def _secret_of(reference: SecretReference) -> ObjectKey:
    return ObjectKey(ContentKind.SECRET, reference.namespace, reference.name)


def _secret(key: ObjectKey | None, failed: str, content: Content) -> Mapping[str, str] | Awaited:
    if key is None:
        return {}
    failed = failed.format(f"{key.namespace}/{key.name}")
    found = content.find(key)
    if found is None and not content.may_answer(key):
        raise VolumesError(failed + NO_API)
    match found:
        case Present(Secret(data=data)):
            try:
                return {name: value.decode() for name, value in data.items()}
            except UnicodeDecodeError as error:
                raise VolumesError(f"{failed}its values are not all text") from error
        case Absent(message) | Unreadable(message):
            raise VolumesError(f"{failed}{message}")
    return Awaited((key,))


# Tokens and the pod


def tokens_of(pod: Pod, spec: CSIDriverSpec, content: Content) -> Mapping[str, str] | Awaited:
    """The tokens that the driver asks for, as one field of a call. VolumesError if they cannot be had, or are too many."""
    if len(spec.tokenRequests) > MAX_TOKENS:
        raise VolumesError(f"the CSIDriver asks for {len(spec.tokenRequests)} tokens, more than {MAX_TOKENS}")
    found: dict[str, dict[str, str]] = {}
    awaited: list[ContentKey] = []
    for key in _token_keys(pod, spec):
        match content.find(key):
            case Present(Token(token=token, expires_at=expires_at)):
                found[key.audience] = {"expirationTimestamp": format_time(expires_at), "token": token}
            case Absent(message) | Unreadable(message):
                raise VolumesError(f"{NO_TOKENS}{message}")
            case _:
                awaited.append(key)
    if awaited:
        return Awaited(tuple(awaited))
    return {TOKENS: compact_json(found)} if found else {}


def _token_keys(pod: Pod, spec: CSIDriverSpec) -> list[TokenKey]:
    """The tokens to have for the driver; none if it asks for too many."""
    about = pod.metadata
    if len(spec.tokenRequests) > MAX_TOKENS:
        return []
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


def pod_info(pod: Pod, spec: CSIDriverSpec, mode: str) -> dict[str, str]:
    """The volume attributes about the pod, if the driver asks for them. `mode`: Ephemeral or Persistent."""
    if not spec.podInfoOnMount:
        return {}
    return {
        f"{INFO}pod.name": pod.metadata.name,
        f"{INFO}pod.namespace": pod.metadata.namespace,
        f"{INFO}pod.uid": pod.metadata.uid,
        f"{INFO}serviceAccount.name": pod.spec.serviceAccountName,
        f"{INFO}ephemeral": "true" if mode == EPHEMERAL else "false",
    }


# Attachments


def attachment_context(data: VolumeData, content: Content) -> Mapping[str, str] | Awaited:
    """What the driver's controller has reported about an attached volume. VolumesError while it is not attached."""
    key = attachment_key(data.handle, data.driver, data.node)
    match content.find(key):
        case Present(VolumeAttachment(metadata=metadata, status=status)):
            if metadata.deletionTimestamp:
                raise _not_attached("volume attachment is being deleted")
            if status is not None and status.attached:
                return status.attachmentMetadata
            if status is not None and status.attachError is not None and status.attachError.message:
                raise _not_attached(status.attachError.message)
            raise _not_attached(f"volume {data.handle} is not attached for volume attachment {key.name}")
        case Absent(message) | Unreadable(message):
            raise _not_attached(f"volume {data.handle} has GET error for volume attachment {key.name}: {message}")
    return Awaited((key,))


def _not_attached(text: str) -> VolumesError:
    return TransientError(text, WAIT_FOR_ATTACH)
