"""Decides whether an image is used or pulled; makes the texts of its Events and waiting reasons. Pure.

Rules:
1. The policy Always pulls every time, IfNotPresent pulls an absent image, Never does not pull.
2. A pod may use a present image if the verification policy requires no proof, if the image was once pulled without
   credentials or with the node's own, or if the pod has credentials that the image was pulled with. Otherwise the image
   is pulled again with the pod's own credentials (policy Never: refused).
3. Back-off is kept for each pod UID and image. While it lasts, the container waits with ImagePullBackOff; the message
   contains the last failure.
4. Extensions are asked before a pull that these rules require: whether it is requested now, later or never.
5. If the runtime does not answer, the image is not at fault, and the back-off is short.

Reasons, messages and Event texts are exactly those of the reference kubelet.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from pykubelet.base.kit.backoff import BackoffPolicy
from pykubelet.base.kit.durations import MILLISECOND, format_duration
from pykubelet.base.kit.values import Value
from pykubelet.base.model import reasons
from pykubelet.base.model.kube_events import KubeEvent, normal, warning
from pykubelet.provide.images.keyring import Credential, SecretSource, ServiceAccountSource
from pykubelet.provide.images.model import (
    ImageRequest,
    ImageSettings,
    PullDelay,
    PullPolicy,
    PullRefusal,
    VerificationPolicy,
)
from pykubelet.provide.images.names import InvalidImage, bare_name, parse_image
from pykubelet.provide.images.records import ImageAccess, PulledRecord, SecretGrant

EVENT_ERR_IMAGE_NEVER_PULL = "ErrImageNeverPull"
RECHECK_S = 1.0
INSPECT_RETRY_S = 2.0
NEVER_PULL_RETRY_S = 10.0
RUNTIME_AWAY = BackoffPolicy(1.0, 10.0)
MAX_GRANTS_WHILE_MATCHING = 100


def pull_policy(text: str) -> PullPolicy:
    """The policy as a value; an empty or unknown text counts as IfNotPresent."""
    try:
        return PullPolicy(text)
    except ValueError:
        return PullPolicy.IF_NOT_PRESENT


def back_off_key(request: ImageRequest, spec_image: str) -> str:
    """The key of a back-off: one for each pod and image name."""
    return f"{request.pod.uid}_{spec_image}"


# Access to a present image


class AccessDecision(StrEnum):
    """GRANTED: use the image. MUST_PULL: prove access by pulling. ASK_CREDENTIALS: it depends on the pod's credentials."""

    GRANTED = "granted"
    MUST_PULL = "must-pull"
    ASK_CREDENTIALS = "ask-credentials"


def requires_verification(settings: ImageSettings, name: str, pulled_by_us: bool) -> bool:
    """Whether a pod must prove its access to a present image.

    `name`: as in the pod, without tag. `pulled_by_us`: a record or an intent of this image exists.
    """
    if not settings.ensure_secret_pulled:
        return False
    match settings.verification:
        case VerificationPolicy.NEVER_VERIFY:
            return False
        case VerificationPolicy.PRELOADED:
            return pulled_by_us
        case VerificationPolicy.ALLOWLISTED:
            return not is_allowlisted(settings.allowlist, name)
        case VerificationPolicy.ALWAYS_VERIFY:
            return True


def is_allowlisted(patterns: frozenset[str], name: str) -> bool:
    """Whether a pattern matches. Patterns are names as in pods, without tag, or prefixes that end in `/*`."""
    return any(name.startswith(pattern[:-1]) if pattern.endswith("/*") else name == pattern for pattern in patterns)


def recorded_access(record: PulledRecord | None, spec_image: str) -> ImageAccess | None:
    """The access recorded under the image name as in the pod, or under the complete name."""
    if record is None:
        return None
    return record.access.get(bare_name(spec_image)) or record.access.get(parse_image(spec_image).repository)


def judge_access(
    settings: ImageSettings, spec_image: str, record: PulledRecord | None, pulling: bool
) -> AccessDecision:
    """Decide from the records alone, before credentials are looked up, whether a present image may be used.

    `pulling`: a pull of the image was begun and its result is not recorded.
    """
    try:
        name = bare_name(spec_image)
    except InvalidImage:
        return AccessDecision.MUST_PULL
    if not requires_verification(settings, name, record is not None or pulling):
        return AccessDecision.GRANTED
    access = recorded_access(record, spec_image)
    if access is None:
        return AccessDecision.MUST_PULL
    if access.node_wide:
        return AccessDecision.GRANTED
    return AccessDecision.ASK_CREDENTIALS if access.secrets or access.accounts else AccessDecision.MUST_PULL


def check_result(settings: ImageSettings, spec_image: str, access: AccessDecision, pulled_by_us: bool) -> str:
    """The label `result` of `ACCESS_CHECKS` for a decision."""
    if access is not AccessDecision.GRANTED:
        return "mustAuthenticate"
    is_checked = requires_verification(settings, bare_name(spec_image), pulled_by_us)
    return "credentialRecordFound" if is_checked else "credentialPolicyAllowed"


class Granted(Value):
    """The pod's credentials give access to the image; `learn` is to be added to the record."""

    learn: ImageAccess | None = None


def match_credentials(access: ImageAccess, credentials: Sequence[Credential]) -> Granted | None:
    """Whether the image was pulled with one of the pod's credentials; None: no.

    A Secret whose content has changed also counts, as long as the record has fewer than `MAX_GRANTS_WHILE_MATCHING` Secrets.
    """
    is_full = len(access.secrets) >= MAX_GRANTS_WHILE_MATCHING
    for credential in credentials:
        source = credential.source
        if isinstance(source, SecretSource):
            grant = SecretGrant(source.uid, source.namespace, source.name, credential.auth.digest)
            for known in access.secrets:
                same_hash = bool(known.credential_hash) and known.credential_hash == grant.credential_hash
                same_place = (known.uid, known.namespace, known.name) == (grant.uid, grant.namespace, grant.name)
                if same_hash or (same_place and not is_full):
                    is_known = same_hash and same_place
                    return Granted(None if is_known or is_full else ImageAccess(secrets=(grant,)))
        elif isinstance(source, ServiceAccountSource) and source in access.accounts:
            return Granted()
    return None


def access_of(used: Credential | None) -> ImageAccess:
    """The access that a pull with this credential (None: anonymous) proves."""
    if used is None or used.source is None:
        return ImageAccess(node_wide=True)
    if isinstance(used.source, ServiceAccountSource):
        return ImageAccess(accounts=(used.source,))
    source = used.source
    return ImageAccess(secrets=(SecretGrant(source.uid, source.namespace, source.name, used.auth.digest),))


# Failures


class Failure(Value):
    """A waiting reason and its message."""

    reason: str
    message: str


def joined_errors(errors: Sequence[str]) -> str:
    """The errors of several attempts as one text: each once, in brackets when they differ."""
    unique = tuple(dict.fromkeys(errors))
    return unique[0] if len(unique) == 1 else f"[{', '.join(unique)}]"


def pull_failure(spec_image: str, error: str) -> Failure:
    """The waiting reason and message for a pull error of the runtime."""
    for reason, because in (
        (reasons.REGISTRY_UNAVAILABLE, "the registry is unavailable"),
        (reasons.SIGNATURE_VALIDATION_FAILED, "the signature validation failed"),
    ):
        if error.startswith(reason):
            rest = error.removeprefix(reason)
            return Failure(reason, f"image pull failed for {spec_image} because {because}{rest}")
    return Failure(reasons.ERR_IMAGE_PULL, error)


def backing_off(image: str, last: Failure | None) -> Failure:
    """ImagePullBackOff, with the failure that led to it in the message."""
    message = f'Back-off pulling image "{image}"'
    if last is not None:
        message = f"{message}: {last.reason}: {last.message}"
    return Failure(reasons.IMAGE_PULL_BACK_OFF, message)


def pull_delayed(request: ImageRequest, delay: PullDelay, last: Failure | None) -> Failure:
    """The waiting reason of a container for which an extension delays the pull. `last`: how the pull has failed before, if it has."""
    cause = Failure(f"extension {delay.extension} delays the pull", delay.message or "it gives no reason")
    if last is not None:
        return backing_off(request.image, cause)
    inits = request.full_pod.spec.initContainers if request.full_pod is not None else ()
    reason = reasons.POD_INITIALIZING if inits else reasons.CONTAINER_CREATING
    return Failure(reason, f"{cause.reason}: {cause.message}")


# Events


def invalid_name_failure(request: ImageRequest, error: str) -> tuple[Failure, KubeEvent]:
    """InvalidImageName, for a name that cannot be parsed, and its Event."""
    message = f'Failed to apply default image tag "{request.image}": {error}'
    event = warning(reasons.EVENT_INSPECT_FAILED, message, request.pod, request.field_path)
    return Failure(reasons.INVALID_IMAGE_NAME, message), event


def inspect_failure(request: ImageRequest, spec_image: str, error: str) -> tuple[Failure, KubeEvent]:
    """ImageInspectError, for a failed ImageStatus call, and its Event."""
    message = f'Failed to inspect image "{spec_image}": {error}'
    event = warning(reasons.EVENT_INSPECT_FAILED, message, request.pod, request.field_path)
    return Failure(reasons.IMAGE_INSPECT_ERROR, message), event


def never_pull_failure(request: ImageRequest) -> tuple[Failure, KubeEvent]:
    """ErrImageNeverPull, for an absent image with the policy Never, and its Event."""
    message = f'Container image "{request.image}" is not present with pull policy of Never'
    event = warning(EVENT_ERR_IMAGE_NEVER_PULL, message, request.pod, request.field_path)
    return Failure(reasons.ERR_IMAGE_NEVER_PULL, message), event


def refused_pull_failure(request: ImageRequest, refusal: PullRefusal) -> tuple[Failure, KubeEvent]:
    """ErrImageNeverPull, for an image that an extension does not let be pulled, and its Event."""
    message = f'Container image "{request.image}" must not be pulled: {refusal.message} (extension {refusal.extension})'
    event = warning(EVENT_ERR_IMAGE_NEVER_PULL, message, request.pod, request.field_path)
    return Failure(reasons.ERR_IMAGE_NEVER_PULL, message), event


def present_event(request: ImageRequest, settings: ImageSettings) -> KubeEvent:
    """The Event for an image that is used without a pull."""
    message = f'Container image "{request.image}" already present on machine'
    if settings.ensure_secret_pulled:
        message += " and can be accessed by the pod"
    return normal(reasons.EVENT_PULLED, message, request.pod, request.field_path)


def pulling_event(request: ImageRequest) -> KubeEvent:
    """The Event at the beginning of a pull."""
    return normal(reasons.EVENT_PULLING, f'Pulling image "{request.image}"', request.pod, request.field_path)


def pulled_event(request: ImageRequest, pull_s: float, waiting_s: float, size_bytes: int) -> KubeEvent:
    """The Event for a finished pull; durations in seconds, `waiting_s` with the time in the queue."""
    message = (
        f'Successfully pulled image "{request.image}" in {_duration_text(pull_s)} '
        f"({_duration_text(waiting_s)} including waiting). Image size: {size_bytes} bytes."
    )
    return normal(reasons.EVENT_PULLED, message, request.pod, request.field_path)


def pull_failed_event(request: ImageRequest, error: str) -> KubeEvent:
    """The Event for a failed pull, with the error of the runtime."""
    message = f'Failed to pull image "{request.image}": {error}'
    return warning(reasons.EVENT_FAILED, message, request.pod, request.field_path)


def back_off_event(request: ImageRequest) -> KubeEvent:
    """The Event for a container that waits for the end of a back-off."""
    message = f'Back-off pulling image "{request.image}"'
    return normal(reasons.EVENT_BACK_OFF, message, request.pod, request.field_path)


def error_event(request: ImageRequest, reason: str) -> KubeEvent:
    """The Event with the waiting reason of the container, recorded for every failure."""
    return warning(reasons.EVENT_FAILED, f"Error: {reason}", request.pod, request.field_path)


def _duration_text(seconds: float) -> str:
    """A duration in Go's format, truncated to milliseconds."""
    return format_duration(max(0, int(seconds * 1000)) * MILLISECOND)
