"""gitRepo volumes: refused. Those that another kubelet has left on disk are deleted with their data.

Source: the Kubernetes documentation "Volumes", gitRepo (deprecated).
"""

from __future__ import annotations

from pykubelet.provide.volumes.directories import delete_volume
from pykubelet.provide.volumes.kind import NEW_MOUNTER, PlanInputs, RefusedPlan, VolumeKind, VolumePlan


def plan(_inputs: PlanInputs) -> RefusedPlan:
    """Always refused: no git program runs for pods on the node."""
    text = (
        "git-repo volume plugin has been disabled; let an init container clone the repository into an emptyDir volume"
    )
    return RefusedPlan(text, step=NEW_MOUNTER)


KIND = VolumeKind[VolumePlan](name="gitRepo", plugin="kubernetes.io/git-repo", plan=plan, tear_down=delete_volume)
