"""The states of one pod certificate. Pure; the caller passes the time, and random numbers between 0 and 1.

    Initial -> Waiting -> Fresh -> Refreshing -> Fresh
                  |                    |
                  +-> RequestRefused <-+

Rules:
- A request with a new key is sent in Initial, and in Fresh from `refresh_at` on. `created` takes up that there is one.
- A request that is denied or has failed stays so for the life of the pod; also one for a refresh.
- The key and chain stay in use until those of the next request are issued, also after they have expired.
- A request that is in no list `GONE_S` and up to `SPREAD_S` after its creation was deleted. It is measured on the node's clock from the
  answer on, so a server whose clock differs has no effect.
- A certificate is refreshed at the time that its signer chose, and up to `SPREAD_S` later, so that many are not refreshed together. Not
  before it is `LEAST_AGE_S` old, so that a signer that chooses a time in the past is not asked without end.
- A refresh that is overdue by `OVERDUE_S`, and a certificate that has expired, are reported once for each certificate.
Source: KEP-4317 (pod certificates).
"""

from __future__ import annotations

from math import inf
from typing import ClassVar, assert_never

from pykubelet.base.api.certificates import PodCertificateRequest, PodCertificateRequestStatus
from pykubelet.base.api.intorstring import go_quotable
from pykubelet.base.api.times import parse_time
from pykubelet.base.kit.clock import Moment
from pykubelet.base.kit.values import RedactedValue, Value, replace
from pykubelet.base.model.certificates import OVERDUE_S, CertificateStage, PodCertificate
from pykubelet.provide.objects.decide import clean_chain

GONE_S, SPREAD_S = 600.0, 300.0
#: A certificate is not refreshed before it has this age, and up to twice that.
LEAST_AGE_S = 60.0
#: Bytes of a certificate chain. An API server admits no longer one.
MAX_CHAIN = 100 << 10
#: A moment: what has to be past is looked at so much later.
_PAST_S = 0.001
ISSUED, DENIED, FAILED = "Issued", "Denied", "Failed"
_PARTICIPLES = {DENIED: "was denied", FAILED: "failed"}


class Asked(RedactedValue):
    """A request that was created. `name`: of the object. `key`: its private key in PEM. `since`: wall seconds.

    `gone_at`: the monotonic second from which on it is taken as deleted if it is in no list.
    """

    hidden: ClassVar = ("key",)
    name: str
    key: str
    since: float
    gone_at: float


class Initial(Value):
    """Nothing was requested yet, or the request was deleted."""


class Waiting(Value):
    """A signer has to answer."""

    asked: Asked


class Fresh(Value):
    """There is a certificate. `is_overdue`, `is_expired`: this was reported."""

    certificate: PodCertificate
    is_overdue: bool = False
    is_expired: bool = False


class Refreshing(Value):
    """There is a certificate, and a signer has to answer about its successor."""

    held: Fresh
    asked: Asked


class RequestRefused(Value):
    """A signer has refused the request, for the life of the pod. `how`: DENIED or FAILED."""

    how: str
    reason: str
    message: str


CertificateState = Initial | Waiting | Fresh | Refreshing | RequestRefused


class CertificateEvent(Value):
    """A Kubernetes Event of type Warning about the pod."""

    reason: str
    message: str


class CertificateStep(Value):
    """The state after a step, and the Events that it causes."""

    state: CertificateState
    events: tuple[CertificateEvent, ...] = ()


def created(state: CertificateState, name: str, key: str, now: Moment, chance: float) -> CertificateState:
    """A request was created. `name`: of the object. `key`: the private key that was made for it, in PEM."""
    asked = Asked(name, key, now.wall, now.mono + GONE_S + SPREAD_S * chance)
    match state:
        case Fresh() as held:
            return Refreshing(held, asked)
        case Refreshing(held=held):
            return Refreshing(held, asked)
        case Initial() | Waiting():
            return Waiting(asked)
        case RequestRefused():
            return state
    assert_never(state)


def observe(
    state: CertificateState,
    request: PodCertificateRequest | None,
    now: Moment,
    chance: float,
    *,
    is_current: bool = True,
) -> CertificateStep:
    """Look at the request of the state. `request`: None if it is not in the newest list. `is_current`: it is known what is there now."""
    after: CertificateState | None = None
    match state:
        case Waiting(asked=asked):
            after = _answered(asked, request, now, chance)
            if after is None and _is_gone(asked, request, now, is_current):
                after = Initial()
        case Refreshing(held=held, asked=asked):
            after = _answered(asked, request, now, chance)
            if after is None and _is_gone(asked, request, now, is_current):
                after = held
    if isinstance(after, RequestRefused) and request is not None:
        return CertificateStep(after, (_refusal_event(after, request),))
    return _with_lateness(state if after is None else after, now)


def wants_request(state: CertificateState, now: Moment) -> bool:
    """Whether a request has to be sent."""
    match state:
        case Initial():
            return True
        case Fresh(certificate=certificate):
            return now.wall >= certificate.refresh_at
    return False


def look_in_s(state: CertificateState, now: Moment) -> float:
    """The seconds after which something is due without news; infinite if nothing is."""
    times: list[float] = []
    match state:
        case Waiting(asked=asked):
            times.append(asked.gone_at - now.mono)
        case Fresh(certificate=certificate) as held:
            times += [certificate.refresh_at - now.wall, *_lateness(held, now)]
        case Refreshing(held=held, asked=asked):
            times += [asked.gone_at - now.mono, *_lateness(held, now)]
    return min((left for left in times if left > 0), default=inf)


def asked_of(state: CertificateState) -> Asked | None:
    """The request that a signer has to answer."""
    return state.asked if isinstance(state, Waiting | Refreshing) else None


def certificate_of(state: CertificateState) -> PodCertificate | None:
    """The certificate in use."""
    match state:
        case Fresh(certificate=certificate) | Refreshing(held=Fresh(certificate=certificate)):
            return certificate
    return None


def stage_of(state: CertificateState) -> CertificateStage:
    """The stage of the source. That of a certificate that was issued depends on the time (`stage_at`)."""
    match state:
        case Initial() | Waiting():
            return CertificateStage.NOT_YET_ISSUED
        case RequestRefused(how=how):
            return CertificateStage.DENIED if how == DENIED else CertificateStage.FAILED
        case Fresh() | Refreshing():
            return CertificateStage.FRESH
    assert_never(state)


def refusal_text(state: RequestRefused) -> str:
    """The error of a volume whose request was refused."""
    why = f'reason="{go_quotable(state.reason)}" message="{go_quotable(state.message)}"'
    return f"PodCertificateRequest was permanently {state.how.lower()}: {why}"


def _is_gone(asked: Asked, request: PodCertificateRequest | None, now: Moment, is_current: bool) -> bool:
    return request is None and is_current and now.mono >= asked.gone_at


def _answered(
    asked: Asked, request: PodCertificateRequest | None, now: Moment, chance: float
) -> Fresh | RequestRefused | None:
    """The state after the signer's answer; None while there is none."""
    status = request.status if request is not None else None
    for condition in status.conditions if status is not None else ():
        if condition.type in (DENIED, FAILED):
            return RequestRefused(condition.type, condition.reason, condition.message)
        if condition.type == ISSUED and status is not None:
            return _issued(asked, status, now, chance)
    return None


def _issued(asked: Asked, status: PodCertificateRequestStatus, now: Moment, chance: float) -> Fresh | RequestRefused:
    if len(status.certificateChain) > MAX_CHAIN:
        text = f"status.certificateChain has {len(status.certificateChain)} characters, more than {MAX_CHAIN}"
        return RequestRefused(FAILED, "CertificateChainTooLong", text)
    refresh_at = max(_wall(status.beginRefreshAt) + SPREAD_S * chance, now.wall + LEAST_AGE_S * (1 + chance))
    return Fresh(PodCertificate(asked.key, clean_chain(status.certificateChain), refresh_at, _wall(status.notAfter)))


def _wall(text: str) -> float:
    """Wall seconds; 0 for what is no time, which an API server does not admit."""
    try:
        return parse_time(text)
    except ValueError:
        return 0.0


def _refusal_event(state: RequestRefused, request: PodCertificateRequest) -> CertificateEvent:
    """The message begins with the signer's reason."""
    name = f"{request.metadata.namespace}/{request.metadata.name}"
    why = f'reason="{go_quotable(state.reason)}", message="{go_quotable(state.message)}"'
    text = f"PodCertificateRequest {name} {_PARTICIPLES[state.how]}, {why}"
    return CertificateEvent(state.how, f"{state.reason}: {text}" if state.reason else text)


def _with_lateness(state: CertificateState, now: Moment) -> CertificateStep:
    """Report a late refresh, and an expired certificate, once."""
    held = state.held if isinstance(state, Refreshing) else state
    if not isinstance(held, Fresh):
        return CertificateStep(state)
    events: list[CertificateEvent] = []
    certificate = held.certificate
    if not held.is_overdue and now.wall > certificate.refresh_at + OVERDUE_S:
        events.append(CertificateEvent("CertificateOverdueForRefresh", "PodCertificate refresh overdue"))
        held = replace(held, is_overdue=True)
    if not held.is_expired and now.wall > certificate.not_after:
        events.append(CertificateEvent("CertificateExpired", "PodCertificate expired"))
        held = replace(held, is_expired=True)
    after = replace(state, held=held) if isinstance(state, Refreshing) else held
    return CertificateStep(after if events else state, tuple(events))


def _lateness(held: Fresh, now: Moment) -> list[float]:
    """The seconds until something has to be reported."""
    certificate = held.certificate
    times = [certificate.refresh_at + OVERDUE_S - now.wall] if not held.is_overdue else []
    if not held.is_expired:
        times.append(certificate.not_after - now.wall)
    return [left + _PAST_S for left in times]
