"""Decides which pressure conditions hold, which thresholds to act on, and the grace period of a victim. Pure.

Rules:
- A threshold is met while less is available than its limit. A threshold that was met for its grace period stays met until
  its minimum reclaim is available too.
- A met threshold sets its condition at once. The condition holds until no threshold of it was met for the transition
  period.
- A threshold is acted on after its grace period, and only with an observation newer than that of the previous pass.
- Thresholds of memory come first, then the others in their order.
Source: the Kubernetes documentation "Node-pressure Eviction".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pykubelet.base.api.core import Pod
from pykubelet.base.kit.values import replace
from pykubelet.base.model.evictions import EVICTION_SIGNALS, PressureCondition, SignalState
from pykubelet.config.eviction import Threshold
from pykubelet.observe.eviction.model import (
    IMMEDIATE_GRACE_S,
    Assessment,
    EvictionState,
    Observation,
    Observations,
)
from pykubelet.observe.eviction.thresholds import limit_amount, met_thresholds


def assess(
    state: EvictionState,
    thresholds: Sequence[Threshold],
    observations: Observations,
    now: float,
    transition_s: float,
) -> Assessment:
    """The assessment of one pass. `now`: monotonic seconds. `transition_s`: `evictionPressureTransitionPeriod`."""
    unresolved = set(met_thresholds(state.met, observations, with_reclaim=True))
    met_now = set(met_thresholds(thresholds, observations))
    met = tuple(
        threshold
        for threshold in dict.fromkeys((*thresholds, *state.met))
        if threshold in met_now or threshold in unresolved
    )
    since = {threshold: state.met_since.get(threshold, now) for threshold in met}
    conditions = {_condition(threshold) for threshold in met}
    condition_at = {**state.condition_at, **dict.fromkeys(conditions, now)}
    condition_at = {kind: at for kind, at in condition_at.items() if kind in conditions or now - at < transition_s}
    due = tuple(threshold for threshold in met if now - since[threshold] >= threshold.grace.s)
    fresh = [
        threshold
        for threshold in due
        if _is_newer(observations.get(threshold.signal), state.sampled.get(threshold.signal))
    ]
    sampled = {**state.sampled, **{name: seen.at for name, seen in observations.items()}}
    return Assessment(
        replace(state, met_since=since, met=due, condition_at=condition_at, sampled=sampled, observations=observations),
        tuple(kind for kind in PressureCondition if kind in condition_at),
        tuple(sorted(fresh, key=lambda threshold: _condition(threshold) is not PressureCondition.MEMORY)),
    )


def is_relieved(thresholds: Iterable[Threshold], observations: Observations) -> bool:
    """Whether no threshold with its minimum reclaim is met any more. Grace periods do not count."""
    return not met_thresholds(thresholds, observations, with_reclaim=True)


def eviction_grace_s(threshold: Threshold, pod: Pod, max_pod_grace_s: int) -> int:
    """The grace period of an evicted pod in seconds. `max_pod_grace_s`: `evictionMaxPodGracePeriod`."""
    if not threshold.is_soft:
        return IMMEDIATE_GRACE_S
    own = pod.spec.terminationGracePeriodSeconds
    return max_pod_grace_s if own is None else min(max_pod_grace_s, own)


def still_short(state: EvictionState, condition: PressureCondition, now: float) -> EvictionState:
    """The state after reclaiming was not enough: the condition still holds. `now`: monotonic seconds."""
    return replace(state, condition_at={**state.condition_at, condition: now})


def signal_states(
    thresholds: Iterable[Threshold], before: Observations, state: EvictionState, wall_offset: float
) -> tuple[SignalState, ...]:
    """The state of all thresholds, for display. `before`: the observations before those of `state`. `wall_offset`: wall seconds at
    the monotonic zero."""
    observations = state.observations
    rates = trend(before, observations)
    found = []
    for threshold in thresholds:
        seen, since = observations.get(threshold.signal), state.met_since.get(threshold)
        shown = SignalState(
            threshold.signal, threshold.grace.s, met_since=since + wall_offset if since is not None else None
        )
        if seen is not None:
            value, rate = limit_amount(threshold.limit, seen.capacity).value(), rates.get(threshold.signal)
            shown = replace(shown, value=value, available=seen.available, capacity=seen.capacity, per_s=rate)
        found.append(shown)
    return tuple(found)


def trend(before: Mapping[str, Observation], now: Observations) -> dict[str, float]:
    """The change of the available amount per second, by signal."""
    found = {}
    for name, seen in now.items():
        old = before.get(name)
        if old is not None and seen.at > old.at:
            found[name] = (seen.available - old.available) / (seen.at - old.at)
    return found


def _condition(threshold: Threshold) -> PressureCondition:
    return EVICTION_SIGNALS[threshold.signal].condition


def _is_newer(seen: Observation | None, sampled_at: float | None) -> bool:
    return seen is None or sampled_at is None or seen.at > sampled_at
