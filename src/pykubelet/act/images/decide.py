"""What is to be done about an image, and in which words it is told. Pure.

Rules:
1. Always pulls; IfNotPresent pulls what is absent; Never pulls nothing.
2. A present image may be used by a pod when the verification policy does not ask for proof, when the image was once
   pulled without credentials or with the node's own, or when the pod brings credentials that it was pulled with. Else it
   is pulled again with the pod's own credentials (policy Never: refused).
3. Back-off is kept per pod UID and image; while it lasts the container waits with ImagePullBackOff and the reason of
   the last failure behind it.
4. A runtime that is away is nobody's bad image: its back-off is short.

Reasons, messages and Event texts are the reference's, to the letter.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from pykubelet.act.images.keyring import Credential, SecretSource, ServiceAccountSource
from pykubelet.act.images.model import ImageRequest, ImageSettings, PullPolicy, VerificationPolicy
from pykubelet.act.images.names import InvalidImage, bare_name, parse_image
from pykubelet.act.images.records import ImageAccess, PulledRecord, SecretGrant
from pykubelet.base.kit.backoff import BackoffPolicy
from pykubelet.base.kit.durations import MILLISECOND, format_duration
from pykubelet.base.kit.values import Value
from pykubelet.base.model import reasons
from pykubelet.base.model.kube_events import KubeEvent, normal, warning

EVENT_ERR_IMAGE_NEVER_PULL = "ErrImageNeverPull"
RECHECK_S = 1.0
INSPECT_RETRY_S = 2.0
NEVER_PULL_RETRY_S = 10.0
RUNTIME_AWAY = BackoffPolicy(1.0, 10.0)
MAX_GRANTS_WHILE_MATCHING = 100


def pull_policy(text: str) -> PullPolicy:
    """The policy as a value; what the API would have defaulted counts as IfNotPresent."""
    try:
        return PullPolicy(text)
    except ValueError:
        return PullPolicy.IF_NOT_PRESENT


def back_off_key(request: ImageRequest, spec_image: str) -> str:
    return f"{request.pod.uid}_{spec_image}"


# Access to a present image


class Access(StrEnum):
    """GRANTED: use it. MUST_PULL: prove access by pulling. ASK_CREDENTIALS: depends on what the pod brings."""

    GRANTED = "granted"
    MUST_PULL = "must-pull"
    ASK_CREDENTIALS = "ask-credentials"


def requires_verification(settings: ImageSettings, name: str, pulled_by_us: bool) -> bool:
    """`name`: as the pod has it, without tag. `pulled_by_us`: there is a record, or a started pull, of this image."""
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
    """Patterns are names without tag, or prefixes ending in `/*`, spelled as the pods spell them."""
    return any(name.startswith(pattern[:-1]) if pattern.endswith("/*") else name == pattern for pattern in patterns)


def recorded_access(record: PulledRecord | None, spec_image: str) -> ImageAccess | None:
    """What is recorded under the name that the pod gives the image, or under its complete one."""
    if record is None:
        return None
    return record.access.get(bare_name(spec_image)) or record.access.get(parse_image(spec_image).repository)


def judge_access(settings: ImageSettings, spec_image: str, record: PulledRecord | None, pulling: bool) -> Access:
    """What the records say about a present image, before anybody is asked for credentials.

    `pulling`: a pull of it was begun and its end is not recorded.
    """
    try:
        name = bare_name(spec_image)
    except InvalidImage:
        return Access.MUST_PULL
    if not requires_verification(settings, name, record is not None or pulling):
        return Access.GRANTED
    access = recorded_access(record, spec_image)
    if access is None:
        return Access.MUST_PULL
    if access.node_wide:
        return Access.GRANTED
    return Access.ASK_CREDENTIALS if access.secrets or access.accounts else Access.MUST_PULL


def check_result(settings: ImageSettings, spec_image: str, access: Access, pulled_by_us: bool) -> str:
    """What metrics call such a judgement."""
    if access is not Access.GRANTED:
        return "mustAuthenticate"
    is_checked = requires_verification(settings, bare_name(spec_image), pulled_by_us)
    return "credentialRecordFound" if is_checked else "credentialPolicyAllowed"


class Granted(Value):
    """The pod's credentials open the image; `learn` is to be added to the record."""

    learn: ImageAccess | None = None


def match_credentials(access: ImageAccess, credentials: Sequence[Credential]) -> Granted | None:
    """Whether one of the pod's credentials is one the image was pulled with.

    A Secret that has got other content counts as long as there is room to write that down.
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
    """What a pull with this credential (None: anonymous) proves."""
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
    """Several attempts' errors as one text: each once, in brackets when they differ."""
    unique = tuple(dict.fromkeys(errors))
    return unique[0] if len(unique) == 1 else f"[{', '.join(unique)}]"


def pull_failure(spec_image: str, error: str) -> Failure:
    """The reason that a runtime's pull error stands for."""
    for reason, because in (
        (reasons.REGISTRY_UNAVAILABLE, "the registry is unavailable"),
        (reasons.SIGNATURE_VALIDATION_FAILED, "the signature validation failed"),
    ):
        if error.startswith(reason):
            rest = error.removeprefix(reason)
            return Failure(reason, f"image pull failed for {spec_image} because {because}{rest}")
    return Failure(reasons.ERR_IMAGE_PULL, error)


def backing_off(image: str, last: Failure | None) -> Failure:
    message = f'Back-off pulling image "{image}"'
    if last is not None:
        message = f"{message}: {last.reason}: {last.message}"
    return Failure(reasons.IMAGE_PULL_BACK_OFF, message)


# Events


def tell_invalid(request: ImageRequest, error: str) -> tuple[Failure, KubeEvent]:
    message = f'Failed to apply default image tag "{request.image}": {error}'
    event = warning(reasons.EVENT_INSPECT_FAILED, message, request.pod, request.field_path)
    return Failure(reasons.INVALID_IMAGE_NAME, message), event


def tell_inspect_error(request: ImageRequest, spec_image: str, error: str) -> tuple[Failure, KubeEvent]:
    message = f'Failed to inspect image "{spec_image}": {error}'
    event = warning(reasons.EVENT_INSPECT_FAILED, message, request.pod, request.field_path)
    return Failure(reasons.IMAGE_INSPECT_ERROR, message), event


def tell_never_pull(request: ImageRequest) -> tuple[Failure, KubeEvent]:
    message = f'Container image "{request.image}" is not present with pull policy of Never'
    event = warning(EVENT_ERR_IMAGE_NEVER_PULL, message, request.pod, request.field_path)
    return Failure(reasons.ERR_IMAGE_NEVER_PULL, message), event


def tell_present(request: ImageRequest, settings: ImageSettings) -> KubeEvent:
    message = f'Container image "{request.image}" already present on machine'
    if settings.ensure_secret_pulled:
        message += " and can be accessed by the pod"
    return normal(reasons.EVENT_PULLED, message, request.pod, request.field_path)


def tell_pulling(request: ImageRequest) -> KubeEvent:
    return normal(reasons.EVENT_PULLING, f'Pulling image "{request.image}"', request.pod, request.field_path)


def tell_pulled(request: ImageRequest, pull_s: float, waiting_s: float, size_bytes: int) -> KubeEvent:
    message = (
        f'Successfully pulled image "{request.image}" in {_spoken(pull_s)} '
        f"({_spoken(waiting_s)} including waiting). Image size: {size_bytes} bytes."
    )
    return normal(reasons.EVENT_PULLED, message, request.pod, request.field_path)


def tell_pull_failed(request: ImageRequest, error: str) -> KubeEvent:
    message = f'Failed to pull image "{request.image}": {error}'
    return warning(reasons.EVENT_FAILED, message, request.pod, request.field_path)


def tell_back_off(request: ImageRequest) -> KubeEvent:
    message = f'Back-off pulling image "{request.image}"'
    return normal(reasons.EVENT_BACK_OFF, message, request.pod, request.field_path)


def tell_error(request: ImageRequest, reason: str) -> KubeEvent:
    return warning(reasons.EVENT_FAILED, f"Error: {reason}", request.pod, request.field_path)


def _spoken(seconds: float) -> str:
    """A Go duration, cut off at milliseconds."""
    return format_duration(max(0, int(seconds * 1000)) * MILLISECOND)
