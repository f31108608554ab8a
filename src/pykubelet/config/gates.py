"""Feature gates: names, defaults and locks of a release, and the set in force. Pure.

Owns: the rules for setting gates (unknown name, locked gate, unmet dependency, `AllAlpha`, `AllBeta`). The table by release is in
`gate_table.py`. One of the kubelet's gates that can be set has its effect in this agent, unless `FIXED` or `EITHER_WAY` names it.
Source: the kubelet's command line reference and the list of feature gates in the Kubernetes documentation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from functools import cache

from pykubelet.base.kit.text import nearest
from pykubelet.base.kit.values import Value
from pykubelet.base.model.version import CURRENT, Release
from pykubelet.config.gate_table import KUBELET, OTHERS

ALL_ALPHA = "AllAlpha"
ALL_BETA = "AllBeta"


class FeatureStage(StrEnum):
    ALPHA = "ALPHA"
    BETA = "BETA"
    GA = "GA"
    DEPRECATED = "DEPRECATED"


class Gate(Value):
    """One feature gate in one release. `locked`: it may only be set to `default`. `needs`: the gates that must be on too."""

    default: bool
    stage: FeatureStage
    locked: bool = False
    needs: tuple[str, ...] = ()


class Fixed(Value):
    """A gate that this agent does not let be set: whether it is on, and why. `since`: the first release for which that holds."""

    on: bool
    why: str
    since: Release = Release.V1_36


_RELOADED = "are always read again"
_NOT_YET = "is not supported"
#: Gates of the kubelet that have one value in this agent. Setting one to the other value is refused; `AllAlpha` and `AllBeta`
#: do not change it.
FIXED: Mapping[str, Fixed] = {
    **{
        name: Fixed(False, why)
        for name, why in {
            "CRIListStreaming": "lists of pods, containers and images are read from the runtime in one message each",
            "ImageVolumeWithDigest": "the digests of image volumes are not reported",
            "InPlacePodVerticalScalingExclusiveCPUs": "containers with exclusive CPUs cannot be resized in place",
            "InPlacePodVerticalScalingExclusiveMemory": "containers with memory of NUMA nodes of their own cannot be resized in place",
            "InPlacePodVerticalScalingSchedulerPreemption": "only the scheduler decides on it",
            "PodAndContainerStatsFromCRI": "usage is read from cgroups, not from the runtime",
            "PodCertificateMLDSA": "keys with ML-DSA are not made for pods",
            "RuntimeClassInImageCriApi": "images are not counted for each runtime handler",
            "UserNamespacesHostNetworkSupport": "a pod on the host's network cannot have its own user namespace",
        }.items()
    },
    # In 1.36, drivers are asked for the condition of volumes together with their usage; 1.37 has another design of KEP-1432.
    "CSIVolumeHealth": Fixed(False, "health of volumes by CSI 1.13 is not reported", since=Release.V1_37),
    "ReloadKubeletClientCAFile": Fixed(True, f"the contents of a changed client CA file {_RELOADED}"),
    "ReloadKubeletServerCertificateFile": Fixed(True, f"changed certificate and key files {_RELOADED}"),
}
#: Gates of the kubelet that choose between two ways to one result. This agent has one way, so both values are accepted.
#: Log lines have the fields of their call and none of a context (the first); exits come from the runtime's events and from
#: lists (the next two); what the kernel refuses to a user namespace is never an error (the fourth). Nothing in Kubernetes asks for
#: the last one yet: the conditions that it names are set by whoever drains a node, and this agent keeps them in the Node.
EITHER_WAY = frozenset(
    {"ContextualLogging", "EventedPLEG", "PLEGOnDemandRelist", "KubeletInUserNamespace", "NodeLifecycleConditions"}
)


class _Row(Value):
    """One gate through all releases. `stages`: of the releases that have the gate, in order."""

    is_kubelets: bool
    stages: Mapping[Release, Gate]


@cache
def _table() -> Mapping[str, _Row]:
    return {
        name: _Row(is_kubelets, stages)
        for text, is_kubelets in ((KUBELET, True), (OTHERS, False))
        for name, stages in _rows(text)
    }


def _rows(text: str) -> Iterator[tuple[str, Mapping[Release, Gate]]]:
    for line in text.strip().splitlines():
        name, *words = line.split()
        needs, stages, gate = tuple(words[len(Release) :]), {}, None
        for release, word in zip(Release, words, strict=False):
            gate = gate if word == "." else _gate(word, needs)
            if gate is not None:
                stages[release] = gate
        yield name, stages


def _gate(word: str, needs: tuple[str, ...]) -> Gate | None:
    """The gate of a word such as `beta,off`; None for `-`."""
    if word == "-":
        return None
    first, *marks = word.split(",")
    stage = FeatureStage(first.upper())
    default = "on" in marks or (stage in (FeatureStage.BETA, FeatureStage.GA) and "off" not in marks)
    return Gate(default, stage, "locked" in marks, needs)


def fixed_gate(name: str, release: Release) -> Fixed | None:
    """The one value that a gate has here in a release; None if it can be set."""
    fixed = FIXED.get(name)
    return fixed if fixed is not None and release.has(fixed.since) else None


def all_gates() -> Mapping[str, Mapping[Release, Gate]]:
    """Every gate of any release by name: what it is in each release that has it."""
    return {name: row.stages for name, row in _table().items()}


@cache
def known_gates(release: Release = CURRENT) -> Mapping[str, Gate]:
    """Every gate of a release by name."""
    return {name: row.stages[release] for name, row in _table().items() if release in row.stages}


@cache
def kubelet_gates(release: Release = CURRENT) -> frozenset[str]:
    """The gates of a release that the kubelet reads."""
    return frozenset(name for name, row in _table().items() if row.is_kubelets and release in row.stages)


@cache
def settable_gates(release: Release = CURRENT) -> frozenset[str]:
    """The gates of a release that the kubelet reads and that are not locked."""
    gates = known_gates(release)
    return frozenset(name for name in kubelet_gates(release) if not gates[name].locked)


class FeatureGates(Value):
    """The gates in force in a release: the defaults, overridden by `given`."""

    given: Mapping[str, bool]
    release: Release = CURRENT

    def enabled(self, name: str) -> bool:
        """Whether a gate is on. One that the release has no more is what it last was by default; one of a later release is off.

        Raises KeyError for a name of no release, which is a bug in the caller.
        """
        if (fixed := fixed_gate(name, self.release)) is not None:
            return fixed.on
        gate = known_gates(self.release).get(name)
        if gate is None:
            return _settled(name, self.release)
        if name in self.given:
            return self.given[name]
        return self.given.get(_group(gate), gate.default)

    def knows(self, name: str) -> bool:
        """Whether the release has the gate."""
        return name in known_gates(self.release)

    def all(self) -> dict[str, tuple[bool, str]]:
        """Every gate of the release: whether it is on, and its stage."""
        return {name: (self.enabled(name), gate.stage.value) for name, gate in known_gates(self.release).items()}

    def leaving(self) -> tuple[tuple[str, str], ...]:
        """The given gates that a later release removes, by name: each with its stage, as the kubelet words it."""
        words = {FeatureStage.GA: "GA", FeatureStage.DEPRECATED: "deprecated"}
        gates = known_gates(self.release)
        stages = ((name, gates[name].stage) for name in sorted(self.given) if name in gates)
        return tuple((name, words[stage]) for name, stage in stages if stage in words)

    def unmoved(self) -> tuple[str, ...]:
        """The gates that keep their values although `AllAlpha` or `AllBeta` sets the other one, sorted."""
        gates = known_gates(self.release)
        here = {
            name: fixed for name in FIXED if name in gates and (fixed := fixed_gate(name, self.release)) is not None
        }
        return tuple(sorted(name for name in here if self.given.get(_group(gates[name])) is (not here[name].on)))


def _settled(name: str, release: Release) -> bool:
    """Whether a gate of other releases is on in one without it."""
    before = [gate for other, gate in _table()[name].stages.items() if release.has(other)]
    return before[-1].default if before else False


def _group(gate: Gate) -> str:
    """The name that sets all gates of the stage; "" if there is none."""
    return "" if gate.locked else {FeatureStage.ALPHA: ALL_ALPHA, FeatureStage.BETA: ALL_BETA}.get(gate.stage, "")


def setting_problems(given: Mapping[str, bool], release: Release = CURRENT) -> list[str]:
    """The problems of the given gates: unknown names and locked gates, in the reference's words, and gates of `FIXED`."""
    problems = []
    for name in sorted(given):
        gate = known_gates(release).get(name)
        if name in (ALL_ALPHA, ALL_BETA):
            continue
        wanted = str(given[name]).lower()
        if gate is None:
            problems.append(f"unrecognized feature gate: {name}{_advice(name, release)}")
        elif gate.locked and given[name] != gate.default:
            fixed = str(gate.default).lower()
            problems.append(f"cannot set feature gate {name} to {wanted}, feature is locked to {fixed}")
        elif (here := fixed_gate(name, release)) is not None and given[name] != here.on:
            problems.append(f"cannot set feature gate {name} to {wanted} here: {here.why}")
    return problems


def dependency_problems(gates: FeatureGates) -> list[str]:
    """The problems of gates that are on while a gate that they depend on is off."""
    problems = []
    for name, gate in sorted(known_gates(gates.release).items()):
        missing = [need for need in gate.needs if not gates.enabled(need)]
        if missing and gates.enabled(name):
            problems.append(f"{name} is enabled, but depends on features that are disabled: [{' '.join(missing)}]")
    return problems


def _advice(name: str, release: Release) -> str:
    """What to do about an unknown gate: remove one of another release, or correct its name."""
    row = _table().get(name)
    if row is not None:
        last = list(row.stages)[-1]
        if not release.has(last):
            return f" (new in Kubernetes {next(iter(row.stages))}; this agent is {release})"
        state = "on" if row.stages[last].default else "off"
        return f" (Kubernetes {last} was the last release with it, its feature is always {state} now: remove the gate)"
    near = nearest(name, known_gates(release), cutoff=0.7)
    return f' (did you mean "{near}"?)' if near else ""
