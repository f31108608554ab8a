"""Pods in quarantine stay desired, undecided, and count; pods of manifests in quarantine are not known to be gone."""

from __future__ import annotations

from desired.roster.wants import LISTED, Desk, facts, make_pod

from pykubelet.base.api.core import Pod
from pykubelet.base.kit.values import replace
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.reasons import QUARANTINED
from pykubelet.base.model.roster import OF_MANIFEST, ManifestProblem, NameHolder, SourceChanged, is_quarantined
from pykubelet.base.model.waits import Owner, Wait
from pykubelet.desired.sources.decide_quarantine import stub_of

UID = PodUID("bad-1")
BAD, GOOD = (
    make_pod("bad", source="file", cpu="900m", volumes=[{"name": "v", "emptyDir": {}}]),
    make_pod("good", source="file"),
)
STUB = stub_of(BAD)
WAIT = Wait(
    "end of quarantine", Owner.POD_SOURCES, 5.0, reason=QUARANTINED, detail="it has ended the agent", next_at=605.0
)


def quarantined(*pods: Pod) -> SourceChanged:
    return SourceChanged("file", pods, quarantined={UID: WAIT})


def desk_with_stub() -> Desk:
    desk = Desk()
    desk.take(quarantined(STUB, GOOD))
    return desk


def test_it_is_desired_and_neither_admitted_nor_rejected_with_one_event() -> None:
    desk = desk_with_stub()
    item = desk.roster.pods[UID]
    assert item.admission_wait == WAIT and item.rejection is None and is_quarantined(item)
    assert not desk.is_held("good-1")
    assert desk.events == [("bad", QUARANTINED, WAIT.detail)]
    desk.take(quarantined(STUB, GOOD))
    desk.settle_again(facts(observed=replace(LISTED, listed_at=9.0)))
    assert desk.events == [("bad", QUARANTINED, WAIT.detail)]
    assert desk.roster.pods[UID] is not None and desk.is_held("bad-1")


def test_the_roster_does_not_wait_for_it() -> None:
    assert desk_with_stub().state.is_settled


def test_an_unchanged_stub_is_no_change_of_the_roster() -> None:
    desk = desk_with_stub()
    before = desk.roster
    assert desk.take(quarantined(STUB, GOOD)) is before


def test_it_counts_against_the_capacity_because_it_may_run() -> None:
    desk = desk_with_stub()
    other = make_pod("other", source="api", cpu="200m")
    desk.send(other, source="api")
    assert desk.reason("other-1") == "OutOfcpu"


def test_at_the_end_of_the_quarantine_it_is_decided_like_a_new_pod() -> None:
    desk = desk_with_stub()
    seen_at = desk.roster.pods[UID].seen_at
    desk.take(SourceChanged("file", (BAD, GOOD)), wall=seen_at + 600)
    item = desk.roster.pods[UID]
    assert item.pod is BAD and item.admission_wait is None and item.rejection is None
    assert desk.state.quarantined == frozenset()


def test_a_pod_that_is_deleted_in_quarantine_is_admitted_so_that_its_worker_ends_it() -> None:
    desk = Desk()
    api_stub = stub_of(make_pod("bad"))
    desk.take(SourceChanged("api", (api_stub,), quarantined={UID: WAIT}))
    assert desk.is_held("bad-1")
    leaving = replace(api_stub, metadata=replace(api_stub.metadata, deletionTimestamp="2026-01-01T00:00:00Z"))
    desk.take(SourceChanged("api", (leaving,)))
    assert not desk.is_held("bad-1") and desk.reason("bad-1") is None


def test_a_pod_that_leaves_its_source_in_quarantine_is_no_longer_desired() -> None:
    desk = desk_with_stub()
    desk.take(SourceChanged("file", (GOOD,)))
    assert UID not in desk.roster.pods and desk.state.quarantined == frozenset()


def test_the_names_of_a_manifest_in_quarantine_are_withheld() -> None:
    holders = {"web_shop": NameHolder("file", "/etc/web.yaml"), "db_shop": NameHolder("file", "/etc/db.yaml")}
    desk = Desk(holders=holders)
    wrong = ManifestProblem("/etc/db.yaml", "", "not valid YAML")
    desk.take(
        SourceChanged(
            "file", (GOOD,), (ManifestProblem("/etc/web.yaml", "", f"{OF_MANIFEST}x"), wrong), ("/etc/good.yaml",)
        )
    )
    assert desk.roster.withheld == {"web_shop"} and desk.roster.sources_ready
    desk.take(SourceChanged("file", (GOOD,), (wrong,), ("/etc/good.yaml",)))
    assert desk.roster.withheld == frozenset()


def test_a_source_that_is_not_awaited_holds_up_no_other_and_its_pods_are_withheld() -> None:
    """A process extension that is away at the start of the agent: its pods of before keep running."""
    held = {"web_shop": NameHolder("extension:a", "extension:a"), "db_shop": NameHolder("file", "/etc/db.yaml")}
    desk = Desk(holders=held, expected=("file", "extension:a"))
    desk.take(SourceChanged("file", ()))
    assert (desk.roster.sources_ready, desk.roster.missing) == (False, ("extension:a",))
    desk.take(
        SourceChanged("extension:a", (), (ManifestProblem("extension:a", "", "away"),), known=False, awaited=False)
    )
    assert (desk.roster.sources_ready, desk.roster.withheld) == (True, frozenset({"web_shop"}))
    desk.take(SourceChanged("extension:a", ()))
    assert (desk.roster.sources_ready, desk.roster.withheld, desk.roster.holders) == (True, frozenset(), {})
