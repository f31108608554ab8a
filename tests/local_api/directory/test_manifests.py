"""What files of the applied folder mean, and what is wrong with them."""

from __future__ import annotations

import pytest

from pykubelet_local_api.directory.manifests import read_manifests

CONFIG = b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n"
SPACE = b"apiVersion: v1\nkind: Namespace\nmetadata: {name: team}\n"


def test_a_file_may_have_several_documents_and_namespaces_come_first() -> None:
    pod = b'{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","namespace":"team"}}'
    found = read_manifests({"1.yaml": CONFIG + b"---\n" + SPACE + b"---\n# nothing\n", "0.json": pod})
    assert [str(each.id) for each in found.manifests] == ["namespaces team", "configmaps default/a", "pods team/p"]
    assert found.problems == () and found.is_whole
    assert found.manifests[1].object["metadata"] == {
        "name": "a",
        "namespace": "default",
        "annotations": {"pykubelet.io/applied-from": "1.yaml"},
    }


def test_a_list_stands_for_its_items() -> None:
    found = read_manifests(
        {"l.yaml": b"apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Secret, metadata: {name: s}}\n"}
    )
    assert [each.origin for each in found.manifests] == ["l.yaml (document 1), items[0]"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\n",
         'no matches for kind "Deployment" in version "apps/v1": this API does not have it'),
        (b"apiVersion: v1\nkind: Pod\nmetadata: {generateName: d-}\n",
         "metadata.name: must be given (generateName is not possible here)"),
        (b"a: [\n", "not valid YAML: did not find expected node content"),
        (b"- 1\n", "not an object: it must have apiVersion, kind and metadata"),
        (b"apiVersion: v1\nkind: Pod\nmetadata: {name: a/b}\n", "metadata.name: not the name of an object"),
        (b"apiVersion: v1\nkind: Pod\nmetadata: {name: a, namespace: ../b}\n", "metadata.namespace: not the name of a namespace"),
        (CONFIG + b"data: {a: '1', a: '2'}\n", "data.a: duplicate field: must be given once (line 8)"),
        (b"apiVersion: authorization.k8s.io/v1\nkind: SubjectAccessReview\nmetadata: {name: a}\n", "this API does not have it"),
    ],
)  # fmt: skip
def test_a_wrong_document_is_named_and_the_others_count(text: bytes, problem: str) -> None:
    found = read_manifests({"bad.yaml": CONFIG + b"---\n" + text})
    assert [str(each.id) for each in found.manifests] == ["configmaps default/a"]
    [shown] = found.problems
    assert shown.startswith("bad.yaml (document 2): ") and problem in shown
    assert not found.is_whole


def test_of_an_object_that_is_given_twice_the_first_counts() -> None:
    found = read_manifests({"a.yaml": CONFIG, "b.yaml": CONFIG})
    assert found.manifests[0].origin == "a.yaml (document 1)"
    expected = "configmaps default/a is also in a.yaml (document 1), which counts: give it once"
    assert found.problems == (f"b.yaml (document 1): {expected}",)
