"""Images of important pods are pulled first, and those of batch pods not while important ones are waiting to be pulled.

The kubelet pulls in the order in which pods come: after a node has started, the image of a nightly report may hold up the one of the
shop. This takes the priority of the pod (its PriorityClass) for the order of the pulls that wait for a slot, and can delay batch pods:

    metadata:
      annotations: {pull.example.com/not-before: "2026-12-01T01:00:00Z"}
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from pykubelet.extension import Extension, Node, PullAnswer, PullAttempt, PullLater, PullNever, PullNow

NOT_BEFORE = "pull.example.com/not-before"
HIGHEST = 1_000_000


@dataclass(frozen=True)
class PullSettings:
    """`refused`: prefixes of images that are never pulled here. `longest_s`: no pull is delayed longer than this."""

    refused: tuple[str, ...] = ()
    longest_s: int = 3600


class PullPriority(Extension):
    name, api, version, Settings = "pull-priority", "1.0", "1", PullSettings

    def pull(self, pull: PullAttempt, node: Node) -> PullAnswer:
        if pull.image.startswith(self.settings.refused):
            return PullNever(f"images from {pull.image.partition('/')[0]} are not pulled on this node")
        wait_s = self._wait_s(pull, node)
        if wait_s > 0:
            return PullLater(max(1.0, min(wait_s, 60.0)), f"for another {wait_s:.0f} s")
        return PullNow(max(-HIGHEST, min(HIGHEST, pull.pod.priority)))

    def _wait_s(self, pull: PullAttempt, node: Node) -> float:
        """How long the pull must still wait."""
        try:
            at = datetime.fromisoformat(pull.pod.annotations[NOT_BEFORE]).timestamp()
        except (KeyError, ValueError):
            return 0.0
        return min(at, (pull.waiting_since or node.time) + self.settings.longest_s) - node.time
