"""What a pod may cost, and which of it a pod has exceeded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

MIB = 1 << 20
#: Memory that may stay after the pod.
KEPT = 8 * MIB
#: Memory that the process may need beside the forms of the pod and its objects while it is there. Much of it belongs to the doubles of the
#: API server and of the runtime, which are in the same process and keep each text several times.
PEAK = 64 * MIB
#: The pod and its objects are in memory several times for a moment: the text and the form of the API server's double, of the agent's
#: watch, and of its decoder.
COPIES = 6
#: Files of volumes take 64 Ki blocks or pages at most, beside their contents.
BLOCKS = 256 * MIB
#: Of what is sent and logged, beside the text of the pod.
BESIDE = 4 * MIB


def exceeded(cost: dict[str, Any]) -> list[str]:
    """The limits that the pod exceeds, each with its name first."""
    return [*_exceeded(cost)]


def _exceeded(cost: dict[str, Any]) -> Iterator[str]:
    held_s, limit_s = cost["held_s"], cost["limit_s"]
    if held_s > limit_s:
        yield f"loop: {held_s * 1000:.0f} ms of CPU time in one iteration, mostly {cost['held_by']}, more than {limit_s * 1000:.0f}"
    for name, most in (
        ("kept", KEPT),
        ("peak", PEAK + COPIES * (cost["own"] + cost["size"])),
        ("disk", BLOCKS + 2 * cost["size"]),
        ("memory", BLOCKS + 2 * cost["size"]),
        ("sent", BESIDE + 2 * cost["size"]),
        ("logged", BESIDE + 4 * cost["size"]),
    ):
        if cost[name] > most:
            yield f"{name}: {cost[name] >> 10} KiB, more than {most >> 10}"
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
    of_few, of_more = (max(0, one["lines"] - counted["small"]) for one in (few, more))
    if of_more <= 2.5 * of_few + NOISE or few["name"] in BOUNDED:
        return ""
    growth = {name: lines - few["by_name"].get(name, 0) for name, lines in more["by_name"].items()}
    worst = sorted(growth, key=growth.__getitem__, reverse=True)[:3]
    return f"{of_few} lines for a pod become {of_more} for one twice as large, most of them in {', '.join(worst)}"
