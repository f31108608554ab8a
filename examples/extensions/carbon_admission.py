"""Holds pods that can wait while the power of this node is dirty or dear.

A pod states what it accepts, and until when it can wait:

    metadata:
      annotations:
        carbon.example.com/most: "200"                  # grams of CO2 for each kWh
        carbon.example.com/start-by: "2026-12-01T06:00:00Z"

The node's label `carbon.example.com/intensity` has the present value; whoever knows it keeps it current, for instance a CronJob with
`kubectl label node --overwrite`. A pod without the annotations, and every pod while the label is missing, is admitted at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from pykubelet.extension import Admission, Extension, Hold, Node, Pod, Reject

LABEL = "carbon.example.com/intensity"
MOST, START_BY = "carbon.example.com/most", "carbon.example.com/start-by"


@dataclass(frozen=True)
class CarbonSettings:
    """`again_s`: how often a pod that waits is looked at again. `longest_s`: no pod waits longer, whatever it states."""

    again_s: int = 60
    longest_s: int = 24 * 3600


class CarbonAdmission(Extension):
    name, api, version, Settings = "carbon-admission", "1.0", "1", CarbonSettings
    annotation = MOST

    def admit(self, pod: Pod, node: Node) -> Admission:
        most, now_g = _number(pod.annotations.get(MOST)), _number(node.labels.get(LABEL))
        if MOST in pod.annotations and most is None:
            return Reject("InvalidCarbonAnnotation", f"annotation {MOST} is no number: {pod.annotations[MOST]}")
        if most is None or now_g is None or now_g <= most or node.time >= self._until(pod, node):
            return None
        return Hold("clean power", f"{now_g:g} g of CO2 for each kWh, {most:g} at most", self.settings.again_s)

    def _until(self, pod: Pod, node: Node) -> float:
        """When the pod is admitted whatever the power is, in seconds since 1970."""
        created = pod.created_at or node.time
        try:
            start_by = datetime.fromisoformat(pod.annotations[START_BY]).timestamp()
        except (KeyError, ValueError):
            start_by = created + self.settings.longest_s
        return min(start_by, created + self.settings.longest_s)


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text is not None else None
    except ValueError:
        return None
