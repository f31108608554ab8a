"""image volumes: the files of an OCI image. The runtime mounts them; nothing is done on the host and nothing counted.

Source: KEP-4639.
"""

from __future__ import annotations

from pykubelet.act.volumes.kind import InPlacePlan, PlanInputs, VolumeKind


def plan(inputs: PlanInputs) -> InPlacePlan:
    return InPlacePlan(inputs.mounted("", read_only=True, is_measured=False))


KIND = VolumeKind[InPlacePlan](name="image", has_directory=False, plan=plan)
