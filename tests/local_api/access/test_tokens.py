"""Service account tokens: what is in them, and when they are valid."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from local_api.access.objects import NOW, Objects, pod, thing, user

from pykubelet_local_api.access.authenticate import NO_USER, authenticate
from pykubelet_local_api.access.certificates import key_pem, new_key
from pykubelet_local_api.access.files import AccessError
from pykubelet_local_api.access.token_requests import answer_token_request, filled_secrets
from pykubelet_local_api.access.tokens import KEPT_CLAIMS, AccountTokens, TokenError, open_token_key, token_key
from pykubelet_local_api.errors import StatusError
from pykubelet_local_api.objects import Json
from pykubelet_local_api.view import Verb

ISSUER = "https://kubernetes.default.svc.cluster.local"
KEY = token_key(key_pem(new_key()))
ADMIN = user("admin", "system:masters")
NODE = user("system:node:n1", "system:nodes")


def make_tokens() -> AccountTokens:
    return AccountTokens(KEY, ISSUER, "https://127.0.0.1:6443")


def world(*more: Json) -> Objects:
    account = thing("v1", "ServiceAccount", "default", "default")
    return Objects(account, thing("v1", "Node", "n1"), pod("p"), *more)


def request(view: Objects, tokens: AccountTokens, who: Any = ADMIN, name: str = "default", **spec: Any) -> Json:
    return answer_token_request(tokens, "default", name, {"spec": spec}, who, view)


def for_pod(name: str = "p", uid: str = "p-uid") -> Json:
    return {"apiVersion": "v1", "kind": "Pod", "name": name} | ({"uid": uid} if uid else {})


def decoded(token: str) -> Json:
    part = token.split(".")[1]
    found: Json = json.loads(base64.urlsafe_b64decode(part + "=="))
    return found


def why_invalid(token: str, view: Objects, *audiences: str) -> str:
    with pytest.raises(TokenError) as caught:
        make_tokens().verify(token, audiences, view)
    return str(caught.value)


def test_the_claims_of_a_token_for_a_pod() -> None:
    answer = request(world(), make_tokens(), boundObjectRef=for_pod(), expirationSeconds=7200)
    claims = decoded(answer["status"]["token"])
    assert claims.pop("jti")
    assert claims == {
        "iss": ISSUER, "aud": [ISSUER], "sub": "system:serviceaccount:default:default",
        "iat": NOW, "nbf": NOW, "exp": NOW + 7200,
        "kubernetes.io": {
            "namespace": "default", "serviceaccount": {"name": "default", "uid": "default-uid"},
            "pod": {"name": "p", "uid": "p-uid"}, "node": {"name": "n1", "uid": "n1-uid"},
        },
    }  # fmt: skip
    assert answer["status"]["expirationTimestamp"] == "2027-01-15T10:00:00Z"
    assert answer["metadata"]["name"] == "default"
    assert answer["spec"]["audiences"] == [ISSUER]


def test_a_token_that_pods_renew_is_valid_for_a_year() -> None:
    view, tokens = world(), make_tokens()
    answer = request(view, tokens, boundObjectRef=for_pod(), expirationSeconds=3607)
    claims = decoded(answer["status"]["token"])
    assert claims["exp"] == NOW + 365 * 24 * 3600
    assert claims["kubernetes.io"]["warnafter"] == NOW + 3607
    assert answer["status"]["expirationTimestamp"] == "2027-01-15T09:00:07Z"
    specs: list[Json] = [{"audiences": ["x"], "boundObjectRef": for_pod()}, {}]
    for spec in specs:
        assert decoded(request(view, tokens, expirationSeconds=3607, **spec)["status"]["token"])["exp"] == NOW + 3607


def test_the_user_of_a_token() -> None:
    view, tokens = world(), make_tokens()
    token = request(view, tokens, boundObjectRef=for_pod())["status"]["token"]
    found = make_tokens().verify(token, (), view).user
    assert found.name == "system:serviceaccount:default:default"
    assert found.uid == "default-uid"
    assert found.groups == ("system:serviceaccounts", "system:serviceaccounts:default", "system:authenticated")
    assert found.extra == {
        "authentication.kubernetes.io/credential-id": (f"JTI={decoded(token)['jti']}",),
        "authentication.kubernetes.io/pod-name": ("p",),
        "authentication.kubernetes.io/pod-uid": ("p-uid",),
        "authentication.kubernetes.io/node-name": ("n1",),
        "authentication.kubernetes.io/node-uid": ("n1-uid",),
    }


def test_audiences() -> None:
    view, tokens = world(), make_tokens()
    token = request(view, tokens, audiences=["x", "y"])["status"]["token"]
    assert tokens.verify(token, ("y", "z"), view).audiences == ("y",)
    assert why_invalid(token, view) == f'token audiences ["x" "y"] is invalid for the target audiences ["{ISSUER}"]'


def test_a_token_ends_with_its_time() -> None:
    view, tokens = world(), make_tokens()
    token = request(view, tokens)["status"]["token"]
    view.now = NOW + 3659
    tokens.verify(token, (), view)
    view.now = NOW + 3661
    assert why_invalid(token, view) == "service account token has expired"
    view.now = NOW - 61
    assert why_invalid(token, view) == "service account token is not valid yet"


def test_a_token_ends_with_what_it_is_bound_to() -> None:
    view, tokens = world(thing("v1", "Secret", "s", "default")), make_tokens()
    by_pod = request(view, tokens, boundObjectRef=for_pod())["status"]["token"]
    ref = {"apiVersion": "v1", "kind": "Secret", "name": "s"}
    by_secret = request(view, tokens, boundObjectRef=ref)["status"]["token"]
    by_node = request(view, tokens, boundObjectRef={"apiVersion": "v1", "kind": "Node", "name": "n1"})["status"][
        "token"
    ]
    free = request(view, tokens)["status"]["token"]
    view.put(pod("p") | {"metadata": pod("p")["metadata"] | {"uid": "another"}})
    assert why_invalid(by_pod, view) == "pod UID (another) does not match service account pod ref claim (p-uid)"
    for resource, namespace, name, token in (
        ("pods", "default", "p", by_pod), ("secrets", "default", "s", by_secret), ("nodes", "", "n1", by_node),
    ):  # fmt: skip
        view.remove(resource, namespace, name)
        assert why_invalid(token, view) == "service account token has been invalidated"
    make_tokens().verify(free, (), view)
    view.put(thing("v1", "ServiceAccount", "default", "default", metadata={"uid": "new"}))
    assert why_invalid(free, view) == "service account UID (new) does not match claim (default-uid)"
    view.remove("serviceaccounts", "default", "default")
    assert why_invalid(free, view) == 'serviceaccounts "default" not found'


def test_a_pod_uses_its_token_while_it_ends() -> None:
    view, tokens = world(), make_tokens()
    token = request(view, tokens, boundObjectRef=for_pod())["status"]["token"]
    view.put(thing("v1", "Pod", "p", "default", metadata={"deletionTimestamp": "2027-01-15T08:00:30Z"}))
    tokens.verify(token, (), view)
    view.now = NOW + 91
    assert why_invalid(token, view) == "service account token has been invalidated"


def test_a_foreign_or_changed_token_is_refused() -> None:
    view = world()
    token = request(view, make_tokens())["status"]["token"]
    other = AccountTokens(token_key(key_pem(new_key())), ISSUER, "")
    assert why_invalid(request(view, other)["status"]["token"], view) == "invalid signature, no keys found"
    head, body, signature = token.split(".")
    more = base64.urlsafe_b64encode(json.dumps(decoded(token) | {"sub": "x"}).encode()).decode().rstrip("=")
    assert "cryptographic primitive" in why_invalid(f"{head}.{more}.{signature}", view)
    none = base64.urlsafe_b64encode(b'{"alg":"none"}').decode().rstrip("=")
    assert "cryptographic primitive" in why_invalid(f"{none}.{body}.", view)
    for junk in (
        "",
        "a",
        "a.b",
        "a.b.c",
        "....",
        token[:-1] + "!",
        "é.é.é",
        f"{head}.{head}.{head}",
        "x" * 20_000,
        "[" * 9000,
    ):
        assert why_invalid(junk, view) == ""


def test_what_is_kept_of_signatures_is_bounded() -> None:
    view, tokens = world(), make_tokens()
    for _ in range(KEPT_CLAIMS + 50):
        tokens.verify(request(view, tokens)["status"]["token"], (), view)
    assert len(tokens._known) == KEPT_CLAIMS


def test_the_published_key_verifies_a_token() -> None:
    tokens = make_tokens()
    token = request(world(), tokens)["status"]["token"]
    assert tokens.configuration()["jwks_uri"] == "https://127.0.0.1:6443/openid/v1/jwks"
    assert tokens.configuration()["issuer"] == ISSUER
    (key,) = tokens.keys()["keys"]
    x, y = (int.from_bytes(base64.urlsafe_b64decode(key[axis] + "=")) for axis in "xy")
    signed, _, signature = token.rpartition(".")
    raw = base64.urlsafe_b64decode(signature + "==")
    der = encode_dss_signature(int.from_bytes(raw[:32]), int.from_bytes(raw[32:]))
    public = ec.EllipticCurvePublicNumbers(x, y, ec.SECP256R1()).public_key()
    public.verify(der, signed.encode(), ec.ECDSA(hashes.SHA256()))
    header = json.loads(base64.urlsafe_b64decode(signed.split(".")[0] + "=="))
    assert header == {"alg": "ES256", "kid": key["kid"]}


@pytest.mark.parametrize(
    ("body", "code", "message"),
    [
        ({"spec": {"expirationSeconds": 100}}, 422,
         'TokenRequest.authentication.k8s.io "" is invalid: spec.expirationSeconds: Invalid value: 100: '
         "may not specify a duration less than 10 minutes"),
        ({"spec": {"expirationSeconds": 1 << 33}}, 422,
         'TokenRequest.authentication.k8s.io "" is invalid: spec.expirationSeconds: Invalid value: 8589934592: '
         "may not specify a duration larger than 2^32 seconds"),
        ({"metadata": {"name": "x"}}, 422,
         'TokenRequest.authentication.k8s.io "default" is invalid: metadata.name: Invalid value: "x": '
         "must match the service account name if specified"),
        ({"metadata": {"uid": "x"}}, 409,
         'Operation cannot be fulfilled on TokenRequest.authentication.k8s.io "default": the UID in the token request (x) does not '
         "match the UID of the service account (default-uid)"),
        ({"spec": {"boundObjectRef": {"kind": "ConfigMap", "apiVersion": "v1", "name": "x"}}}, 400,
         "cannot bind token to object of type /v1, Kind=ConfigMap"),
        ({"spec": {"boundObjectRef": for_pod("q")}}, 404, 'pods "q" not found'),
        ({"spec": {"boundObjectRef": for_pod("other")}}, 400,
         'cannot bind token for serviceaccount "default" to pod running with different serviceaccount name.'),
        ({"spec": {"boundObjectRef": for_pod("p", "x")}}, 409,
         'Operation cannot be fulfilled on Pod "p": the UID in the bound object reference (x) does not match the UID in record. '
         "The object might have been deleted and then recreated"),
        ({"spec": {"audiences": ["a"] * 65}}, 422,
         'TokenRequest.authentication.k8s.io "" is invalid: spec.audiences: Too many: 65: must have at most 64 items'),
    ],
)  # fmt: skip
def test_wrong_requests(body: Json, code: int, message: str) -> None:
    view = world(pod("other", serviceAccountName="someone"))
    with pytest.raises(StatusError) as caught:
        answer_token_request(make_tokens(), "default", "default", body, ADMIN, view)
    assert (caught.value.code, caught.value.message) == (code, message)


def test_an_account_that_is_not_there() -> None:
    with pytest.raises(StatusError) as caught:
        request(world(), make_tokens(), name="x")
    assert (caught.value.code, caught.value.message) == (404, 'serviceaccounts "x" not found')


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({}, "node requested token not bound to a pod"),
        ({"boundObjectRef": for_pod(uid="")}, "node requested token with a pod binding without a uid"),
        ({"boundObjectRef": for_pod("far", "far-uid")}, "node requested token bound to a pod scheduled on a different node"),
        ({"boundObjectRef": for_pod(), "audiences": ["a", "b"]}, "node may only request 0 or 1 audiences"),
        ({"boundObjectRef": for_pod(), "audiences": ["z"]},
         'audience "z" not found in pod spec volume, system:node:n1 is not authorized to request tokens for this audience'),
    ],
)  # fmt: skip
def test_a_node_gets_tokens_of_its_pods_for_their_audiences(spec: Json, why: str) -> None:
    projected = {
        "name": "t",
        "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}, {"serviceAccountToken": {"audience": "a"}}]},
    }
    view = world(
        pod("p", volumes=[projected, {"name": "c", "csi": {"driver": "d"}}]), pod("far", node="n2"),
        thing("storage.k8s.io/v1", "CSIDriver", "d", spec={"tokenRequests": [{"audience": "csi"}]}),
    )  # fmt: skip
    for audiences in ([], ["a"], ["csi"]):
        request(view, make_tokens(), NODE, boundObjectRef=for_pod(), audiences=audiences)
    with pytest.raises(StatusError) as caught:
        request(view, make_tokens(), NODE, **spec)
    assert (caught.value.code, caught.value.message) == (403, f'serviceaccounts "default" is forbidden: {why}')


def test_a_secret_gets_a_token_that_ends_with_it() -> None:
    secret = thing(
        "v1", "Secret", "s", "default", type="kubernetes.io/service-account-token",
        metadata={"annotations": {"kubernetes.io/service-account.name": "default"}},
    )  # fmt: skip
    view, tokens = world(secret, thing("v1", "Secret", "plain", "default")), make_tokens()
    (change,) = filled_secrets(tokens, b"authority", view.list("secrets"), view)
    assert change.verb is Verb.UPDATE
    filled = change.object
    assert filled["metadata"]["annotations"]["kubernetes.io/service-account.uid"] == "default-uid"
    assert base64.b64decode(filled["data"]["ca.crt"]) == b"authority"
    assert base64.b64decode(filled["data"]["namespace"]) == b"default"
    view.put(filled)
    assert filled_secrets(tokens, b"authority", view.list("secrets"), view) == []
    token = base64.b64decode(filled["data"]["token"]).decode()
    assert decoded(token)["iss"] == "kubernetes/serviceaccount"
    found = tokens.verify(token, (), view)
    assert (found.user.name, found.audiences) == ("system:serviceaccount:default:default", (ISSUER,))
    view.put(filled | {"data": filled["data"] | {"token": "eHg="}})
    assert why_invalid(token, view) == "Token does not match server's copy"
    view.remove("secrets", "default", "s")
    assert why_invalid(token, view) == "Token has been invalidated"
    view.put(filled)
    view.put(thing("v1", "ServiceAccount", "default", "default", metadata={"uid": "new"}))
    assert why_invalid(token, view) == "ServiceAccount UID (new) does not match claim (default-uid)"
    (change,) = filled_secrets(tokens, b"authority", view.list("secrets"), view)
    assert change.verb is Verb.DELETE


def test_the_key_is_kept_and_a_damaged_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "sa.key").write_bytes(key_pem(new_key()))
    assert open_token_key(tmp_path).name == open_token_key(tmp_path).name
    (tmp_path / "sa.key").write_bytes(b"")
    with pytest.raises(AccessError, match=r"sa\.key is damaged .*restore it from a backup, or remove it"):
        open_token_key(tmp_path)


def test_who_sends_a_request() -> None:
    view, tokens = world(), make_tokens()
    token = request(view, tokens)["status"]["token"]
    certificate = {"subject": ((("organizationName", "a"),), (("organizationName", "b"),), (("commonName", "jane"),))}
    jane = authenticate(certificate, "", view, tokens, "12ab")
    assert jane.name == "jane"
    assert jane.groups == ("a", "b", "system:authenticated")
    assert jane.extra == {"authentication.kubernetes.io/credential-id": ("X509SHA256=12ab",)}
    assert authenticate(certificate, f"Bearer {token}", view, tokens).name == "jane"
    for header in (f"Bearer {token}", f"bearer  {token} "):
        assert authenticate(None, header, view, tokens).name == "system:serviceaccount:default:default"
    for header in ("", "Basic YTpi", "Bearer", "Bearer "):
        assert authenticate({}, header, view, tokens) == NO_USER
    for header in ("Bearer x", f"Bearer {token}x"):
        with pytest.raises(StatusError) as caught:
            authenticate(None, header, view, tokens)
        assert caught.value.code == 401


def test_a_certificate_that_has_ended_is_refused_on_an_open_connection() -> None:
    view, tokens = world(), make_tokens()
    certificate = {"subject": ((("commonName", "jane"),),), "notAfter": "Jan 15 08:00:00 2027 GMT"}
    view.now = 1_800_000_000.0
    assert authenticate(certificate, "", view, tokens).name == "jane"
    token = request(view, tokens)["status"]["token"]
    view.now += 1
    with pytest.raises(StatusError) as caught:
        authenticate(certificate, "", view, tokens)
    assert caught.value.code == 401
    assert authenticate(certificate, f"Bearer {token}", view, tokens).name == "system:serviceaccount:default:default"
