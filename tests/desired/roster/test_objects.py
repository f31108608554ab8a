"""Which objects of manifests count: limits, names that are taken twice, and immutable ones."""

from __future__ import annotations

from pykubelet.base.api.core import ConfigMap, ObjectMeta, Secret
from pykubelet.base.kit.values import replace
from pykubelet.base.model.content import ContentKind, ManifestObject, ObjectKey
from pykubelet.base.model.roster import SourceChanged
from pykubelet.desired.roster.objects import MAX_DATA, MAX_DATA_OBJECTS, CountedObjects, count_objects

FILE = "/m/app.yaml"


def made(
    name: str, data: str = "a", origin: str = FILE, immutable: bool | None = None, size: int = 1
) -> ManifestObject:
    value = ConfigMap(metadata=ObjectMeta(name=name, namespace="default"), data={"k": data}, immutable=immutable)
    return ManifestObject(ObjectKey(ContentKind.CONFIG_MAP, "default", name), value, origin, "document 2", size)


def secret(name: str, data: bytes, immutable: bool | None) -> ManifestObject:
    value = Secret(metadata=ObjectMeta(name=name), data={"k": data}, immutable=immutable)
    return ManifestObject(ObjectKey(ContentKind.SECRET, "default", name), value, FILE)


def counted(*objects: ManifestObject, before: CountedObjects | None = None) -> CountedObjects:
    return count_objects({"file": SourceChanged("file", (), objects=objects)}, before or CountedObjects())


def test_an_unchanged_set_remains_the_same_object() -> None:
    first = counted(made("b"), made("a"))
    assert [item.key.name for item in first.objects] == ["a", "b"]
    assert counted(made("a"), made("b"), before=first) is first
    assert counted(before=first) == CountedObjects()


def test_two_of_one_name_are_reported_with_their_places() -> None:
    found = counted(made("a", origin="/m/b.yaml"), made("a", origin="/m/c.yaml"), made("b"))
    (wrong,) = found.problems
    assert (wrong.origin, wrong.document, wrong.field_path) == ("/m/c.yaml", "document 2", "metadata.name")
    assert wrong.reason == 'ConfigMap "a" is also defined in /m/b.yaml (document 2); only one of them counts'
    assert len(found.objects) == 3


def test_an_immutable_object_keeps_its_content_while_its_manifest_is_there() -> None:
    first = counted(made("a", "old", immutable=True), secret("s", b"old", True))
    changed = counted(made("a", "new", immutable=True), secret("s", b"new", True), before=first)
    assert changed.objects == first.objects
    assert [wrong.field_path for wrong in changed.problems] == ["data", "data"]
    assert "field is immutable" in changed.problems[0].reason
    again = counted(made("a", "newer"), secret("s", b"old", None), before=changed)
    assert again.objects == first.objects
    assert [wrong.field_path for wrong in again.problems] == ["immutable", "immutable"]
    assert not counted(made("a", "old", immutable=True), secret("s", b"old", True), before=again).problems
    gone = counted(made("b"), before=again)
    assert counted(made("b"), made("a", "new"), before=gone).objects[0].value == made("a", "new").value


def test_an_object_that_becomes_immutable_and_a_new_label_are_taken() -> None:
    first = counted(made("a", "old"))
    frozen = counted(made("a", "new", immutable=True), before=first)
    assert frozen.objects[0].value == made("a", "new", immutable=True).value
    value = frozen.objects[0].value
    labeled = replace(frozen.objects[0], value=replace(value, metadata=ObjectMeta(name="a", labels={"x": "y"})))
    assert counted(labeled, before=frozen).objects == (labeled,)


def test_only_so_many_count_and_those_that_did_before_come_first() -> None:
    first = counted(*(made(f"m{number}") for number in range(MAX_DATA_OBJECTS)))
    assert not first.problems
    more = counted(*(item for item in first.objects), made("a"), before=first)
    assert more.objects == first.objects
    (wrong,) = more.problems
    assert wrong.reason == f"there are more than {MAX_DATA_OBJECTS} objects of this kind, ignoring"


def test_all_together_have_a_limited_size() -> None:
    half = MAX_DATA // 2
    first = counted(made("b", size=half), made("c", size=half))
    more = counted(made("a", size=2), made("b", size=half), made("c", size=half), before=first)
    assert [item.key.name for item in more.objects] == ["b", "c"]
    (wrong,) = more.problems
    assert wrong.reason == "all ConfigMaps and Secrets together are larger than 32 MiB, ignoring"
    freed = counted(made("a", size=2), made("b", size=half), before=more)
    assert [item.key.name for item in freed.objects] == ["a", "b"]
