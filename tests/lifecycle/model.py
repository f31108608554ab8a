"""What Kubernetes documents about the life of a pod, as functions of what really happened on the node (`truth.py`).

Each rule names the page that it comes from, below https://kubernetes.io/docs/concepts/workloads/pods/ unless it is a KEP:
[PL] pod-lifecycle/                       phases, states, conditions, restart policy, back-off, probes
[IC] init-containers/                     init containers
[SC] sidecar-containers/, KEP-753         init containers with restartPolicy Always
[RR] pod-lifecycle/#restart-rules, KEP-5307 restartPolicy and restartPolicyRules of single containers
[RA] KEP-5532                             the action RestartAllContainers
[HK] ../../containers/container-lifecycle-hooks/
[D]  decided here, because the documentation is silent (docs/configuration.md has the differences from the reference kubelet).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

from lifecycle.shapes import Container, containers_of
from lifecycle.truth import Box, By, Instance, Life, PodTruth

#: [PL] 10 s, 20 s, 40 s ... 5 minutes; a container that has run for 10 minutes begins anew.
FIRST_S, CAP_S, RESET_S = 10.0, 300.0, 600.0
#: [D] A container that ended at most this long before its sandbox has ended with it.
TOGETHER_S = 5.0
RESTART, STAY, ALL = "restart", "stay", "restart all"


class Exit(NamedTuple):
    code: int
    reason: str


class Due(NamedTuple):
    """When a container is to be started: not earlier, and not later."""

    earliest: float
    latest: float


BY_RULE = Exit(137, "RestartingAllContainers")


def outcome(pod: PodTruth, c: Container, code: int, reason: str) -> str:
    """What follows an exit: the first rule that matches, else the container's policy [RR], else the pod's [PL].

    An init container that was OOM-killed has failed, whatever the exit code of its first process is [D].
    """
    has_failed = code != 0 or (c.is_plain_init and reason == "OOMKilled")
    for rule in c.rules:
        if code in rule.codes:
            return ALL if rule.restarts_all else RESTART
    policy = c.policy or pod.spec["restartPolicy"]
    if policy == "Never" or (policy == "OnFailure" and not has_failed) or (c.is_plain_init and not has_failed):
        return STAY
    return RESTART


@dataclass
class State:
    """A container as its status shows it: `kind` is running, waiting or terminated. `count`: restarts."""

    kind: str
    reason: str = ""
    exit: Exit | None = None
    last: Exit | None = None
    count: int = 0
    started: bool = False
    ready: bool = False


class Model:
    """One pod at one moment."""

    def __init__(self, pod: PodTruth, lives: list[Life], now: float) -> None:
        self.pod, self.now = pod, now
        self.life = lives[-1].began_at
        self.containers = containers_of(pod)
        self.box: Box | None = pod.boxes[-1] if pod.boxes else None
        self.known = self._counted()
        self.resets = self._resets()
        self.reset_at = self._reset_at(self.resets[-1]) if self.resets else -1.0

    # What counts

    def _counted(self) -> list[Instance]:
        """The instances that ran, without those that were started in a sandbox while it ended [D].

        One whose start the end of the agent cut off has not run, whatever the runtime reports of it (StartError): a pod that
        never restarts must not fail because of it [D].
        """
        return [
            i for i in self.pod.instances if i.started_at is not None and not (self.is_useless(i) or self.is_unseen(i))
        ]

    def is_unseen(self, i: Instance) -> bool:
        """Whether it was removed before it counted as running [HK]; only its restart count is known then."""
        is_reset = i.by is By.AGENT and i.removed_at is not None and not self.pod.stops
        return (i.taken or is_reset) and self.containers[i.name].has_hook and i.hooked is None

    def is_useless(self, i: Instance) -> bool:
        """Whether it was started in a sandbox while that ended, or after that [D]."""
        box = next((box for box in self.pod.boxes if box.id == i.box and box.by is By.OUTSIDE), None)
        if box is None or box.ended_at is None:
            return False
        if i.created_at >= box.ended_at:
            return True
        earlier = (
            e for e in self.pod.of(i.name) if e.created_at < i.created_at and e.box == i.box and e.by is not By.AGENT
        )
        since = self._began_to_end(box)
        return any(e.ended_at is not None and e.ended_at >= since for e in earlier)

    def _began_to_end(self, box: Box) -> float:
        """Since when the containers that ended have ended with their sandbox: it stops them one after the other [D]."""
        since = (box.ended_at or 0.0) - TOGETHER_S
        killed = [i.ended_at for i in self.pod.instances if i.box == box.id and i.ended_at and i.by is By.OUTSIDE]
        for at in sorted(killed, reverse=True):
            since = min(since, at - TOGETHER_S) if at >= since else since
        return since

    def all_of(self, name: str) -> list[Instance]:
        return [i for i in self.known if i.name == name]

    def last(self, name: str) -> Instance | None:
        """The newest instance since all containers were restarted."""
        return next((i for i in reversed(self.all_of(name)) if i.created_at > self.reset_at), None)

    def here(self, name: str) -> Instance | None:
        """As `last`, if it is in the newest sandbox."""
        found = self.last(name)
        return found if found is not None and self.box is not None and found.box == self.box.id else None

    def _resets(self) -> list[Instance]:
        """The instances whose ends restarted all containers [RA], unless the sandbox ended too, or the pod's work was done [D]."""
        found: list[Instance] = []
        for i in sorted((i for i in self.known if i.ended_at is not None), key=lambda i: i.ended_at or 0.0):
            c = self.containers[i.name]
            box = next(box for box in self.pod.boxes if box.id == i.box)
            is_new = not found or i.created_at > (found[-1].ended_at or 0.0)
            is_with_box = (
                box.ended_at is not None and box.by is not By.AGENT and (i.ended_at or 0.0) >= self._began_to_end(box)
            )
            if any(self.in_hook(other) and other.created_at < (i.ended_at or 0.0) for other in self.known):
                continue  # [HK] not before that hook has ended
            is_own = i.by is not By.AGENT and not is_with_box and not (c.is_sidecar and self._was_done(i, found))
            if is_new and is_own and outcome(self.pod, c, i.code, i.reason) == ALL:
                found.append(i)
        return found

    def _reset_at(self, reset: Instance) -> float:
        """The end of the instance that restarted all containers, or the start of one that was being started, and removed with them."""
        return max([reset.ended_at or 0.0, *(i.created_at for i in self.known if _removed_with(i, reset))])

    def _was_done(self, sidecar: Instance, resets: list[Instance]) -> bool:
        since = resets[-1].ended_at or 0.0 if resets else -1.0
        ends = [[i for i in self.all_of(c.name) if i.created_at > since][-1:] for c in self._regular()]
        return all(
            e and e[0].ended_at is not None and e[0].ended_at < (sidecar.ended_at or 0.0) and self._stays(e[0])
            for e in ends
        )

    def _regular(self) -> list[Container]:
        return [c for c in self.containers.values() if not c.is_init]

    def _stays(self, i: Instance | None) -> bool:
        """Whether an instance has ended and is not followed by another one."""
        if i is None or i.ended_at is None:
            return False
        c = self.containers[i.name]
        may_restart = not self.pod.stops and (c.policy or self.pod.spec["restartPolicy"]) != "Never"
        if i.by is By.AGENT and i.hooked is not False and may_restart and i.ended_at >= self.life:
            return False  # it was killed to be restarted, as after a failed probe [PL]; the next run of the agent cannot know
        return outcome(self.pod, c, i.code, i.reason) == STAY

    def has_unseen(self, c: Container) -> bool:
        """Whether instances of a container were removed before they counted as running."""
        return any(map(self.is_unseen, self.pod.of(c.name)))

    @property
    def is_unsure(self) -> bool:
        """Whether something ended for good and was removed from outside: it starts again if its end was not seen."""
        lasts = [self.last(name) for name in self.containers]
        return any(
            i is not None and i.taken and outcome(self.pod, self.containers[i.name], i.code, i.reason) == STAY
            for i in lasts
        )

    # The end

    def over(self) -> str:
        """The terminal phase of a pod that starts no container any more [PL]; empty: it goes on."""
        if self.pod.over:
            return self.pod.over
        lasts = [self.last(c.name) for c in self._regular()]
        inits = [self.last(c.name) for c in self.containers.values() if c.is_plain_init]
        if any(i is not None and self._stays(i) and not is_success(i) for i in inits):
            return "Failed"  # [IC]
        # A pod that never restarts anything gets no second sandbox [D, as the reference]
        rests = [c for c in self.containers.values() if not c.is_sidecar and (c.policy not in ("", "Never") or c.rules)]
        is_lost = self.box is not None and self.box.ended_at is not None and self.pod.spec["restartPolicy"] == "Never"
        ends_with_box = is_lost and not rests and any(i.started_at is not None for i in self.pod.instances)
        if all(self._stays(i) for i in lasts) or ends_with_box:
            is_good = all(i is not None and i.ended_at is not None and i.code == 0 for i in lasts)
            return "Succeeded" if is_good else "Failed"
        return ""

    # What is to be started

    def due(self) -> dict[str, Due]:
        """The containers that are to be started, and when. Others wait for one of them, run, or have ended."""
        if self.over() or self.pod.stops:
            return {}
        found: dict[str, Due] = {}
        order = list(self.containers.values())
        heres = (
            [self.here(c.name) for c in order]
            if self.box is not None and self.box.ended_at is None
            else [None] * len(order)
        )
        if any(i is not None and self.is_held_up_by(i) for i in heres):
            return {}
        has_begun = any(i is not None for c, i in zip(order, heres, strict=True) if not c.is_init)
        furthest = max(
            (n for n, (c, i) in enumerate(zip(order, heres, strict=True)) if c.is_init and i is not None), default=-1
        )
        for n, (c, i) in enumerate(zip(order, heres, strict=True)):
            if not c.is_init:
                if (i is None and not self._stays(self.last(c.name))) or (
                    i is not None and i.ended_at is not None and not self._stays(i)
                ):
                    found[c.name] = self._due(c)
            elif c.is_sidecar:
                if i is None or i.ended_at is not None:
                    found[c.name] = self._due(c)
                # [SC] what comes next waits until it has started
                if not has_begun and n >= furthest and (c.name in found or not self._has_started(c, i)):
                    return found
            elif not has_begun and n >= furthest:
                if i is None or (i.ended_at is not None and not is_success(i)):
                    found[c.name] = self._due(c)
                    return found  # [IC] one after the other, each to its success
                if i.ended_at is None:
                    return found
        return found

    def _due(self, c: Container) -> Due:
        """The end of the back-off. The agent's restart forgets the back-off [D, as the reference]."""
        held = held_earliest = 0.0
        if self.resets and not any(i.created_at > self.reset_at for i in self.known) and self.reset_at > self.life:
            trigger = self.resets[-1]  # [RA] all wait with the one that asked for it
            asked = self.containers[trigger.name]
            held, held_earliest = self._delayed(asked, trigger), self._delayed(asked, trigger, counts_killed=False)
        ended = [i for i in self.all_of(c.name) if i.ended_at is not None and i.created_at > self.reset_at]
        if not ended:
            return Due(held_earliest, held)
        end = ended[-1]
        # [PL] A container that a probe kills is restarted at once, or after its back-off [D, as the reference: it depends on
        # what is left of earlier instances]. An end that is not known because the instance is gone does not count,
        # and the back-off of a container begins anew with its size [D, as the reference].
        is_resized = self.pod.resized_at > 0 and c.name == self.pod.spec["containers"][0]["name"]
        earliest = 0.0 if end.taken or is_resized else self._delayed(c, end, counts_killed=False)
        return Due(max(held_earliest, earliest), max(held, self._delayed(c, end)))

    def _delayed(self, c: Container, end: Instance, *, counts_killed: bool = True) -> float:
        delay_s, raised_at = self._hold(c, end, counts_killed)
        ended_at = end.ended_at or 0.0
        is_killed = end.by is By.AGENT and end.hooked is not False and not counts_killed
        return ended_at + (delay_s if delay_s and not is_killed and ended_at - raised_at <= RESET_S else 0.0)

    def _hold(self, c: Container, before: Instance, counts_killed: bool) -> tuple[float, float]:
        """The delay [PL] as the restarts up to this instance have raised it, and when they did."""
        delay_s, raised_at = 0.0, 0.0
        ends = [i for i in self.pod.of(c.name) if i.started_at is not None] if counts_killed else self.all_of(c.name)
        if self.pod.has_past and ends and ends[0].count and ends[0].created_at > self.life:
            delay_s, raised_at = FIRST_S, ends[0].created_at  # it was a restart
        for end, start in pairwise(ends):
            if start.created_at > before.created_at or start.created_at < self.life or end.ended_at is None:
                continue
            if end in self.resets:
                at = end.ended_at
            elif end.created_at > self._reset_before(start):
                at = start.created_at
            else:
                continue
            if not counts_killed and (end.taken or (end.by is By.AGENT and end.hooked is not False)):
                continue
            is_new = not delay_s or end.ended_at - raised_at > RESET_S
            delay_s, raised_at = (FIRST_S if is_new else min(2 * delay_s, CAP_S)), at
        return delay_s, raised_at

    def _reset_before(self, start: Instance) -> float:
        return max((r.ended_at or 0.0 for r in self.resets if (r.ended_at or 0.0) <= start.created_at), default=-1.0)

    # Probes and hooks

    def in_hook(self, i: Instance) -> bool:
        """Whether it runs and its hook has not succeeded: after a failure, it is being stopped."""
        return i.runs and self.containers[i.name].has_hook and not i.hooked

    def is_held_up_by(self, i: Instance) -> bool:
        """Whether the pod worker does nothing else: it waits for a hook [HK], or for the end of a container that it stops [D, as the
        reference]."""
        if i.runs and i.stop_at is not None and i.stop_at >= self.life:
            return self.now <= i.stop_at + float(self.pod.spec["terminationGracePeriodSeconds"]) + TOGETHER_S
        return self.in_hook(i)

    def _result(self, i: Instance, kind: str, initial: bool) -> bool:
        """[PL] The result of a probe: success after one, failure after as many in a row as the threshold."""
        result, failures = initial, 0
        for probed in i.probed:
            if probed.kind == kind:
                failures = 0 if probed.is_ok else failures + 1
                result = True if probed.is_ok else (result and failures < self.containers[i.name].probes[kind])
        return result

    def _was_started(self, c: Container, i: Instance) -> bool:
        """Whether it counted as started at some time."""
        return (not c.has_hook or bool(i.hooked)) and (
            "startup" not in c.probes or self._result(i, "startup", initial=False)
        )

    def _has_started(self, c: Container, i: Instance | None) -> bool:
        return i is not None and i.runs and self._was_started(c, i)

    # The status

    def state(self, c: Container) -> State:
        """The container's status."""
        instances = self.all_of(c.name)
        if instances and instances[-1].runs and c.has_hook and not instances[-1].hooked:
            instances = instances[:-1]  # [HK] it does not count as running before its hook has succeeded
        exits = [self._exit(i) for i in instances]
        nothing = "PodInitializing" if self.pod.spec.get("initContainers") else "ContainerCreating"
        if not instances:
            return State("waiting", nothing)
        newest, before = instances[-1], exits[-2] if len(instances) > 1 else None
        earlier = [i for i in self.pod.of(c.name) if i.created_at < newest.created_at]
        count = sum((i.tried or i.started_at is not None) and not self.is_useless(i) for i in earlier)
        if newest.runs:
            started = self._has_started(c, newest)
            ready = started and ("readiness" not in c.probes or self._result(newest, "readiness", initial=False))
            return State("running", "", None, before, count, started, ready and not c.is_plain_init)
        if newest.created_at <= self.reset_at:
            is_trigger = newest in self.resets
            waits = self._waits(c) and is_trigger
            return State(
                "waiting", "CrashLoopBackOff" if waits else "RestartingAllContainers", None, exits[-1], count + 1
            )
        if self._waits(c) and not (c.is_init and newest.code == 0 and newest.reason != "OOMKilled"):
            return State("waiting", "CrashLoopBackOff", None, exits[-1], count)
        return State("terminated", "", exits[-1], before, count, ready=c.is_plain_init and is_success(newest))

    def _waits(self, c: Container) -> bool:
        """Whether it is in its back-off."""
        due = self.due().get(c.name)
        return due is not None and due.earliest > self.now

    def may_wait(self, c: Container) -> bool:
        """Whether it may be in its back-off, also while something else holds up what comes next."""
        last = self.last(c.name)
        has_ended = last is not None and last.ended_at is not None and not self._stays(last)
        is_held_up = any(map(self.is_held_up_by, self.known))
        return has_ended and not self.over() and (is_held_up or self._due(c).latest > self.now)

    def _exit(self, i: Instance) -> Exit | None:
        if i.ended_at is None:
            return None
        is_reset = any(i.created_at <= self._reset_at(r) and not self._ended_before(i, r) for r in self.resets)
        return BY_RULE if is_reset else Exit(i.code, i.reason)

    def _ended_before(self, i: Instance, reset: Instance) -> bool:
        """Whether the instance had a successor before all containers were restarted."""
        later = [o for o in self.all_of(i.name) if o.created_at > i.created_at]
        return bool(later) and later[0].created_at < (reset.ended_at or 0.0)

    def is_initialized(self) -> bool:
        """[PL] Whether the condition Initialized must hold: regular containers were started, or all init containers are done."""
        inits = [(c, self.last(c.name)) for c in self.containers.values() if c.is_init]
        return any(self.all_of(c.name) for c in self._regular()) or all(
            self._has_started(c, i) if c.is_sidecar else i is not None and is_success(i) for c, i in inits
        )

    def was_initialized(self) -> bool:
        """Whether it may hold: each init container has been done at some time, and what was initialized stays so."""
        inits = [c for c in self.containers.values() if c.is_init]
        return any(self.all_of(c.name) for c in self._regular()) or all(
            any(self._was_started(c, i) if c.is_sidecar else is_success(i) for i in self.all_of(c.name)) for c in inits
        )

    def phase(self) -> str:
        """[PL] Pending until all containers were created, then Running until the end."""
        if over := self.over():
            return over
        states = {name: self.state(c) for name, c in self.containers.items()}
        for c in self.containers.values():
            i, s = self.here(c.name), states[c.name]
            never = not self.all_of(c.name) or (s.kind == "waiting" and s.last is None)
            if never or (c.is_plain_init and i is not None and i.runs):
                return "Pending"
            begun = any(self.here(r.name) is not None for r in self._regular())
            if c.is_sidecar and s.kind == "running" and not s.started and not begun:
                return "Pending"
        return "Running"


def is_success(i: Instance) -> bool:
    """Whether an init container has done its work."""
    return i.ended_at is not None and i.code == 0 and i.reason != "OOMKilled"


def _removed_with(i: Instance, reset: Instance) -> bool:
    """Whether an instance was still being started when all containers were restarted, and removed with them."""
    if i.by is not By.AGENT or i.removed_at is None or reset.removed_at is None:
        return False
    return i.removed_at <= reset.removed_at and i.created_at > (reset.ended_at or 0.0)


def as_of(pod: PodTruth, at: float, known: str = "") -> PodTruth:
    """The pod as it was at a moment, but with all that is known of one container."""
    boxes = [
        replace(b, ended_at=b.ended_at if b.ended_at is not None and b.ended_at <= at else None)
        for b in pod.boxes
        if b.created_at <= at
    ]
    instances = [
        replace(
            i,
            started_at=i.started_at if i.started_at is not None and i.started_at <= at else None,
            ended_at=i.ended_at if i.ended_at is not None and i.ended_at <= at else None,
            hooked=i.hooked if i.hooked_at is not None and i.hooked_at <= at else None,
            stop_at=i.stop_at if i.stop_at is not None and i.stop_at <= at else None,
            probed=[p for p in i.probed if p.at <= at],
        )
        if i.name != known
        else i
        for i in pod.instances
        if i.created_at <= at or i.name == known
    ]
    return replace(pod, boxes=boxes, instances=instances)
