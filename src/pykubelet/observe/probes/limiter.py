"""Limits the number of probes that run in parallel, and measures the pace of the node.

Rules:
1. A limited number of probes of one kind (network or command) runs in parallel. The others wait in a queue, and their
   time-outs have not begun. A probe that hangs gives up its slot after `hold_s`.
2. The runtime runs commands (exec probes), which costs the node far more than a network request. The first probe of a
   container goes first, so that many probes do not keep a new pod from becoming ready. Commands that timed out the last
   time have few slots of their own, where they delay only one another.
3. While pods change (a pod has changed within the last second), few commands run in parallel, so that the runtime has time
   for the pods; but commands never stop completely. If there are more commands than the few slots can run in time, there
   is a pause after each, and they wait for a moment in which no pod is started or stopped, so that they do not slow down
   pods. This always applies to commands that timed out the last time, because their next outcome is the least useful. If
   there are more commands than all slots can run in time, few run even while no pod changes, so that the next pod finds
   free CPUs.
4. The pace is the median duration of the commands that ended in time during the last 30 s. The node is overloaded if a fourth of
   them took more than a fourth of a time-out, and either there are more commands than all slots can run in time, or they took
   twice as long as the same commands usually take. Then a command that times out does not count. So commands that always take long do
   not hide that one of them hangs. Without a pace, time-outs count.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from math import inf

from pykubelet.base.kit.bulkhead import Bulkhead, BulkheadSlot
from pykubelet.base.kit.values import Value, replace
from pykubelet.edges.probing.outcome import Outcome

PACE_SAMPLES = 31
PACE_AGE_S = 30.0
#: A node on which a fourth of the commands take more than a fourth of a time-out may be overloaded.
PACE_SHARE = 4.0
#: It is if they take so many times as long as usual. What is usual is the shortest time so far; each run lets it grow by a hundredth.
SLOWER = 2.0
USUAL_GROWTH = 1.01
LONGEST_HOLD_S = 2.0
#: For this long after something of a pod has changed, the runtime may be at work on it.
CHANGE_S = 1.0
#: The length of a moment in which no pod changes, and the longest wait for one.
QUIET_S, LONGEST_BUSY_S = 0.1, 4.0
#: A rest is this many times the pace: a twentieth of the time is for commands.
REST_SHARE, LONGEST_REST_S = 19.0, 2.0


class ProbeLimits(Value):
    """The limits of the prober. `*_at_once`: probes that may run in parallel. `hold_s`: after this time a running probe gives up
    its slot.

    `exec_few`: the number of parallel commands while pods change, and of those that timed out the last time. `answer_s`: how
    long the runtime may take to answer after a command's time-out.
    """

    exec_at_once: int = 4
    exec_few: int = 1
    network_at_once: int = 64
    hold_s: float = 0.25
    answer_s: float = 120.0


class _Run(Value):
    """A command that ended in time, at `at`. `slowdown`: how many times as long as usual it took."""

    at: float
    took_s: float
    slowdown: float


class ProbeLimiter:
    """Gives slots to probes, which are identified by keys. Times are monotonic seconds."""

    def __init__(self, limits: ProbeLimits) -> None:
        self._limits = limits
        self._network = Bulkhead(limits.network_at_once, limits.hold_s)
        self._exec = Bulkhead(limits.exec_at_once, limits.hold_s)
        self._slow_exec = Bulkhead(limits.exec_few, limits.hold_s)
        self._changed_at = -inf
        self._timed_out: set[Hashable] = set()
        self._recent: deque[_Run] = deque(maxlen=PACE_SAMPLES)
        self._usual_s: dict[Hashable, float] = {}
        self._rates: dict[Hashable, float] = {}

    def add(self, key: Hashable, period_s: float) -> None:
        """Note a command that is run every `period_s`."""
        self._rates[key] = 1.0 / period_s

    def slot(self, key: Hashable, *, is_exec: bool, is_first: bool) -> BulkheadSlot:
        """A slot for a probe. `is_first`: the container has no outcome yet."""
        if not is_exec:
            return self._network.slot()
        bulkhead = self._slow_exec if key in self._timed_out else self._exec
        return bulkhead.slot(urgent=is_first)

    def pods_changed(self, now: float, *, at_work: bool) -> None:
        """Note that a pod has changed. `at_work`: the runtime is starting or stopping one now."""
        self._changed_at = now
        pace, few = self.pace_s(now) or 0.0, self._limits.exec_few
        are_too_many = self._demand(pace) > few
        quiet_at = now + (CHANGE_S if at_work else QUIET_S)
        self._exec.slots = few
        self._exec.rest_s = min(REST_SHARE * pace, LONGEST_REST_S) if are_too_many else 0.0
        self._exec.close(quiet_at if are_too_many else now, LONGEST_BUSY_S)
        self._slow_exec.rest_s = LONGEST_REST_S
        self._slow_exec.close(quiet_at, LONGEST_BUSY_S)

    def _pods_rest(self, now: float) -> None:
        limits, demand = self._limits, self._demand(self.pace_s(now) or 0.0)
        self._exec.slots = limits.exec_few if demand > limits.exec_at_once else limits.exec_at_once
        self._exec.rest_s = self._slow_exec.rest_s = 0.0

    def _demand(self, pace_s: float) -> float:
        """The number of commands that would run in parallel if each began in time."""
        return sum(self._rates.values()) * pace_s

    def forget(self, key: Hashable) -> None:
        """Forget a probe that does not run any more."""
        self._timed_out.discard(key)
        self._rates.pop(key, None)
        self._usual_s.pop(key, None)

    def judge(self, key: Hashable, outcome: Outcome, took_s: float, timeout_s: float, now: float) -> Outcome:
        """The outcome of a command, marked as late if it timed out on an overloaded node."""
        if not outcome.timed_out and not outcome.error:
            self._note(key, took_s, now)
        if now > self._changed_at + CHANGE_S:
            self._pods_rest(now)
        if not outcome.timed_out:
            self._timed_out.discard(key)
            return outcome
        self._timed_out.add(key)
        return replace(outcome, late_s=took_s) if self._is_overloaded(timeout_s, now) else outcome

    def _note(self, key: Hashable, took_s: float, now: float) -> None:
        usual_s = min(took_s, self._usual_s.get(key, took_s) * USUAL_GROWTH)
        self._usual_s[key] = usual_s
        self._recent.append(_Run(now, took_s, took_s / usual_s if usual_s else 1.0))
        pace = self.pace_s(now)
        if pace is not None:
            # on an overloaded node nothing ends in time: slots are held longer, or ever more probes would run
            self._exec.hold_s = min(LONGEST_HOLD_S, max(self._limits.hold_s, PACE_SHARE * pace))

    def _is_overloaded(self, timeout_s: float, now: float) -> bool:
        pace = self.pace_s(now)
        if pace is None or _ranked((run.took_s for run in self._recent), 3 / 4) * PACE_SHARE < timeout_s:
            return False
        are_too_many = self._demand(pace) > self._limits.exec_at_once
        return are_too_many or _ranked((run.slowdown for run in self._recent), 1 / 2) >= SLOWER

    def pace_s(self, now: float) -> float | None:
        """The median duration of the commands that ended recently; None: there are none."""
        while self._recent and self._recent[0].at < now - PACE_AGE_S:
            self._recent.popleft()
        return _ranked((run.took_s for run in self._recent), 1 / 2) if self._recent else None


def _ranked(numbers: Iterable[float], share: float) -> float:
    """The number that so large a share of them is smaller than."""
    ordered = sorted(numbers)
    return ordered[int(len(ordered) * share)]
