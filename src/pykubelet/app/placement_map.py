"""Prints the map of a node: who has which CPUs, memory, devices and claims, and what is free.

The documents come from `serve/explain/placement.py`. Imports only little, because `pykubelet explain` must answer within a tenth
of a second.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pykubelet.app.amounts import render_bytes

Document = Mapping[str, Any]
#: The columns of the left side, in characters. Longer lists of CPUs or devices are broken after a comma.
LEFT, LONGEST = 20, 40

_Row = tuple[str, str]


def map_lines(document: Document) -> Iterator[str]:
    """The lines: a block for each NUMA node, one for each group of nodes that is used together, and one for the claims."""
    numa_nodes = {(node["id"],): node for node in document["numa_nodes"]}
    others = [pool["numa_nodes"] for pool in document["memory"]]
    others += [group["numa_nodes"] for resource in document["devices"] for group in resource["groups"]]
    for nodes in [*numa_nodes, *sorted(set(map(tuple, others)) - numa_nodes.keys(), key=_last_without_nodes)]:
        yield _title(nodes, numa_nodes.get(nodes))
        if nodes in numa_nodes:
            yield from _rows(_cpu_rows(numa_nodes[nodes]))
        yield from _rows(_memory_rows(document["memory"], nodes))
        yield from _device_lines(document["devices"], nodes)
    yield from _stopped_lines(document["devices"])
    yield from _claim_lines(document["claims"])


def pod_lines(document: Document) -> Iterator[str]:
    """What one pod has as a whole, and what its containers have of their own."""
    if whole := _whole_parts(document):
        yield f"  the pod as a whole: {', '.join(whole)}"
    for container in document["containers"]:
        shared = " shared with others of the pod" if container.get("shares_cpus") else ""
        parts = [f"CPUs {container['cpus']}{shared}" if container["cpus"] else "shared pool"]
        parts += _memory_parts(container["memory"])
        parts += [f"{found['resource']} {_ids(found['ids'], found['count'])}" for found in container["devices"]]
        parts += [f"claim {claim['namespace']}/{claim['name']}" for claim in container["claims"]]
        yield f"  {container['name']}: {', '.join(parts)}"


def _whole_parts(document: Document) -> list[str]:
    cpus = [f"CPUs {document['cpus']}"] if document.get("cpus") else []
    return [*cpus, *_memory_parts(document.get("memory", ()))]


def _memory_parts(blocks: Sequence[Document]) -> list[str]:
    return [
        f"{render_bytes(block['size'])} {block['type']} on {list_nodes(block['numa_nodes'])}"
        for block in blocks
        if block["size"]
    ]


def list_nodes(nodes: Sequence[int]) -> str:
    """`node 0`, or `nodes 0, 1`."""
    return f"node{'' if len(nodes) == 1 else 's'} {', '.join(map(str, nodes))}"


def _last_without_nodes(nodes: tuple[int, ...]) -> tuple[bool, tuple[int, ...]]:
    return not nodes, nodes


def _title(nodes: tuple[int, ...], known: Document | None) -> str:
    if known is None:
        return f"NUMA {list_nodes(nodes)}{' together' if len(nodes) > 1 else ''}:" if nodes else "No NUMA node:"
    facts = [f"socket {', '.join(map(str, known['sockets']))}"] if known["sockets"] else []
    facts.append(f"memory {render_bytes(known['memory'])}")
    return f"NUMA node {known['id']} ({', '.join(facts)}): CPUs {known['cpus'] or 'none'}"


def _cpu_rows(node: Document) -> Iterator[_Row]:
    yield node["reserved"], "reserved"
    for part in node["exclusive"]:
        yield part["cpus"], _owner(part)
    yield node["shared"], "shared pool"


def _memory_rows(pools: Sequence[Document], nodes: tuple[int, ...]) -> Iterator[_Row]:
    for pool in pools:
        if tuple(pool["numa_nodes"]) != nodes:
            continue
        for part in pool["held"]:
            yield f"{render_bytes(part['size'])} {pool['type']}", _owner(part)
        if pool["allocatable"]:
            yield f"{render_bytes(pool['free'])} {pool['type']}", f"free of {render_bytes(pool['allocatable'])}"


def _device_lines(resources: Sequence[Document], nodes: tuple[int, ...]) -> Iterator[str]:
    for resource in resources:
        for group in resource["groups"]:
            if tuple(group["numa_nodes"]) == nodes:
                yield f"  {resource['resource']}{' (its plugin has stopped)' if resource['stopped'] else ''}"
                yield from _rows(_device_rows(group), indent=4)


def _device_rows(group: Document) -> Iterator[_Row]:
    for part in group["held"]:
        yield _ids(part["ids"], part["count"]), _owner(part)
    for key in ("unhealthy", "free"):
        yield _ids(group[f"{key}_ids"], group[key]), key


def _stopped_lines(resources: Sequence[Document]) -> Iterator[str]:
    """The resources without any device, which no block has shown."""
    for resource in resources:
        if not resource["groups"]:
            yield f"{resource['resource']}: no devices{', its plugin has stopped' if resource['stopped'] else ''}"


def _claim_lines(claims: Sequence[Document]) -> Iterator[str]:
    if claims:
        yield "Resource claims:"
    for claim in claims:
        yield f"  {claim['namespace']}/{claim['name']}"
        names = [f"{device['driver']}/{device['pool']}/{device['device']}" for device in claim["devices"]]
        yield from (f"    {name}" for name in names)
        yield from (f"    held by {_owner(part)}" for part in claim["held"])


def _owner(part: Document) -> str:
    return f"{part['pod']} {part['container']}"


def _ids(ids: Sequence[str], count: int) -> str:
    """The ids, and how many more there are."""
    more = [f"{count - len(ids)} more" if ids else str(count)] if count > len(ids) else []
    return ",".join([*ids, *more])


def _rows(rows: Iterator[_Row], indent: int = 2) -> Iterator[str]:
    """Two columns; rows without a left side are left out."""
    width = LEFT + 2 - indent
    for left, right in rows:
        if not left:
            continue
        first, *rest = _broken(left)
        yield f"{' ' * indent}{first:<{width}} {right}"
        yield from (f"{' ' * indent}{line}" for line in rest)


def _broken(text: str) -> list[str]:
    lines: list[str] = []
    for part in text.split(","):
        if lines and len(lines[-1]) + 1 + len(part) <= LONGEST:
            lines[-1] += f",{part}"
        else:
            lines.append(part)
    return [*(f"{line}," for line in lines[:-1]), lines[-1]]
