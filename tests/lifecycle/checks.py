"""Compares what the agent reports and does with the model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

from lifecycle.model import ALL, BY_RULE, Exit, Model, State, as_of, outcome
from lifecycle.shapes import Container, containers_of
from lifecycle.truth import By, Instance, Json, PodTruth
from lifecycle.world import Seen, World, in_short

from pykubelet.base.api.codec import from_object, to_object
from pykubelet.base.api.core import ContainerStatus, PodStatus

#: What the agent knows is at most this old: events and statuses of the runtime, and its own calls, take their time.
STALE_S = (0.0, 0.15, 0.3, 0.6, 1.0, 1.6)
#: An end of which the agent learns from the absence of the instance alone.
UNKNOWN_END = Exit(137, "ContainerStatusUnknown")
#: What an attempt to start a container shows that failed while the runtime was away.
START_ERRORS = ("CreateContainerError", "ImageInspectError", "RunContainerError")
TERMINAL = ("Succeeded", "Failed")


class Checks:
    """Adds to `world.problems`."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._looked: dict[str, int] = {}
        self._counts: dict[tuple[str, float, str], int] = {}
        world.runtime.on_create = self.on_create
        world.runtime.on_stop = self.on_stop

    def _add(self, pod: PodTruth, text: str) -> None:
        self._world.problems.append(f"{self._world.now - 1000:.3f} {pod.name}: {text}")
        self._world.say(f"PROBLEM {pod.name}: {text}")

    def _models(self, pod: PodTruth, name: str) -> Iterator[Model]:
        """The pod as the agent may see it now. It may see the end of this container before that of others."""
        now = self._world.now
        for stale in STALE_S:
            for known in ("", name):
                yield Model(as_of(pod, now - stale, known), self._world.truth.lives, now)

    # What the agent does

    def on_create(self, pod: PodTruth, name: str) -> None:
        """A container is about to be created: it is one that is due."""
        now = self._world.now
        self._world.say(f"{pod.name}: {name} is created")
        if pod.stops or any(model.is_unsure or is_due(model, name) for model in self._models(pod, name)):
            return
        self._add(pod, f"{name} is started, which is not due: {Model(pod, self._world.truth.lives, now).due()}")

    def on_stop(self, pod: PodTruth, instance: Instance) -> None:
        """A running container is about to be stopped: there is a reason."""
        self._world.say(f"{pod.name}: {instance.name} is stopped")
        if pod.stops or pod.over or Model(pod, self._world.truth.lives, self._world.now).is_unsure:
            return
        if any(self._may_stop(model, instance) for model in self._models(pod, instance.name)):
            return
        self._add(pod, f"{instance.name} is stopped without a reason")

    def _may_stop(self, model: Model, instance: Instance) -> bool:
        c = model.containers[instance.name]
        now_of = next((i for i in model.pod.instances if i.id == instance.id), None)
        if model.over() or model.box is None or model.box.ended_at is not None or instance.box != model.box.id:
            return True
        if model.resets and instance.created_at < model.reset_at:
            return True
        if now_of is None or now_of.hooked is False:
            return True
        if any(
            i.ended_at is not None and outcome(model.pod, model.containers[i.name], i.code, i.reason) == ALL
            for i in model.known
        ):
            return True  # [RA] it waits for a hook, which a restart of the runtime may have cut off
        failing = [k for k in ("liveness", "startup") if k in c.probes]
        return any(not model._result(now_of, kind, initial=True) for kind in failing)

    # What it reports

    def check(self) -> None:
        """Everything at rest is as the model has it."""
        world = self._world
        for name in world.specs:
            pod = world.wanted[name]
            if pod is None:
                world.problems.append(f"{world.now - 1000:.3f} {name} was not started")
                continue
            model = Model(pod, world.truth.lives, world.now)
            if model.is_unsure:
                self._looked[pod.uid] = len(world.seen.get(pod.uid, []))
                continue
            if not pod.over and (over := model.over()):
                pod.over, pod.over_at = over, world.now
            for late, (_, at) in model.due().items():
                if at < world.now - 1.0 and not (pod.over or pod.stops):
                    self._add(pod, f"{late} does not run, though it is due since {at - 1000:.3f}")
            status = world.status(pod.uid)
            if status is None:
                self._add(pod, "has no status")
                continue
            found = list(differences(pod, model, status))
            if found and pod.forgotten_at:
                lost = pod.without_lost()
                found = list(differences(lost, Model(lost, world.truth.lives, world.now), status))
            for text in found:
                self._add(pod, text)
            self._check_seen(pod, model)

    def check_api(self) -> list[str]:
        """How the API server's statuses differ from those of the agent."""
        found = []
        for name, (_, is_static) in self._world.specs.items():
            pod = self._world.wanted[name]
            if is_static or pod is None:
                continue
            status, there = self._world.status(pod.uid), self._world.of_api(pod.uid)
            if status is None or there is None:
                found.append(f"{name}: no status")
                continue
            ours, theirs = _as_read(to_object(status)), _as_read(there["status"])
            if _is_refused(pod, ours, theirs):
                continue
            for field in ("phase", "containerStatuses", "initContainerStatuses", "conditions"):
                if _plain(ours.get(field)) != _plain(theirs.get(field)):
                    found.append(f"{name}: {field} at the API server: {theirs.get(field)}, here: {ours.get(field)}")
        return found

    def _check_seen(self, pod: PodTruth, model: Model) -> None:
        """The statuses since the last check lead from that to this one."""
        seen = self._world.seen.get(pod.uid, [])
        if pod.has_past and not pod.instances:
            return  # it is still its earlier life that ends
        began = pod.instances[0].created_at if pod.has_past else 0.0
        for entry in seen[self._looked.get(pod.uid, 0) :]:
            if entry.at >= began:
                self._check_one_seen(pod, model, entry)
        self._looked[pod.uid] = len(seen)

    def _check_one_seen(self, pod: PodTruth, model: Model, seen: Seen) -> None:
        at, status = seen.at - 1000, seen.status
        if seen.is_remembered:  # after a power cut, not always the newest one
            if all(
                in_short(status) != in_short(other.status) for other in self._world.seen[pod.uid] if other.at < seen.at
            ):
                self._add(pod, f"it had a status at {at:.3f} that it never had before: {in_short(status)}")
            return
        if status.phase in TERMINAL and not pod.over and not pod.stops:
            self._add(pod, f"its phase was {status.phase} at {at:.3f}")
        for s in (*status.initContainerStatuses, *status.containerStatuses):
            c = model.containers[s.name]
            instances = pod.of(s.name)
            if pod.has_past and not instances:
                continue  # what the runtime still has of the earlier containers is shown
            most = max(model.state(c).count, len(instances) - 1) + base_of(pod, s.name)
            most += any(i.taken for i in instances[-1:])  # it has vanished
            if s.restartCount > most and not pod.counts_lost:
                self._add(pod, f"{s.name} had restartCount {s.restartCount} at {at:.3f}, of {most}")
            key = (pod.uid, max(pod.wanted_at, pod.forgotten_at if seen.at >= pod.forgotten_at else 0.0), s.name)
            before = self._counts.get(key, 0)
            if s.restartCount < before:
                self._add(pod, f"{s.name} had restartCount {s.restartCount} at {at:.3f}, after {before}")
            self._counts[key] = s.restartCount
            known = {Exit(i.code, i.reason) for i in pod.of(s.name) if i.ended_at is not None} | {UNKNOWN_END, BY_RULE}
            for state in (s.state, s.lastState):
                end = state.terminated if state is not None else None
                is_missing = (
                    c.is_plain_init and end is not None and end.exitCode == 0
                )  # what an init container without an instance shows
                if end is not None and Exit(end.exitCode, end.reason) not in known and not (pod.has_past or is_missing):
                    self._add(pod, f"{s.name} had an end that never was at {at:.3f}: {end.exitCode} {end.reason}")


def is_due(model: Model, name: str) -> bool:
    """Whether a container is to be started now."""
    due = model.due().get(name)
    return due is not None and due.earliest <= model.now + 0.1


def _as_read(status: Json) -> Json:
    """A status without what an API server adds to it."""
    found: Json = to_object(from_object(PodStatus, status))
    for condition in found.get("conditions", ()):
        if condition.get("lastProbeTime", "") is None:
            del condition["lastProbeTime"]
    for field in ("containerStatuses", "initContainerStatuses"):
        for container in found.get(field, ()):
            if not container.get("lastState"):
                container.pop("lastState", None)
    return found


def _is_refused(pod: PodTruth, ours: Json, theirs: Json) -> bool:
    """Whether the API server refuses a status: an init container that has succeeded runs again in a new sandbox, in a pod whose
    policy is not Always. It is up to date again when that has ended."""
    plain = {c.name for c in containers_of(pod).values() if c.is_plain_init}
    succeeded, now = (
        {s["name"] for s in of.get("initContainerStatuses", ()) if has_succeeded(s)} for of in (theirs, ours)
    )
    return pod.spec["restartPolicy"] != "Always" and bool(plain & (succeeded - now))


def has_succeeded(status: Json) -> bool:
    return bool(status["state"].get("terminated", {}).get("exitCode") == 0)


def _plain(value: object) -> object:
    return value or None


def base_of(pod: PodTruth, name: str) -> int:
    """The restarts from before, of a pod that was desired before under this UID."""
    first = next(iter(pod.of(name)), None)
    return first.count if first is not None and pod.has_past else 0


def differences(pod: PodTruth, model: Model, status: PodStatus) -> Iterator[str]:
    """How a status differs from the model."""
    has_unseen = any(map(model.has_unseen, model.containers.values()))
    if pod.has_past and not all(_is_seen(model, c) for c in model.containers.values()):
        has_unseen = True  # what the runtime still has of the earlier containers is shown
    has_unseen = has_unseen or any(_never_hooked(pod, c) for c in model.containers.values())
    if status.phase != model.phase() and not has_unseen:
        yield f"phase {status.phase}, not {model.phase()}"
    found = {s.name: s for s in (*status.initContainerStatuses, *status.containerStatuses)}
    for name, c in containers_of(pod).items():
        yield from _differences_of(pod, model, c, found[name])
    yield from _other_size(model, found)
    conditions = {c.type: c.status == "True" for c in status.conditions}
    counted = [c for c in model.containers.values() if not c.is_plain_init]
    is_ready = not pod.over and all(model.state(c).ready for c in counted)
    for kind in ("Ready", "ContainersReady"):
        if conditions.get(kind) != is_ready:
            yield f"{kind} {conditions.get(kind)}"
    if not model.was_initialized() and not pod.has_past and conditions.get("Initialized"):
        yield "Initialized too early"
    if model.is_initialized() and not conditions.get("Initialized"):
        yield "not Initialized"


def _other_size(model: Model, found: dict[str, ContainerStatus]) -> Iterator[str]:
    """A container that runs has the CPU limit of the spec (KEP-1287). A hook holds up a change."""
    if any(map(model.in_hook, model.known)):
        return
    for manifest in model.pod.spec["containers"]:
        wanted = manifest.get("resources", {}).get("limits", {}).get("cpu")
        newest, resources = model.here(manifest["name"]), found[manifest["name"]].resources
        if (
            wanted
            and newest is not None
            and newest.runs
            and (resources is None or resources.limits.get("cpu") != wanted)
        ):
            yield f"{manifest['name']} has {resources}, not the CPU limit {wanted}"


def _differences_of(pod: PodTruth, model: Model, c: Container, s: ContainerStatus) -> Iterator[str]:
    expected = model.state(c)
    shown = shown_state(s)
    newest = pod.of(c.name)[-1] if pod.of(c.name) else None
    if pod.has_past and not _is_seen(model, c):
        return  # what the runtime still has of the earlier containers is shown
    count = expected.count + base_of(pod, c.name)
    if pod.over:
        last = model.last(c.name)
        is_own = last is not None and last.ended_at is not None and last.by is not By.AGENT
        useless_ends = [i.code for i in pod.of(c.name) if model.is_useless(i)]
        if (
            last is not None
            and is_own
            and (shown.exit is None or shown.exit.code not in (last.code, 137, *useless_ends))
        ):
            yield f"{c.name} ended with {last.code}, and is shown as {shown}"
        return
    if shown.reason in START_ERRORS and shown.kind == expected.kind and any(map(model.in_hook, model.known)):
        shown = replace(shown, reason=expected.reason)  # it is tried again after the hook
    if expected.reason == "RestartingAllContainers" and shown.kind == "waiting":
        shown = replace(shown, reason=expected.reason)  # once the first one has started, the usual reason
    last = next((i for i in reversed(model.all_of(c.name)) if not _is_hidden(c, i)), None)
    # a restart that was shown or not seen is not taken back
    useless = sum(1 + i.taken for i in pod.of(c.name) if model.is_useless(i))
    useless += sum(map(model.is_unseen, pod.of(c.name)))
    # an instance that never ran, because its start was cut off, is shown as waiting, with its restart count
    useless += sum(
        i.started_at is None and (i.tried is None or last is None or i.created_at > last.created_at)
        for i in pod.of(c.name)
    )
    # a log counts as a restart, even if nothing else of its instance is left
    useless += sum(i.name == c.name for i in pod.lost)
    # the end of an instance may be shown, or not, if it came before its hook had ended
    is_vague = model.has_unseen(c) or _never_hooked(pod, c)
    ends = [Exit(i.code, i.reason) for i in pod.of(c.name) if i.ended_at is not None]
    if is_vague and (shown.kind == "waiting" or shown.exit in ends) and shown.count <= count + useless:
        return
    is_gone = any(i.taken for i in (last, newest) if i is not None and not i.runs)
    is_gone = is_gone and expected.kind == "terminated" and shown.kind == "waiting"
    if is_gone and shown.last in (expected.exit, UNKNOWN_END) and count <= shown.count <= count + max(1, useless):
        return  # it has vanished
    # as before its start, or with the start that was shown although it does not count
    is_before = newest is not None and (_is_hidden(c, newest) or model.is_useless(newest))
    if is_before and shown.kind == "waiting":
        if expected.kind == "waiting":
            shown = replace(shown, reason=expected.reason)
        elif shown.last == expected.exit:
            shown = replace(shown, kind=expected.kind, reason="", exit=shown.last, last=expected.last)
    is_held_up = shown.reason in START_ERRORS and any(map(model.in_hook, model.known))
    has_failed_hook = last is not None and not last.hooked and c.has_hook and shown.reason == "PostStartHookError"
    if expected.kind == "terminated" and (
        is_held_up or has_failed_hook or (shown.reason == "CrashLoopBackOff" and model.may_wait(c))
    ):
        shown = replace(shown, kind="terminated", reason="", exit=shown.last, last=expected.last)
    if (shown.kind, shown.reason, shown.started, shown.ready) != (
        expected.kind,
        expected.reason,
        expected.started,
        expected.ready,
    ):
        yield f"{c.name} is {shown}, not {expected}"
    if not (count <= shown.count and (shown.count <= count + useless or pod.counts_lost)):
        yield f"{c.name} has restartCount {shown.count}, not {count}"
    if not _same_end(shown.exit, expected.exit):
        yield f"{c.name} ended with {shown.exit}, not {expected.exit}"
    is_lost = any(i.taken for i in pod.of(c.name)[:-1])
    # a rule restarted all while the sandbox was ending
    is_both = shown.last == BY_RULE and any(
        box.by is By.OUTSIDE and outcome(pod, model.containers[i.name], i.code, i.reason) == ALL
        for i in model.known
        for box in pod.boxes
        if i.ended_at is not None and box.id == i.box
    )
    is_unknown = shown.last is None and (shown.kind == "terminated" or is_lost)
    is_unknown = is_unknown or is_both or model.has_unseen(c) or (is_lost and shown.last == UNKNOWN_END)
    # a run of the agent that has not seen the end of the sandbox cannot know that an instance was started in it while it ended
    is_unknown |= shown.last in [
        Exit(i.code, i.reason) for i in pod.of(c.name) if model.is_useless(i) and i.created_at < model.life
    ]
    # a start that failed because its sandbox or the agent ended may come and go between two looks at the runtime
    is_unknown |= Exit(128, "StartError") in (shown.last, expected.last) and any(i.name == c.name for i in pod.lost)
    if not _same_end(shown.last, expected.last) and not is_unknown and not (pod.has_past and expected.last is None):
        yield f"{c.name} has the last state {shown.last}, not {expected.last}"


def _never_hooked(pod: PodTruth, c: Container) -> bool:
    """Whether it has instances, and none of them counted as running, because no hook has succeeded [HK]."""
    instances = pod.of(c.name)
    return c.has_hook and bool(instances) and not any(i.hooked for i in instances)


def _is_seen(model: Model, c: Container) -> bool:
    """Whether it has run since its pod began anew."""
    return any(not _is_hidden(c, i) for i in model.all_of(c.name))


def _is_hidden(c: Container, newest: Instance) -> bool:
    """Whether its instance does not count as running, because its hook has not succeeded, or it was only created."""
    return (newest.runs and c.has_hook and not newest.hooked) or newest.started_at is None


def _same_end(shown: Exit | None, expected: Exit | None) -> bool:
    return shown == expected or (shown == UNKNOWN_END and expected is not None and expected.code in (137, 255))


def shown_state(s: ContainerStatus) -> State:
    """A container's status in the words of the model."""
    state, last = s.state, s.lastState.terminated if s.lastState is not None else None
    before = Exit(last.exitCode, last.reason) if last is not None else None
    assert state is not None
    if state.running is not None:
        return State("running", "", None, before, s.restartCount, bool(s.started), s.ready)
    if state.terminated is not None:
        end = Exit(state.terminated.exitCode, state.terminated.reason)
        return State("terminated", "", end, before, s.restartCount, bool(s.started), s.ready)
    reason = state.waiting.reason if state.waiting is not None else ""
    return State("waiting", reason, None, before, s.restartCount, bool(s.started), s.ready)


def account(pod: PodTruth) -> str:
    """What happened to a pod, for a report."""
    lines = [f"{pod.name} {pod.uid}: {json.dumps(pod.spec)}"]
    lines += [f"  sandbox {b.attempt}: {_from_to(b.created_at, b.ended_at)} {b.by}" for b in pod.boxes]
    for i in pod.instances:
        end = f" {i.code} {i.reason} {i.by}" if i.ended_at is not None else ""
        hook = f" hook {i.hooked} from {', '.join(f'{at - 1000:.3f}' for at in i.hooks)}" if i.hooks else ""
        box = next(b.attempt for b in pod.boxes if b.id == i.box)
        gone = f" removed {i.removed_at - 1000:.3f}" if i.removed_at is not None else ""
        lines.append(
            f"  {i.name} #{i.attempt} ({i.count}) in {box}: {_from_to(i.created_at, i.ended_at)}{end}{hook}{gone}"
        )
    return "\n".join(lines)


def _from_to(begin: float, end: float | None) -> str:
    return f"{begin - 1000:.3f} to {end - 1000:.3f}" if end is not None else f"{begin - 1000:.3f} on"
