"""Who may probe when: the places for probes, and what is known of the node's own pace.

Rules:
1. At most so many probes of a sort run at once; the others wait for their turn, and their time-outs with them. A probe
   that hangs gives its place up after a moment.
2. Commands are run by the runtime, which costs the node far more than asking over the network. A container that was never
   asked yet comes first: a crowd of probes must not keep a new pod from getting ready. Those whose command ran out of
   time the last time have few places of their own, where they hold up nobody but their like.
3. While pods come and go - something of a pod has changed within the last second - few commands run at once, so that
   the runtime has time for the pods. But they do go on, however long that lasts. Where they are more than the few could
   ever carry out, none of them is in time anyway: then there is a rest after each, and they wait for a moment in which no
   pod is made or ended, so that the pods do not notice them. So it is always for those that ran out of time the last time:
   asked again they tell the least. Where they are more than all places could carry out, few run even while nothing moves:
   the next pod must not find every processor taken.
4. The pace is how long commands take that end in time. Where that is a good part of a time-out, a command that ran out
   of time tells nothing about its container: the node was slow. When nothing ends in time, there is no pace, and
   time-outs count.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from math import inf

from pykubelet.base.kit.bulkhead import Bulkhead, Place
from pykubelet.base.kit.values import Value, replace
from pykubelet.edges.probing.outcome import Outcome

PACE_SAMPLES = 31
PACE_AGE_S = 30.0
PACE_SHARE = 4.0
"""A node whose pace is more than a fourth of a time-out is slow."""
LONGEST_HOLD_S = 2.0
MOVE_S = 1.0
"""So long after something of a pod has changed the runtime may be at work on it."""
CALM_S, LONGEST_BUSY_S = 0.1, 4.0
"""A moment in which no pod moves is this long; who has waited so long for one waits no more."""
REST_SHARE, LONGEST_REST_S = 19.0, 2.0
"""A rest is so many times the pace: a twentieth of the time is for commands."""


class ProbeLimits(Value):
    """How many probes may run at once; `hold_s`: after this long a running one does not count any more.

    `exec_few`: how many commands beside pods that come and go, and of those that ran out of time the last time.
    `answer_s`: so long beyond its time-out the runtime has for its answer to a command.
    """

    exec_at_once: int = 4
    exec_few: int = 1
    network_at_once: int = 64
    hold_s: float = 0.25
    answer_s: float = 120.0


class Gates:
    """Keys name probes. Times are monotonic seconds."""

    def __init__(self, limits: ProbeLimits) -> None:
        self._limits = limits
        self._network = Bulkhead(limits.network_at_once, limits.hold_s)
        self._exec = Bulkhead(limits.exec_at_once, limits.hold_s)
        self._laggards = Bulkhead(limits.exec_few, limits.hold_s)
        self._moved_at = -inf
        self._lagging: set[Hashable] = set()
        self._pace: deque[tuple[float, float]] = deque(maxlen=PACE_SAMPLES)
        self._rates: dict[Hashable, float] = {}

    def asked(self, key: Hashable, period_s: float) -> None:
        """There is a command to be run so often."""
        self._rates[key] = 1.0 / period_s

    def place(self, key: Hashable, *, is_exec: bool, is_first: bool) -> Place:
        if not is_exec:
            return self._network.place()
        gate = self._laggards if key in self._lagging else self._exec
        return gate.place(urgent=is_first)

    def pods_moved(self, now: float, *, at_work: bool) -> None:
        """Something of a pod has changed; `at_work`: the runtime makes or ends one now."""
        self._moved_at = now
        pace, few = self.pace_s(now) or 0.0, self._limits.exec_few
        are_too_many = self._demand(pace) > few
        calm_at = now + (MOVE_S if at_work else CALM_S)
        self._exec.places = few
        self._exec.rest_s = min(REST_SHARE * pace, LONGEST_REST_S) if are_too_many else 0.0
        self._exec.close(calm_at if are_too_many else now, LONGEST_BUSY_S)
        self._laggards.rest_s = LONGEST_REST_S
        self._laggards.close(calm_at, LONGEST_BUSY_S)

    def _pods_are_still(self, now: float) -> None:
        limits, demand = self._limits, self._demand(self.pace_s(now) or 0.0)
        self._exec.places = limits.exec_few if demand > limits.exec_at_once else limits.exec_at_once
        self._exec.rest_s = self._laggards.rest_s = 0.0

    def _demand(self, pace_s: float) -> float:
        """How many commands would run at once if each began in time."""
        return sum(self._rates.values()) * pace_s

    def forget(self, key: Hashable) -> None:
        self._lagging.discard(key)
        self._rates.pop(key, None)

    def judge(self, key: Hashable, outcome: Outcome, took_s: float, timeout_s: float, now: float) -> Outcome:
        """What a try of a command came to, in the light of how the node is."""
        if not outcome.timed_out and not outcome.error:
            self._note(took_s, now)
        if now > self._moved_at + MOVE_S:
            self._pods_are_still(now)
        if not outcome.timed_out:
            self._lagging.discard(key)
            return outcome
        self._lagging.add(key)
        pace = self.pace_s(now)
        return replace(outcome, late_s=took_s) if pace is not None and pace * PACE_SHARE >= timeout_s else outcome

    def _note(self, took_s: float, now: float) -> None:
        self._pace.append((now, took_s))
        pace = self.pace_s(now)
        if pace is not None:
            # a slow node must not be given ever more to do because nothing ends
            self._exec.hold_s = min(LONGEST_HOLD_S, max(self._limits.hold_s, PACE_SHARE * pace))

    def pace_s(self, now: float) -> float | None:
        """The median of the commands that ended lately; None when there is none."""
        while self._pace and self._pace[0][0] < now - PACE_AGE_S:
            self._pace.popleft()
        return sorted(took for _, took in self._pace)[len(self._pace) // 2] if self._pace else None
