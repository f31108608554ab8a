"""Merges the sets of all sources into one set of pods. Pure.

Rules:
- A source always posts its whole set; a pod that is missing from it is no longer desired.
- The UID identifies a pod. Static pods must also have unique full names (name and namespace), in one source and across all
  sources. The name stays with the manifest that had it first, also when that is edited or becomes wrong, over restarts of the agent
  (`holders.py`), and with its source while that has a pod of the name. Other pods of the name are left out with one Event, and
  taken when the name is free. The API server's names are unique anyway.
- Mirror pods are kept separately, by the full name that they share with their static pod.
- A static pod with a new first-seen time was away in between, however briefly: it has come back, and starts again.
- Pods that have not changed are not merged again, unless pods share a name or UID, or a manifest has become wrong or right.
- Which objects of manifests count is decided in `objects.py`.
- An unchanged pod remains the same object, so that readers can compare by identity. Changes are those of spec, generation,
  labels, annotations (except the agent's own), deletion time, deletion grace period, and of what other clients write to
  the status (conditions, resource claims, the end of the pod). A pod never changes its name.
- The sources post stubs of pods in quarantine (`desired/sources/quarantine.py`). A stub counts against the capacity, because its
  containers may run, and nothing else is done with it. When the quarantine ends, the sources post the pod itself, and it is decided
  like a new one.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Mapping
from operator import attrgetter

from pykubelet.base.api.core import Pod
from pykubelet.base.api.times import parse_time
from pykubelet.base.kit.flight import WORK
from pykubelet.base.kit.values import Derived, Value, changed_keys, edited, missing_keys, replace
from pykubelet.base.model.ids import PodRef, PodUID
from pykubelet.base.model.kube_events import KubeEvent, warning
from pykubelet.base.model.labels import CONFIG_SEEN, SOURCE_API, SOURCE_FILE
from pykubelet.base.model.pod_changes import is_same, is_same_mirror
from pykubelet.base.model.reasons import EVENT_FAILED_VALIDATION, QUARANTINED
from pykubelet.base.model.roster import (
    ManifestProblem,
    NameHolder,
    Roster,
    RosterPod,
    SourceChanged,
    is_mirror,
    is_quarantine,
    is_static,
    pod_ref,
)
from pykubelet.base.model.sizing import size_of, with_size
from pykubelet.desired.roster.admission import demand_of, unusable_in, without_excess
from pykubelet.desired.roster.model import AdmissionVerdict, Entry, RosterState, unusual
from pykubelet.desired.roster.objects import count_objects


class _Wanted(Value):
    """A pod as a source wants it. `stated`: its name in the source; `ref` differs if the UID already has another name.
    `origin`: where the source has read it."""

    source: str
    origin: str
    pod: Pod
    ref: PodRef
    stated: PodRef

    @property
    def holder(self) -> NameHolder:
        return NameHolder(self.source, self.origin)


def apply_source(state: RosterState, event: SourceChanged, wall: float) -> tuple[RosterState, tuple[KubeEvent, ...]]:
    """The state after a source has posted its set, and the resulting Events. `wall`: seconds since the epoch."""
    before = state.sources.get(event.source)
    if event.source == SOURCE_API:
        event, mirrors = _without_mirrors(event)
        state = replace(state, mirrors=mirrors)
    sources = {**state.sources, event.source: event}
    state = replace(state, sources=sources)
    if event.objects or state.counted_objects.objects:
        state = replace(state, counted_objects=count_objects(sources, state.counted_objects))
    with_changed = _with_api_pods if event.source == SOURCE_API else _with_changed_manifests
    if (alone := with_changed(state, before, event, wall)) is not None:
        return alone, ()
    desired = _in_order(state)
    chosen: dict[PodUID, _Wanted] = {}
    holders = _reserved(state, desired)
    clashes: dict[tuple[str, PodRef], ManifestProblem] = {}
    for wanted in desired:
        name, uid = wanted.ref.full_name, wanted.ref.uid
        if uid in chosen:
            clashes[wanted.source, wanted.stated] = _clash(wanted, "metadata.uid", uid, chosen[uid].holder)
        elif wanted.source == SOURCE_API:
            chosen[uid] = wanted
        elif name not in holders:
            chosen[uid], holders[name] = wanted, wanted.holder
        else:
            clashes[wanted.source, wanted.stated] = _clash(wanted, "metadata.name", wanted.stated.name, holders[name])
    events = tuple(
        warning(EVENT_FAILED_VALIDATION, problem.reason, key[1])
        for key, problem in clashes.items()
        if key not in state.clashes
    )
    unknown = {name: held for name, held in state.holders.items() if not _is_known(state, held.source)}
    state = replace(state, holders={**unknown, **holders}, clashes=clashes)
    return _with_entries(state, chosen, wall), events


def _with_api_pods(
    state: RosterState, before: SourceChanged | None, event: SourceChanged, wall: float
) -> RosterState | None:
    """The state with these pods of the API server and all others unchanged. None: another source uses one of the names or UIDs."""
    wanted = event.by_uid
    if wanted is not None and before is not None and before.by_uid is not None:
        changed = changed_keys(before.by_uid, wanted)
    else:
        wanted = {PodUID(pod.metadata.uid): pod for pod in event.pods}
        changed = [*wanted, *missing_keys(state.entries, wanted)]
    if state.clashes or len(wanted) != len(event.pods):
        return None
    entries, arrivals = edited(state.entries), state.arrivals
    for uid in changed:
        pod, old = wanted.get(uid), entries.get(uid)
        if pod is None:
            if old is not None and old.item.source == SOURCE_API:
                del entries[uid]
        elif old is None or old.wanted is not pod:
            ref = pod_ref(pod)
            if old is not None and (old.item.source != SOURCE_API or old.ref != ref):
                return None
            with WORK.on(uid):
                entry = entries[uid] = _entry(
                    state, old, _Wanted(SOURCE_API, SOURCE_API, pod, ref, ref), arrivals, wall
                )
            arrivals += entry.order == arrivals
    return replace(state, entries=entries, arrivals=arrivals)


def _with_changed_manifests(
    state: RosterState, before: SourceChanged | None, event: SourceChanged, wall: float
) -> RosterState | None:
    """The state with these pods of manifests and all others unchanged. None: pods may be in each other's way, or a manifest has become
    wrong or right."""
    if before is None or not (before.known and event.known) or state.clashes or event.problems != before.problems:
        return None
    then, now = _by_identity(before), _by_identity(event)
    added, wrong = missing_keys(now, then), {problem.origin for problem in event.problems}
    news = {PodUID(now[key].metadata.uid): key for key in added}
    if len(now) != len(event.pods) or len(news) != len(added):
        return None
    entries, holders, arrivals = edited(state.entries), dict(state.holders), state.arrivals
    for key in missing_keys(then, now):
        ref = pod_ref(then[key])
        gone = entries.get(ref.uid)
        if gone is None or gone.ref != ref or key[1] in wrong:
            return None
        if holders.pop(ref.full_name, None) != NameHolder(event.source, key[1]):
            return None
        if ref.uid not in news:
            del entries[ref.uid]
    asked = [_wanted(state, event.source, key[1], now[key]) for key in news.values()]
    for wanted in sorted(asked, key=lambda each: _rank(state, each)):
        ref, old = wanted.ref, entries.get(wanted.ref.uid)
        if ref != wanted.stated or ref.full_name in holders or (old is not None and old.item.source != event.source):
            return None
        holders[ref.full_name] = wanted.holder
        with WORK.on(ref.uid):
            entry = entries[ref.uid] = _entry(state, old, wanted, arrivals, wall)
        arrivals += entry.order == arrivals
    return replace(state, entries=entries, holders=holders, arrivals=arrivals)


def _by_identity(source: SourceChanged) -> dict[tuple[int, str], Pod]:
    """The pods by object and origin: an unchanged pod is the same object."""
    origins = source.origins or (source.source,) * len(source.pods)
    return {(id(pod), origin): pod for pod, origin in zip(source.pods, origins, strict=True)}


_mirrors: Derived[PodUID, Pod, Pod] = Derived(lambda pod: pod if is_mirror(pod) else None)
_ordinary: Derived[PodUID, Pod, Pod] = Derived(lambda pod: None if is_mirror(pod) else pod)


def _without_mirrors(event: SourceChanged) -> tuple[SourceChanged, dict[str, Pod]]:
    if event.by_uid is not None:
        # both are asked for each set, so that they know in what it differs from the one before
        mirrors, others = [*_mirrors(event.by_uid).values()], _ordinary(event.by_uid)
        ordinary = replace(event, pods=others.values(), by_uid=others) if mirrors else event
    else:
        mirrors = [pod for pod in event.pods if is_mirror(pod)]
        ordinary = replace(event, pods=tuple(pod for pod in event.pods if not is_mirror(pod))) if mirrors else event
    return ordinary, {pod_ref(pod).full_name: pod for pod in mirrors}


def _is_known(state: RosterState, source: str) -> bool:
    return source in state.sources and state.sources[source].known


def _is_missing(state: RosterState, source: str) -> bool:
    """Whether the roster waits for the set of a source."""
    return not _is_known(state, source) and (source not in state.sources or state.sources[source].awaited)


def _reserved(state: RosterState, desired: list[_Wanted]) -> dict[str, NameHolder]:
    """The names of manifests that have become wrong. A copy does not take the place of what is being edited."""
    wrong = {NameHolder(name, problem.origin) for name, source in state.sources.items() for problem in source.problems}
    present = {(wanted.ref.full_name, wanted.holder) for wanted in desired}
    return {name: holder for name, holder in state.holders.items() if holder in wrong and (name, holder) not in present}


def _clash(wanted: _Wanted, field_path: str, value: str, used: NameHolder) -> ManifestProblem:
    what = "name" if field_path == "metadata.name" else "UID"
    name = json.dumps(value)
    text = f"Error validating pod {wanted.stated} from {wanted.source} due to duplicate pod {what} {name}{_of_holder(used)}, ignoring"
    return ManifestProblem(wanted.origin, field_path, text)


def _of_holder(used: NameHolder) -> str:
    """The words for the manifest that is used instead. A source without files has its own name as origin."""
    place = posixpath.basename(used.origin) if used.source == SOURCE_FILE else f"the source {used.source}"
    return f" of {place}, which is used"


def _in_order(state: RosterState) -> list[_Wanted]:
    """All desired pods, those that already hold their name or UID first."""
    wanted = [
        _wanted(state, source, reported.origins[i] if reported.origins else source, pod)
        for source, reported in state.sources.items()
        for i, pod in enumerate(reported.pods)
    ]

    return sorted(wanted, key=lambda each: _rank(state, each))


def _rank(state: RosterState, desired: _Wanted) -> int:
    """The rank of a pod among those that ask for a name or UID: the lowest gets it."""
    entry, held = state.entries.get(desired.ref.uid), state.holders.get(desired.ref.full_name)
    if entry is not None and entry.item.source != desired.source:
        entry = None
    if entry is not None and entry.origin == desired.origin:
        return 0
    if held == desired.holder:
        return 1
    if entry is not None:
        return 2 if desired.stated == entry.ref else 3
    return 4 if held is not None and held.source == desired.source else 5


def _wanted(state: RosterState, source: str, origin: str, pod: Pod) -> _Wanted:
    stated = pod_ref(pod)
    entry = state.entries.get(stated.uid)
    if entry is None:
        return _Wanted(source, origin, pod, stated, stated)
    if stated != entry.ref:
        pod = replace(pod, metadata=replace(pod.metadata, name=entry.ref.name, namespace=entry.ref.namespace))
    return _Wanted(source, origin, pod, entry.ref, stated)


def _with_entries(state: RosterState, chosen: Mapping[PodUID, _Wanted], wall: float) -> RosterState:
    entries, arrivals = edited(state.entries), state.arrivals
    for uid in missing_keys(state.entries, chosen):
        del entries[uid]
    for uid, wanted in chosen.items():
        with WORK.on(uid):
            entry = _entry(state, state.entries.get(uid), wanted, arrivals, wall)
        if entry is not entries.get(uid):
            entries[uid] = entry
        arrivals += entry.order == arrivals
    return replace(state, entries=entries, arrivals=arrivals)


def _entry(state: RosterState, old: Entry | None, wanted: _Wanted, arrivals: int, wall: float) -> Entry:
    """The new entry of a pod that was `old` and is now `wanted`; `old` itself if nothing has changed."""
    if old is not None and old.wanted is wanted.pod and (old.item.source, old.origin) == (wanted.source, wanted.origin):
        return old
    if old is None or old.verdict is AdmissionVerdict.QUARANTINED or _came_back(old, wanted.pod):
        kept = None if is_static(wanted.pod) else state.kept.get(wanted.ref.uid)
        pod = without_excess(with_size(wanted.pod, kept.size) if kept is not None else wanted.pod)
        change = kept.change if kept is not None else None
        item = RosterPod(pod, wanted.source, _seen_at(wanted.pod, wall), change=change)
        unusable = unusable_in(pod)
        demand = demand_of(pod)
        return Entry(item, wanted.ref, demand, arrivals, wanted=wanted.pod, origin=wanted.origin, unusable=unusable)
    if old.item.source == wanted.source and is_same(old.wanted or old.item.pod, wanted.pod):
        return old if old.origin == wanted.origin else replace(old, origin=wanted.origin)
    pod = without_excess(with_given_size(old, wanted.pod))
    item = replace(old.item, pod=pod, source=wanted.source)
    demand = demand_of(pod)
    demand = old.demand if demand == old.demand else demand  # the same object is not counted anew
    return replace(old, item=item, demand=demand, wanted=wanted.pod, origin=wanted.origin)


def with_given_size(entry: Entry, pod: Pod) -> Pod:
    """The pod for other components when its source has `pod`: a pod that is admitted or being placed keeps its allocated size."""
    if entry.verdict not in (AdmissionVerdict.PLACING, AdmissionVerdict.ADMITTED) or is_static(pod):
        return pod
    return with_size(pod, size_of(entry.item.pod))


def _came_back(entry: Entry, pod: Pod) -> bool:
    before = entry.wanted or entry.item.pod
    return is_static(pod) and _seen_at(pod, entry.item.seen_at) != _seen_at(before, entry.item.seen_at)


def _seen_at(pod: Pod, wall: float) -> float:
    try:
        return parse_time(pod.metadata.annotations.get(CONFIG_SEEN, ""))
    except ValueError:
        return wall


#: The entries for other components.
_items: Derived[PodUID, Entry, RosterPod] = Derived(attrgetter("item"))


def roster_of(state: RosterState, expected: frozenset[str], before: Roster) -> Roster:
    """The snapshot to publish; `before` itself when nothing changed."""
    items = _items(state.entries)
    pods = items if changed_keys(before.pods, items) else before.pods
    missing = tuple(sorted(name for name in expected if _is_missing(state, name)))
    silent = tuple(sorted(expected - state.sources.keys()))
    clashes = (state.clashes[key] for key in sorted(state.clashes))
    objects = before.objects if state.counted_objects.objects == before.objects else state.counted_objects.objects
    reported = (problem for source in state.sources.values() for problem in source.problems)
    problems = (*reported, *clashes, *state.counted_objects.problems)
    remarks = tuple(remark for source in state.sources.values() for remark in source.remarks)
    placing = {e.ref.uid: e for e in unusual(state.entries) if e.verdict is AdmissionVerdict.PLACING}
    awaiting_placement = tuple(sorted(placing, key=lambda uid: placing[uid].placing_number))
    rejected_anyway = frozenset(uid for uid, e in placing.items() if e.refusal is not None)
    withheld = _withheld(state)
    holders = before.holders if before.holders == state.holders else state.holders
    mirrors = state.mirrors
    if before.mirrors is not None and mirrors is not None and _are_same(mirrors, before.mirrors):
        mirrors = before.mirrors
    if (
        pods is before.pods
        and (missing, silent, awaiting_placement) == (before.missing, before.silent, before.awaiting_placement)
        and (problems, remarks) == (before.problems, before.remarks)
        and mirrors is before.mirrors
        and objects is before.objects
        and holders is before.holders
        and withheld == before.withheld
    ):
        return before
    return Roster(
        pods,
        not missing,
        problems,
        mirrors,
        missing,
        silent,
        awaiting_placement,
        rejected_anyway,
        objects,
        remarks,
        holders,
        withheld,
    )


def _withheld(state: RosterState) -> frozenset[str]:
    """The names of pods of which it is not known whether they are still desired: their manifest is in quarantine, or their source is
    not there and not awaited.
    """
    origins = {
        problem.origin for source in state.sources.values() for problem in source.problems if is_quarantine(problem)
    }
    away = {name for name, source in state.sources.items() if not source.known and not source.awaited}
    return frozenset(
        name for name, holder in state.holders.items() if holder.origin in origins or holder.source in away
    )


def _are_same(now: Mapping[str, Pod], before: Mapping[str, Pod]) -> bool:
    """Whether the mirror pods are equal except for their statuses."""
    return now.keys() == before.keys() and all(is_same_mirror(before[name], pod) for name, pod in now.items())


def apply_quarantine(state: RosterState) -> tuple[RosterState, tuple[KubeEvent, ...]]:
    """The state with the quarantine of its sources, and an Event for each pod that has come into it."""
    waits = {uid: wait for source in state.sources.values() for uid, wait in source.quarantined.items()}
    waits = {uid: wait for uid, wait in waits.items() if uid in state.entries}
    if not waits and not state.quarantined:
        return state, ()
    entries = edited(state.entries)
    for uid, wait in waits.items():
        entry = entries[uid]
        if entry.verdict is not AdmissionVerdict.QUARANTINED or entry.item.admission_wait != wait:
            item = replace(entry.item, admission_wait=wait, rejection=None)
            entries[uid] = replace(entry, item=item, verdict=AdmissionVerdict.QUARANTINED)
    for uid in state.quarantined - waits.keys():
        left = entries.get(uid)
        if left is not None and left.verdict is AdmissionVerdict.QUARANTINED:
            entries[uid] = replace(left, item=replace(left.item, admission_wait=None), verdict=AdmissionVerdict.OPEN)
    came = [uid for uid in waits if uid not in state.quarantined]
    events = tuple(warning(QUARANTINED, waits[uid].detail, entries[uid].ref) for uid in came)
    return replace(state, entries=entries, quarantined=frozenset(waits)), events
