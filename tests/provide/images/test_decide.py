from __future__ import annotations

import pytest
from provide.images.stand import request

from pykubelet.provide.images import decide
from pykubelet.provide.images.decide import AccessDecision, Failure, Granted
from pykubelet.provide.images.keyring import Auth, Credential, SecretSource, ServiceAccountSource
from pykubelet.provide.images.model import ImageSettings, PullPolicy, VerificationPolicy
from pykubelet.provide.images.records import ImageAccess, PulledRecord, SecretGrant

REPO = "docker.io/library/busybox"
IMAGE = "busybox:latest"
ACCOUNT = ServiceAccountSource("3", "ns", "builder")
NODE_WIDE = ImageAccess(node_wide=True)


def settings(policy: VerificationPolicy, *allowlist: str, on: bool = True) -> ImageSettings:
    return ImageSettings("/x", verification=policy, allowlist=frozenset(allowlist), ensure_secret_pulled=on)


def record(access: ImageAccess | None, repository: str = REPO) -> PulledRecord:
    return PulledRecord("sha256:1", 0.0, {} if access is None else {repository: access})


def secret(uid: str, password: str) -> Credential:
    return Credential(Auth("u", password), SecretSource(uid, "ns", f"secret-{uid}"))


def grant(credential: Credential) -> SecretGrant:
    source = credential.source
    assert isinstance(source, SecretSource)
    return SecretGrant(source.uid, source.namespace, source.name, credential.auth.digest)


P = VerificationPolicy


@pytest.mark.parametrize(
    ("policy", "pulled_by_us", "asks"),
    [
        (P.NEVER_VERIFY, True, False),
        (P.PRELOADED, False, False),
        (P.PRELOADED, True, True),
        (P.ALLOWLISTED, False, True),
        (P.ALWAYS_VERIFY, False, True),
    ],
)
def test_who_must_prove_access(policy: VerificationPolicy, pulled_by_us: bool, asks: bool) -> None:
    assert decide.requires_verification(settings(policy), REPO, pulled_by_us) is asks
    assert decide.requires_verification(settings(policy, on=False), REPO, pulled_by_us) is False


def test_the_allowlist_takes_repositories_and_prefixes() -> None:
    allowed = settings(P.ALLOWLISTED, "docker.io/library/busybox", "quay.io/team/*", "alpine")
    assert decide.judge_access(allowed, "docker.io/library/busybox:1", None, False) is AccessDecision.GRANTED
    assert decide.judge_access(allowed, "busybox:1", None, False) is AccessDecision.MUST_PULL
    assert decide.judge_access(allowed, "alpine:1", None, False) is AccessDecision.GRANTED
    assert decide.judge_access(allowed, f"alpine:1@sha256:{'0' * 64}", None, False) is AccessDecision.GRANTED
    assert decide.judge_access(allowed, "quay.io/team/a/b", None, False) is AccessDecision.GRANTED
    assert decide.judge_access(allowed, "quay.io/teams/a", None, False) is AccessDecision.MUST_PULL
    assert decide.judge_access(allowed, "docker.io/library/busybox2", None, False) is AccessDecision.MUST_PULL


@pytest.mark.parametrize(
    ("access", "verdict"),
    [
        (ImageAccess(node_wide=True), AccessDecision.GRANTED),
        (ImageAccess(), AccessDecision.MUST_PULL),
        (ImageAccess(secrets=(SecretGrant("1", "ns", "s", "h"),)), AccessDecision.ASK_CREDENTIALS),
        (ImageAccess(accounts=(ACCOUNT,)), AccessDecision.ASK_CREDENTIALS),
        (None, AccessDecision.MUST_PULL),
    ],
)
def test_a_record_decides_over_an_image_pulled_here(access: ImageAccess | None, verdict: AccessDecision) -> None:
    assert decide.judge_access(settings(P.PRELOADED), IMAGE, record(access), False) is verdict


def test_an_image_without_record_is_preloaded_unless_its_pull_was_begun() -> None:
    assert decide.judge_access(settings(P.PRELOADED), IMAGE, None, False) is AccessDecision.GRANTED
    assert decide.judge_access(settings(P.PRELOADED), IMAGE, None, True) is AccessDecision.MUST_PULL


def test_access_is_recorded_under_the_name_that_pods_give_the_image() -> None:
    assert (
        decide.judge_access(settings(P.PRELOADED), IMAGE, record(NODE_WIDE, "busybox"), False) is AccessDecision.GRANTED
    )
    assert decide.judge_access(settings(P.PRELOADED), IMAGE, record(NODE_WIDE, REPO), False) is AccessDecision.GRANTED


def test_access_under_another_repository_does_not_count() -> None:
    other = record(ImageAccess(node_wide=True), "quay.io/other")
    assert decide.judge_access(settings(P.PRELOADED), IMAGE, other, False) is AccessDecision.MUST_PULL


def test_the_same_secret_opens_and_nothing_is_learnt() -> None:
    mine = secret("1", "p")
    assert decide.match_credentials(ImageAccess(secrets=(grant(mine),)), [mine]) == Granted()


def test_another_secret_with_the_same_content_opens_and_is_learnt() -> None:
    known, mine = secret("1", "p"), secret("2", "p")
    granted = decide.match_credentials(ImageAccess(secrets=(grant(known),)), [mine])
    assert granted == Granted(ImageAccess(secrets=(grant(mine),)))


def test_the_same_secret_with_new_content_opens_and_is_learnt() -> None:
    known, mine = secret("1", "old"), secret("1", "new")
    granted = decide.match_credentials(ImageAccess(secrets=(grant(known),)), [mine])
    assert granted == Granted(ImageAccess(secrets=(grant(mine),)))


def test_other_credentials_give_no_access() -> None:
    access = ImageAccess(secrets=(grant(secret("1", "p")), SecretGrant("9", "ns", "no-hash")), accounts=(ACCOUNT,))
    other_credentials = [
        secret("2", "q"),
        Credential(Auth("u", "p")),
        Credential(Auth("u", "p"), ServiceAccountSource("4", "ns", "other")),
    ]
    assert decide.match_credentials(access, other_credentials) is None
    assert decide.match_credentials(access, []) is None


def test_the_service_account_that_pulled_is_let_in() -> None:
    mine = Credential(Auth("u", "anything"), ACCOUNT)
    assert decide.match_credentials(ImageAccess(accounts=(ACCOUNT,)), [mine]) == Granted()


def test_a_full_record_learns_no_more() -> None:
    known = tuple(grant(secret(str(n), "p")) for n in range(100))
    assert decide.match_credentials(ImageAccess(secrets=known), [secret("x", "p")]) == Granted()
    renewed = [secret("7", "new")]
    assert decide.match_credentials(ImageAccess(secrets=known), renewed) is None, "it has to be shown that it opens"


def test_what_a_pull_proves() -> None:
    mine = secret("1", "p")
    assert decide.access_of(None) == ImageAccess(node_wide=True)
    assert decide.access_of(Credential(Auth("u", "p"))) == ImageAccess(node_wide=True)
    assert decide.access_of(mine) == ImageAccess(secrets=(grant(mine),))
    assert decide.access_of(Credential(Auth("u"), ACCOUNT)) == ImageAccess(accounts=(ACCOUNT,))


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (
            "RegistryUnavailable: dial tcp: i/o timeout",
            Failure(
                "RegistryUnavailable",
                "image pull failed for a:1 because the registry is unavailable: dial tcp: i/o timeout",
            ),
        ),
        (
            "SignatureValidationFailed",
            Failure("SignatureValidationFailed", "image pull failed for a:1 because the signature validation failed"),
        ),
        ("rpc error: code = NotFound desc = x", Failure("ErrImagePull", "rpc error: code = NotFound desc = x")),
    ],
)
def test_the_runtimes_error_chooses_the_reason(error: str, failure: Failure) -> None:
    assert decide.pull_failure("a:1", error) == failure


def test_errors_of_several_attempts_are_joined_once_each() -> None:
    assert decide.joined_errors(["a"]) == "a"
    assert decide.joined_errors(["a", "a"]) == "a"
    assert decide.joined_errors(["a", "b", "a"]) == "[a, b]"


def test_backing_off_repeats_why() -> None:
    assert decide.backing_off("a", Failure("ErrImagePull", "no")).message == (
        'Back-off pulling image "a": ErrImagePull: no'
    )
    assert decide.backing_off("a", None) == Failure("ImagePullBackOff", 'Back-off pulling image "a"')


def test_policies_that_are_not_given_mean_if_not_present() -> None:
    assert decide.pull_policy("") is PullPolicy.IF_NOT_PRESENT
    assert decide.pull_policy("Always") is PullPolicy.ALWAYS


def test_the_pulled_event_speaks_go_durations() -> None:
    event = decide.pulled_event(request("a"), 1.2349, 61.5, 42)
    assert event.message == (
        'Successfully pulled image "a" in 1.234s (1m1.5s including waiting). Image size: 42 bytes.'
    )
    assert event.field_path == "spec.containers{main}"


def test_the_present_event_depends_on_the_gate() -> None:
    on, off = settings(P.PRELOADED), settings(P.PRELOADED, on=False)
    text = 'Container image "a" already present on machine'
    assert decide.present_event(request("a"), on).message == f"{text} and can be accessed by the pod"
    assert decide.present_event(request("a"), off).message == text
