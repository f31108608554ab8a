"""csi volumes, which a CSI driver mounts: persistent ones, and those of a pod's own (inline, ephemeral), which it also makes.

Source: the Kubernetes documentation "Volumes", csi; KEP-178 (CSI); KEP-596 (ephemeral inline CSI volumes).
"""

from __future__ import annotations

from pykubelet.provide.volumes.csi.expand import expand
from pykubelet.provide.volumes.csi.mount import mount, unmount
from pykubelet.provide.volumes.csi.objects import claimed_keys, inline_further_keys, inline_keys
from pykubelet.provide.volumes.csi.plan import needs_refresh, plan
from pykubelet.provide.volumes.csi.stage import KIND_NAME, device_of, find_devices, stage, unstage
from pykubelet.provide.volumes.kind import VolumeKind

KIND = VolumeKind(
    name=KIND_NAME,
    plugin="kubernetes.io/csi",
    keys=inline_keys,
    further_keys=inline_further_keys,
    claimed_keys=claimed_keys,
    plan=plan,
    mount=mount,
    unmount=unmount,
    needs_refresh=needs_refresh,
    is_persistent=True,
    mount_options=True,
    maps_devices=True,
    stage=stage,
    unstage=unstage,
    find_devices=find_devices,
    device_of=device_of,
    expand=expand,
)
