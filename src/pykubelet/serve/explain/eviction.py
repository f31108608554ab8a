"""The part of `pykubelet explain node` about eviction: each signal, its largest users, and the next pod to evict. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pykubelet.base.api.core import Pod
from pykubelet.base.model.evictions import EVICTION_SIGNALS, Evictions, EvictionSignal, SignalState, SignalStates
from pykubelet.base.model.ids import PodRef
from pykubelet.base.model.lifecycle import Lifecycles
from pykubelet.base.model.roster import Roster, is_critical, pod_ref
from pykubelet.base.model.usage import Usage
from pykubelet.observe.eviction.decide_evictions import candidates_of
from pykubelet.observe.eviction.messages import spoken_amount
from pykubelet.observe.eviction.model import Candidate, FsLayout
from pykubelet.observe.eviction.rank import requested
from pykubelet.observe.eviction.signals import SIGNAL_RULES

SHOWN_USERS = 3


def eviction_document(
    signals: SignalStates, evictions: Evictions, roster: Roster, lifecycles: Lifecycles, usage: Usage
) -> dict[str, Any]:
    """`{"at", "layout", "dry_run", "signals": [...], "would_evict": [...]}`.

    Amounts are in the signal's `unit`. `top` and `next` are computed from the last usage of the pods, and are empty without it.
    """
    candidates = candidates_of(roster, lifecycles, usage, evictions.pods) if usage.taken_at is not None else ()
    layout = FsLayout(signals.layout) if signals.layout else FsLayout.SHARED
    return {
        "at": signals.at,
        "layout": signals.layout,
        "dry_run": signals.dry_run,
        "signals": [_signal(state, candidates, layout) for state in signals.states],
        "would_evict": [
            {"at": one.at, "pod": _name(one.eviction.ref), "signal": one.signal, "why": one.eviction.message}
            for one in signals.would_evict
        ],
    }


def _signal(state: SignalState, candidates: Sequence[Candidate], layout: FsLayout) -> dict[str, Any]:
    signal, rules = EVICTION_SIGNALS[state.signal], SIGNAL_RULES[state.signal]
    used = [(rules.used(one, layout) or 0, one.pod) for one in candidates]
    top = sorted(used, key=lambda pair: pair[0], reverse=True)[:SHOWN_USERS]
    ranked = sorted(candidates, key=lambda one: rules.rank(one, layout))
    victim = next((one for one in ranked if not is_critical(one.pod)), None)
    return {
        "signal": state.signal,
        "condition": str(signal.condition),
        "unit": _unit(signal),
        "soft": state.grace_s > 0,
        "grace_s": state.grace_s,
        "threshold": state.value,
        "available": state.available,
        "capacity": state.capacity,
        "per_s": state.per_s,
        "met_since": state.met_since,
        "top": [{"pod": _name(pod_ref(pod)), "used": amount} for amount, pod in top if amount],
        "next": None
        if victim is None
        else {"pod": _name(pod_ref(victim.pod)), "why": _why(victim, state.signal, layout)},
    }


def _unit(signal: EvictionSignal) -> str:
    """The unit of the signal's amounts: `bytes`, `count`, or `basis points` (hundredths of a percent of the time)."""
    if signal.is_bytes:
        return "bytes"
    return "count" if signal.is_configurable else "basis points"


def _name(ref: PodRef) -> str:
    return f"{ref.namespace}/{ref.name}"


def _why(victim: Candidate, name: str, layout: FsLayout) -> str:
    """The ranking keys for which the pod is first."""
    used, signal = SIGNAL_RULES[name].used(victim, layout), EVICTION_SIGNALS[name]
    amount = f"uses {spoken_amount(signal, used)}" if used is not None else "was not measured"
    return f"{amount}, requests {_request(victim.pod, signal.resource)}, priority {victim.pod.spec.priority or 0}"


def _request(pod: Pod, resource: str) -> str:
    return spoken_amount(EVICTION_SIGNALS["memory.available"], requested(pod, resource))
