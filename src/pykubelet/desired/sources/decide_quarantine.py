"""Decides which pods and manifests are in quarantine, and until when. Pure. Times are wall seconds, because they outlive the agent.

Rules:
- An end of the agent is charged to a pod by its UID, or to a manifest by its place where the pod is not known yet.
- From the second charge on, the pod is in quarantine: for 10 minutes, then twice as long for each further charge, a day at most. After
  that it is tried again.
- The charges count for one spec of the pod, or one content of the manifest: the first one that is seen after the charge. Another one
  is tried at once.
- Charges are forgotten when a day has passed without a new one, not counting the quarantine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pykubelet.base.api.core import Container, ObjectMeta, Pod, PodSpec, Probe
from pykubelet.base.kit.backoff import BackoffPolicy
from pykubelet.base.kit.values import Value, replace
from pykubelet.base.model.labels import CONFIG_HASH, CONFIG_SEEN, CONFIG_SOURCE
from pykubelet.base.model.reasons import QUARANTINED
from pykubelet.base.model.waits import Owner, Wait

TOLERATED_ENDS = 1
QUARANTINE = BackoffPolicy(600.0, 86400.0)
FORGET_S = 86400.0
MAX_SUSPECTS = 256
#: The containers that are shown of a pod in quarantine.
MAX_CONTAINERS = 100
#: Their ports of the node, which no other pod can have.
MAX_PORTS = 100
MAX_CAUSE = 200
_KEPT_ANNOTATIONS = (CONFIG_HASH, CONFIG_SEEN, CONFIG_SOURCE)


class Suspect(Value):
    """A pod or manifest to which ends of the agent are charged. `content`: the checksum of its spec or text; empty: not known yet.

    `ends`: how many. `charged_at`: when the last one was. `cause`: of that. `until`: the end of the quarantine; 0: there is none.
    """

    ends: int
    charged_at: float
    cause: str
    content: str = ""
    until: float = 0.0


Suspects = Mapping[str, Suspect]


def charged(suspects: Suspects, charges: Iterable[tuple[str, str]], now: float) -> Suspects:
    """The suspects after an end of the agent. `charges`: the key and the cause of each. The oldest ones are dropped above MAX_SUSPECTS."""
    found = dict(remembered(suspects, now))
    for key, cause in charges:
        before = found.pop(key, None)
        ends = before.ends + 1 if before is not None else 1
        until = now + QUARANTINE.delay_s(ends - TOLERATED_ENDS) if ends > TOLERATED_ENDS else 0.0
        content = before.content if before is not None else ""
        found[key] = Suspect(ends, now, cause[:MAX_CAUSE], content, until)
    return dict(list(found.items())[-MAX_SUSPECTS:])


def remembered(suspects: Suspects, now: float) -> Suspects:
    """The suspects without those with forgotten charges. A time in the future, after a change of the clock, counts as now."""
    return {
        key: suspect
        for key, suspect in suspects.items()
        if now - max(min(suspect.charged_at, now), min(suspect.until, now)) < FORGET_S
    }


def with_content(suspect: Suspect, content: str) -> Suspect | None:
    """The suspect, now that its content is seen; None if it has another content than was charged."""
    if suspect.content == content:
        return suspect
    return replace(suspect, content=content) if not suspect.content else None


def is_quarantined(suspect: Suspect, now: float) -> bool:
    """Whether nothing is done with the pod or manifest now. A change of the clock does not make it longer than the longest one."""
    return now < suspect.until <= now + QUARANTINE.cap_s


def wait_of(suspect: Suspect) -> Wait:
    """What a pod in quarantine waits for."""
    return Wait(
        "end of quarantine",
        Owner.POD_SOURCES,
        suspect.charged_at,
        reason=QUARANTINED,
        detail=text_of(suspect),
        next_step="try the pod again",
        next_at=suspect.until,
    )


def text_of(suspect: Suspect) -> str:
    """Why a pod or manifest is in quarantine."""
    return f"the agent has ended {suspect.ends} times while it worked on this; the last time {suspect.cause}"


def stub_of(pod: Pod) -> Pod:
    """The pod with the fields that show what it is, and no others: what is dropped cannot be in the way of the agent.

    Probes are left without a handler: they are not run, and a container without them would count as ready.
    """
    meta, spec = pod.metadata, pod.spec
    annotations = {key: meta.annotations[key] for key in _KEPT_ANNOTATIONS if key in meta.annotations}
    return Pod(
        metadata=ObjectMeta(
            name=meta.name,
            namespace=meta.namespace,
            uid=meta.uid,
            annotations=annotations,
            creationTimestamp=meta.creationTimestamp,
            deletionTimestamp=meta.deletionTimestamp,
            deletionGracePeriodSeconds=meta.deletionGracePeriodSeconds,
            generation=meta.generation,
        ),
        spec=PodSpec(
            nodeName=spec.nodeName,
            restartPolicy=spec.restartPolicy,
            hostNetwork=spec.hostNetwork,
            priority=spec.priority,
            priorityClassName=spec.priorityClassName,
            terminationGracePeriodSeconds=spec.terminationGracePeriodSeconds,
            resources=spec.resources,
            overhead=spec.overhead,
            initContainers=tuple(map(_shown, spec.initContainers[:MAX_CONTAINERS])),
            containers=tuple(map(_shown, spec.containers[:MAX_CONTAINERS])),
        ),
        status=pod.status,
    )


def _shown(container: Container) -> Container:
    return Container(
        name=container.name,
        image=container.image,
        resources=container.resources,
        ports=tuple(port for port in container.ports if port.hostPort)[:MAX_PORTS],
        restartPolicy=container.restartPolicy,
        startupProbe=Probe() if container.startupProbe is not None else None,
        readinessProbe=Probe() if container.readinessProbe is not None else None,
    )
