from __future__ import annotations

import base64
import hashlib
import json

import pytest

from pykubelet.provide.images.keyring import (
    Auth,
    Credential,
    CredentialError,
    Keyring,
    PodPullSecrets,
    PullSecret,
    SecretSource,
    node_entries,
    parse_config_json,
    parse_dockercfg,
    secret_entries,
    secret_keyring,
)


def b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def users(found: tuple[Credential, ...]) -> list[str]:
    return [credential.auth.username for credential in found]


def ring(*keys: str) -> Keyring:
    return Keyring([(key, Credential(Auth(username=key))) for key in keys])


def test_config_json_takes_user_and_password_or_auth() -> None:
    document = f"""{{"auths": {{
        "a.example": {{"username": "u", "password": "p", "email": "m"}},
        "b.example": {{"username": "ignored", "password": "ignored", "auth": "{b64("user:pass:word")}"}},
        "c.example": {{"auth": "{b64("x:y").rstrip("=")}", "identitytoken": "t"}},
        "d.example": {{}}, "e.example": {{"auth": null, "username": null}}
    }}, "credsStore": "secretservice"}}"""
    assert parse_config_json(document.encode()) == {
        "a.example": Auth("u", "p", "m"),
        "b.example": Auth("user", "pass:word"),
        "c.example": Auth("x", "y", identity_token="t"),
        "d.example": Auth(),
        "e.example": Auth(),
    }


@pytest.mark.parametrize("document", [b"{}", b'{"auths": null}', b'{"credHelpers": {}}'])
def test_config_json_without_credentials_is_empty(document: bytes) -> None:
    assert parse_config_json(document) == {}


def test_dockercfg_is_the_bare_map() -> None:
    assert parse_dockercfg(f'{{"a.example": {{"auth": "{b64("u:p")}"}}}}'.encode()) == {"a.example": Auth("u", "p")}


@pytest.mark.parametrize(
    ("document", "why"),
    [
        (b"", "Input data was truncated"),
        (b"hunter2", "JSON is malformed: invalid character (byte 0)"),
        (b"\xff\xfe", "JSON is malformed: invalid character (byte 0)"),
        (b"[]", "Expected `object`, got `array`"),
        (b'{"auths": {"a": 5}}', "Expected `object`, got `int` - at `$.auths[...]`"),
        (b'{"auths": {"a": {"auth": "%%%"}}}', 'the auth field of "a" is not base64'),
        (
            f'{{"auths": {{"a": {{"auth": "{b64("hunter2")}"}}}}}}'.encode(),
            'the auth field of "a": unable to parse auth field, must be formatted as base64(username:password)',
        ),
    ],
)
def test_a_bad_document_is_refused_without_its_content(document: bytes, why: str) -> None:
    with pytest.raises(CredentialError) as caught:
        parse_config_json(document)
    assert str(caught.value) == why
    assert "hunter2" not in str(caught.value)


def test_passwords_do_not_show_in_repr() -> None:
    shown = repr(Credential(Auth("u", "hunter2", identity_token="hunter2", registry_token="hunter2")))
    assert "hunter2" not in shown
    assert "'u'" in shown


def test_all_matching_credentials_come_longest_key_first() -> None:
    keyring = ring("quay.io", "quay.io/team", "quay.io/team/app", "gcr.io", "*.io")
    assert users(keyring.lookup("quay.io/team/app")) == ["quay.io/team/app", "quay.io/team", "quay.io", "*.io"]
    assert users(keyring.lookup("quay.io/other")) == ["quay.io", "*.io"]
    assert users(keyring.lookup("example.com/x")) == []


def test_several_credentials_of_one_key_keep_their_order() -> None:
    keyring = Keyring([("https://a.example/v1/", Credential(Auth("one"))), ("a.example", Credential(Auth("two")))])
    assert users(keyring.lookup("a.example/x")) == ["one", "two"]


def test_docker_hub_credentials_serve_images_without_registry_unless_another_key_matches() -> None:
    hub = "https://index.docker.io/v1/"
    assert users(ring(hub).lookup("docker.io/library/busybox")) == [hub]
    assert users(ring(hub, "docker.io").lookup("docker.io/library/busybox")) == ["docker.io"]
    assert users(ring(hub).lookup("quay.io/a")) == []


def test_secrets_of_both_types_are_one_ring_and_keep_their_source() -> None:
    source = SecretSource("1", "ns", "one")
    other = SecretSource("2", "ns", "two")
    secrets = (
        PullSecret(other, "kubernetes.io/dockercfg", {".dockercfg": b'{"a.example": {"username": "short"}}'}),
        PullSecret(
            source,
            "kubernetes.io/dockerconfigjson",
            {".dockerconfigjson": b'{"auths": {"a.example/team": {"username": "long"}}}'},
        ),
        PullSecret(source, "Opaque", {".dockerconfigjson": b"not looked at"}),
        PullSecret(source, "kubernetes.io/dockercfg", {}),
    )
    found = Keyring(secret_entries(secrets)).lookup("a.example/team/app")
    assert found == (Credential(Auth("long"), source), Credential(Auth("short"), other))


def test_a_bad_secret_is_named() -> None:
    bad = PullSecret(SecretSource("1", "ns", "name"), "kubernetes.io/dockerconfigjson", {".dockerconfigjson": b"{"})
    with pytest.raises(CredentialError, match="image pull secret ns/name: Input data was truncated"):
        secret_entries([bad])


def secrets_of(*documents: str) -> list[PullSecret]:
    return [
        PullSecret(SecretSource(str(n), "ns", f"s{n}"), "kubernetes.io/dockercfg", {".dockercfg": text.encode()})
        for n, text in enumerate(documents)
    ]


def registries(number: int, name: str = "r%d.example", padding: int = 0) -> str:
    return json.dumps({name % n: {"username": "u" * padding} for n in range(number)})


@pytest.mark.parametrize(
    ("documents", "bound"),
    [
        ([registries(1000), registries(1000)], ""),
        ([registries(1000), registries(1003)], "2000 registries"),
        ([registries(1, padding=1 << 20)], ""),
        ([registries(1, padding=1 << 20)] * 2, "2 MiB"),
        ([registries(100, "*" * 70 + "%d")], ""),
        ([registries(100, "*" * 70 + "%d"), registries(100, "?" * 100 + "%d")], "16 KiB of registries with wildcards"),
        ([registries(100, "x" * 200 + "%d")] * 3, ""),
    ],
)
def test_the_secrets_of_a_pod_have_bounds_together(documents: list[str], bound: str) -> None:
    if not bound:
        assert secret_entries(secrets_of(*documents))
        return
    last = f"image pull secret ns/s{len(documents) - 1}: with it, the pod's secrets have more than {bound}"
    with pytest.raises(CredentialError, match=f"^{last}$"):
        secret_entries(secrets_of(*documents))


def test_the_keyring_of_the_same_secrets_is_made_once() -> None:
    secrets = PodPullSecrets(tuple(secrets_of(registries(10))))
    assert secret_keyring(secrets) is secret_keyring(secrets)


def test_the_hash_is_of_the_reference_form() -> None:
    auth = Auth("u", "p<&>\u2028é", "m")
    expected = '{"username":"u","password":"p\\u003c\\u0026\\u003e\\u2028é","email":"m"}'
    assert auth.digest == hashlib.sha256(expected.encode()).hexdigest()


def test_node_credentials_have_no_source() -> None:
    assert node_entries({"a": Auth("u")}) == [("a", Credential(Auth("u"), None))]
