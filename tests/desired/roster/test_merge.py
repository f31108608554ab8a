"""From sources to one set of pods."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

from desired.roster.wants import WALL, Desk, make_pod
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pykubelet.base.api.core import Pod
from pykubelet.base.kit.flight import SingleFlight
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.labels import CONFIG_SEEN
from pykubelet.base.model.remarks import Remark
from pykubelet.base.model.roster import ManifestProblem, NameHolder, Roster, SourceChanged
from pykubelet.desired.roster import merge
from pykubelet.desired.roster.holders import HolderMemory
from pykubelet.desired.roster.merge import apply_source, roster_of
from pykubelet.desired.roster.model import RosterState


def uids(desk: Desk) -> set[str]:
    return set(desk.roster.pods)


def test_a_source_posts_its_whole_set() -> None:
    desk = Desk()
    desk.send(make_pod("a"), make_pod("b"))
    assert uids(desk) == {"a-1", "b-1"}
    desk.send(make_pod("b"), make_pod("c"))
    assert uids(desk) == {"b-1", "c-1"}
    desk.send()
    assert uids(desk) == set()


def test_one_source_does_not_change_another() -> None:
    desk = Desk(("file", "http"))
    desk.send(make_pod("a"))
    desk.send(make_pod("b"), source="http")
    desk.send(source="file")
    assert uids(desk) == {"b-1"}


def test_ready_once_every_expected_source_has_posted() -> None:
    desk = Desk(("file", "http"))
    assert not desk.send(make_pod("a")).sources_ready
    assert desk.send(source="http").sources_ready
    assert Desk(()).settle_again().sources_ready


def test_a_source_without_a_known_set_is_not_ready() -> None:
    desk = Desk(("file", "http"))
    assert (desk.settle_again().missing, desk.settle_again().silent) == (("file", "http"), ("file", "http"))
    wrong = ManifestProblem("/pod.yaml", "kind", "is missing")
    now = desk.take(SourceChanged("file", (), (wrong,), known=False))
    assert not now.sources_ready and now.problems == (wrong,)
    assert (now.missing, now.silent) == (("file", "http"), ("http",))
    assert desk.send(make_pod("a")).missing == ("http",)


def test_remarks_are_published_without_a_change_of_the_pods() -> None:
    desk = Desk(("file",))
    before = desk.send(make_pod("a"))
    remark = Remark("/pod.yaml", "spec.hostNetwrk", "unknown field, ignored", "a-1")
    now = desk.take(SourceChanged("file", (make_pod("a"),), remarks=(remark,)))
    assert now.remarks == (remark,) and now.pods is before.pods
    assert desk.send(make_pod("a")).remarks == ()


def test_an_unchanged_pod_stays_the_same_object() -> None:
    desk = Desk()
    before = desk.send(make_pod("a", metadata={"labels": {"x": "1"}}), make_pod("b")).pods[PodUID("a-1")]
    after = desk.send(
        make_pod("a", metadata={"labels": {"x": "1"}, "annotations": {CONFIG_SEEN: "2026-01-01T00:00:00Z"}})
    ).pods[PodUID("a-1")]
    assert after is before


def test_nothing_new_publishes_nothing_new() -> None:
    desk = Desk()
    before = desk.send(make_pod("a"))
    assert desk.send(make_pod("a")) is before


def test_what_counts_as_a_change() -> None:
    for change in (
        {"metadata": {"labels": {"x": "2"}}},
        {"metadata": {"annotations": {"note": "2"}}},
        {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}},
        {"metadata": {"deletionGracePeriodSeconds": 3}},
        {"cpu": "2m"},
    ):
        desk = Desk()
        before = desk.send(make_pod("a")).pods[PodUID("a-1")]
        after = desk.send(make_pod("a", **change), wall=WALL + 50).pods[PodUID("a-1")]
        assert after is not before, change
        assert after.seen_at == before.seen_at == WALL


def test_first_sight_is_the_annotation_where_there_is_one() -> None:
    desk = Desk()
    desk.send(make_pod("a", metadata={"annotations": {CONFIG_SEEN: "1970-01-01T00:01:00.5Z"}}))
    assert desk.roster.pods[PodUID("a-1")].seen_at == 60.5
    desk.send(make_pod("b", metadata={"annotations": {CONFIG_SEEN: "yesterday"}}))
    assert desk.roster.pods[PodUID("b-1")].seen_at == WALL


def test_a_static_pod_that_is_seen_anew_has_come_back() -> None:
    def seen_at(minute: int) -> Pod:
        return make_pod("a", source="file", metadata={"annotations": {CONFIG_SEEN: f"1970-01-01T00:0{minute}:00Z"}})

    desk = Desk()
    before = desk.send(seen_at(1)).pods[PodUID("a-1")]
    assert desk.send(seen_at(1)).pods[PodUID("a-1")] is before
    assert desk.send(seen_at(2)).pods[PodUID("a-1")].seen_at == 120


def test_a_name_taken_twice_in_one_source() -> None:
    desk = Desk()
    desk.send(make_pod("web", "u1"), make_pod("web", "u2"))
    assert uids(desk) == {"u1"}
    text = (
        'Error validating pod web_shop(u2) from file due to duplicate pod name "web" of file, which is used, ignoring'
    )
    assert desk.events == [("web", "FailedValidation", text)]
    assert list(desk.roster.problems) == [ManifestProblem("file", "metadata.name", text)]
    desk.send(make_pod("web", "u1"), make_pod("web", "u2"), make_pod("other"))
    assert len(desk.events) == 1
    desk.send(make_pod("web", "u2"))
    assert uids(desk) == {"u2"}
    assert desk.roster.problems == ()


def test_a_later_pod_earlier_in_the_set_does_not_take_the_name() -> None:
    desk = Desk()
    desk.send(make_pod("web", "u1"))
    desk.send(make_pod("web", "u0"), make_pod("web", "u1"))
    assert uids(desk) == {"u1"}


def test_a_name_taken_by_another_source_stays_with_who_had_it() -> None:
    desk = Desk()
    desk.send(make_pod("web", "u1"), source="http")
    desk.send(make_pod("web", "u2"), source="file")
    assert uids(desk) == {"u1"}
    desk.send(make_pod("web", "u3"), source="http")  # the holder's manifest was edited
    assert uids(desk) == {"u3"}
    desk.send(source="http")
    assert uids(desk) == {"u2"}
    desk.send(make_pod("web", "u4"), source="http")
    assert uids(desk) == {"u2"}


MAIN, COPY = "/m/web.yaml", "/m/web-old.yaml"


def of_files(desk: Desk, pods: dict[str, Pod], bad: tuple[str, ...] = (), source: str = "file") -> set[str]:
    """Send the pod of each file, in the order of the file names; `bad`: files that cannot be used. Returns the UIDs in use."""
    origins = sorted(pods)
    problems = tuple(ManifestProblem(path, "", "not valid YAML") for path in bad)
    desk.take(SourceChanged(source, tuple(pods[path] for path in origins), problems, tuple(origins)))
    return uids(desk)


def test_an_edited_manifest_keeps_its_name_against_a_copy() -> None:
    """The UID depends on the content, so that the edited pod is another one."""
    desk = Desk()
    assert of_files(desk, {MAIN: make_pod("web", "u1")}) == {"u1"}
    assert of_files(desk, {MAIN: make_pod("web", "u1"), COPY: make_pod("web", "c1")}) == {"u1"}
    assert of_files(desk, {MAIN: make_pod("web", "u2"), COPY: make_pod("web", "c1")}) == {"u2"}
    assert of_files(desk, {MAIN: make_pod("web", "u2"), COPY: make_pod("web", "c2")}) == {"u2"}
    assert of_files(desk, {COPY: make_pod("web", "c2")}) == {"c2"}
    assert of_files(desk, {MAIN: make_pod("web", "u3"), COPY: make_pod("web", "c2")}) == {"c2"}
    (problem,) = desk.roster.problems
    assert problem.origin == MAIN
    assert 'due to duplicate pod name "web" of web-old.yaml, which is used, ignoring' in problem.reason


def test_the_manifest_in_use_is_known_after_a_restart() -> None:
    first = Desk()
    of_files(first, {MAIN: make_pod("web", "u1")})
    desk = Desk(holders=first.roster.holders)
    desk.send(make_pod("other"), source="http")  # another source is first
    assert desk.roster.holders == {"web_shop": NameHolder("file", MAIN), "other_shop": NameHolder("http", "http")}
    assert of_files(desk, {MAIN: make_pod("web", "u2"), COPY: make_pod("web", "c1")}) == {"u2", "other-1"}
    assert of_files(Desk(), {MAIN: make_pod("web", "u2"), COPY: make_pod("web", "c1")}) == {"c1"}


def test_a_copy_does_not_start_while_its_original_has_a_mistake() -> None:
    desk = Desk()
    of_files(desk, {MAIN: make_pod("web", "u1"), "/m/other.yaml": make_pod("other")})
    copies = {COPY: make_pod("web", "c1"), "/m/other.yaml": make_pod("other")}
    assert of_files(desk, copies, bad=(MAIN,)) == {"other-1"}
    assert "of web.yaml, which is used" in desk.roster.problems[1].reason
    assert of_files(Desk(holders=desk.roster.holders), copies, bad=(MAIN,)) == {"other-1"}
    assert of_files(desk, {**copies, MAIN: make_pod("web", "u2")}) == {"u2", "other-1"}
    assert of_files(desk, copies) == {"c1", "other-1"}


def test_a_manifest_that_is_kept_in_spite_of_a_mistake_has_its_name() -> None:
    """A single file whose new content is wrong: its source keeps the pod."""
    desk = Desk()
    assert of_files(desk, {MAIN: make_pod("web", "u1")}) == {"u1"}
    assert of_files(desk, {MAIN: make_pod("web", "u1")}, bad=(MAIN,)) == {"u1"}


def test_a_copy_with_the_same_uid_does_not_take_it() -> None:
    desk = Desk()
    pods = {MAIN: make_pod("web", "mine", cpu="1m")}
    assert of_files(desk, pods) == {"mine"}
    of_files(desk, {**pods, COPY: make_pod("web", "mine", cpu="2m")})
    (item,) = desk.roster.pods.values()
    assert item.pod == pods[MAIN]
    of_files(desk, {COPY: make_pod("web", "mine", cpu="2m")})
    of_files(desk, {MAIN: make_pod("web", "mine", cpu="3m"), COPY: make_pod("web", "mine", cpu="2m")})
    (item,) = desk.roster.pods.values()
    assert item.pod.spec.containers[0].resources == make_pod(cpu="2m").spec.containers[0].resources


async def test_the_file_of_the_manifests_in_use(tmp_path: Path) -> None:
    def memory() -> HolderMemory:
        return HolderMemory(str(tmp_path), SingleFlight("test", 1))

    kept, holders = memory(), {"web_shop": NameHolder("file", MAIN)}
    assert kept.load() == {}
    await kept.keep(Roster(holders=holders))  # not all sources have reported
    assert memory().load() == {}
    await kept.keep(Roster(holders=holders, sources_ready=True))
    assert memory().load() == holders
    (tmp_path / "static_pods").write_text("damaged")
    assert memory().load() == {}


def test_a_uid_stands_for_one_pod_that_keeps_its_name() -> None:
    desk = Desk()
    desk.send(make_pod("a", "u1"), make_pod("b", "u1"))
    assert [item.pod.metadata.name for item in desk.roster.pods.values()] == ["a"]
    assert 'due to duplicate pod UID "u1" of file, which is used, ignoring' in desk.events[0][2]
    desk.send(make_pod("c", "u1", cpu="5m"))
    (item,) = desk.roster.pods.values()
    assert item.pod.metadata.name == "a"
    resources = item.pod.spec.containers[0].resources
    assert resources is not None and resources.requests == {"cpu": "5m"}


def test_problems_of_all_sources_are_there() -> None:
    bad = ManifestProblem("/m/x.yaml", "spec", "no containers")
    worse = ManifestProblem("http://x", "", "not YAML")
    state, _ = apply_source(RosterState(), SourceChanged("file", (make_pod("a"),), (bad,)), WALL)
    state, _ = apply_source(state, SourceChanged("http", (), (worse,)), WALL)
    assert roster_of(state, frozenset({"file"}), Desk().roster).problems == (bad, worse)


CPUS = st.sampled_from(["1m", "2m"])
SOURCES = st.sampled_from(["file", "http", "api"])
PODS = st.builds(
    lambda name, n, cpu: make_pod(name, f"{name}{n}", cpu=cpu), st.sampled_from("abc"), st.integers(0, 2), CPUS
)
WILD_PODS = st.builds(
    lambda name, uid, cpu: make_pod(name, uid, cpu=cpu), st.sampled_from("abc"), st.sampled_from("1234"), CPUS
)


def check_set(desk: Desk, asked: list[tuple[str, Pod]]) -> None:
    """One static pod for a name, one pod for a UID, and each is one that its source asks for."""
    names = [item.pod.metadata.name for item in desk.roster.pods.values() if item.source != "api"]
    assert len(set(names)) == len(names)
    for uid, item in desk.roster.pods.items():
        assert item.pod.metadata.uid == uid
        assert any(source == item.source and pod.metadata.uid == uid for source, pod in asked)


@given(st.lists(st.tuples(SOURCES, st.lists(WILD_PODS, max_size=5)), max_size=12))
def test_whatever_the_sources_post(events: list[tuple[str, list[Pod]]]) -> None:
    desk = Desk()
    wanted: dict[str, list[Pod]] = {}
    for source, pods in events:
        wanted[source] = pods
        names = {uid: item.pod.metadata.name for uid, item in desk.roster.pods.items()}
        desk.send(*pods, source=source)
        check_set(desk, [(reported, pod) for reported, listed in wanted.items() for pod in listed])
        for uid, item in desk.roster.pods.items():
            assert names.get(uid, item.pod.metadata.name) == item.pod.metadata.name
        assert desk.roster.sources_ready == ("file" in wanted)


@given(st.lists(st.tuples(SOURCES, st.lists(PODS, max_size=5)), max_size=12))
def test_the_first_pod_stays_and_no_pod_is_forgotten(events: list[tuple[str, list[Pod]]]) -> None:
    desk = Desk()
    wanted: dict[str, list[Pod]] = {}
    for source, pods in events:
        before = desk.roster.pods
        wanted[source] = pods
        roster = desk.send(*pods, source=source)
        asked = [(reported, pod) for reported, listed in wanted.items() for pod in listed]
        check_set(desk, asked)
        names = {item.pod.metadata.name for item in roster.pods.values()}
        assert names == {pod.metadata.name for _, pod in asked}
        for uid, item in before.items():
            if any(reported == item.source and pod.metadata.uid == uid for reported, pod in asked):
                assert roster.pods[uid].source == item.source
                assert roster.pods[uid].seen_at == item.seen_at
        count = len(desk.events)
        again = desk.send(*pods, source=source)
        assert again.pods.keys() == roster.pods.keys()
        assert all(again.pods[uid] is item for uid, item in roster.pods.items())
        assert len(desk.events) == count


#: Pods for a file, and whether something in it becomes wrong or right.
EDITS = st.tuples(
    st.sampled_from(["file", "http"]), st.sampled_from("xy"), st.lists(WILD_PODS, max_size=2), st.integers(0, 3)
)


def _edit(name: str, *pods: str) -> tuple[str, str, list[Pod], int]:
    """A file that has these pods from now on, each as its name and its UID."""
    return ("file", name, [make_pod(*pod.split("/"), cpu="1m") for pod in pods], 1)


# what is edited comes before what is new, and a pod that is away leaves the name that it had, not the one it asked for
@example([_edit("x", "a/1"), _edit("x", "c/3", "a/2")])
@example([_edit("x", "n/1"), _edit("x", "m/1", "m/2"), _edit("x", "m/2"), _edit("y", "m/3")])
@given(st.lists(EDITS, max_size=20))
@settings(max_examples=300)
def test_only_what_has_changed_is_merged_with_the_same_result(edits: list[tuple[str, str, list[Pod], int]]) -> None:
    files: dict[str, dict[str, list[Pod]]] = {"file": {}, "http": {}}
    wrong: set[tuple[str, str]] = set()
    quick, complete = RosterState(), RosterState()
    for source, name, pods, chance in edits:
        files[source][name] = pods
        wrong ^= {(source, name)} if chance == 0 else set()
        event = SourceChanged(
            source,
            tuple(pod for listed in files[source].values() for pod in listed),
            tuple(ManifestProblem(name, "spec", "no") for name in "xy" if (source, name) in wrong),
            tuple(name for name, listed in files[source].items() for _ in listed),
        )
        quick, events = apply_source(quick, event, WALL)
        with patch.object(merge, "_with_changed_manifests", lambda *_: None):
            complete, expected = apply_source(complete, event, WALL)
        assert events == expected
        assert (quick.holders, quick.clashes) == (complete.holders, complete.clashes)
        assert dict(quick.entries) == dict(complete.entries)
