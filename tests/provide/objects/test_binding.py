"""Which claim of a manifest gets which volume."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pykubelet.base.api.codec import from_object
from pykubelet.base.api.storage import PersistentVolume, PersistentVolumeClaim
from pykubelet.base.model.content import Absent, ContentKind, Found, ManifestObject, ObjectKey, Present
from pykubelet.base.model.node import NodeView
from pykubelet.provide.objects.binding import Bindings, Bound, bind, missing

NODE = NodeView("n", "n", labels={"kubernetes.io/hostname": "n"})


def volume(name: str, size: str = "5Gi", origin: str = "/m/v", **more: Any) -> ManifestObject:
    spec = {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": size}, "hostPath": {"path": f"/{name}"}}
    metadata = {"name": name, "uid": f"uid-{name}", "labels": more.pop("labels", {})}
    body = {"metadata": metadata, "spec": {**spec, "volumeMode": "Filesystem", **more}}
    return ManifestObject(ObjectKey(ContentKind.VOLUME, "", name), from_object(PersistentVolume, body), origin)


def claim(name: str, size: str = "1Gi", origin: str = "/m/c", **more: Any) -> ManifestObject:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}, "volumeMode": "Filesystem"}
    body = {"metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"}, "spec": {**spec, **more}}
    key = ObjectKey(ContentKind.VOLUME_CLAIM, "default", name)
    return ManifestObject(key, from_object(PersistentVolumeClaim, body), origin)


def decide(*objects: ManifestObject, before: Bindings | None = None, is_complete: bool = True) -> Bound:
    ordered = tuple(sorted(objects, key=lambda item: (item.key, item.origin)))
    return bind(ordered, before or Bindings(), NODE, is_complete=is_complete)


def found(bound: Bound, name: str) -> Found | None:
    return bound.answers.get(ObjectKey(ContentKind.VOLUME_CLAIM, "default", name))


def volume_of(bound: Bound, name: str) -> str:
    """The volume of a bound claim; both name each other."""
    answer = found(bound, name)
    assert isinstance(answer, Present), answer
    assert isinstance(answer.value, PersistentVolumeClaim)
    assert answer.value.status is not None and answer.value.status.phase == "Bound"
    own = answer.value.spec.volumeName
    other = bound.answers[ObjectKey(ContentKind.VOLUME, "", own)]
    assert isinstance(other, Present) and isinstance(other.value, PersistentVolume)
    assert other.value.spec.claimRef is not None
    assert other.value.spec.claimRef.uid == answer.value.metadata.uid
    return own


def why(bound: Bound, name: str) -> str:
    answer = found(bound, name)
    assert isinstance(answer, Absent), answer
    return answer.message


def test_a_claim_gets_the_smallest_volume_that_satisfies_it() -> None:
    volumes = volume("a", "9Gi"), volume("b", "2Gi"), volume("c", "500Mi"), volume("d", "2Gi")
    assert volume_of(decide(*volumes, claim("x")), "x") == "b"


def test_each_volume_goes_to_one_claim_in_the_order_of_names() -> None:
    bound = decide(volume("a", "2Gi"), volume("b", "3Gi"), claim("y"), claim("x"))
    assert (volume_of(bound, "x"), volume_of(bound, "y")) == ("a", "b")


def test_what_a_volume_lacks_is_stated() -> None:
    others: dict[str, Any] = {"nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchFields": [
        {"key": "metadata.name", "operator": "In", "values": ["other"]}]}]}}}  # fmt: skip
    for lacking, words in (
        (volume("a", "500Mi"), '"a" has 500Mi'),
        (volume("a", storageClassName="fast"), '"a" has the storage class "fast"'),
        (volume("a", accessModes=["ReadOnlyMany"]), '"a" has the access modes ReadOnlyMany'),
        (volume("a", volumeMode="Block"), '"a" has the volumeMode Block'),
        (volume("a", **others), '"a" has a nodeAffinity without this node'),
        (volume("a", claimRef={"name": "y", "namespace": "z"}), '"a" is reserved by its claimRef for z/y'),
    ):
        text = why(decide(lacking, claim("x")), "x")
        assert text == (
            "PVC is not bound: no free PersistentVolume has 1Gi or more, the access modes ReadWriteOnce, no storage class: "
            + words
        )
    assert why(decide(claim("x")), "x").endswith("no manifest has a PersistentVolume")
    picky = claim("x", selector={"matchLabels": {"disk": "ssd"}})
    assert why(decide(volume("a"), picky), "x").endswith('"a" lacks labels that the selector wants')
    assert volume_of(decide(volume("a"), volume("b", labels={"disk": "ssd"}), picky), "x") == "b"


def test_a_long_list_of_volumes_is_cut() -> None:
    text = why(decide(*(volume(f"v{i}", "1Mi") for i in range(40)), claim("x")), "x")
    assert text.endswith('"v11" has 1Mi; "v12" has 1Mi; 35 more') and len(text) < 500


def test_a_claim_gets_the_volume_that_it_names_or_that_names_it() -> None:
    small, large = volume("a", "2Gi"), volume("b", "9Gi")
    assert volume_of(decide(small, large, claim("x", volumeName="b")), "x") == "b"
    assert volume_of(decide(small, volume("b", "9Gi", claimRef={"name": "x"}), claim("x")), "x") == "b"
    bound = decide(small, large, claim("x"), claim("y", volumeName="a"))
    assert (volume_of(bound, "x"), volume_of(bound, "y")) == ("b", "a")
    assert why(decide(small, claim("x", volumeName="gone")), "x") == (
        'PVC is not bound: no manifest has the PersistentVolume "gone", which it names'
    )
    assert (
        why(decide(small, claim("x", "3Gi", volumeName="a")), "x")
        == 'PVC is not bound: the PersistentVolume "a" has 2Gi'
    )
    two = decide(small, claim("x", volumeName="a"), claim("y", volumeName="a"))
    assert why(two, "y") == 'PVC is not bound: the PersistentVolume "a" is bound to the claim default/x'


def test_a_claim_keeps_its_volume_whatever_comes_or_changes() -> None:
    first = decide(volume("b", "9Gi"), claim("x"))
    later = decide(volume("a", "2Gi"), volume("b", "10Mi"), claim("x", "3Gi"), claim("w"), before=first.bindings)
    assert (volume_of(later, "x"), volume_of(later, "w")) == ("b", "a")


def test_a_claim_waits_for_its_volume_that_has_no_manifest_and_gets_no_other() -> None:
    first = decide(volume("b"), claim("x"))
    lost = decide(volume("a"), claim("x"), before=first.bindings)
    assert why(lost, "x").startswith('PVC is lost: its PersistentVolume "b" has no manifest any more.')
    assert volume_of(decide(volume("a"), volume("b"), claim("x"), before=lost.bindings), "x") == "b"
    gone = decide(volume("a"), before=lost.bindings)
    assert volume_of(decide(volume("a"), claim("x"), before=gone.bindings), "x") == "a"
    assert volume_of(decide(volume("a"), claim("x", volumeName="a"), before=lost.bindings), "x") == "a"


def test_a_volume_with_the_data_of_a_claim_goes_to_no_other_by_itself() -> None:
    first = decide(volume("a"), claim("x"))
    left = decide(volume("a"), claim("y"), before=first.bindings)
    assert '"a" has the data of the claim default/x; name it in spec.volumeName to take it' in why(left, "y")
    assert volume_of(decide(volume("a"), claim("x"), claim("y"), before=left.bindings), "x") == "a"
    taken = decide(volume("a"), claim("y", volumeName="a"), before=left.bindings)
    assert volume_of(taken, "y") == "a"
    assert taken.bindings.volumes == {"default/y": "a"}


def test_a_claim_takes_no_volume_from_another_by_naming_it() -> None:
    first = decide(volume("a"), claim("x"))
    for size in ("1Gi", "9Gi"):
        later = decide(volume("a"), claim("x", size), claim("w", volumeName="a"), before=first.bindings)
        assert volume_of(later, "x") == "a"
        assert why(later, "w") == 'PVC is not bound: the PersistentVolume "a" is bound to the claim default/x'
    early = decide(volume("a"), claim("w", volumeName="a"), before=first.bindings, is_complete=False)
    assert found(early, "w") is None, "the claim x may come"
    assert early.bindings.volumes == first.bindings.volumes
    free = decide(
        volume("a"), volume("b"), claim("x", volumeName="b"), claim("w", volumeName="a"), before=first.bindings
    )
    assert (volume_of(free, "x"), volume_of(free, "w")) == ("b", "a")


def test_the_data_of_a_claim_that_names_another_volume_goes_to_no_other_by_itself() -> None:
    first = decide(volume("a"), claim("y"))
    bindings = first.bindings
    for _ in range(2):
        moved = decide(volume("a"), volume("b"), claim("w"), claim("y", volumeName="b"), before=bindings)
        assert (volume_of(moved, "y"), found(moved, "w")) == ("b", Absent(why(moved, "w")))
        assert '"a" has the data of the claim default/y' in why(moved, "w")
        bindings = moved.bindings
    back = decide(volume("a"), volume("b"), claim("y", volumeName="a"), before=bindings)
    assert (volume_of(back, "y"), back.bindings.left) == ("a", {"b": "default/y"})
    assert decide(volume("a"), before=bindings).bindings.left == {"a": "default/y"}
    assert decide(volume("b"), before=bindings).bindings.left == {}, "a volume without a manifest is forgotten"


def test_nothing_is_decided_anew_before_all_manifests_are_known() -> None:
    first = decide(volume("b"), claim("x"))
    early = decide(volume("a"), volume("b"), claim("x"), claim("w"), before=first.bindings, is_complete=False)
    assert volume_of(early, "x") == "b"
    assert found(early, "w") is None
    nothing = decide(before=first.bindings, is_complete=False)
    assert nothing.bindings == first.bindings


def test_of_two_volumes_with_one_name_the_one_that_counted_counts() -> None:
    old, new = volume("a", origin="/m/b"), volume("a", origin="/m/a", hostPath={"path": "/new"})
    first = decide(old, claim("x"))
    key = ObjectKey(ContentKind.VOLUME, "", "a")
    answer = decide(old, new, claim("x"), before=first.bindings).answers[key]
    assert isinstance(answer, Present) and isinstance(answer.value, PersistentVolume)
    assert answer.value.spec.hostPath is not None and answer.value.spec.hostPath.path == "/a"
    answer = decide(old, new, claim("x")).answers[key]
    assert isinstance(answer, Present) and isinstance(answer.value, PersistentVolume)
    assert answer.value.spec.hostPath is not None and answer.value.spec.hostPath.path == "/new"


def test_an_object_without_a_manifest() -> None:
    answer = missing(ObjectKey(ContentKind.VOLUME_CLAIM, "default", "x"))
    assert answer == Absent('no manifest has the PersistentVolumeClaim "x" of namespace "default"')
    assert isinstance(missing(ObjectKey(ContentKind.CSI_DRIVER, "", "d")), Present)


SIZES = st.sampled_from(["1Gi", "2Gi", "3Gi"])
NAMED = st.sampled_from(["", "", "a", "b"])
MANIFESTS = st.tuples(
    st.dictionaries(st.sampled_from("abcd"), SIZES),
    st.dictionaries(st.sampled_from("wxyz"), st.tuples(SIZES, NAMED)),
    st.booleans(),
)


@given(st.lists(MANIFESTS, max_size=6))
def test_no_two_claims_ever_share_a_volume_and_none_changes_while_both_stand(history: Any) -> None:
    bindings, held = Bindings(), dict[str, str]()
    for volumes, claims, is_complete in history:
        objects = [volume(name, size) for name, size in volumes.items()]
        objects += [claim(name, size, volumeName=named) for name, (size, named) in claims.items()]
        bound = decide(*objects, before=bindings, is_complete=is_complete)
        again = decide(*objects, before=bound.bindings, is_complete=is_complete)
        assert again == bound
        now = {name: volume_of(bound, name) for name in claims if isinstance(found(bound, name), Present)}
        assert len(set(now.values())) == len(now)
        keeps = {n: had for n, had in held.items() if n in claims and had in volumes and claims[n][1] in ("", had)}
        assert now | keeps == now
        held = keeps | now
        bindings = bound.bindings
