"""The points as the components of the agent ask them: each translates its arguments, asks the extensions, and takes their answer.

To add a point: a method of `pykubelet.extension.Extension`, a function and an entry of `CHECKS` here, and its field of `Points`
(`app/parts.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

from pykubelet.act.pods.backoff import RestartVerdict
from pykubelet.act.pods.restarts import RestartFacts
from pykubelet.app.extensions.cgroup_files import EVERY_FILE, CgroupKernel, defaults, take_values
from pykubelet.app.extensions.guard import Guard, WrongAnswer
from pykubelet.app.extensions.load import PLACE, PLACE_MEMORY, LoadedExtension
from pykubelet.app.extensions.views import (
    NodeNow,
    NodeParts,
    NodeViews,
    PodViews,
    cpu_views,
    demand_views,
    image_view,
    memory_views,
    node_parts,
    node_view,
    pull_view,
    restart_views,
    usage_view,
)
from pykubelet.app.parts import Points
from pykubelet.base.api.core import Pod
from pykubelet.base.kit.cpuset import format_cpuset
from pykubelet.base.kit.values import Value
from pykubelet.base.model.roster import Rejection
from pykubelet.base.model.waits import Owner, Wait
from pykubelet.desired.roster.model import AdmissionFacts, AdmissionHold, CountedPods
from pykubelet.extension import (
    Container,
    CpuMachine,
    CpuRequest,
    EvictionCandidate,
    Extension,
    Hold,
    MachineCpu,
    MemoryRequest,
    Node,
    PullLater,
    PullNever,
    PullNow,
    Reject,
    RestartAfter,
    RestartNever,
)
from pykubelet.observe.eviction.model import Candidate
from pykubelet.provide.images.model import (
    PullDelay,
    PullFacts,
    PullPermit,
    PullRefusal,
    PullVerdict,
    RankingFacts,
    RemovalCandidate,
)
from pykubelet.provide.placement.cpu_policy import CpuDemand, StaticPolicy
from pykubelet.provide.placement.memory_hints import MemoryDemand

MAX_TEXT = 1024
MAX_HOLD_S = 3600.0
#: The longest delay of a restart, which is that of the crash back-off.
MAX_RESTART_S = 300.0
#: Of a pull.
MAX_PRIORITY = 1_000_000
_REASON = re.compile(r"[A-Z][A-Za-z0-9]{0,127}")


class AskedExtension(Value):
    """An extension and the guard through which it is asked. `annotation`: as of its class."""

    extension: Extension
    guard: Guard
    annotation: str = ""


class Asker:
    """Asks the extensions at each point, in the order in which they were given; the first answer that is not None counts.

    `read_kernel`: which cgroup files the machine has; None: none can be changed. `node`: None: the view of the node is empty, except at
    an admission.
    """

    def __init__(
        self,
        loaded: Sequence[tuple[LoadedExtension, Guard]],
        read_kernel: Callable[[], CgroupKernel] | None = None,
        node: NodeNow | None = None,
    ) -> None:
        self._asked = {
            point: [
                AskedExtension(item.extension, guard, item.annotation) for item, guard in loaded if point in item.points
            ]
            for point in {point for item, _ in loaded for point in item.points}
        }
        self._views = PodViews()
        self._node = NodeViews(node, self._views) if node is not None else None
        self._node_parts: NodeParts | None = None
        self._cpus: tuple[MachineCpu, ...] | None = None
        self._read_kernel = read_kernel
        self._kernel: CgroupKernel | None = None

    def points(self) -> Points:
        """The points at which at least one extension takes part."""
        have = self._asked
        return Points(
            admit=self._admit if "admit" in have else None,
            rank_for_eviction=self._rank_for_eviction if "rank_for_eviction" in have else None,
            cgroup=self._cgroup if "cgroup" in have else None,
            place={asked.guard.name: partial(self._place, asked) for asked in have.get(PLACE, ())},
            place_memory={asked.guard.name: partial(self._place_memory, asked) for asked in have.get(PLACE_MEMORY, ())},
            rank_images_for_removal=self._rank_images if "rank_images_for_removal" in have else None,
            pull=self._pull if "pull" in have else None,
            restart=self._restart if "restart" in have else None,
        )

    def _about(self, point: str, pod: Pod) -> Sequence[AskedExtension]:
        """The extensions that are asked about a pod."""
        annotations, found = pod.metadata.annotations, self._asked[point]
        return [asked for asked in found if not asked.annotation or concerns(asked.annotation, annotations)]

    @staticmethod
    def _first(
        extensions: Sequence[AskedExtension], point: str, args: tuple[Any, ...], take: Callable[[str, Any], Any]
    ) -> Any:
        """The first answer that is not None. `take`: gets the extension's name and its answer."""
        with extensions[0].guard.limits:  # all have the same
            for asked in extensions:
                function = getattr(asked.extension, point)
                answer = asked.guard.ask(point, function, args, partial(take, asked.guard.name))
                if answer is not None:
                    return answer
        return None

    def _admit(
        self, pod: Pod, facts: AdmissionFacts, counted: CountedPods, wall: float
    ) -> Rejection | AdmissionHold | None:
        extensions = self._about("admit", pod)
        if not extensions:
            return None
        parts = self._node_parts = node_parts(facts.node, self._node_parts)
        args = self._views.of(pod), node_view(facts, counted, wall, parts)
        answer: Rejection | AdmissionHold | None = self._first(extensions, "admit", args, take_admission)
        return answer

    def _rank_for_eviction(self, candidates: Sequence[Candidate], signal: str) -> Sequence[Candidate] | None:
        views = tuple(EvictionCandidate(self._views.of(c.pod), usage_view(c.use)) for c in candidates)
        point, take = "rank_for_eviction", partial(take_order, views)
        order: Sequence[int] | None = self._first(self._asked[point], point, (views, signal), take)
        return None if order is None else [candidates[index] for index in order]

    def _cgroup(self, pod: Pod, name: str, values: Mapping[str, str], is_new: bool) -> Mapping[str, str]:
        if self._kernel is None or not self._kernel.files:
            self._kernel = self._read_kernel() if self._read_kernel is not None else CgroupKernel()
        extensions = self._about("cgroup", pod)
        changed: Mapping[str, str] | None = None
        if extensions:
            view, given = self._views.of(pod), MappingProxyType(values)
            container = next((container for container in view.containers if container.name == name), None)
            take = partial(take_values, self._kernel, name, values)
            changed = self._first(extensions, "cgroup", (view, container, given), take)
        if is_new:
            return changed or {}
        return {**defaults(self._kernel, name, values), **(changed or {})}

    def _place(self, asked: AskedExtension, policy: StaticPolicy, demand: CpuDemand) -> frozenset[int] | None:
        if self._cpus is None:
            self._cpus = cpu_views(policy.topology)
        views = demand_views(self._views.of(demand.pod), self._cpus, policy, demand)
        function: Callable[..., object] = asked.extension.place
        return asked.guard.ask(PLACE, function, views, partial(take_cpus, *views))

    def _place_memory(self, asked: AskedExtension, demand: MemoryDemand) -> frozenset[int] | None:
        views = memory_views(self._views.of(demand.pod), demand)
        function: Callable[..., object] = asked.extension.place_memory
        return asked.guard.ask(PLACE_MEMORY, function, views, partial(take_nodes, views[0]))

    def _rank_images(
        self, candidates: Sequence[RemovalCandidate], facts: RankingFacts
    ) -> Sequence[RemovalCandidate] | None:
        views = tuple(image_view(candidate, facts) for candidate in candidates)
        point, take = "rank_images_for_removal", partial(take_order, views)
        order: Sequence[int] | None = self._first(self._asked[point], point, (views,), take)
        return None if order is None else [candidates[index] for index in order]

    def _pull(self, facts: PullFacts) -> PullVerdict | None:
        extensions = self._about("pull", facts.pod)
        if not extensions:
            return None
        node = self._node.now() if self._node is not None else Node("")
        args = pull_view(facts, self._views), node
        answer: PullVerdict | None = self._first(extensions, "pull", args, take_pull)
        return answer

    def _restart(self, facts: RestartFacts) -> RestartVerdict | None:
        extensions = self._about("restart", facts.pod)
        if not extensions:
            return None
        args = restart_views(facts, self._views)
        answer: RestartVerdict | None
        answer = self._first(extensions, "restart", args, partial(take_restart, args[0]))
        return answer


def concerns(annotation: str, annotations: Mapping[str, str]) -> bool:
    """Whether an extension with this `annotation` is asked about a pod with these."""
    if annotation.endswith("/"):
        return any(key.startswith(annotation) for key in annotations)
    return annotation in annotations


def take_admission(name: str, answer: object) -> Rejection | AdmissionHold:
    """The answer of `admit` as the roster takes it. Raises WrongAnswer."""
    if type(answer) is Reject:
        if not (isinstance(answer.reason, str) and _REASON.fullmatch(answer.reason)):
            raise WrongAnswer(f"`reason` must be one word in CamelCase: it is {answer.reason!r}")
        message = _text("message", answer.message)
        return Rejection(answer.reason, f"{message} (extension {name})")
    if type(answer) is Hold:
        again_s = _number("again_s", answer.again_s, 1, MAX_HOLD_S)
        condition = _text("condition", answer.condition) or "condition"
        detail = f"{_text('message', answer.message)} (extension {name})".lstrip()
        wait = Wait(condition, Owner.EXTENSION, 0.0, name, "", detail, "ask the extension again")
        return AdmissionHold(wait, again_s)
    raise WrongAnswer(f"the answer must be Reject, Hold or None: it is {type(answer).__name__}")


def take_order(views: Sequence[object], name: str, answer: object) -> Sequence[int]:  # noqa: ARG001 - as all that take
    """The places of the answer's items among the views. Raises WrongAnswer unless each view is in it exactly once."""
    if not isinstance(answer, (list, tuple)) or len(answer) != len(views):
        raise WrongAnswer(f"the answer must be a list of the same {len(views)} items")
    place = {id(view): index for index, view in enumerate(views)}
    order = [index for item in answer if (index := place.pop(id(item), None)) is not None]
    if len(order) != len(views):
        raise WrongAnswer("the answer must have each item exactly once")
    return order


def take_cpus(request: CpuRequest, machine: CpuMachine, answer: object) -> frozenset[int]:
    """The CPUs of the answer. Raises WrongAnswer unless they are what the container is to get."""
    if type(answer) not in (frozenset, set) or not all(type(cpu) is int for cpu in answer):  # type: ignore[attr-defined]
        raise WrongAnswer("the answer must be a frozenset of CPU ids")
    cpus: frozenset[int] = frozenset(answer)  # type: ignore[call-overload]
    if len(cpus) != request.cpus:
        raise WrongAnswer(f"the answer must have {request.cpus} CPUs: it has {len(cpus)}")
    if not cpus <= machine.free:
        raise WrongAnswer(f"these CPUs are not free: {format_cpuset(cpus - machine.free)}")
    least = min(request.cpus, len(request.near))
    if len(cpus & request.near) < least:
        raise WrongAnswer(f"{least} of the CPUs must be near ones of the request ({format_cpuset(request.near)})")
    cores = {cpu.core for cpu in machine.cpus if cpu.id in cpus}
    if request.whole_cores and {cpu.id for cpu in machine.cpus if cpu.core in cores} != cpus:
        raise WrongAnswer("with full-pcpus-only, the answer must have all threads of each core")
    return cpus


def take_nodes(request: MemoryRequest, answer: object) -> frozenset[int]:
    """The NUMA nodes of the answer. Raises WrongAnswer unless they are one of the choices."""
    if type(answer) not in (frozenset, set) or not all(type(node) is int for node in answer):  # type: ignore[attr-defined]
        raise WrongAnswer("the answer must be a frozenset of ids of NUMA nodes")
    nodes: frozenset[int] = frozenset(answer)  # type: ignore[call-overload]
    if nodes not in (choice.numa_nodes for choice in request.choices):
        raise WrongAnswer(f"NUMA nodes {format_cpuset(nodes) or '(none)'} are none of the request's choices")
    return nodes


def take_pull(name: str, answer: object) -> PullVerdict:
    """The answer of `pull` as the image manager takes it. Raises WrongAnswer."""
    if type(answer) is PullNow:
        priority = answer.priority
        if type(priority) is not int or abs(priority) > MAX_PRIORITY:
            raise WrongAnswer(f"`priority` must be an integer of at most {MAX_PRIORITY}: it is {priority!r}")
        return PullPermit(priority)
    if type(answer) is PullLater:
        again_s = _number("again_s", answer.again_s, 1, MAX_HOLD_S)
        return PullDelay(name, _text("message", answer.message), again_s)
    if type(answer) is PullNever:
        return PullRefusal(name, _text("message", answer.message))
    raise WrongAnswer(f"the answer must be PullNow, PullLater, PullNever or None: it is {type(answer).__name__}")


def take_restart(container: Container, name: str, answer: object) -> RestartVerdict:
    """The answer of `restart` as the pod worker takes it. Raises WrongAnswer."""
    if type(answer) is RestartAfter:
        return RestartVerdict(name, _number("delay_s", answer.delay_s, 0, MAX_RESTART_S))
    if type(answer) is RestartNever:
        if container.kind == "sidecar":
            raise WrongAnswer(f"{container.name} is a sidecar: it is always restarted")
        return RestartVerdict(name, None, _text("message", answer.message))
    raise WrongAnswer(f"the answer must be RestartAfter, RestartNever or None: it is {type(answer).__name__}")


def _number(field: str, value: object, least: float, most: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        raise WrongAnswer(f"`{field}` must be from {least:g} to {most:g}: it is {value!r}")
    return float(value)


#: What checks the answer of each point: it gets the point's arguments and the answer, and raises WrongAnswer.
CHECKS: dict[str, Callable[[Sequence[Any], Any], object]] = {
    "admit": lambda args, answer: take_admission("", answer),  # noqa: ARG005 - as all checks
    "rank_for_eviction": lambda args, answer: take_order(args[0], "", answer),
    "rank_images_for_removal": lambda args, answer: take_order(args[0], "", answer),
    "pull": lambda args, answer: take_pull("", answer),  # noqa: ARG005 - as all checks
    "restart": lambda args, answer: take_restart(args[0], "", answer),
    "place": lambda args, answer: take_cpus(args[0], args[1], answer),
    "place_memory": lambda args, answer: take_nodes(args[0], answer),
    "cgroup": lambda args, answer: take_values(EVERY_FILE, args[1].name if args[1] else "", args[2], "", answer),
}


def _text(field: str, value: object) -> str:
    if not isinstance(value, str) or len(value) > MAX_TEXT:
        raise WrongAnswer(f"`{field}` must be a text of at most {MAX_TEXT} characters")
    return value
