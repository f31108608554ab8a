"""gitRepo volumes: no longer supported. Those that another kubelet has left on disk are deleted with their data.

Source: the Kubernetes documentation "Volumes", gitRepo (deprecated).
"""

from __future__ import annotations

from pykubelet.act.volumes.directories import delete_volume
from pykubelet.act.volumes.kind import VolumeKind, VolumePlan

KIND = VolumeKind[VolumePlan](name="gitRepo", plugin="kubernetes.io/git-repo", tear_down=delete_volume)
