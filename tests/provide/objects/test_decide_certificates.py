"""The states of one pod certificate: what each event makes of them, and what always holds."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pykubelet.base.api.certificates import PodCertificateRequest, PodCertificateRequestStatus
from pykubelet.base.api.core import Condition, ObjectMeta
from pykubelet.base.api.times import format_time
from pykubelet.base.kit.clock import Moment
from pykubelet.base.kit.values import replace
from pykubelet.base.model.certificates import OVERDUE_S, CertificateStage, PodCertificate
from pykubelet.provide.objects.decide import clean_chain
from pykubelet.provide.objects.decide_certificates import (
    GONE_S,
    LEAST_AGE_S,
    MAX_CHAIN,
    SPREAD_S,
    Asked,
    CertificateEvent,
    CertificateState,
    Fresh,
    Initial,
    Refreshing,
    RequestRefused,
    Waiting,
    asked_of,
    certificate_of,
    created,
    look_in_s,
    observe,
    refusal_text,
    stage_of,
    wants_request,
)

NOW = Moment(5000.0, 1_700_000_000.0)
HOUR = 3600.0
CHAIN = "-----BEGIN CERTIFICATE-----\nQUFB\n-----END CERTIFICATE-----\n"
ASKED = Asked("req-1", "key 1", NOW.wall, NOW.mono + GONE_S)
HELD = Fresh(PodCertificate("key 0", CHAIN, NOW.wall + 12 * HOUR, NOW.wall + 24 * HOUR))
NEWER = Asked("req-2", "key 2", NOW.wall, NOW.mono + GONE_S)


def later(seconds: float) -> Moment:
    return Moment(NOW.mono + seconds, NOW.wall + seconds)


def request(
    *conditions: Condition, chain: str = CHAIN, begin_s: float = 12 * HOUR, end_s: float = 24 * HOUR
) -> PodCertificateRequest:
    status = PodCertificateRequestStatus(
        conditions=conditions,
        certificateChain=chain,
        beginRefreshAt=format_time(NOW.wall + begin_s),
        notAfter=format_time(NOW.wall + end_s),
    )
    return PodCertificateRequest(metadata=ObjectMeta(namespace="shop", name="req-1"), status=status)


def condition(kind: str, reason: str = "", message: str = "") -> Condition:
    return Condition(type=kind, status="True", reason=reason, message=message)


ISSUED, UNANSWERED = request(condition("Issued")), request()
DENIED = request(condition("Denied", "NotAllowed", 'no "shop"'))
FAILED = request(condition("Failed", "UnsupportedKeyType", "RSA"))
DENIED_STATE = RequestRefused("Denied", "NotAllowed", 'no "shop"')
FAILED_STATE = RequestRefused("Failed", "UnsupportedKeyType", "RSA")
FIRST = Fresh(PodCertificate("key 1", CHAIN, NOW.wall + 12 * HOUR, NOW.wall + 24 * HOUR))
SECOND = Fresh(PodCertificate("key 2", CHAIN, NOW.wall + 12 * HOUR, NOW.wall + 24 * HOUR))


@pytest.mark.parametrize(
    ("before", "seen", "seconds", "after"),
    [
        (Initial(), None, 0, Initial()),
        (Waiting(ASKED), None, 0, Waiting(ASKED)),  # the watch may be late
        (Waiting(ASKED), None, GONE_S - 1, Waiting(ASKED)),
        (Waiting(ASKED), None, GONE_S, Initial()),
        (Waiting(ASKED), UNANSWERED, 10 * GONE_S, Waiting(ASKED)),
        (Waiting(ASKED), ISSUED, 0, FIRST),
        (Waiting(ASKED), DENIED, 0, DENIED_STATE),
        (Waiting(ASKED), FAILED, 0, FAILED_STATE),
        (FIRST, None, GONE_S, FIRST),  # requests are removed some time after the answer
        (Refreshing(HELD, NEWER), None, GONE_S - 1, Refreshing(HELD, NEWER)),
        (Refreshing(HELD, NEWER), None, GONE_S, HELD),
        (Refreshing(HELD, NEWER), UNANSWERED, 1, Refreshing(HELD, NEWER)),
        (Refreshing(HELD, NEWER), ISSUED, 1, SECOND),
        (Refreshing(HELD, NEWER), DENIED, 1, DENIED_STATE),
        (Refreshing(HELD, NEWER), FAILED, 1, FAILED_STATE),
        (DENIED_STATE, ISSUED, 0, DENIED_STATE),
        (FAILED_STATE, None, 10 * GONE_S, FAILED_STATE),
    ],
)
def test_what_is_seen_of_the_request(
    before: CertificateState, seen: PodCertificateRequest | None, seconds: float, after: CertificateState
) -> None:
    assert observe(before, seen, later(seconds), 0.0).state == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (Initial(), Waiting(ASKED)),
        (HELD, Refreshing(HELD, ASKED)),
    ],
)
def test_a_created_request_is_waited_for(before: CertificateState, after: CertificateState) -> None:
    assert created(before, "req-1", "key 1", NOW, 0.0) == after


def test_the_time_after_which_a_request_counts_as_deleted_is_spread() -> None:
    state = created(Initial(), "req-1", "key 1", NOW, 0.5)
    assert observe(state, None, later(GONE_S + SPREAD_S / 2 - 1), 0.0).state == state
    assert observe(state, None, later(GONE_S + SPREAD_S / 2), 0.0).state == Initial()


@pytest.mark.parametrize("state", [Waiting(ASKED), Refreshing(HELD, NEWER)])
def test_no_request_counts_as_deleted_while_the_api_server_is_away(state: CertificateState) -> None:
    assert observe(state, None, later(2 * GONE_S), 0.0, is_current=False).state == state


@pytest.mark.parametrize("chance", [0.0, 0.5, 1.0])
def test_a_certificate_is_refreshed_when_its_signer_wants_and_somewhat_later(chance: float) -> None:
    state = observe(Waiting(ASKED), ISSUED, NOW, chance).state
    due_s = 12 * HOUR + SPREAD_S * chance
    assert not wants_request(state, later(due_s - 1))
    assert look_in_s(state, NOW) == due_s
    assert wants_request(state, later(due_s))


def test_a_signer_that_wants_a_refresh_in_the_past_is_not_asked_at_once() -> None:
    state = observe(Waiting(ASKED), request(condition("Issued"), begin_s=-HOUR), NOW, 0.5).state
    assert not wants_request(state, later(LEAST_AGE_S * 1.5 - 1))
    assert wants_request(state, later(LEAST_AGE_S * 1.5))


@pytest.mark.parametrize(("state", "wanted"), [(Waiting(ASKED), False), (Refreshing(HELD, NEWER), False)])
def test_nothing_is_requested_while_a_request_is_open(state: CertificateState, wanted: bool) -> None:
    assert wants_request(state, later(100 * HOUR)) is wanted


@pytest.mark.parametrize("state", [DENIED_STATE, FAILED_STATE])
def test_nothing_is_requested_after_a_refusal(state: CertificateState) -> None:
    assert not wants_request(state, later(1000 * HOUR))
    assert look_in_s(state, NOW) == inf


def test_refusals_are_reported_once() -> None:
    step = observe(Waiting(ASKED), DENIED, NOW, 0.0)
    text = 'PodCertificateRequest shop/req-1 was denied, reason="NotAllowed", message="no \\"shop\\""'
    assert step.events == (CertificateEvent("Denied", f"NotAllowed: {text}"),)
    assert observe(step.state, DENIED, NOW, 0.0).events == ()
    (event,) = observe(Refreshing(HELD, NEWER), FAILED, NOW, 0.0).events
    assert event.reason == "Failed"
    assert event.message.startswith("UnsupportedKeyType: PodCertificateRequest shop/req-1 failed, reason=")


def test_the_errors_of_volumes_name_reason_and_message() -> None:
    assert refusal_text(DENIED_STATE) == (
        'PodCertificateRequest was permanently denied: reason="NotAllowed" message="no \\"shop\\""'
    )
    assert refusal_text(FAILED_STATE) == (
        'PodCertificateRequest was permanently failed: reason="UnsupportedKeyType" message="RSA"'
    )


@pytest.mark.parametrize("wrap", [lambda held: held, lambda held: Refreshing(held, replace(NEWER, gone_at=inf))])
def test_a_late_refresh_and_an_expired_certificate_are_reported_once(wrap: object) -> None:
    assert callable(wrap)
    state: CertificateState = wrap(HELD)
    overdue_s = 12 * HOUR + OVERDUE_S
    assert observe(state, None, later(overdue_s), 0.0, is_current=False).events == ()
    step = observe(state, None, later(overdue_s + 1), 0.0, is_current=False)
    assert [event.reason for event in step.events] == ["CertificateOverdueForRefresh"]
    assert step.events[0].message == "PodCertificate refresh overdue"
    assert observe(step.state, None, later(overdue_s + 2), 0.0, is_current=False).events == ()
    step = observe(step.state, None, later(24 * HOUR + 1), 0.0, is_current=False)
    assert step.events == (CertificateEvent("CertificateExpired", "PodCertificate expired"),)
    assert observe(step.state, None, later(30 * HOUR), 0.0, is_current=False).events == ()
    assert certificate_of(step.state) == HELD.certificate  # it stays in use


@pytest.mark.parametrize(
    ("state", "stage"),
    [
        (Initial(), CertificateStage.NOT_YET_ISSUED),
        (Waiting(ASKED), CertificateStage.NOT_YET_ISSUED),
        (HELD, CertificateStage.FRESH),
        (Refreshing(HELD, NEWER), CertificateStage.FRESH),
        (DENIED_STATE, CertificateStage.DENIED),
        (FAILED_STATE, CertificateStage.FAILED),
    ],
)
def test_stages(state: CertificateState, stage: CertificateStage) -> None:
    assert stage_of(state) is stage


def test_a_chain_that_is_longer_than_an_api_server_admits_is_refused() -> None:
    assert isinstance(
        observe(Waiting(ASKED), request(condition("Issued"), chain="x" * MAX_CHAIN), NOW, 0.0).state, Fresh
    )
    long = request(condition("Issued"), chain="x" * (MAX_CHAIN + 1))
    state = observe(Waiting(ASKED), long, NOW, 0.0).state
    assert isinstance(state, RequestRefused) and state.reason == "CertificateChainTooLong"


def test_a_chain_has_only_certificates() -> None:
    noisy = f"subject: x\n{CHAIN}between\n-----BEGIN X509 CERTIFICATE-----\nNote: y\n\nQkJC\n-----END X509 CERTIFICATE-----\nrest"
    assert clean_chain(noisy) == CHAIN + CHAIN.replace("QUFB", "QkJC")
    assert clean_chain(CHAIN) is CHAIN
    state = observe(Waiting(ASKED), request(condition("Issued"), chain=noisy), NOW, 0.0).state
    found = certificate_of(state)
    assert found is not None and found.chain == clean_chain(noisy)


def test_keys_are_not_shown() -> None:
    for state in (Waiting(Asked("req-1", "SECRET", 0.0, 0.0)), Fresh(PodCertificate("SECRET", CHAIN, 0.0, 0.0))):
        assert "SECRET" not in repr(state)


class Lives(RuleBasedStateMachine):
    """A source, its requests in an API server, and time."""

    def __init__(self) -> None:
        super().__init__()
        self.state: CertificateState = Initial()
        self.now = NOW
        self.requests: dict[str, PodCertificateRequest] = {}
        self.keys: dict[str, str] = {}
        self.events: list[str] = []
        self.certificates = 0

    def look(self, chance: float = 0.5) -> None:
        asked, held = asked_of(self.state), certificate_of(self.state)
        found = self.requests.get(asked.name) if asked is not None else None
        step = observe(self.state, found, self.now, chance)
        self.state = step.state
        self.events += [event.reason for event in step.events]
        now_held = certificate_of(self.state)
        if now_held is not held and now_held is not None:
            assert asked is not None and now_held.key == self.keys[asked.name]  # the chain is for this key
            self.certificates += 1

    @rule(seconds=st.floats(0, 3 * HOUR), chance=st.floats(0, 1))
    def time_passes(self, seconds: float, chance: float) -> None:
        self.now = Moment(self.now.mono + seconds, self.now.wall + seconds)
        self.look(chance)

    @precondition(lambda self: wants_request(self.state, self.now))
    @rule(chance=st.floats(0, 1))
    def a_request_is_created(self, chance: float) -> None:
        name = f"req-{len(self.keys)}"
        self.keys[name] = f"key of {name}"
        self.requests[name] = PodCertificateRequest(metadata=ObjectMeta(namespace="shop", name=name))
        self.state = created(self.state, name, self.keys[name], self.now, chance)

    @precondition(lambda self: self.requests)
    @rule(
        data=st.data(), kind=st.sampled_from(["Issued", "Issued", "Denied", "Failed"]), life=st.floats(HOUR, 24 * HOUR)
    )
    def a_signer_answers(self, data: st.DataObject, kind: str, life: float) -> None:
        name = data.draw(st.sampled_from(sorted(self.requests)))
        if self.requests[name].status is None:
            start = self.now.wall - NOW.wall
            answer = request(condition(kind, "Why"), begin_s=start + life / 2, end_s=start + life)
            self.requests[name] = replace(answer, metadata=ObjectMeta(namespace="shop", name=name))
        self.look()

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def a_request_is_removed(self, data: st.DataObject) -> None:
        del self.requests[data.draw(st.sampled_from(sorted(self.requests)))]
        self.look()

    @invariant()
    def something_is_due_or_over(self) -> None:
        """No state is left in which nothing can happen, except for a refusal and for what a signer has to do."""
        asked = asked_of(self.state)
        if isinstance(self.state, RequestRefused) or (asked is not None and asked.name in self.requests):
            return
        assert wants_request(self.state, self.now) or look_in_s(self.state, self.now) < inf

    @invariant()
    def events_are_few(self) -> None:
        assert self.events.count("CertificateExpired") <= self.certificates
        assert self.events.count("CertificateOverdueForRefresh") <= self.certificates
        assert self.events.count("Denied") + self.events.count("Failed") <= 1


TestLives = Lives.TestCase
TestLives.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
