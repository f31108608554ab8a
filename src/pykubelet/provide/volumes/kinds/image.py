"""image volumes: the files of an OCI image. The runtime mounts them; the agent does no work on the host and counts none.

Source: KEP-4639.
"""

from __future__ import annotations

from pykubelet.provide.volumes.kind import InPlacePlan, PlanInputs, VolumeKind


def plan(inputs: PlanInputs) -> InPlacePlan:
    """A read-only volume without a host path."""
    return InPlacePlan(inputs.mounted("", read_only=True, is_measured=False))


KIND = VolumeKind[InPlacePlan](name="image", has_directory=False, plan=plan)
