"""Which objects of the API server a pod refers to."""

from __future__ import annotations

from pykubelet.base.api.codec import from_object
from pykubelet.base.api.core import LabelSelector, Pod
from pykubelet.base.model.content import (
    Absent,
    Content,
    ContentKind,
    ObjectKey,
    Present,
    Token,
    TokenKey,
    changed_content,
    wait_for_key,
)
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.needs import pod_needs, read_signer_name, signer_name
from pykubelet.base.model.waits import Owner
from pykubelet.provide.volumes.plan import volume_keys

EVERYTHING = from_object(
    Pod,
    {
        "metadata": {"name": "web", "namespace": "shop", "uid": "u1"},
        "spec": {
            "serviceAccountName": "clerk",
            "runtimeClassName": "sealed",
            "imagePullSecrets": [{"name": "pull"}, {"name": ""}],
            "initContainers": [
                {"name": "init", "envFrom": [{"configMapRef": {"name": "all"}}, {"secretRef": {"name": "all-secret"}}]}
            ],
            "ephemeralContainers": [{"name": "debug", "envFrom": [{"configMapRef": {"name": "debug"}}]}],
            "containers": [
                {
                    "name": "main",
                    "env": [
                        {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "one", "key": "k"}}},
                        {"name": "B", "valueFrom": {"secretKeyRef": {"name": "two", "key": "k"}}},
                        {"name": "C", "value": "x", "valueFrom": {"secretKeyRef": {"name": "overruled", "key": "k"}}},
                        {"name": "D", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                    ],
                    "volumeMounts": [{"name": n, "mountPath": f"/{n}"} for n in ("maps", "secrets", "mixed")],
                }
            ],
            "volumes": [
                {"name": "maps", "configMap": {"name": "files"}},
                {"name": "secrets", "secret": {"secretName": "keys"}},
                {"name": "unused", "secret": {"secretName": "missing"}},
                {
                    "name": "mixed",
                    "projected": {
                        "sources": [
                            {"serviceAccountToken": {"path": "token"}},
                            {"serviceAccountToken": {"path": "other", "audience": "vault", "expirationSeconds": 700}},
                            {"configMap": {"name": "root"}},
                            {"secret": {"name": "more"}},
                            {"downwardAPI": {"items": []}},
                            {"clusterTrustBundle": {"name": "bundle", "path": "ca"}},
                            {"clusterTrustBundle": {"signerName": "x/y", "labelSelector": {}, "path": "cb"}},
                        ]
                    },
                },
            ],
        },
    },
)


def test_everything_a_pod_refers_to_is_found_once_and_nothing_else() -> None:
    needs = pod_needs(EVERYTHING, Content(), volume_keys)
    named = {(key.kind, key.name) for key in needs.objects}
    kind = ContentKind
    assert named == {
        *((kind.CONFIG_MAP, name) for name in ("all", "debug", "one", "files", "root")),
        *((kind.SECRET, name) for name in ("all-secret", "two", "keys", "more", "pull")),
        (kind.RUNTIME_CLASS, "sealed"),
        (kind.TRUST_BUNDLE, "bundle"),
        (kind.TRUST_BUNDLE, "signer=x/y;{}"),
    }
    assert {key.namespace for key in needs.objects if key.kind in (kind.CONFIG_MAP, kind.SECRET)} == {"shop"}
    assert {key.namespace for key in needs.objects if key.kind not in (kind.CONFIG_MAP, kind.SECRET)} == {""}
    assert needs.tokens == {
        TokenKey(PodUID("u1"), "shop", "web", "clerk", "", 3600),
        TokenKey(PodUID("u1"), "shop", "web", "clerk", "vault", 700),
    }


def test_a_pod_without_references_needs_nothing() -> None:
    needs = pod_needs(Pod(), Content(), volume_keys)
    assert (needs.objects, needs.tokens) == (frozenset(), frozenset())


def test_the_name_of_a_signers_bundles_can_be_read_back() -> None:
    for selector in (None, LabelSelector(), LabelSelector(matchLabels={"a": "b;c"})):
        assert read_signer_name(signer_name("x/y", selector)) == ("x/y", selector)
    assert read_signer_name("an-ordinary-name") is None
    assert read_signer_name("signer=x;no selector") is None


def test_content_reports_what_has_changed() -> None:
    first, second = (ObjectKey(ContentKind.SECRET, "shop", name) for name in ("one", "two"))
    token = TokenKey(PodUID("u1"), "shop", "web", "clerk", "", 3600)
    same = Absent("no")
    old = Content(True, {first: same, second: same})
    new = Content(True, {first: same, second: Absent("no")}, {token: Present(Token("t", 1.0))})
    assert changed_content(old, new) == {second, token}  # another answer, even with equal content
    assert changed_content(new, Content(True)) == {first, second, token}
    assert changed_content(new, new) == set()


def test_waits_for_content_say_what_and_whose() -> None:
    key = ObjectKey(ContentKind.CONFIG_MAP, "shop", "m")
    wait = wait_for_key(key, 5.0)
    assert (wait.what, wait.subject, wait.owner, wait.since) == ("configMap", "shop/m", Owner.OBJECT_CACHE, 5.0)
    token = TokenKey(PodUID("u1"), "shop", "web", "clerk", "", 3600)
    assert (wait_for_key(token, 0.0).what, wait_for_key(token, 0.0).subject) == (
        "service account token",
        "shop/clerk",
    )
    assert wait_for_key(ObjectKey(ContentKind.RUNTIME_CLASS, "", "sealed"), 0.0).subject == "sealed"
