"""Extensions of the node agent: take part in its decisions without changing its code.

An extension is a class in a file or an installed package, loaded with `--extension NAME[=SETTINGS.yaml]`:

    from pykubelet.extension import Admission, Extension, Node, Pod, Reject

    class Cheap(Extension):
        name = "cheap"
        api = "1.0"

        def admit(self, pod: Pod, node: Node) -> Admission:
            if pod.labels.get("batch") == "yes" and node.labels.get("price") == "high":
                return Reject("TooExpensive", "power is expensive now")
            return None  # as without the extension

Each method is one point at which an extension decides. A point that a class does not define stays as it is, and None means the
built-in decision. Points are pure functions: they run in the event loop of the agent, with a budget of CPU time and memory
(docs/extensions/README.md). What reads files, sockets or the network is a process of its own (`pykubelet.extension.process`).

This package depends on nothing of the agent, and has a version of its own (docs/extensions/VERSIONING.md).
"""

from __future__ import annotations

from pykubelet.extension.extension import VERSION, Extension
from pykubelet.extension.values import (
    Admission,
    Container,
    CpuMachine,
    CpuRequest,
    EvictionCandidate,
    Exit,
    Hold,
    Image,
    MachineCpu,
    MemoryChoice,
    MemoryMachine,
    MemoryNode,
    MemoryRequest,
    Node,
    Pod,
    PullAnswer,
    PullAttempt,
    PullLater,
    PullNever,
    PullNow,
    Reject,
    RestartAfter,
    RestartAnswer,
    RestartHistory,
    RestartNever,
    Usage,
)

__all__ = [
    "VERSION",
    "Admission",
    "Container",
    "CpuMachine",
    "CpuRequest",
    "EvictionCandidate",
    "Exit",
    "Extension",
    "Hold",
    "Image",
    "MachineCpu",
    "MemoryChoice",
    "MemoryMachine",
    "MemoryNode",
    "MemoryRequest",
    "Node",
    "Pod",
    "PullAnswer",
    "PullAttempt",
    "PullLater",
    "PullNever",
    "PullNow",
    "Reject",
    "RestartAfter",
    "RestartAnswer",
    "RestartHistory",
    "RestartNever",
    "Usage",
]
