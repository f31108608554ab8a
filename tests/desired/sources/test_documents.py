"""Manifests of several documents: without an API server all of them count, in a cluster the first one does."""

from __future__ import annotations

from typing import Any

import pytest

from pykubelet.base.api import core
from pykubelet.base.model.content import ManifestObject
from pykubelet.base.model.remarks import Remark
from pykubelet.base.model.roster import ManifestProblem
from pykubelet.desired.sources.decode import MAX_DOCUMENTS, MAX_OBJECTS, MAX_REMARKS, ManifestRules, decode_manifest
from pykubelet.desired.sources.static import file_origin

ORIGIN = file_origin("/m/app.yaml")
ALONE = ManifestRules("n", is_standalone=True)
MAP = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\ndata: {mode: fast}\n"
POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: c, image: x}]}\n"
BAD = "apiVersion: v1\nkind: Pod\nmetadata: {name: bad}\nspec: {containers: []}\n"


def decoded(*documents: str, rules: ManifestRules = ALONE) -> list[Any]:
    return list(decode_manifest("---\n".join(documents).encode(), ORIGIN, rules))


def kinds(found: list[Any]) -> list[str]:
    return [type(item).__name__ for item in found]


def test_all_documents_count() -> None:
    settings, pod = decoded("# a comment\n", MAP, "\n", POD, "# the end\n")
    assert isinstance(settings, ManifestObject)
    assert isinstance(pod, core.Pod)
    assert settings.document == "document 1, ConfigMap settings"


def test_in_a_cluster_the_first_document_counts() -> None:
    pod, remark = decoded(POD, MAP, rules=ManifestRules("n"))
    assert isinstance(pod, core.Pod)
    assert "only the first one counts" in remark.reason
    (wrong,) = decoded(MAP, rules=ManifestRules("n"))
    assert wrong.reason.startswith('expected "Pod", got "ConfigMap"')


def test_a_document_is_like_a_file_with_it_alone() -> None:
    for text in (MAP, BAD):
        assert decoded(text) == decoded(text, "# nothing\n") == decoded("---\n" + text)
    assert decoded(POD, MAP)[0].metadata.uid == decoded(POD)[0].metadata.uid
    (wrong,) = decoded(BAD)
    assert wrong.document == ""


def test_a_problem_names_its_document_and_the_others_count() -> None:
    settings, wrong, pod = decoded(MAP, BAD, POD)
    assert kinds([settings, pod]) == ["ManifestObject", "Pod"]
    assert (wrong.origin, wrong.document) == ("/m/app.yaml", "document 2, Pod bad")
    assert (wrong.field_path, wrong.reason) == ("spec.containers", "Required value")


def test_bad_syntax_is_a_problem_of_one_document_with_its_line_in_the_file() -> None:
    settings, wrong, pod = decoded(MAP, "kind: Pod\nspec: [\n", POD)
    assert kinds([settings, pod]) == ["ManifestObject", "Pod"]
    assert (wrong.document, wrong.reason) == (
        "document 2",
        "not valid YAML: did not find expected node content (line 8)",
    )


def test_a_remark_names_its_document() -> None:
    _, _, remark = decoded(POD, MAP + "dat: {}\ndata: {mode: slow}\n")[:3]
    assert isinstance(remark, Remark)
    assert (remark.document, remark.field_path) == ("document 2, ConfigMap settings", "dat")
    again = decoded(POD, MAP + "data: {mode: slow}\n")[-1]
    assert (again.field_path, again.reason) == ("data", "duplicate field (line 10): the last value counts")


def test_block_texts_may_have_the_marker_of_a_document() -> None:
    (found,) = decoded("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata:\n  text: |\n    ---\n    a\n")
    assert found.value.data == {"text": "---\na\n"}


def test_an_end_marker_and_directives_stand_between_documents() -> None:
    found = decoded("%YAML 1.1\n", MAP + "...\n# next\n%YAML 1.1\n", POD)
    assert kinds(found) == ["ManifestObject", "Pod"]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("Deployment", '"Deployment" is ignored: nothing here makes pods from a Deployment: put its pod template into a'),
        ("CronJob", "nothing here makes pods from a CronJob"),
        ("Service", "use hostPort of the containers, or hostNetwork of the pod"),
        ("Namespace", "leave it out"),
        ("ServiceAccount", "there is no API here that pods could use"),
        ("StorageClass", "put a PersistentVolume for each claim"),
        ("Gizmo", "a node without an API server takes Pod, ConfigMap, Secret,"),
        ("G" * 5000, "a node without an API server takes Pod"),
    ],
)  # fmt: skip
def test_other_kinds_are_named_with_what_to_do(kind: str, words: str) -> None:
    other = f"apiVersion: apps/v1\nkind: {kind!r}\nmetadata: {{name: a}}\n"
    wrong, pod = decoded(other, POD)
    assert isinstance(pod, core.Pod)
    assert isinstance(wrong, ManifestProblem)
    assert (wrong.document, wrong.field_path) == (f"document 1, {kind[:100]} a", "kind")
    assert words in wrong.reason
    (alone,) = decoded(other)
    assert words in alone.reason


def test_documents_that_are_no_objects() -> None:
    words, numbers, pod = decoded("text\n", "[1]\n", POD)
    assert [words.reason, numbers.reason] == ["expected an object, got text", "expected an object, got a list"]
    assert isinstance(pod, core.Pod)
    (empty,) = decoded("# nothing\n", "\n")
    assert empty.reason == "manifest is empty"


def test_lists_and_documents_in_json() -> None:
    text = '{"apiVersion": "v1", "kind": "List", "items": [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}]}\n'
    assert kinds(decoded(text, text, POD)) == ["ManifestObject", "ManifestObject", "Pod"]


def test_the_number_of_documents_problems_and_objects_is_bounded() -> None:
    found = decoded(*["kind: X\n"] * (MAX_DOCUMENTS + 50))
    assert len(found) == MAX_REMARKS
    *maps, last = decoded(*[MAP] * (MAX_DOCUMENTS + 50))
    assert len(maps) == MAX_DOCUMENTS
    assert (last.document, last.reason) == (f"document {MAX_DOCUMENTS + 1}", f"more than {MAX_DOCUMENTS} documents, ignored")  # fmt: skip
    small = '{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}'
    crowd = f'{{"apiVersion": "v1", "kind": "List", "items": [{",".join([small] * (MAX_OBJECTS + 500))}]}}'
    found = decoded(crowd)
    assert sum(isinstance(item, ManifestObject) for item in found) == MAX_OBJECTS
    assert len(found) == MAX_OBJECTS + MAX_REMARKS


def test_all_documents_together_have_a_limit_of_values() -> None:
    many = "a: [" + ",".join(["1"] * 200_000) + "]\n"
    found = decoded(many, many, many, POD)
    assert found[-1].reason.startswith("too many values")
    assert not any(isinstance(item, core.Pod) for item in found)
