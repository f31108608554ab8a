"""The parts of `pykubelet explain node`, as plain values for JSON: API server, certificates, plugins, claims of manifests, eviction. Pure.

Owns: also the waits that API server and certificates cause. On a standalone node, their parts are empty; only there manifests have claims.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import asdict

from pykubelet.base.api.core import Pod
from pykubelet.base.api.storage import PersistentVolume, PersistentVolumeClaim
from pykubelet.base.api.times import format_time
from pykubelet.base.kit.values import replace
from pykubelet.base.model.content import Content, Present
from pykubelet.base.model.credentials import CertificateState, Credentials
from pykubelet.base.model.evictions import EVICTION_SIGNALS, Evictions, EvictionSignal, SignalState, SignalStates
from pykubelet.base.model.extensions import ExtensionStates
from pykubelet.base.model.ids import PodRef
from pykubelet.base.model.lifecycle import Lifecycles
from pykubelet.base.model.node import ApiState, NodeView
from pykubelet.base.model.plugins import Plugins
from pykubelet.base.model.roster import Roster, is_critical, pod_ref
from pykubelet.base.model.usage import Usage
from pykubelet.base.model.waits import Owner, Wait
from pykubelet.observe.eviction.decide_evictions import candidates_of, in_order
from pykubelet.observe.eviction.messages import spoken_amount
from pykubelet.observe.eviction.model import AskForRanking, Candidate, FsLayout
from pykubelet.observe.eviction.rank import requested
from pykubelet.observe.eviction.signals import SIGNAL_RULES

Document = dict[str, Any]
SHOWN_USERS = 3

# API server and certificates


def api_document(api: ApiState, node: NodeView) -> Document | None:
    """The fields of ApiState, and `registered` and `uid` of the node."""
    return {**asdict(api), "registered": node.registered, "uid": node.uid} if api.server else None


def certificates_document(credentials: Credentials) -> list[Document]:
    """One document for each certificate that the agent renews: the fields of CertificateState, and `use`."""
    return [{"use": use, **asdict(state)} for use, state in sorted(credentials.certificates.items())]


def cluster_waits(
    api: ApiState, credentials: Credentials, node: NodeView, now: float, started_at: float
) -> tuple[Wait, ...]:
    """The waits for the API server and the certificates. `now`, `started_at` (the agent's start): wall seconds."""
    if not api.server:
        return ()
    waits = []
    since = api.since if api.since is not None else started_at
    if api.error:
        waits.append(Wait("API server", Owner.NODE_STATUS, since, "", "", api.error, "ask again", api.next_at))
    elif not node.registered:
        detail = f'there is no Node "{node.name}" yet' + (f": {api.node_error}" if api.node_error else "")
        waits.append(Wait("registration", Owner.NODE_STATUS, started_at, "", "", detail, "try again", api.node_next_at))
    elif api.node_error:
        since = api.node_since or started_at
        waits.append(
            Wait("node status", Owner.NODE_STATUS, since, "", "", api.node_error, "report it again", api.node_next_at)
        )
    waits += [wait for use, state in sorted(credentials.certificates.items()) for wait in _certificate(use, state, now)]
    return tuple(waits)


def _certificate(use: str, state: CertificateState, now: float) -> list[Wait]:
    what, reason = f"{use} certificate", ""
    if state.expires_at is None:
        reason = "there is none yet"
    elif state.expires_at <= now:
        reason = f"expired at {format_time(state.expires_at)}"
    wait = Wait(what, Owner.CERTIFICATE_MANAGER, state.since, "", reason)
    if state.request:
        detail = f"signing request {state.request} is to be approved"
        return [replace(wait, detail=detail, next_step="use it as soon as it is issued")]
    if state.problem or reason:
        return [replace(wait, detail=state.problem, next_step="ask for one again", next_at=state.next_at)]
    return []


# Plugins


def plugins_document(plugins: Plugins) -> list[Document]:
    """`[{"socket", "type", "name", "endpoint", "versions", "since", "problem"}]`, by socket. `since`: wall seconds.

    A socket whose plugin could not be registered has only its `problem`.
    """
    found: dict[str, Document] = {
        socket: {
            "socket": socket,
            "type": plugin.type.value,
            "name": plugin.name,
            "endpoint": plugin.endpoint,
            "versions": list(plugin.versions),
            "since": plugin.registered_at,
            "problem": "",
        }
        for socket, plugin in plugins.plugins.items()
    }
    unknown: Document = {"type": "", "name": "", "endpoint": "", "versions": [], "since": None}
    for socket, problem in plugins.problems.items():
        found[socket] = {**found.get(socket, {"socket": socket, **unknown}), "problem": problem}
    return [found[socket] for socket in sorted(found)]


# Extensions


def extensions_document(states: ExtensionStates) -> list[Document]:
    """One document for each extension: the fields of ExtensionState."""
    return [asdict(state) for state in states.extensions]


# Claims of manifests


def claim_documents(content: Content) -> list[Document]:
    """`[{"claim", "volume", "size", "problem"}]`: claims by name, and after them volumes without a claim.

    `claim`: `namespace/name`, "" for a volume without one. `problem`: why a claim has no volume.
    """
    if not content.has_manifests:
        return []
    claims, free = [], []
    for key, found in sorted(content.objects.items()):
        name = f"{key.namespace}/{key.name}" if key.namespace else ""
        match found:
            case Present(PersistentVolumeClaim() as claim):
                size = claim.status.capacity.get("storage", "") if claim.status is not None else ""
                claims.append(_document(name, claim.spec.volumeName, str(size)))
            case Present(PersistentVolume() as volume):
                if volume.status is None or volume.status.phase != "Bound":
                    free.append(_document("", key.name, str(volume.spec.capacity.get("storage", ""))))
            case Present():
                pass
            case _ if key.namespace:
                claims.append(_document(name, problem=found.message))
    return [*claims, *free]


def _document(claim: str, volume: str = "", size: str = "", problem: str = "") -> Document:
    return {"claim": claim, "volume": volume, "size": size, "problem": problem}


# Eviction


def eviction_document(
    signals: SignalStates,
    evictions: Evictions,
    roster: Roster,
    lifecycles: Lifecycles,
    usage: Usage,
    ask_extensions: AskForRanking | None = None,
) -> Document:
    """`{"at", "layout", "dry_run", "signals": [...], "would_evict": [...]}`.

    Amounts are in the signal's `unit`. `top` and `next` are computed from the last usage of the pods, and are empty without it.
    """
    candidates = candidates_of(roster, lifecycles, usage, evictions.pods) if usage.taken_at is not None else ()
    layout = FsLayout(signals.layout) if signals.layout else FsLayout.SHARED
    return {
        "at": signals.at,
        "layout": signals.layout,
        "dry_run": signals.dry_run,
        "signals": [_signal(state, candidates, layout, ask_extensions) for state in signals.states],
        "would_evict": [
            {"at": would.at, "pod": _name(would.eviction.ref), "signal": would.signal, "why": would.eviction.message}
            for would in signals.would_evict
        ],
    }


def _signal(
    state: SignalState, candidates: Sequence[Candidate], layout: FsLayout, ask_extensions: AskForRanking | None
) -> Document:
    signal, rules = EVICTION_SIGNALS[state.signal], SIGNAL_RULES[state.signal]
    used = [(rules.used(candidate, layout) or 0, candidate.pod) for candidate in candidates]
    top = sorted(used, key=lambda pair: pair[0], reverse=True)[:SHOWN_USERS]
    ranked = in_order(candidates, state.signal, layout, ask_extensions)
    victim = next((candidate for candidate in ranked if not is_critical(candidate.pod)), None)
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
