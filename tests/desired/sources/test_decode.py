"""Manifests as bytes: the pods of good ones, and the problems of bad ones."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
import yaml

from pykubelet.base.api import core
from pykubelet.base.model.remarks import MAX_WORDS, Remark
from pykubelet.base.model.roster import ManifestProblem, is_mirror
from pykubelet.desired.sources.decode import MAX_BYTES, MAX_PROBLEMS, ManifestRules, decode_manifest
from pykubelet.desired.sources.static import Origin, file_origin
from pykubelet.desired.sources.url import url_origin

ORIGIN = file_origin("/etc/kubernetes/manifests/web.yaml")
URL = url_origin("https://me:secret@example.com/pods?a=b")
POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "web", "labels": {"app": "web"}},
    "spec": {"containers": [{"name": "c", "image": "busybox:1", "command": ["sleep", "1"]}]},
}


def text(**changes: Any) -> bytes:
    return yaml.safe_dump({**POD, **changes}).encode()


def only_pod(data: bytes, origin: Origin = ORIGIN) -> core.Pod:
    (pod,) = decode_manifest(data, origin, ManifestRules("node-1"))
    assert isinstance(pod, core.Pod), pod
    return pod


def only_problem(data: bytes, origin: Origin = ORIGIN) -> tuple[str, str]:
    (wrong,) = decode_manifest(data, origin, ManifestRules("node-1"))
    assert isinstance(wrong, ManifestProblem)
    assert wrong.origin == origin.shown
    return wrong.field_path, wrong.reason


def test_static_pod_of_a_file() -> None:
    pod = only_pod(text())
    uid = pod.metadata.uid
    assert re.fullmatch("[0-9a-f]{32}", uid)
    assert pod.metadata == core.ObjectMeta(
        name="web-node-1",
        namespace="default",
        uid=uid,
        labels={"app": "web"},
        annotations={"kubernetes.io/config.hash": uid, "kubernetes.io/config.source": "file"},
    )
    assert (pod.spec.nodeName, pod.spec.restartPolicy, pod.status) == (
        "node-1",
        "Always",
        core.PodStatus(phase="Pending"),
    )
    assert pod.spec.tolerations == (core.Toleration(operator="Exists", effect="NoExecute"),)


def test_static_pod_of_a_url_tolerates_nothing_more() -> None:
    pod = only_pod(text(), URL)
    assert pod.spec.tolerations == ()
    assert pod.metadata.annotations["kubernetes.io/config.source"] == "http"


def test_own_uid_and_namespace_win() -> None:
    [pod], _ = with_remarks(text(metadata={"name": "web", "uid": "mine", "namespace": "kube-system"}))
    assert (pod.metadata.uid, pod.metadata.namespace) == ("mine", "kube-system")
    assert pod.metadata.annotations["kubernetes.io/config.hash"] == "mine"


def test_uid_is_for_ever() -> None:
    """A change of this value would restart every static pod at an upgrade of the agent."""
    assert only_pod(text()).metadata.uid == "9b26b536deecf09b0ef3a760975a3a27"


def test_uid_depends_on_content_path_and_node_alone() -> None:
    plain = only_pod(text()).metadata.uid
    commented = b"# a comment\n" + text().replace(b"kind: Pod", b"kind:   'Pod'")
    assert only_pod(commented).metadata.uid == plain
    assert only_pod(text(status=None)).metadata.uid == plain
    assert only_pod(text(), file_origin("/other")).metadata.uid != plain
    assert only_pod(text(), URL).metadata.uid != plain
    (other,) = decode_manifest(text(), ORIGIN, ManifestRules("node-2"))
    assert isinstance(other, core.Pod) and other.metadata.uid != plain


def test_a_like_toleration_is_replaced() -> None:
    given = [{"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}, {"operator": "Exists"}]
    pod = only_pod(text(spec={**POD["spec"], "tolerations": given}))
    assert [t.tolerationSeconds for t in pod.spec.tolerations] == [None, None]
    assert len(pod.spec.tolerations) == 2


def test_json_and_flow_yaml_are_read_too() -> None:
    block = only_pod(text())
    json = msgspec.json.encode(POD)
    assert only_pod(json) == block
    assert only_pod(json.replace(b'"web"', b"web")) == block


def test_scalars_are_those_of_the_reference() -> None:
    labels = b"metadata: {name: web, labels: {app: web}}"
    data = text(metadata=None).replace(
        b"metadata: null", b"metadata: {name: web, labels: {a: '1', 2: 'on', d: 2026-01-01}}"
    )
    assert labels not in data
    assert only_pod(data).metadata.labels == {"a": "1", "2": "on", "d": "2026-01-01"}
    data = text(spec={"hostNetwork": True, **POD["spec"]}).replace(b"hostNetwork: true", b"hostNetwork: yes")
    assert only_pod(data).spec.hostNetwork is True


SPEC: dict[str, Any] = POD["spec"]
CONTAINER = SPEC["containers"][0]
KEY = {"configMapKeyRef": {"name": "m", "key": "k"}}
BUNDLE = {"clusterTrustBundle": {"name": "b", "path": "p"}}
DEEP = b"a: " + b"[" * 5000


@pytest.mark.parametrize(
    ("data", "field_path", "reason"),
    [
        (b"a: [b", "", "not valid YAML: did not find expected ',' or ']' (line 2)"),
        (b"\xff\xfe", "", "not UTF-8 text: invalid start byte at byte 0"),
        (b"", "", "manifest is empty"),
        (b"# nothing\n---\n", "", "manifest is empty"),
        (b"- a", "", "expected an object, got a list"),
        (b"hello", "", "expected an object, got text"),
        (text(kind="Deployment"), "kind", 'expected "Pod", got "Deployment"'),
        (b"apiVersion: v1", "kind", 'expected "Pod", got nothing'),
        (text(kind="PodList", items=[]), "kind", 'expected "Pod", got "PodList"'),
        (text(apiVersion="v2"), "apiVersion", 'expected "v1", got "v2"'),
        (text(metadata={}), "metadata.name", "invalid pod: name is needed for the pod"),
        (text(spec={"containers": {}}), "spec.containers", "expected list, got object"),
        (text(spec={**SPEC, "hostPID": "yes"}), "spec.hostPID", "expected boolean, got string"),
        (text(spec={**SPEC, "priority": 1 << 63}), "spec.priority", "number out of range"),
        (text(spec={}), "spec.containers", "Required value"),
        (text(spec={**SPEC, "serviceAccountName": "a"}), "spec", "static pods may not reference serviceaccounts"),
    ],
)
def test_refused(data: bytes, field_path: str, reason: str) -> None:
    assert only_problem(data) == (field_path, reason)


def with_remarks(data: bytes, origin: Origin = ORIGIN) -> tuple[list[core.Pod], list[Remark]]:
    found = decode_manifest(data, origin, ManifestRules("node-1"))
    assert not any(isinstance(item, ManifestProblem) for item in found), found
    pods = [item for item in found if isinstance(item, core.Pod)]
    return pods, [item for item in found if isinstance(item, Remark)]


@pytest.mark.parametrize(
    ("data", "remarks"),
    [
        (
            text(spec={"containers": [{**CONTAINER, "imagePolicy": "x", "imagez": 1 << 70}]}),
            [
                ("spec.containers[0].imagePolicy", 'unknown field, ignored; did you mean "imagePullPolicy"?'),
                ("spec.containers[0].imagez", 'unknown field, ignored; did you mean "image"?'),
            ],
        ),
        (text(Spec={"containers": 5}), [("Spec", 'unknown field, ignored; did you mean "spec"?')]),
        (text() + b"kind: Pod\n", [("kind", "duplicate field (line 14): the last value counts")]),
        (text() + b"---\n" + text(kind="Deployment"), [("", "more than one document (line 14): only the first one counts")]),
        (
            msgspec.json.encode(POD)[:-1] + b',"metadata":{"name":"web"}}',
            [("metadata", "duplicate field: the last value counts, and objects are merged")],
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("origin", [ORIGIN, URL], ids=["file", "url"])
def test_what_the_reference_ignores_is_ignored_with_a_remark(
    data: bytes, remarks: list[tuple[str, str]], origin: Origin
) -> None:
    """The pod is the same, with the same UID, so that it goes on when one agent takes over from the other."""
    (pod,), found = with_remarks(data, origin)
    assert pod == only_pod(text(), origin)
    assert [(remark.field_path, remark.reason) for remark in found] == remarks
    assert {(remark.origin, remark.uid) for remark in found} == {(origin.shown, pod.metadata.uid)}


COPIED = {
    "kubernetes.io/config.mirror": "abc",
    "kubernetes.io/config.source": "api",
    "kubernetes.io/config.hash": "def",
    "kubernetes.io/config.seen": "2026-01-01T00:00:00Z",
}


@pytest.mark.parametrize("origin", [ORIGIN, URL], ids=["file", "url"])
def test_a_copy_of_a_pod_from_the_api_is_an_ordinary_static_pod(origin: Origin) -> None:
    metadata = {**POD["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 3}
    (pod,), remarks = with_remarks(text(metadata={**metadata, "annotations": {**COPIED, "mine": "x"}}), origin)
    (plain,), none = with_remarks(text(metadata={**POD["metadata"], "annotations": {"mine": "x"}}), origin)
    assert none == []
    assert set(pod.metadata.annotations) == set(plain.metadata.annotations)
    assert pod.metadata.annotations["kubernetes.io/config.source"] == origin.source
    assert pod.metadata.annotations["kubernetes.io/config.hash"] == pod.metadata.uid
    assert not is_mirror(pod)
    assert (pod.metadata.deletionTimestamp, pod.metadata.deletionGracePeriodSeconds) == ("", None)
    assert [(remark.field_path, remark.reason) for remark in remarks] == [
        *((f"metadata.annotations[{key}]", "only the agent sets it, ignored") for key in COPIED),
        ("metadata.deletionTimestamp", "only the API server sets it, ignored"),
        ("metadata.deletionGracePeriodSeconds", "only the API server sets it, ignored"),
    ]


def with_container(**fields: Any) -> dict[str, Any]:
    return {**SPEC, "containers": [{**CONTAINER, **fields}]}


@pytest.mark.parametrize(
    ("spec", "wrong"),
    [
        (with_container(resources={"limits": {"memory": "500MB"}}), ["resources.limits[memory]"]),
        (with_container(resources={"limits": {"memory": "-1"}}), ["resources.limits[memory]"]),
        (with_container(resources={"limits": {"disk": "1"}}), ["resources.limits[disk]"] * 2),
        (
            with_container(resources={"limits": {"memory": "500MB"}, "requests": {"memory": "400MB"}}),
            ["resources.limits[memory]", "resources.requests[memory]"],
        ),
        (with_container(resources={"requests": {"memory": "500MB"}}), ["resources.requests[memory]"]),
    ],
)
def test_an_amount_is_reported_where_it_is_written(spec: dict[str, Any], wrong: list[str]) -> None:
    found = decode_manifest(text(spec=spec), ORIGIN, ManifestRules("n"))
    paths = [item.field_path for item in found if isinstance(item, ManifestProblem)]
    assert paths == [f"spec.containers[0].{path}" for path in wrong]


def test_a_pods_own_amount_is_reported_where_it_is_written() -> None:
    assert (
        only_problem(text(spec={**SPEC, "resources": {"limits": {"memory": "500MB"}}}))[0]
        == "spec.resources.limits[memory]"
    )


@pytest.mark.parametrize(
    "user",
    [
        {"volumeMounts": [{"name": "v" * 70, "mountPath": "/v"}]},
        {"env": [{"name": "A", "valueFrom": {"fileKeyRef": {"volumeName": "v" * 70, "path": "p", "key": "A"}}}]},
    ],
)
def test_a_volume_that_is_wrong_is_not_missing_too(user: dict[str, Any]) -> None:
    spec = {**with_container(**user), "volumes": [{"name": "v" * 70, "emptyDir": {}}]}
    assert only_problem(text(spec=spec))[0] == "spec.volumes[0].name"
    missing = {**spec, "volumes": [{"name": "w" * 70, "emptyDir": {}}]}
    found = decode_manifest(text(spec=missing), ORIGIN, ManifestRules("n"))
    assert len([item for item in found if isinstance(item, ManifestProblem)]) == 2


def test_overhead_without_a_class_is_remarked() -> None:
    spec = {**SPEC, "overhead": {"memory": "1Mi"}}
    _, remarks = with_remarks(text(spec=spec))
    assert [remark.text for remark in remarks] == [
        "spec.overhead: an API server refuses pods that have it without a runtimeClassName"
    ]
    assert only_pod(text(spec={**spec, "runtimeClassName": "sealed"})).spec.overhead == {"memory": "1Mi"}


def test_limits_that_nothing_enforces_are_remarked() -> None:
    limits = {"resources": {"limits": {"ephemeral-storage": "1Gi", "memory": "1Gi"}}}
    volumes = [
        {"name": "disk", "emptyDir": {"sizeLimit": "1Mi"}},
        {"name": "memory", "emptyDir": {"sizeLimit": "1Mi", "medium": "Memory"}},
        {"name": "plain", "emptyDir": {}},
    ]
    _, remarks = with_remarks(text(spec={**with_container(**limits), "volumes": volumes}))
    assert [remark.text for remark in remarks] == [
        "spec.volumes[0].emptyDir.sizeLimit: is not enforced: static pods are not evicted",
        "spec.containers[0].resources.limits[ephemeral-storage]: is not enforced: static pods are not evicted",
    ]


def test_a_fixed_uid_is_remarked() -> None:
    [pod], remarks = with_remarks(text(metadata={"name": "web", "uid": "5b7c1f6e"}))
    assert pod.metadata.uid == "5b7c1f6e"
    assert [remark.text for remark in remarks] == [
        "metadata.uid: with a fixed uid, an edit restarts only containers whose image changes; "
        "without one, it starts the pod anew"
    ]


@pytest.mark.parametrize(
    ("fields", "is_standalone", "is_remarked"),
    [
        ({"priorityClassName": "mine"}, True, True),
        ({"priorityClassName": "mine", "priority": 7}, True, False),
        ({"priorityClassName": "system-node-critical"}, True, False),
    ],
)
def test_a_priority_class_that_nothing_defines_is_remarked(
    fields: dict[str, Any], is_standalone: bool, is_remarked: bool
) -> None:
    rules = ManifestRules("n", is_standalone=is_standalone)
    found = decode_manifest(text(spec={**SPEC, **fields}), ORIGIN, rules)
    remarks = [item.field_path for item in found if isinstance(item, Remark)]
    assert remarks == (["spec.priorityClassName"] if is_remarked else [])


@pytest.mark.parametrize(
    ("fields", "remark"),
    [
        ({}, ""),
        ({"priority": 0}, ""),
        ({"priority": 7}, "an API server refuses the mirror pod, unless this is the priority of its default class"),
        ({"priorityClassName": "mine"}, "the node does not know the priority of a class: the pod counts with 0 here"),
        ({"priorityClassName": "mine", "priority": 7}, ""),
        ({"priorityClassName": "system-node-critical", "priority": 2_000_001_000}, ""),
        ({"priorityClassName": "system-node-critical", "priority": 7}, "an API server refuses the mirror pod, because"),
    ],
)
def test_a_priority_that_the_mirror_pod_cannot_have_is_remarked(fields: dict[str, Any], remark: str) -> None:
    found = decode_manifest(text(spec={**SPEC, **fields}), ORIGIN, ManifestRules("n", is_standalone=False))
    remarks = [item for item in found if isinstance(item, Remark)]
    assert len(found) == len(remarks) + 1, "the pod runs all the same"
    assert [item.field_path for item in remarks] == (["spec.priority"] if remark else [])
    assert all(item.reason.startswith(remark) for item in remarks)


def test_fields_without_the_effect_that_was_meant_are_remarked() -> None:
    spec = with_container(resources={"limits": {"memory": "400m"}})
    (_,), remarks = with_remarks(text(spec=spec))
    assert [remark.text for remark in remarks] == [
        'spec.containers[0].resources.limits[memory]: "400m" is not a whole number of bytes: it counts as 1; did you mean 400M or 400Mi?'
    ]


def test_remarks_about_a_list_name_the_pod_that_they_are_about() -> None:
    second = {"metadata": {"name": "db"}, "spec": {**SPEC, "hostNetwrk": True}}
    document = {"apiVersion": "v1", "kind": "PodList", "itmes": [], "items": [POD, second]}
    pods, remarks = with_remarks(yaml.safe_dump(document).encode(), URL)
    assert [pod.metadata.name for pod in pods] == ["web-node-1", "db-node-1"]
    assert [(remark.field_path, remark.uid) for remark in remarks] == [
        ("itmes", ""),
        ("items[1].spec.hostNetwrk", pods[1].metadata.uid),
    ]


def test_a_manifest_that_is_refused_has_its_remarks_too() -> None:
    """They often say why."""
    found = decode_manifest(text(spec={"contaners": SPEC["containers"]}), ORIGIN, ManifestRules("n"))
    assert [(item.field_path, item.reason) for item in found if isinstance(item, ManifestProblem | Remark)] == [
        ("spec.containers", "Required value"),
        ("spec.contaners", 'unknown field, ignored; did you mean "containers"?'),
    ]


def test_remarks_are_few_and_short() -> None:
    many = {f"x{i}-" + "z" * 1000: i for i in range(1000)}
    (_,), remarks = with_remarks(text(**many, **{"y" * 1024: 1}))
    assert len(remarks) == MAX_PROBLEMS
    assert all(len(remark.field_path) <= MAX_WORDS + 3 for remark in remarks)


def test_all_mistakes_are_reported_at_once() -> None:
    bad = text(spec={"containers": [{"name": "A"}], "restartPolicy": "Sometimes"})
    found = [item for item in decode_manifest(bad, ORIGIN, ManifestRules("n")) if isinstance(item, ManifestProblem)]
    assert [item.field_path for item in found] == [
        "spec.containers[0].name",
        "spec.containers[0].image",
        "spec.restartPolicy",
    ]


def test_a_document_may_end_with_a_separator() -> None:
    assert only_pod(b"---\n" + text() + b"---\n# end\n").metadata.name == "web-node-1"


def test_too_large() -> None:
    assert only_problem(b"#" * (MAX_BYTES + 1)) == ("", "manifest is larger than 10 MiB")


def test_hostile_documents_end_soon() -> None:
    path, reason = only_problem(DEEP)
    assert path == "" and "nested too deeply" in reason
    bomb = b"a: &a [x,x,x,x,x,x,x,x,x]\n" + b"".join(
        f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 9)}]\n".encode() for i in range(9)
    )
    assert "too many values" in only_problem(bomb)[1]
    assert only_problem(b"a: &a [*a]") == ("a[0]", "an alias that contains itself (line 1)")
    assert only_problem(b'{"a":' * 20000)[0] == ""


@pytest.mark.parametrize(
    ("spec", "resource"),
    [
        ({"imagePullSecrets": [{"name": "s"}]}, "secrets"),
        ({"containers": [{**CONTAINER, "envFrom": [{"secretRef": {"name": "s"}}]}]}, "secrets"),
        ({"volumes": [{"name": "v", "secret": {"secretName": "s"}}]}, "secrets"),
        ({"volumes": [{"name": "v", "csi": {"driver": "d", "nodePublishSecretRef": {"name": "s"}}}]}, "secrets"),
        ({"initContainers": [{**CONTAINER, "name": "i", "env": [{"name": "A", "valueFrom": KEY}]}]}, "configmaps"),
        ({"volumes": [{"name": "v", "projected": {"sources": [{"configMap": {"name": "m"}}]}}]}, "configmaps"),
        ({"resourceClaims": [{"name": "r", "resourceClaimName": "x"}]}, "resourceclaims"),
        ({"volumes": [{"name": "v", "csi": {"driver": "d"}}]}, "csidrivers (via CSI volumes)"),
        ({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}, "persistentvolumeclaims"),
        ({"volumes": [{"name": "v", "projected": {"sources": [BUNDLE]}}]}, "clustertrustbundles"),
    ],
)  # fmt: skip
def test_static_pods_stand_alone(spec: dict[str, Any], resource: str) -> None:
    field_path, reason = only_problem(text(spec={**SPEC, **spec}))
    assert field_path == "spec"
    assert reason.partition(";")[0] == f"static pods may not reference {resource}"


@pytest.mark.parametrize(
    ("spec", "resource"),
    [
        ({"imagePullSecrets": [{"name": "s"}]}, ""),
        ({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}, ""),
        ({"resourceClaims": [{"name": "r", "resourceClaimName": "x"}]}, "ResourceClaims"),
        (
            {"volumes": [{"name": "v", "projected": {"sources": [BUNDLE]}}]},
            "ClusterTrustBundle projected volume sources",
        ),
    ],
)
def test_without_the_gate_static_pods_may_refer_to_most_objects(spec: dict[str, Any], resource: str) -> None:
    (found,) = decode_manifest(text(spec={**SPEC, **spec}), ORIGIN, ManifestRules("node-1", may_refer=True))
    if resource:
        assert isinstance(found, ManifestProblem) and found.reason == f"static pods may not use {resource}"
    else:
        assert isinstance(found, core.Pod)


@pytest.mark.parametrize(
    ("value", "comparisons", "problem"),
    [
        ("950", True, ""),
        ("-1", True, ""),
        ("+950", True, 'value: Invalid value: "+950": must be a valid decimal integer in canonical form'),
        ("950", False, 'operator: Invalid value: "Gt": needs the feature gate TaintTolerationComparisonOperators'),
    ],
)
def test_tolerations_compare_whole_numbers_with_their_gate(value: str, comparisons: bool, problem: str) -> None:
    spec = {**SPEC, "tolerations": [{"key": "sla", "operator": "Gt", "value": value}]}
    (found,) = decode_manifest(text(spec=spec), ORIGIN, ManifestRules("node-1", comparisons=comparisons))
    if problem:
        assert isinstance(found, ManifestProblem)
        assert f"{found.field_path}: {found.reason}" == f"spec.tolerations[0].{problem}"
    else:
        assert isinstance(found, core.Pod)


def test_pod_list_of_a_url() -> None:
    second = {"metadata": {"name": "db"}, "spec": SPEC}
    pods = decode_manifest(
        yaml.safe_dump({"apiVersion": "v1", "kind": "PodList", "items": [POD, second]}).encode(),
        URL,
        ManifestRules("n"),
    )
    assert [pod.metadata.name for pod in pods if isinstance(pod, core.Pod)] == ["web-n", "db-n"]
    assert decode_manifest(b"apiVersion: v1\nkind: PodList\nitems: []", URL, ManifestRules("n")) == ()


def test_one_bad_item_refuses_the_list() -> None:
    bad = yaml.safe_dump({"apiVersion": "v1", "kind": "PodList", "items": [POD, {**POD, "metadata": {}}]}).encode()
    assert only_problem(bad, URL) == ("items[1].metadata.name", "invalid pod: name is needed for the pod")


def test_passwords_of_urls_are_not_shown() -> None:
    assert URL.shown == "https://example.com/pods?a=b"
    assert URL.place == "https://me:secret@example.com/pods?a=b"
