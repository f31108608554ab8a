"""Decisions and messages are those of a real API server, on random roles and requests."""

from __future__ import annotations

import base64
import http.client
import json
import random
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest
from local_api.access.objects import Objects, bound, rbac, user
from support.cluster import up_or_anew
from testbed import node, places
from testbed.controlplane_programs import VARIABLE
from testbed.rest import Client

from pykubelet_local_api.access.authorize import authorize, check
from pykubelet_local_api.access.bootstrap import bootstrap_objects
from pykubelet_local_api.access.certificates import key_pem, new_key
from pykubelet_local_api.access.escalation import check_binding, check_role
from pykubelet_local_api.access.rbac import AccessAttributes, index_of, rules_for
from pykubelet_local_api.access.reviews import review, wanted_by
from pykubelet_local_api.access.token_requests import answer_token_request
from pykubelet_local_api.access.tokens import AccountTokens, token_key
from pykubelet_local_api.errors import StatusError
from pykubelet_local_api.kinds.table import BY_PATH, KINDS
from pykubelet_local_api.objects import Json, name_of
from pykubelet_local_api.view import RequestUser

pytestmark = pytest.mark.cluster

RBAC = "/apis/rbac.authorization.k8s.io/v1"
SEED = 31
WITHIN_S = 30.0
VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection", "impersonate", "*")
RESOURCES = (
    "pods",
    "pods/log",
    "pods/status",
    "secrets",
    "configmaps",
    "widgets",
    "widgets/scale",
    "*",
    "*/scale",
    "*/status",
    "nodes",
)
GROUPS = ("", "apps", "example.com", "*")
NAMES = ("a", "b", "c")
ROLE_KIND, BINDING_KIND = (
    BY_PATH["rbac.authorization.k8s.io", "v1", plural] for plural in ("clusterroles", "rolebindings")
)
PATHS = ("/healthz", "/logs/*", "/logs/a", "/metrics", "/a*", "*", "/**")
SUBJECTS = ("User:jane", "User:bob", "Group:devs", "Group:ops", "ServiceAccount:default/bot", "ServiceAccount:bot")
PEOPLE = (
    user("jane"), user("bob", "devs"), user("eve", "ops", "devs"), RequestUser("nobody:x"),
    RequestUser("system:serviceaccount:default:bot", ("system:serviceaccounts", "system:authenticated")),
    RequestUser("system:serviceaccount:other:bot", ("system:authenticated",)),
)  # fmt: skip
TOKENS = AccountTokens(token_key(key_pem(new_key())), "https://kubernetes.default.svc", "")


@dataclass
class Real:
    """The API server, and its objects as a view of our decisions."""

    api: Client
    minor: int

    def post(self, path: str, body: Json, who: RequestUser | None = None) -> Json:
        headers = {} if who is None else {"Impersonate-User": who.name}
        groups = [] if who is None else list(who.groups)
        status, text = send(self.api, path, body, headers, groups)
        found: Json = json.loads(text)
        return found | {"httpStatus": status}

    def make(self, path: str, *objects: Json) -> None:
        for found in objects:
            body = found | {"metadata": {key: value for key, value in found["metadata"].items() if key != "uid"}}
            answer = self.post(path, body)
            assert answer["httpStatus"] in (201, 409), answer

    def view(self) -> Objects:
        view = Objects(now=time.time())
        for kind in KINDS:
            if kind.is_review or kind.stored_as:
                continue
            root = f"/apis/{kind.api_version}" if kind.group else f"/api/{kind.version}"
            found = self.api.get(f"{root}/{kind.plural}")
            for item in (found or {}).get("items") or ():
                view.put(item | {"apiVersion": kind.api_version, "kind": kind.name})
        return view

    def review(self, spec: Json) -> Json:
        answer = self.post("/apis/authorization.k8s.io/v1/subjectaccessreviews", body_of("SubjectAccessReview", spec))
        assert answer["httpStatus"] == 201, answer
        found: Json = answer["status"]
        return found

    def wait(self, spec: Json, is_allowed: bool = True) -> None:
        """Until the server's own view of roles is as new as its objects."""
        until = time.monotonic() + WITHIN_S
        while self.review(spec)["allowed"] is not is_allowed:
            assert time.monotonic() < until
            time.sleep(0.05)


def send(api: Client, path: str, body: Json, headers: dict[str, str], groups: Iterable[str]) -> tuple[int, str]:
    """Like `Client.request`, with impersonation; one header for each group."""
    connection = http.client.HTTPSConnection(
        api._address.hostname or "", api._address.port, timeout=30, context=api._context
    )
    try:
        connection.putrequest("POST", path)
        encoded = json.dumps(body).encode()
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(encoded))}.items():
            connection.putheader(name, value)
        for name, value in headers.items():
            connection.putheader(name, value)
        for group in groups:
            connection.putheader("Impersonate-Group", group)
        connection.endheaders(encoded)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


@pytest.fixture(scope="module")
def newest(real: Real) -> Real:
    """The same, where it is of the release that ours follows."""
    if real.minor < 36:
        pytest.skip(f"the control plane is older than 1.36: {VARIABLE} names no folder with a newer one")
    return real


@pytest.fixture(scope="module")
def real() -> Iterator[Real]:
    node.sweep_dead_runs()
    folder = places.run_folder("local-api-access")
    try:
        plane = up_or_anew(folder)
        yield Real(plane.client(), plane.programs.minor)
    finally:
        node.down(folder)


POD: Json = {
    "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "bound"}, "spec": {"containers": [{"name": "c", "image": "i"}]},
}  # fmt: skip


def body_of(kind: str, spec: Json, **metadata: Any) -> Json:
    group = "authentication" if "Token" in kind else "authorization"
    return {"apiVersion": f"{group}.k8s.io/v1", "kind": kind, "metadata": metadata, "spec": spec}


def spec_of(who: RequestUser, **attributes: Any) -> Json:
    key = "nonResourceAttributes" if "path" in attributes else "resourceAttributes"
    return {"user": who.name, "groups": list(who.groups), key: attributes}


def some(numbers: random.Random, words: Iterable[str], most: int = 3) -> list[str]:
    listed = list(words)
    return numbers.sample(listed, numbers.randint(1, min(most, len(listed))))


def random_rule(numbers: random.Random, with_paths: bool) -> Json:
    if with_paths and numbers.random() < 0.3:
        return {"verbs": some(numbers, VERBS), "nonResourceURLs": some(numbers, PATHS, 2)}
    made: Json = {
        "verbs": some(numbers, VERBS), "apiGroups": some(numbers, GROUPS, 2), "resources": some(numbers, RESOURCES),
    }  # fmt: skip
    return made | ({"resourceNames": some(numbers, NAMES, 2)} if numbers.random() < 0.3 else {})


def random_request(numbers: random.Random) -> Json:
    who = numbers.choice(PEOPLE)
    verb = numbers.choice(VERBS[:-1])
    if numbers.random() < 0.2:
        return spec_of(
            who,
            verb=verb,
            path=numbers.choice(("/healthz", "/logs/a/b", "/logs", "/metrics", "/abc", "/x", "/version")),
        )
    resource, _, subresource = numbers.choice(RESOURCES[:7]).partition("/")
    attributes = {
        "verb": verb, "group": numbers.choice(("", "apps", "example.com")), "resource": resource, "subresource": subresource,
        "namespace": numbers.choice(("", "default", "kube-public")), "name": numbers.choice(("", *NAMES)),
    }  # fmt: skip
    return spec_of(who, **{key: value for key, value in attributes.items() if value})


@pytest.fixture(scope="module")
def populated(real: Real) -> Objects:
    """Thirty random roles with bindings on the server."""
    numbers = random.Random(SEED)
    for number in range(30):
        is_cluster = numbers.random() < 0.5
        kind, namespace = ("ClusterRole", "") if is_cluster else ("Role", numbers.choice(("default", "kube-public")))
        rules = [random_rule(numbers, is_cluster) for _ in range(numbers.randint(1, 3))]
        role = rbac(kind, f"random-{number}", namespace, rules=rules)
        real.make(f"{RBAC}/namespaces/{namespace}/roles" if namespace else f"{RBAC}/clusterroles", role)
        home = namespace or (numbers.choice(("default", "kube-public")) if numbers.random() < 0.5 else "")
        chosen = [subject for subject in some(numbers, SUBJECTS) if home or subject != "ServiceAccount:bot"]
        subjects = chosen or ["User:bob"]
        lost = rbac(kind, f"random-{number}" if numbers.random() < 0.9 else "nothere", namespace)
        # a real server wants the namespace of accounts
        listed = [f"ServiceAccount:{home}/bot" if subject == "ServiceAccount:bot" else subject for subject in subjects]
        binding = bound(lost, *listed, namespace=home, name=f"random-{number}")
        real.make(f"{RBAC}/namespaces/{home}/rolebindings" if home else f"{RBAC}/clusterrolebindings", binding)
    last = rbac("ClusterRole", "last", rules=[{"verbs": ["last"], "apiGroups": [""], "resources": ["last"]}])
    real.make(f"{RBAC}/clusterroles", last)
    real.make(f"{RBAC}/clusterrolebindings", bound(last, "User:last"))
    real.wait(spec_of(RequestUser("last"), verb="last", resource="last"))
    return real.view()


def test_random_requests_on_random_roles(real: Real, populated: Objects) -> None:
    numbers = random.Random(SEED)
    allowed = 0
    for _ in range(600):
        spec = random_request(numbers)
        found, theirs = authorize(wanted_by(spec, who_of(spec))[0], populated), real.review(spec)
        assert found.is_allowed is theirs["allowed"], (spec, found, theirs)
        reason = theirs.get("reason", "")
        if found.is_allowed:
            who, namespace = who_of(spec), spec.get("resourceAttributes", {}).get("namespace", "")
            sources = {f"RBAC: allowed by {grant.source}" for grant in index_of(populated).grants(who, namespace)}
            assert reason in sources | {""}, (spec, reason)
            allowed += 1
        else:
            assert missing_in(found.reason) == missing_in(reason), spec
    assert 60 < allowed < 540


def missing_in(reason: str) -> set[str]:
    """The roles that a reason names as missing; the server looks at bindings in no fixed order."""
    return set(reason.removeprefix("RBAC: ").strip("[]").split(", "))


def who_of(spec: Json) -> RequestUser:
    return RequestUser(spec["user"], tuple(spec["groups"]))


def test_rules_of_a_user(real: Real, populated: Objects) -> None:
    for who in PEOPLE:
        body = body_of("SelfSubjectRulesReview", {"namespace": "default"})
        theirs = real.post("/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", body, who)
        kind = BY_PATH["authorization.k8s.io", "v1", "selfsubjectrulesreviews"]
        whole = RequestUser(who.name, (*who.groups, "system:authenticated"))
        ours = review(kind, "", {"spec": {"namespace": "default"}}, whole, populated, TOKENS)["status"]
        for key in ("resourceRules", "nonResourceRules"):
            assert texts(ours[key]) == texts(theirs["status"].get(key) or ())


def texts(values: Iterable[Json]) -> list[str]:
    return sorted(json.dumps(value, sort_keys=True) for value in values)


NOT_SERVED = ("/flagz", "/statusz")
SERVED = {(kind.group, kind.plural) for kind in KINDS}


def atoms(role: Json) -> set[tuple[str, ...]]:
    """What a role allows, one by one, of the kinds that are served."""
    found: set[tuple[str, ...]] = set()
    for rule in role.get("rules") or ():
        for verb in rule["verbs"]:
            found |= {(verb, url) for url in rule.get("nonResourceURLs") or () if url not in NOT_SERVED}
            for group, resource, name in product(
                rule.get("apiGroups") or (), rule.get("resources") or (), rule.get("resourceNames") or ("",)
            ):
                plural = resource.partition("/")[0]
                if plural == "*" or (group, plural) in SERVED or plural == "signers":
                    found.add((verb, group, resource, name))
    return found


def test_default_roles(newest: Real) -> None:
    view = newest.view()
    roles = [found for found in bootstrap_objects() if found["kind"] == "ClusterRole"]
    ours = [found for found in roles if not name_of(found).startswith("system:pykubelet:")]
    for role in ours:
        theirs = view.get("clusterroles.rbac.authorization.k8s.io", "", name_of(role))
        assert theirs is not None, name_of(role)
        assert atoms(role) == atoms(theirs), name_of(role)
        assert role["metadata"]["labels"] == theirs["metadata"]["labels"]
        assert role.get("aggregationRule") == theirs.get("aggregationRule")


def test_a_node(newest: Real) -> None:
    """A pod that refers to something in every way, on the node and on another."""
    for name in ("n1", "n2"):
        newest.make("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    for name, where in (("near", "n1"), ("far", "n2")):
        spec = {
            "nodeName": where, "serviceAccountName": "default", "imagePullSecrets": [{"name": f"{name}-pull"}],
            "containers": [{
                "name": "c", "image": "i", "envFrom": [{"secretRef": {"name": f"{name}-from"}}, {"configMapRef": {"name": f"{name}-from"}}],
                "env": [{"name": "E", "valueFrom": {"secretKeyRef": {"name": f"{name}-env", "key": "k"}}}],
            }],
            "volumes": [
                {"name": "a", "secret": {"secretName": f"{name}-volume"}}, {"name": "b", "configMap": {"name": f"{name}-volume"}},
                {"name": "c", "persistentVolumeClaim": {"claimName": f"{name}-claim"}},
                {"name": "d", "projected": {"sources": [{"secret": {"name": f"{name}-part"}}, {"configMap": {"name": f"{name}-part"}}]}},
                {"name": "e", "csi": {"driver": "d", "nodePublishSecretRef": {"name": f"{name}-csi"}}},
            ],
        }  # fmt: skip
        newest.make(
            "/api/v1/namespaces/default/pods",
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec},
        )
        volume = {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "claimRef": {"namespace": "default", "name": f"{name}-claim"},
            "csi": {"driver": "d", "volumeHandle": name, "nodeStageSecretRef": {"namespace": "kube-public", "name": f"{name}-stage"}},
        }  # fmt: skip
        newest.make(
            "/api/v1/persistentvolumes",
            {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": volume},
        )
    who = user("system:node:n1", "system:nodes")
    newest.wait(spec_of(who, verb="get", resource="secrets", namespace="kube-public", name="near-stage"))
    view, numbers = newest.view(), random.Random(SEED)
    names = [
        f"{name}-{part}"
        for name in ("near", "far")
        for part in ("pull", "from", "env", "volume", "part", "csi", "stage", "claim")
    ]
    resources = [(kind.group, kind.plural, sub) for kind in KINDS for sub in ("", *kind.subresources)]
    resources += [
        ("", plural, "")
        for plural in ("secrets", "configmaps", "persistentvolumeclaims", "persistentvolumes", "pods", "nodes")
    ] * 12
    reasons, allowed = set(), 0
    for _ in range(900):
        group, resource, subresource = numbers.choice(resources)
        attributes = {
            "verb": numbers.choice(VERBS[:8]), "group": group, "resource": resource, "subresource": subresource,
            "namespace": numbers.choice(("", "default", "default", "kube-public", "kube-node-lease")),
            "name": numbers.choice(("", "near", "far", "n1", "n2", "default", numbers.choice(names), numbers.choice(names))),
        }  # fmt: skip
        given: Json = {key: value for key, value in attributes.items() if value}
        if numbers.random() < 0.2:
            given["fieldSelector"] = {"rawSelector": f"spec.nodeName={numbers.choice(('n1', 'n2'))}"}
        spec = spec_of(who, **given)
        found, theirs = authorize(wanted_by(spec, who)[0], view), newest.review(spec)
        assert (found.is_allowed, found.reason) == (theirs["allowed"], theirs.get("reason", "")), spec
        reasons.add(found.reason)
        allowed += found.is_allowed
    assert len(reasons) > 12
    assert allowed > 50


def outcome(function: Callable[..., object], *arguments: object) -> tuple[int, str]:
    """Status code and message; 201 if there is no error."""
    try:
        function(*arguments)
    except StatusError as error:
        return error.code, error.message
    return 201, ""


def real_outcome(answer: Json) -> tuple[int, str]:
    code = answer["httpStatus"]
    return code, answer.get("message", "") if code != 201 else ""


def test_no_role_gives_more_than_its_writer_has(newest: Real, populated: Objects) -> None:
    editor = rbac("ClusterRole", "writer", rules=[
        {"verbs": ["create"], "apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles", "clusterroles", "rolebindings"]},
        {"verbs": ["get", "list"], "apiGroups": ["", "apps"], "resources": ["pods", "*/scale", "secrets"]},
        {"verbs": ["get"], "nonResourceURLs": ["/logs/*"]},
        {"verbs": ["bind"], "apiGroups": ["rbac.authorization.k8s.io"], "resources": ["clusterroles"], "resourceNames": ["edit"]},
    ])  # fmt: skip
    newest.make(f"{RBAC}/clusterroles", editor)
    newest.make(f"{RBAC}/clusterrolebindings", bound(editor, "User:writer"))
    who = user("writer")
    newest.wait(spec_of(who, verb="create", group="rbac.authorization.k8s.io", resource="clusterroles"))
    view, numbers = newest.view(), random.Random(SEED)
    held, _ = rules_for(who, "default", view)
    assert held
    refused = 0
    for number in range(80):
        rules = [random_rule(numbers, True) for _ in range(numbers.randint(1, 2))]
        if numbers.random() < 0.5:
            rules = [{"verbs": some(numbers, ("get", "list"), 2), "apiGroups": some(numbers, ("", "apps"), 2),
                      "resources": some(numbers, ("pods", "secrets", "x/scale", "pods/log"), 2)}]  # fmt: skip
        role = rbac("ClusterRole", f"new-{number}", rules=rules)
        body = role | {"metadata": {"name": name_of(role)}}
        theirs = newest.post(f"{RBAC}/clusterroles?dryRun=All", body, who)
        ours = outcome(check_role, ROLE_KIND, role, None, who, view)
        assert ours == real_outcome(theirs), rules
        refused += ours[0] == 403
    assert 10 < refused < 75
    for number in range(30):
        numbered = numbers.choice(("edit", "view", "nothere", f"random-{number}"))
        binding = bound(rbac("ClusterRole", numbered), "User:x", namespace="default", name="b")
        body = binding | {"metadata": {"name": "b"}}
        theirs = newest.post(f"{RBAC}/namespaces/default/rolebindings?dryRun=All", body, who)
        ours = outcome(check_binding, BINDING_KIND, binding, None, who, view)
        assert ours == real_outcome(theirs), binding


def test_messages_of_refused_requests(newest: Real, populated: Objects) -> None:
    who = user("none")
    for path, wanted in (
        ("/api/v1/namespaces/default/pods", AccessAttributes(who, "create", resource="pods", namespace="default")),
        ("/apis/storage.k8s.io/v1/csinodes", AccessAttributes(who, "create", "storage.k8s.io", "csinodes")),
        ("/api/v1/namespaces/default/pods/a/exec", AccessAttributes(who, "create", "", "pods", "exec", "default", "a")),
        ("/metrics", AccessAttributes(who, "post", path="/metrics")),
    ):  # fmt: skip
        theirs = newest.post(path, {}, who)
        with pytest.raises(StatusError) as caught:
            check(wanted, populated)
        assert (caught.value.code, caught.value.message) == real_outcome(theirs)
        assert caught.value.details == theirs.get("details", {})


@pytest.mark.parametrize(
    ("kind", "spec", "metadata"),
    [
        ("SubjectAccessReview", {}, {}),
        ("SubjectAccessReview", {"user": "a"}, {}),
        ("SubjectAccessReview", {"resourceAttributes": {}}, {}),
        ("SubjectAccessReview", {"user": "a", "resourceAttributes": {}, "nonResourceAttributes": {"path": "/x"}}, {}),
        ("SubjectAccessReview", {"user": "a", "resourceAttributes": {"fieldSelector": {}}}, {}),
        ("SubjectAccessReview", {"user": "a", "resourceAttributes": {"labelSelector": {}}}, {}),
        ("SelfSubjectAccessReview", {}, {}),
        ("SelfSubjectRulesReview", {}, {}),
        ("LocalSubjectAccessReview", {"user": "a", "resourceAttributes": {"namespace": "x"}}, {"namespace": "default"}),
        ("LocalSubjectAccessReview", {"user": "a", "nonResourceAttributes": {}}, {"namespace": "default"}),
        ("TokenReview", {}, {}),
    ],
)  # fmt: skip
def test_wrong_reviews(kind: str, spec: Json, metadata: Json, newest: Real) -> None:
    found = next(known for known in KINDS if known.name == kind)
    body = body_of(kind, spec, **metadata)
    namespace = metadata.get("namespace", "")
    place = f"namespaces/{namespace}/{found.plural}" if namespace else found.plural
    theirs = newest.post(f"/apis/{found.api_version}/{place}", body)
    # only what servers print as a Go struct differs
    ours = outcome(review, found, namespace, body, user("admin"), Objects(), TOKENS)
    assert ours[0] == theirs["httpStatus"]
    assert ours[1].replace("{}", "") == theirs["message"].replace('{"Path":"","Verb":""}', "")


@pytest.mark.parametrize(
    "body",
    [
        {"spec": {"expirationSeconds": 100}}, {"spec": {"expirationSeconds": 1 << 33}}, {"metadata": {"name": "x"}},
        {"metadata": {"namespace": "x"}}, {"metadata": {"uid": "x"}},
        {"spec": {"boundObjectRef": {"kind": "ConfigMap", "apiVersion": "v1", "name": "x"}}},
        {"spec": {"boundObjectRef": {"kind": "Deployment", "apiVersion": "apps/v1", "name": "x"}}},
        {"spec": {"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "x"}}},
        {"spec": {"boundObjectRef": {"kind": "Node", "apiVersion": "v1", "name": "x"}}},
        {"spec": {"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "bound", "uid": "x"}}},
    ],
)  # fmt: skip
def test_wrong_requests_for_tokens(body: Json, newest: Real) -> None:
    newest.make("/api/v1/namespaces/default/pods", POD)
    path = "/api/v1/namespaces/default/serviceaccounts/default/token"
    theirs = newest.post(path, {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", **body})
    view, admin = newest.view(), user("admin", "system:masters")
    assert outcome(answer_token_request, TOKENS, "default", "default", body, admin, view) == real_outcome(theirs)


def test_claims_of_a_token(newest: Real) -> None:
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": ["a"]}}
    theirs = newest.post("/api/v1/namespaces/default/serviceaccounts/default/token", body)
    ours = answer_token_request(TOKENS, "default", "default", body, user("admin", "system:masters"), newest.view())
    own, others = (claims_of(answer["status"]["token"]) for answer in (ours, theirs))
    assert own.keys() == others.keys()
    assert own["kubernetes.io"] == others["kubernetes.io"]
    assert {key: type(value) for key, value in own.items()} == {key: type(value) for key, value in others.items()}
    assert own["exp"] - own["iat"] == others["exp"] - others["iat"]
    assert ours["spec"] == theirs["spec"]


def claims_of(token: str) -> Json:
    part = token.split(".")[1]
    found: Json = json.loads(base64.urlsafe_b64decode(part + "=="))
    return found
