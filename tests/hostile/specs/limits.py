"""What a pod may cost, and which of it a pod has exceeded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

MIB = 1 << 20
#: Memory that may stay after the pod.
KEPT = 8 * MIB
#: Memory that the agent may need beside the forms of the pod, with its status, and of its objects while it is there.
PEAK = 8 * MIB
#: Twice as much for pods of which the agent keeps more than the forms: in proportion to their size, and bounded by the numbers that a pod
#: may have (docs/security.md). By the name of the pod: what that is.
LARGER = {
    "tokens": "each of 9,000 tokens has a task and a request that wait for a slot",
    "sources of one config map": "the plan of a volume with 40,000 files",
    "volumes of one config map": "the state of 3,990 volumes, and the contents of 40,000 files",
    "volumes with many mounts below each other": "the mounts of containers as the runtime reports them",
    "containers with volumes": "the mounts of containers as the runtime reports them",
    "volumes with a mount each": "mounts as the runtime reports them, and the state of 3,990 volumes",
    "volumes in memory": "mounts as the runtime reports them, and the state of 3,990 volumes",
    "containers with probes": "the workers of 980 probes",
    "sidecar resources beside init containers": "the resources of 490 containers in the status, its difference and its patch",
    "containers with named ports": "490 containers as the runtime reports them, their status and probes",
    "pod metadata.finalizers": "the texts of versions that arrive together when the pod ends",
    "pod spec.volumes[].persistentVolumeClaim.claimName": "errors with the name, which an API server bounds to 253 characters",
    "pod spec.volumes[].csi.driver": "errors with the name, which an API server bounds to 63 characters",
    "RuntimeClass handler": "the runtime's errors with the name, which an API server bounds to 63 characters",
    "containers with resources": "the resources of 490 containers in the status, its difference and its patch",
}
#: A pod and its objects are in memory twice for a moment, each as text and as the agent's form: while the next version is decoded,
#: the former one is the truth. What both have is one object afterwards.
FORMS = 2
#: Of a static pod there are its manifest's form and its mirror pod's, which is another object, while the next one is decoded.
FORMS_OF_STATIC = 3
#: A status that has a large text is sent, and comes back in the answer: the pod's text so many times more.
SENT_TEXTS = 2
#: Of the doubles in the same process: memory beside the text of the pod, and copies of the text, which the API server's double has in
#: its store, its history and its answers, and the transport within the process in both directions.
#: Protobuf messages of the agent are in this figure only.
DOUBLES, TEXTS = 32 * MIB, 9
#: Of a mirror pod, it keeps plain objects and their copies, which take so much more than the agent's form.
MIRRORS = 6
#: Files of volumes take 64 Ki blocks or pages at most, beside their contents.
BLOCKS = 256 * MIB
#: Of what is sent and logged, beside the text of the pod.
BESIDE = 4 * MIB
#: Of what is logged in a minute of a pod that has started or cannot, however large it is: its starts are tried again as long as it exists.
LATER = MIB // 2


def own_peak(cost: dict[str, Any]) -> int:
    """The most memory that the agent may need for the pod."""
    beside = 2 * PEAK if cost["name"].removeprefix("static ") in LARGER else PEAK
    sent = SENT_TEXTS * cost["size"] if cost["is_text"] else 0
    found: int = beside + sent + (FORMS_OF_STATIC if cost["is_static"] else FORMS) * cost["forms"]
    return found


def exceeded(cost: dict[str, Any]) -> list[str]:
    """The limits that the pod exceeds, each with its name first."""
    return [*_exceeded(cost)]


def _exceeded(cost: dict[str, Any]) -> Iterator[str]:
    held_s, limit_s = cost["held_s"], cost["limit_s"]
    if held_s > limit_s:
        yield f"loop: {held_s * 1000:.0f} ms of CPU time in one iteration, mostly {cost['held_by']}, more than {limit_s * 1000:.0f}"
    mirrors = MIRRORS * cost["forms"] if cost["is_static"] else 0
    figures = {**cost, "uncharged": cost["disk"] - cost["charged"]}
    for name, most in (
        ("kept", KEPT),
        ("traced", own_peak(cost)),
        ("peak", own_peak(cost) + DOUBLES + TEXTS * cost["size"] + mirrors),
        ("disk", BLOCKS + 2 * cost["size"]),
        # the status that the agent keeps over its end, and the logs of the double's containers
        ("uncharged", BESIDE + 2 * cost["size"]),
        ("memory", BLOCKS + 2 * cost["size"]),
        ("sent", BESIDE + 2 * cost["size"]),
        ("logged", BESIDE + 4 * cost["size"]),
        ("logged_later", LATER),
    ):
        if figures[name] > most:
            yield f"{name}: {figures[name] >> 10} KiB, more than {most >> 10}"
    if not cost["is_gone"]:
        yield "end: the pod does not go"
    yield from (f"crash: {line}" for line in cost["crashes"])


#: Lines of Python that the agent's loops execute now and then, whatever the pod.
NOISE = 25_000
#: More than linear, but bounded by a small number: the name of the pod, and why.
BOUNDED = {
    "ephemeral containers": "each event of a container costs a look at all, of which a pod has 500 at most",
    "generic ephemeral volumes": "each claim costs a look at all volumes, until a pod has 100 of them: then they are read in groups",
}


def superlinear(counted: dict[str, Any]) -> str:
    """Why the lines of a pod grow faster than its size, which is twice as much in `more` as in `few`; "" if they do not."""
    few, more = counted["few"], counted["more"]
    of_few, of_more = (max(0, measured["lines"] - counted["small"]) for measured in (few, more))
    if of_more <= 2.5 * of_few + NOISE or few["name"] in BOUNDED:
        return ""
    growth = {name: lines - few["by_name"].get(name, 0) for name, lines in more["by_name"].items()}
    worst = sorted(growth, key=growth.__getitem__, reverse=True)[:3]
    return f"{of_few} lines for a pod become {of_more} for one twice as large, most of them in {', '.join(worst)}"
